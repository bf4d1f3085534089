"""Writes Markdown tables, and the generated blocks of pages, which lie between <!-- begin NAME --> and <!-- end NAME
-->."""
import csv
import io
import re
import textwrap

BLOCK = re.compile(r"(<!-- begin ([a-z0-9-]+)[^>]*-->\n)(.*?)(<!-- end \2 -->)", re.DOTALL)


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(*lines):
    return "```\n" + "\n".join(lines) + "\n```\n"


def filled(text, blocks):
    """Returns `text` with its blocks written anew, and the names of blocks that nobody makes."""
    unknown = []

    def fill(match):
        begin, name, _, end = match.groups()
        if name not in blocks:
            unknown.append(name)
            return match.group(0)
        return begin + blocks[name]() + end

    return BLOCK.sub(fill, text), unknown


def paragraph(text):
    """Returns text in lines of at most 120 columns."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def items(texts):
    """Returns a list in lines of at most 120 columns."""
    return "".join(textwrap.fill(text, 120, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
                                 break_on_hyphens=False) + "\n" for text in texts)


def text_of(document):
    """Returns the paragraphs and lists of a document's text, which blank lines separate."""
    parts = document.get("text", "").split("\n\n")
    return "".join((items(part[2:].split("\n- ")) if part.startswith("- ") else paragraph(part)) + "\n" for part in parts if part)


def measured_table(document, level="##"):
    """Returns a document of the kind `table` as it was measured, with its command."""
    text = f"{level} {document['title']}\n\n" + text_of(document)
    text += code(*document["command"].split("\n")) + f"\n{paragraph(document['measured_on'])}\n"
    return text + table(document["columns"], document["results"])


def measured_tables(documents):
    return "".join("\n" + measured_table(d, "###") for d in documents) or "Not measured yet.\n"


def block_of(title):
    """Returns the name of a block, made from a document's title."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def csv_text(header, rows):
    """Returns CSV text with one line per row. Cells that were not measured are empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()
