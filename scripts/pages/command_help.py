"""Turns the help of a command into a table with the names, meanings and defaults of its options. Types and ranges are
left out, because versions of CLI11 write them in different ways."""
import re

from pages import markdown

# Matches "=2", or "[2]" in newer versions of CLI11.
DEFAULT = re.compile(r"=(\[[^\]]*\]|[^\s{]\S*)|(?<= )\[([^ \]]+)\](?= |$)")
# kvant's help begins the meanings of options at column COLUMN.
COLUMN = 36


def parsed(text):
    """Returns what the command is for, how it is called, and its options as (names, meaning, default, required)."""
    lines = text.split("\nRecipes for --kv")[0].strip("\n").split("\n")
    summary = " ".join(line.strip() for line in lines[:lines.index(next(x for x in lines if x.startswith("Usage:")))]).strip()
    usage = next(line for line in lines if line.startswith("Usage:"))[6:].strip()
    options = []
    section = ""
    for line in lines:
        if line.rstrip().endswith(":") and not line.startswith(" "):
            section = line.strip().rstrip(":").lower()
        elif section == "options":
            add_option(options, line)
    return summary, usage, [option(*each) for each in options if "--help" not in each[0]]


def add_option(options, line):
    """Adds a line of the list, which is a new option or continues the meaning of the previous option."""
    if line.startswith("  -"):
        head, meaning = line[:COLUMN], line[COLUMN:]
        # If an option's names are too long for their column, the meaning begins on the next line.
        if not head.endswith(" ") or meaning.startswith("--"):
            head, meaning = line, ""
        options.append([re.sub(r"(?<=,) +(?=-)", "", head.strip()), meaning.strip()])
    elif line.strip() and options:
        options[-1][1] = (options[-1][1] + " " + line.strip()).strip()


def option(head, meaning):
    names, _, rest = head.partition(" ")
    rest = re.sub(r"Excludes:.*", "", rest)
    found = DEFAULT.search(rest)
    default = (found.group(1) or found.group(2)).strip("[]") if found else ""
    if "--threads" in names:
        default = "processors"
    return names, meaning, default, "REQUIRED" in rest


def table(options):
    rows = []
    for names, meaning, default, required in options:
        shown = ", ".join(f"`{name}`" for name in names.split(","))
        rows.append((shown, meaning.replace("|", "\\|"), "required" if required else f"`{default}`" if default else ""))
    return markdown.table(("option", "meaning", "default"), rows)
