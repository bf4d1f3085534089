#!/usr/bin/env python3
"""Advises on prose: wrong terms, sentences and lines that are too long, and comments that begin with a fragment.

The script never fails. `make lint` prints its counts, and a writer reads its findings for a file.

    scripts/check-prose.py [FILE...]       one line for each finding; without files all pages and sources
    scripts/check-prose.py --summary       counts by kind
"""
import argparse
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_WORDS, MAX_COLUMNS = 30, 120
# The GENERATED pages of docs/reference consist of sentences from the sources.
GENERATED = {"c-api.md", "commands.md", "formats.md", "recipes.md"}
# Patterns of words, and what to write instead.
TERMS = {
    r"bits? of an element|bits an element": "bits per value",
    r"behind [\d,]+ tokens": "at context N",
    r"prompt reading|reading of prompts": "prefill",
    r"model's answers?|answers? of (?:the|a) model": "completion",
    r"beginnings? of prompts?": "prefix",
    r"shaped errors?": "query-weighted error",
    r"made-up weights": "dummy weights",
    r"multiprocessors?": "SM",
    r"dear(?:er|est)?": "expensive",
    r"so that": "so",
    r"beside": "versus, than, next to",
    r"as ever": "as before",
    r"in the mean": "on average",
    r"in the midst": "during",
}
FREE_RELATIVE = re.compile(r"(?:^|[.:;] )(Who(?:ever)? [^?]*?[.;])")
# A sentence that matches neither VERB nor FIRST_VERB usually has no verb, and FORMULA also matches headings of tables.
VERB_STEMS = """
    accept act add agree allow allocat answer appear append appl approximat arriv ask assign assum attach attend await
    become begin belong bind bring broadcast build calculat calibrat call cancel carr cast caus change check choos
    clear come compar compil complet compress comput confirm connect consist contain continu control contribut convert
    copi copy correct cost count cover creat decid declar decod defin delet depend dequantiz deriv describ detect
    determin deviat differ distinguish divid do download drop embed emit enabl encod end enforc enter enumerat equal
    escap estimat evict exceed exclud exist expand expect explain export express extend extract fail fall feed fetch
    fill find finish fit follow forbid forget form forward free gather gave generat get giv go grow handl hang happen
    hold identif ignor implement impl import includ increas inform inherit initializ insert install interleav invert
    issu join keep know lack last launch lead learn leave let lie limit list liv load locat look loop los lower maintain
    mak match maximiz mean measur merg minimiz modif mov multipl nam need notic obe observ obtain occup occur omit
    open outliv overlap overwrit own pad pars pass perform permit point precede prefer prefetch prepar present preserv
    prevent print process produc project prov provid publish put quantiz queu rais reach read rearrang receiv recogniz
    recommend record recover reduc refer refus regard reject relat releas rely remain remember remov render repair
    repeat repl replac report represent requir resampl rescal resembl reserv resolv respond restor restrict return
    reus rotat round run saturat save say scan see select send serv set shar show shut simulat sit skip sleep sort speak specif
    spell spend spin split stand start stay stop stor subtract suffic suit suppl suppos support surviv swap switch
    take tell test throw tr train transform translat treat turn underst updat upload us validat vanish var verif view
    visit wait walk want warn watch weigh work wrap writ yield""".split()
VERB = re.compile(
    r"\b(?:is|are|was|were|be|has|have|had|does|did|can|could|may|might|must|will|would|should|isn't|aren't|doesn't|don't|"
    rf"can't|never|(?:{'|'.join(VERB_STEMS)})(?:[tpgnk]?e?d|e|s|es|y|ies|ied)?|"
    r"\w+[^s]s (?:an?|the|its|their|many|nothing|[A-Z] to))\b", re.IGNORECASE)
# The words of FIRST_VERB are verbs only at the beginning of a comment or after names. Elsewhere "maps" is a noun.
NAME = re.compile(r"(?:`[^`]*`|\w+\(\)|\w*[a-z0-9_][A-Z]\w*|[A-Z]{2}\w*)(?:,? and |, | )")
FIRST_VERB = re.compile(
    r"(?:adapt|advance|average|balance|batch|blend|cap|cent(?:er|re)|clamp|classif|close|cluster|code|collect|combine|cut|"
    r"delay|delegate|download|draft|draw|evaluate|extrapolate|fork|format|fuzz|group|hand|hash|integrate|interpolate|judge|lay|"
    r"map|mask|mix|move|norm|normalize|number|orthonormalize|pack|pair|parse|pick|place|plan|predict|propose|protect|"
    r"query|queri|rank|replay|reshape|rewrite|route|sample|scale|schedule|score|seal|search|seed|sketch|squeeze|step|sum|"
    r"summarize|time|trace|track|transfer|transpose|truncate|tune|undo|unpack|weigh)(?:s|es|y|ies)?\b", re.IGNORECASE)
FORMULA = re.compile(r"^\[|^[^:]+: |[<>=] |\w\(\w*\)? = | := ")
# A comment that begins with a word of OPENING and has no verb leaves out its subject. Any other comment without a verb
# is a noun phrase.
OPENING = re.compile(
    r"(?:of|in|at|by|for|from|with|without|as|to|on|behind|where|what|whose|which|those|these|this|that|the same|"
    r"their|its|all of|only|such|else|beside|before|after|likewise)\b", re.IGNORECASE)
# "values [n, d] in units." is a contract and not a fragment.
PARAMETER = re.compile(r"[a-z]\w*(?:, [a-z]\w*)*(?: \[[^]]*\])*:|[a-z]\w* \[")
COMMENT = {".def": "//", ".h": "//", ".cc": "//", ".cu": "//", ".cuh": "//", ".py": "#", ".sh": "#", ".cmake": "#"}


def paragraphs(page):
    """Yields the first line and the text of each paragraph or list item, without code, tables and generated parts."""
    lines, first, fenced = [], 0, False
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), ""], 1):
        fenced ^= line.startswith("```")
        is_prose = not fenced and line.strip() and not line.lstrip().startswith(("#", "|", "```", "<"))
        if lines and (not is_prose or re.match(r"\s*(?:[-*]|\d+\.) ", line)):
            yield first, " ".join(lines)
            lines = []
        if is_prose:
            first = first if lines else number
            lines.append(line.strip())


def sentences(text):
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))
    return re.split(r"(?<=[^.][.!?;])(?<!e\.g\.)(?<!i\.e\.)(?<! al\.)\**\)? +|: +(?=[*\[A-Z])", plain)


def advise_page(page):
    for number, text in paragraphs(page):
        for sentence in sentences(text):
            words = len(re.findall(r"[\w'’%-]+", sentence))
            if words > MAX_WORDS:
                yield number, "long sentence", f"{words} words: {sentence[:60]}..."
        yield from advise_words(number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))
    yield from accidental_lists(page)
    is_code = is_generated = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        is_code ^= line.startswith("```")
        is_generated ^= line.startswith(("<!-- begin", "<!-- end"))
        can_break = not line.startswith("|") and " " in line[:MAX_COLUMNS].strip() and "](" not in line
        if can_break and len(line) > MAX_COLUMNS and not is_code and not is_generated:
            yield number, "long line", f"{len(line)} columns"


def accidental_lists(page):
    """Yields lines that continue a sentence, but begin like an item of a list. Markdown shows such lines as items."""
    item, fenced, in_list, before = re.compile(r"\s*(?:[-+*]|\d+\.) "), False, False, ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        in_list = bool(line.strip()) and (in_list or not before.strip() and bool(item.match(line)))
        if not fenced and item.match(line) and not in_list and before.strip() and not before.startswith((" ", "#", "|", "<")):
            yield number, "list by accident", f"'{line[:60]}'"
        before = line


def advise_words(number, text):
    for pattern, better in TERMS.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", text):
            yield number, "term", f"'{found[0]}': {better}"
    for found in FREE_RELATIVE.finditer(text):
        yield number, "term", f"'{found[1][:40]}': begin with the subject"


def is_sentence(text):
    # Allows "ClassName: does this."
    text = re.sub(r"^\w+: ", "", text)
    after_names = text
    while NAME.match(after_names) and not FIRST_VERB.match(after_names):
        after_names = NAME.sub("", after_names, count=1)
    return bool(VERB.search(text) or FIRST_VERB.match(after_names) or PARAMETER.match(text) or FORMULA.search(text))


def advise_source(path):
    mark = comment_mark(path)
    for number, lines, continues in comments(path, mark) if mark else ():
        text = " ".join(lines)
        for n, line in enumerate(lines, number):
            yield from advise_words(n, line)
        first = re.split(r"(?<=[^.][.;])(?: |$)", re.sub(r" \([^()]*\)", "", text))[0]
        if not continues and first.endswith((".", ";")) and not is_sentence(first):
            yield number, "fragment" if OPENING.match(first) else "noun phrase", f"'{first[:60]}'"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if mark and len(line) > MAX_COLUMNS and line.strip().startswith(mark + " "):
            yield number, "long line", f"{len(line)} columns"


def comment_mark(path):
    """Returns what begins a comment in a source, or None. A source without a suffix is a script if it has a shebang."""
    is_script = not path.suffix and path.is_file() and path.read_bytes().startswith(b"#!")
    return "#" if is_script else COMMENT.get(path.suffix)


def comments(path, mark):
    """Yields for each block of comments its first line, its lines, and whether it continues a comment after code."""
    block, before = [], ""
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], 1):
        text = line.strip()
        if text.startswith(mark + " ") and not text.startswith("# ---"):
            block.append(text[len(mark):].strip())
        elif block:
            yield number - len(block), block, f" {mark} " in before
            block = []
        before = before if block else line


def pages():
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [p for p in found if p.name not in GENERATED]


def sources():
    folders = ("src", "include", "scripts", "python", "cmake")
    return [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if comment_mark(p)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--summary", action="store_true", help="counts by kind")
    options = parser.parse_args()
    counts = collections.Counter()
    for path in [p.resolve() for p in options.files] or [*pages(), *sources()]:
        for number, kind, text in advise_page(path) if path.suffix == ".md" else advise_source(path):
            counts["pages" if path.suffix == ".md" else "sources", kind] += 1
            if not options.summary:
                print(f"{path.relative_to(ROOT)}:{number}: {kind}: {text}")
    if options.summary:
        for (where, kind), count in sorted(counts.items()):
            print(f"prose, {where}: {count} x {kind}")


if __name__ == "__main__":
    main()
