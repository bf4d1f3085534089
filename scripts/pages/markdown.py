"""Markdown tables, and the generated blocks of pages: what lies between <!-- begin NAME --> and <!-- end NAME -->."""
import re

BLOCK = re.compile(r"(<!-- begin ([a-z0-9-]+)[^>]*-->\n)(.*?)(<!-- end \2 -->)", re.DOTALL)


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(*lines):
    return "```\n" + "\n".join(lines) + "\n```\n"


def filled(text, blocks):
    """`text` with its blocks written anew, and the names of blocks that nobody makes."""
    unknown = []

    def fill(match):
        begin, name, _, end = match.groups()
        if name not in blocks:
            unknown.append(name)
            return match.group(0)
        return begin + blocks[name]() + end

    return BLOCK.sub(fill, text), unknown


def measured_tables(documents):
    """Documents of the kind `table`: as they were measured, each with its command."""
    text = ""
    for document in documents:
        text += f"\n### {document['title']}\n\n" + (document["text"] + "\n\n" if document.get("text") else "")
        text += code(document["command"]) + f"\n{document['measured_on']}\n\n"
        text += table(document["columns"], document["results"])
    return text or "Not measured yet.\n"
