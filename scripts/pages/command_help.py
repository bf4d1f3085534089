"""The help of a command as a table: names, meanings and defaults of its options. Types and ranges are left out, which
versions of CLI11 write in different ways."""
import re

from pages import markdown

DEFAULT = re.compile(r"=(\[[^\]]*\]|[^\s{]\S*)|(?<= )\[([^ \]]+)\](?= |$)")  # "=2", or "[2]" in newer versions
COLUMN = 36  # where meanings begin, as kvant sets it


def parsed(text):
    """What the command is for, how it is called, and its options: (names, meaning, default, required)."""
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
    """A line of the list: a new option, or the meaning of the one before."""
    if line.startswith("  -"):
        head, meaning = line[:COLUMN], line[COLUMN:]
        if not head.endswith(" ") or meaning.startswith("--"):  # the head is longer, its meaning on the next line
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
