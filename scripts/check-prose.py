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
    r"answers?": "completion",
    r"beginnings? of prompts?": "prefix",
    r"rooms": "modules",
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
# A sentence that does not match VERB usually has no verb.
VERB = re.compile(
    r"\b(?:is|are|was|were|be|has|have|had|do|does|did|can|could|may|might|must|will|would|should|isn't|aren't|doesn't|don't|can't|"
    r"(?:add|allow|answer|append|appl|ask|attend|begin|belong|bring|build|call|change|check|choose|come|compare|compile|comput|contain|"
    r"copi|count|creat|decide|decode|depend|describe|divide|do|encode|end|expect|fail|fall|fill|find|follow|free|get|give|go|happen|hold|"
    r"install|keep|know|lack|learn|leave|let|lie|list|load|look|make|mean|measure|mult(?:ipl)|name|need|open|outlive|pass|print|prove|put|read|"
    r"refuse|remember|replace|return|round|run|say|see|send|serve|set|share|show|sit|stand|start|stay|stop|store|support|take|tell|test|"
    r"repeat|resemble|turn|use|wait|want|work|write)(?:s|es|ies|ed)?)\b", re.IGNORECASE)
# The words of FIRST_VERB are verbs only at the beginning of a comment. Elsewhere "maps" and "samples" are nouns.
FIRST_VERB = re.compile(
    r"(?:accept|act|adapt|advance|allocate|average|calibrate|clamp|classif|clear|code|collect|combine|continue|convert|correct|"
    r"cover|cut|declare|derive|detect|draw|drop|escape|estimate|evaluate|extrapolate|fit|format|gather|group|hand|hash|insert|"
    r"integrate|interleave|interpolate|issue|launch|lay|limit|locate|map|mask|maximize|merge|mov|move|observe|pack|parse|pick|"
    r"predict|prefetch|process|propose|protect|quantize|raise|rearrange|record|reduce|remove|render|report|represent|require|"
    r"reset|restore|rotate|save|scale|score|search|select|simulate|sort|split|subtract|sum|summarize|time|train|transform|"
    r"transpose|truncate|tune|unpack|update|verif|view|visit|weigh)(?:s|es|ies)?\b", re.IGNORECASE)
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
        is_prose = not fenced and line.strip() and not line.startswith(("#", "|", "```", "<"))
        if lines and (not is_prose or re.match(r"\s*(?:[-*]|\d+\.) ", line)):
            yield first, " ".join(lines)
            lines = []
        if is_prose:
            first = first if lines else number
            lines.append(line.strip())


def sentences(text):
    plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "CODE", text))
    return re.split(r"(?<=[.!?])\**\)? +(?=[*\[A-Z(]|kvant)|: +(?=[*\[A-Z])", plain)


def advise_page(page):
    for number, text in paragraphs(page):
        for sentence in sentences(text):
            words = len(re.findall(r"[\w'’%-]+", sentence))
            if words > MAX_WORDS:
                yield number, "long sentence", f"{words} words: {sentence[:60]}..."
        yield from advise_words(number, re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))
    yield from accidental_lists(page)
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if len(line) > MAX_COLUMNS and not line.startswith("|") and " " in line[:MAX_COLUMNS].strip() and "](" not in line:
            yield number, "long line", f"{len(line)} columns"


def accidental_lists(page):
    """Yields lines that only continue a sentence and yet begin like an item of a list, as which Markdown shows them."""
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
    subject = re.sub(r"^\w+: ", "", text)
    return bool(VERB.search(text) or FIRST_VERB.match(text) or FIRST_VERB.match(subject) or PARAMETER.match(text))


def advise_source(path):
    mark, block = COMMENT[path.suffix], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if len(line) > MAX_COLUMNS:
            yield number, "long line", f"{len(line)} columns"
        text = line.strip()
        is_comment = text.startswith(mark + " ") and not text.startswith("# ---")
        if is_comment:
            text = text[len(mark):].strip()
            yield from advise_words(number, text)
            first = re.split(r"(?<=[.;])(?: |$)", text)[0]
            if not block and first.endswith((".", ";")) and not is_sentence(first):
                yield number, "fragment" if OPENING.match(first) else "noun phrase", f"'{first[:60]}'"
        block = is_comment


def pages():
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [p for p in found if p.name not in GENERATED]


def sources():
    folders = ("src", "include", "scripts", "python", "cmake")
    return [p for folder in folders for p in sorted((ROOT / folder).rglob("*")) if p.suffix in COMMENT]


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
