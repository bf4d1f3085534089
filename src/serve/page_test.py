#!/usr/bin/env python3
"""Tests the page of kvant serve in a real browser, against a started server.

    src/serve/page_test.py KVANT MODEL                               KVANT is the program, and MODEL is a GGUF file
    src/serve/page_test.py KVANT MODEL --screenshots FOLDER RECIPE   also takes pictures of the page with a cache by RECIPE

Without Chromium, the test is skipped; `scripts/setup.sh test` installs Chromium.
"""
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
import browser as browsers  # noqa: E402
from server_process import KEY, Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTION = (ROOT / "data/sample/question.txt").read_text(encoding="utf-8")


def fields(value):
    """Returns the names of all fields of a JSON value, at any depth."""
    if isinstance(value, dict):
        return {*value, *(name for inner in value.values() for name in fields(inner))}
    return {name for inner in value for name in fields(inner)} if isinstance(value, list) else set()


MARKDOWN = r"""# Head <b>x</b>

A *b* **c** `d<e>` [site](https://example.org/) [bad](javascript:alert(1)) <img src=x onerror=alert(1)>

- one
  1. two
- three

```html
<script>alert(1)</script>
```

| a | b |
|---|--:|
| 1 | 2 |

> quoted
"""
HTML = (
    '<h3>Head &lt;b&gt;x&lt;/b&gt;</h3>'
    '<p>A <em>b</em> <strong>c</strong> <code>d&lt;e&gt;</code> '
    '<a href="https://example.org/" target="_blank" rel="noopener noreferrer">site</a> [bad](javascript:alert(1)) &lt;img src=x onerror=alert(1)&gt;</p>'
    '<ul><li><p>one</p><ol start="1"><li><p>two</p></li></ol></li><li><p>three</p></li></ul>'
    '<div class="code"><div class="code-head"><span>html</span><button type="button">Copy</button></div>'
    '<pre><code>&lt;script&gt;alert(1)&lt;/script&gt;</code></pre></div>'
    '<div class="scroll"><table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table></div>'
    '<blockquote><p>quoted</p></blockquote>')


class Page(unittest.TestCase):
    """The tests follow the order of a visit: each starts where the previous test ended."""

    def test_1_asks_for_the_key_and_shows_the_cache(self):
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(SERVER.url + "/cache")
        BROWSER.look_like(1440, 900)
        BROWSER.open(SERVER.url)
        BROWSER.wait_for("document.activeElement.name === 'key'")
        BROWSER.type(KEY)
        BROWSER.press("Enter")
        BROWSER.wait_for("document.querySelector('#cache').dataset.ready")
        BROWSER.problems.clear()  # the missing key caused a message
        cache = SERVER.json("/cache")
        known = set(re.findall(r"`([^`]+)`", (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")))
        self.assertEqual(set(fields(cache)) - known, set())
        self.assertEqual(BROWSER.evaluate("document.querySelectorAll('.grid .cell').length"), cache["layers"] * cache["kv_heads"] * 2)
        described = BROWSER.evaluate("""(() => { const cell = document.querySelector('.grid .cell[data-cell="4"][data-side="v"]');
            cell.dispatchEvent(new PointerEvent('pointerover', { bubbles: true })); return document.querySelector('.tip').textContent; })()""")
        used = cache["plan"]["formats"][cache["plan"]["v"][4]]
        self.assertIn(f"Layer 1, KV head 1, V: hadamard:{used['format']}, {used['bits']:.2f} bits", described)

    def test_2_streams_an_answer(self):
        BROWSER.evaluate("document.querySelector('#probabilities').click()")
        ask("List three colours, and say something about each.", 40)
        lengths = set()
        BROWSER.wait_for("document.querySelector('.turn.assistant .body').textContent")
        while BROWSER.evaluate("document.body.classList.contains('answering')"):
            lengths.add(BROWSER.evaluate("document.querySelector('.turn.assistant .body').textContent.length"))
        self.assertGreater(len(lengths), 2)
        self.assertRegex(BROWSER.evaluate("document.querySelector('.turn.assistant .figures').textContent"),
                         r"^\d+ tokens in .* tokens/s · 0 of \d+ prompt tokens reused")
        self.assertRegex(BROWSER.evaluate("document.querySelector('#turns [title]').title"), r'^".+" [\d.]+ %')
        # A prompt this short leaves nothing in the prefix cache.
        BROWSER.wait_for("document.querySelector('.headline strong').textContent.includes('bits')")

    def test_2b_explains_on_a_phone_and_by_keyboard(self):
        tip = "(() => { const tip = document.querySelector('#tip'); return tip.hidden ? '' : tip.textContent; })()"
        BROWSER.look_like(390, 844)
        BROWSER.evaluate("document.querySelector('#turns [title]').scrollIntoView({ block: 'center' })")
        title, x, y = BROWSER.evaluate("""(() => { const mark = document.querySelector('#turns [title]'), at = mark.getClientRects()[0];
            return [mark.title, at.x + at.width / 2, at.y + at.height / 2]; })()""")
        BROWSER.tap(x, y)
        BROWSER.wait_for(f"{tip} === {json.dumps(title)}")
        inside = BROWSER.evaluate("(() => { const at = document.querySelector('#tip').getBoundingClientRect();"
                                  " return at.left >= 0 && at.right <= innerWidth && at.top >= 0 && at.bottom <= innerHeight; })()")
        self.assertTrue(inside)
        shots("serve-tip", every=False)
        BROWSER.tap(x, y)
        BROWSER.wait_for(f"{tip} === ''")
        BROWSER.look_like(1440, 900)
        stops = "[...document.querySelectorAll('.turn.assistant [title]')].filter(e => e.tabIndex === 0).length"
        self.assertEqual(BROWSER.evaluate(stops), 1)
        BROWSER.evaluate("[...document.querySelectorAll('.turn.user button')].at(-1).focus()")
        BROWSER.press("Tab")
        titles = BROWSER.evaluate("[...document.querySelectorAll('.turn.assistant [title]')].map(e => e.title)")
        self.assertEqual(BROWSER.evaluate(tip), titles[0])
        if len(titles) > 1:
            BROWSER.press("ArrowRight")
            self.assertEqual(BROWSER.evaluate(tip), titles[1])
            self.assertEqual(BROWSER.evaluate(stops), 1)
        BROWSER.press("Escape")
        self.assertEqual(BROWSER.evaluate(tip), "")
        BROWSER.evaluate("document.querySelector('.grid').focus()")
        for key in ("ArrowRight", "ArrowDown"):
            BROWSER.press(key)
        self.assertIn("Layer", BROWSER.evaluate("document.querySelector('.tip').textContent"))
        self.assertEqual(BROWSER.evaluate("document.querySelectorAll('.grid .pointed').length"), 1)

    def test_3_forks_what_is_edited_and_reuses_what_was_read(self):
        BROWSER.evaluate("[...document.querySelectorAll('.turn.user button')].find(b => b.textContent === 'Edit').click()")
        BROWSER.evaluate("document.activeElement.value = ''")
        BROWSER.type(QUESTION)
        BROWSER.press("Enter")
        BROWSER.wait_for("document.querySelector('.turn.assistant .figures') !== null")
        self.assertIn("2/2", BROWSER.evaluate("document.querySelector('.turn.user .foot').textContent"))
        ask("Tell me a long story about this.", 1200)
        BROWSER.wait_for("document.querySelectorAll('.turn.assistant')[1]?.textContent.length > 150")
        state = BROWSER.wait_for("[...document.querySelectorAll('.map strong')].map(e => e.textContent).find(t => t.startsWith('Generating'))")
        self.assertGreater(int(re.search(r"(\d+) of \d+ reused", state)[1]), 256)
        shared = max(s["pages"][0]["n"] for s in SERVER.json("/cache")["sequences"] if "request" in s)
        self.assertEqual(BROWSER.evaluate("document.querySelectorAll('.map li:first-child .page.shared').length"), shared)
        shots("serve-page")

    def test_4_stops(self):
        BROWSER.press("Escape")
        BROWSER.wait_for("[...document.querySelectorAll('.turn.assistant .figures')].at(-1).textContent.endsWith('stopped')")
        BROWSER.wait_for("![...document.querySelectorAll('.map strong')].some(e => e.textContent.startsWith('Generating'))")

    def test_5_switches_to_the_version_before(self):
        BROWSER.evaluate("document.querySelector('[aria-label=\"Earlier version\"]').click()")
        self.assertIn("three colours", BROWSER.evaluate("document.querySelector('.turn.user .body').textContent"))

    def test_6_keeps_conversations(self):
        BROWSER.call("Page.reload")
        BROWSER.wait_for("document.body?.dataset.ready === 'true'")
        BROWSER.evaluate("document.querySelector('#conversation-list button').click()")
        self.assertIn("three colours", BROWSER.evaluate("document.querySelector('.turn.user .body').textContent"))

    def test_7_underlines_what_quantization_changes(self):
        BROWSER.evaluate("document.querySelector('#new-chat').click()")
        BROWSER.evaluate("document.querySelector('#probabilities').click()")
        BROWSER.evaluate("document.querySelector('#guard').click()")
        ask(QUESTION, 120)
        BROWSER.wait_for("document.querySelector('.turn.assistant .figures') !== null")
        figures = BROWSER.evaluate("document.querySelector('.turn.assistant .figures').textContent")
        differing = int(re.search(r"(\d+) of \d+ tokens differ from an unquantized cache, mean KL divergence [\d.]+", figures)[1])
        marked = BROWSER.evaluate("[...document.querySelectorAll('#turns .other')].map(e => e.title)")
        self.assertLessEqual(len(marked) > 0, differing > 0)
        self.assertTrue(all("without quantization: " in title for title in marked), marked)
        self.assertIn(f"guard_differing_tokens_total {differing}", SERVER.request("/metrics")[1])
        shots("serve-page-guard")
        BROWSER.evaluate("document.querySelector('#guard').click()")

    def test_8_shows_markdown_as_elements_and_html_as_text(self):
        html = BROWSER.evaluate("Promise.all([import('/page/markdown.js'), import('/page/probabilities.js')]).then(([m, p]) => {"
                                f" const host = document.createElement('div'); m.render(host, {json.dumps(MARKDOWN)}, p.plainLeaf); return host.innerHTML; }})")
        self.assertEqual(html, HTML)
        hostile = BROWSER.evaluate(
            "import('/page/markdown.js').then(m => { const start = performance.now();"
            " for (const text of ['>'.repeat(5000), '*a '.repeat(5000), '['.repeat(20000), '- '.repeat(3000), '`'.repeat(9999), '|-'.repeat(5000) + '\\n|-|'])"
            "   m.render(document.createElement('div'), text, (parent, t) => parent.append(t)); return performance.now() - start; })")
        self.assertLess(hostile, 2000)

    def test_9_loads_nothing_else(self):
        with urllib.request.urlopen(SERVER.url) as response:
            self.assertIn("default-src 'none'", response.headers["Content-Security-Policy"])
        self.assertEqual(BROWSER.problems, [])
        loaded = BROWSER.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
        self.assertTrue(loaded and all(name.startswith(SERVER.url) for name in loaded), loaded)


class Comparison(unittest.TestCase):
    """Tests the page of a server with two recipes."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(PROGRAM, MODEL, RECIPE, "--guard", "--compare", "kivi-2bit")

    @classmethod
    def tearDownClass(cls):
        cls.server.end()

    def test_1_shows_both_answers_and_where_they_part(self):
        BROWSER.look_like(1440, 900)
        BROWSER.open(self.server.url)
        BROWSER.wait_for("document.activeElement.name === 'key'")
        BROWSER.type(KEY)
        BROWSER.press("Enter")
        BROWSER.wait_for("document.querySelector('#cache').dataset.ready")
        BROWSER.problems.clear()  # the missing key caused a message
        self.assertEqual(BROWSER.evaluate("document.querySelector('#compare').getAttribute('aria-pressed')"), "true")
        ask(QUESTION, 90)
        BROWSER.wait_for("document.querySelector('.turn.assistant .foot .figures') !== null")
        self.assertEqual(BROWSER.evaluate("[...document.querySelectorAll('.pair .recipe')].map(e => e.textContent.split(' ')[0])"), [RECIPE, "kivi-2bit"])
        self.assertEqual(len(BROWSER.evaluate("[...document.querySelectorAll('.pair .figures')].filter(e => /tokens in/.test(e.textContent)).map(e => 1)")), 2)
        # Both completions have the same text before the mark. If the completions differ, each has a mark.
        before = BROWSER.evaluate("""[...document.querySelectorAll('.pair .body')].map(body => {
            const mark = body.querySelector('.parts'), range = document.createRange();
            range.selectNodeContents(body);
            if (mark) range.setEndBefore(mark);
            return [range.toString(), mark ? mark.title : '', body.textContent]; })""")
        if before[0][2] != before[1][2]:
            self.assertEqual(before[0][0], before[1][0])
            self.assertTrue(all(re.search(r'^".*" .+ %; with .+: ".*" .+ %$', title) for _, title, _ in before), before)
            self.assertRegex(BROWSER.evaluate("document.querySelector('.foot .figures').textContent"), r"^The same for \d+ tokens?, then different\.$")
        shots("serve-compare")

    def test_2_shows_either_cache(self):
        other = self.server.json("/v1/models")["data"][1]["id"]
        BROWSER.evaluate("document.querySelectorAll('#cache .modes button')[1].click()")
        formats = [f"{f['format']}, {f['bits']:.2f} bits" for f in self.server.json(f"/cache?model={other}")["plan"]["formats"]]
        BROWSER.wait_for(f"JSON.stringify([...document.querySelectorAll('.legend li span:nth-child(2)')].map(e => e.textContent)) === {json.dumps(json.dumps(formats, separators=(',', ':')))}")

    def test_3_keeps_both_answers(self):
        BROWSER.call("Page.reload")
        BROWSER.wait_for("document.body?.dataset.ready === 'true'")
        BROWSER.evaluate("document.querySelector('#conversation-list button').click()")
        self.assertEqual(BROWSER.evaluate("document.querySelectorAll('.pair .body').length"), 2)

    def test_4_answers_once_where_it_is_switched_off(self):
        BROWSER.evaluate("document.querySelector('#compare').click()")
        ask("And what else?", 10)
        BROWSER.wait_for("document.querySelectorAll('.turn.assistant')[1]?.querySelector('.foot .figures') != null")
        self.assertEqual(BROWSER.evaluate("document.querySelectorAll('.pair').length"), 1)
        self.assertEqual(BROWSER.problems, [])


def ask(text, max_tokens):
    BROWSER.evaluate(f"import('/page/settings.js').then(m => m.saveSettings({{ maxTokens: {max_tokens}, temperature: 0 }}))")
    BROWSER.evaluate("document.querySelector('#prompt').focus()")
    BROWSER.type(text)
    BROWSER.press("Enter")


def shots(name, every=True):
    """Takes pictures of the page if FOLDER is set: in every size and colour scheme, or only in the current one."""
    if not FOLDER:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not every:
        return BROWSER.screenshot(FOLDER / f"{name}.png")
    for suffix, width, height, scheme in (("", 1440, 960, "light"), ("-dark", 1440, 960, "dark"), ("-phone", 390, 844, "light")):
        BROWSER.look_like(width, height, scheme)
        BROWSER.evaluate("document.querySelector('#turns').scrollTop = 1e6")
        BROWSER.screenshot(FOLDER / f"{name}{suffix}.png")
    BROWSER.evaluate("document.querySelector('#toggle-cache').click()")
    BROWSER.screenshot(FOLDER / f"{name}-phone-cache.png")
    BROWSER.evaluate("document.querySelector('#toggle-cache').click()")
    BROWSER.look_like(1440, 900)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1:3]
    FOLDER, RECIPE = (pathlib.Path(sys.argv[4]), sys.argv[5]) if sys.argv[3:4] == ["--screenshots"] else (None, "uniform-4bit")
    found = browsers.find_browser()
    if found is None:
        print(f"{__file__}:1: Skipped\nno Chromium on this system\n\n[  SKIPPED ] Serve.PageInABrowser (0 ms)")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # this keeps calibrations out of the user's cache folder
        SERVER = Server(PROGRAM, MODEL, RECIPE, "--guard")
        BROWSER = browsers.Browser(found)
        try:
            result = unittest.main(argv=sys.argv[:1], exit=False, failfast=True).result
        finally:
            BROWSER.close()
            SERVER.end()
    sys.exit(not result.wasSuccessful())
