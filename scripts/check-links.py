#!/usr/bin/env python3
"""Checks pages: files and headings to which Markdown links, files of docs/ that sources name, scripts that printed
commands run, messages that the troubleshooting pages quote, and the number of words. A quoted message has … in place of
its variable parts."""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
MENTION = re.compile(r"\bdocs/[\w./-]*\w\.(?:md|svg|png|html|json)\b")
MESSAGE = re.compile(r"^\|(?: [^|`]* \|)? `([^`]+)` \|", re.MULTILINE)
MOST_WORDS = (("docs/guide/*.md", 1500), ("docs/lab/*.md", 2500), ("docs/results/*.md", 2000), ("docs/*.md", 2000))
# SPLIT_TEXT matches the gap between two literals of one text on several lines.
SPLIT_TEXT = re.compile(r"([\"'])\s*\\?\n\s*f?\1")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^(?:scripts|python|lab)/[\w./-]+", re.MULTILINE)


def anchors(path):
    """Returns the ids that GitHub gives a page's headings, and the ids that the page sets for its former addresses."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"))
    return found


def dangling_links(page):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in (a or b for a, b in LINK.findall(text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link} does not exist"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {link}: no heading is called that"


def dangling_mentions(path):
    for name in sorted(set(MENTION.findall(path.read_text(encoding="utf-8", errors="replace")))):
        if not (ROOT / name).exists():
            yield f"{path.relative_to(ROOT)}: {name} does not exist"


def broken_commands(page):
    for block in FENCE.findall(page.read_text(encoding="utf-8")):
        for name in COMMAND.findall(block):
            if not os.access(ROOT / name, os.X_OK):
                yield f"{page.relative_to(ROOT)}: {name} is not a program"


def sources():
    folders = ("src", "include", "scripts", "python", "cmake", "fuzz")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in files if path.suffix not in (".pyc",)] + [ROOT / "CMakeLists.txt", ROOT / "Makefile"]


def stale_messages(pages, sources):
    texts = "".join(path.read_text(encoding="utf-8", errors="replace") for path in sources if "test" not in path.name)
    known = SPLIT_TEXT.sub("", texts).replace('\\"', '"')
    for page in pages:
        for message in MESSAGE.findall(page.read_text(encoding="utf-8")):
            if not all(part.strip() in known for part in message.split("…")):
                yield f"{page.relative_to(ROOT)}: no source says '{message}'"


def long_pages():
    for pattern, most in MOST_WORDS:
        for page in sorted(ROOT.glob(pattern)):
            words = len(page.read_text(encoding="utf-8").split())
            if words > most:
                yield f"{page.relative_to(ROOT)}: {words} words, and {most} are the most: shorten or split the page"


def main():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "data").rglob("*.md")]
    wrong = [line for page in pages for check in (dangling_links, broken_commands) for line in check(page)]
    wrong += [line for path in sources() for line in dangling_mentions(path)]
    wrong += stale_messages((ROOT / "docs/guide").glob("troubleshooting*.md"), sources())
    wrong += long_pages()
    if wrong:
        sys.exit("\n".join(wrong))


main()
