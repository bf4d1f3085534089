#!/usr/bin/env python3
"""Writes docs/reference, and the table of recipes that the Python package reads, from the program, its registries and
its C header.

    scripts/reference.py KVANT REGISTRY            KVANT: the program; REGISTRY: the program of scripts/registry.cc
    scripts/reference.py KVANT REGISTRY --check    say what is not current, change nothing

Both refuse to run if docs/guide/models.md, which is written by hand, lacks the name of an architecture.

`cmake --build --preset default --target docs` calls this script.
"""
import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from pages import c_header, command_help, markdown  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
MODELS = ROOT / "docs/guide/models.md"
PACKAGE_RECIPES = ROOT / "python/kvant/recipes.json"
NOTICE = "<!-- Written by scripts/reference.py: change the source, not this page. -->\n\n"


def help_of(program, *words):
    return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout


def commands(program):
    """Returns the names of the commands in the order of the help."""
    return re.findall(r"(?m)^  (\w+)\b", re.split(r"(?im)^subcommands:\n", help_of(program))[1])


def command_section(program, level, *words):
    summary, usage, options = command_help.parsed(help_of(program, *words))
    return f"\n{level} kvant {' '.join(words)}\n\n{summary[0].upper()}{summary[1:]}.\n\n" + markdown.code(usage) + "\n" + \
        command_help.table(options)


def commands_page(program, registry):
    text = "# Commands\n\n" + NOTICE
    text += ("This page has the output of `kvant COMMAND --help`. `--kv` takes [recipes](recipes.md), which are made of "
             "[formats](formats.md). `--json FILE` writes [JSON](json.md).\n")
    for name in commands(program):
        text += command_section(program, "##", name)
        if name == "bench":
            text += command_section(program, "###", "bench", "attention")
        if name == "eval":
            text += "\n### Suites\n\nPredefined comparisons: `kvant eval --suite NAME`.\n\n"
            text += markdown.table(("suite", "what it compares"),
                                   ((f"`{s['name']}`", s["title"]) for s in registry["suites"]))
    return text


def recipes_page(registry):
    text = "# Recipes\n\n" + NOTICE
    text += ("This page has all built-in recipes, keys and transforms. The [guide](../guide/recipes.md) explains how recipes are "
             "written, [choosing](../guide/choosing.md) says which recipe to take, and [methods](methods.md) explain what the "
             "methods do.\n\n## Built-in recipes\n\n"
             "*Product* recipes have fast kernels on a CPU, and all except `f16` also on a GPU. *Comparison* recipes exist for "
             "measurements, and may run on the reference kernels.\n\n")
    text += markdown.table(("name", "tier", "recipe", "content"), ((f"`{r['name']}`", r["tier"], f"`{r['recipe']}`", r["summary"])
                                                            for r in registry["recipes"]))
    text += "\nIf a model is not calibrated, kvant uses another recipe and reports its name:\n\n"
    text += markdown.table(("recipe", "without calibration"), ((f"`{r['name']}`", f"`{r['uncalibrated']}`") for r in registry["recipes"]
                                                     if "uncalibrated" in r))
    text += "\n## Keys\n\n"
    text += markdown.table(("key", "values", "meaning", "default"),
                           ((f"`{k['key']}`", k["values"], k["summary"], f"`{k['default']}`" if k["default"] else "")
                            for k in registry["keys"]))
    text += "\n## Transforms\n\n"
    text += markdown.table(("transform", "what it does", "calibrated"),
                           ((f"`{t['name']}`", t["summary"], "yes" if t["calibrated"] else "no")
                            for t in registry["transforms"]))
    text += "\n## llama.cpp's names\n\nIn `-ctk`, `-ctv` and in a recipe's name, these names stand for formats.\n\n"
    text += markdown.table(("name", "format"), ((f"`{a['name']}`", f"`{a['format']}`") for a in registry["aliases"]))
    return text


def formats_page(registry):
    text = "# Formats\n\n" + NOTICE
    text += ("A format is the byte layout of a page: 128 tokens of one KV head, K or V. The columns of bits have the bits per value "
             "with all of a page's parameters. Constants of the model, such as codebooks, come on top. *direct* says "
             "whether the CPU backend multiplies the stored codes. Otherwise the backend dequantizes the page first. *token by "
             "token* says whether a single token can be written, as in a tail. The comment at the top of a family's file in "
             "`src/format` is its specification. "
             "[The C library](../guide/c-library-formats.md) lists the formats on a GPU.\n")
    for family in registry["formats"]:
        text += f"\n## `{family['pattern']}`\n\n{family['summary']}\n\n"
        rows = ((f"`{m['name']}`", f"{m['bits_64']:.4g}", f"{m['bits_128']:.4g}", "yes" if m["direct"] else "no",
                 "yes" if m["row_wise"] else "no", ", ".join(f"`{c}`" for c in m["constants"]) or "-")
                for m in family["members"])
        text += markdown.table(("format", "bits, heads of 64", "heads of 128", "direct", "token by token", "constants"), rows)
    return text


def package_recipes(registry):
    """Returns the registry as python/kvant reads it: the default of each key, and for each recipe the values that
    differ from the defaults."""
    recipes = [{x: r[x] for x in ("name", "values", "uncalibrated") if x in r} for r in registry["recipes"]]
    lines = ",\n".join("  " + json.dumps(r) for r in recipes)
    defaults = json.dumps({k["key"]: k["default"] for k in registry["keys"]})
    return f'{{"defaults": {defaults},\n "recipes": [\n{lines}\n]}}\n'


def c_page():
    header = (ROOT / "include/kvant/kvant.h").read_text(encoding="utf-8")
    return "# C API of the device libraries\n\n" + NOTICE + c_header.page(header)


def unnamed_architectures(registry):
    """Returns the architectures that the page of models, which is written by hand, does not name."""
    named = set(re.findall(r"[\w.-]+", MODELS.read_text(encoding="utf-8")))
    return [name for name in registry["architectures"] if name not in named]


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--check"]):
        sys.exit(__doc__)
    program, registry = sys.argv[1], json.loads(subprocess.run([sys.argv[2]], capture_output=True, check=True).stdout)
    pages = {REFERENCE / "commands.md": commands_page(program, registry), REFERENCE / "recipes.md": recipes_page(registry),
             REFERENCE / "formats.md": formats_page(registry), REFERENCE / "c-api.md": c_page(),
             PACKAGE_RECIPES: package_recipes(registry)}
    if unnamed := unnamed_architectures(registry):
        sys.exit(f"docs/guide/models.md does not name {', '.join(unnamed)}: add them to its table")
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    names = [str(path.relative_to(ROOT)) for path in stale]
    if sys.argv[3:] == ["--check"]:
        if stale:
            sys.exit(f"{', '.join(names)} not current; build the target docs")
        return
    for path, name in zip(stale, names):
        path.write_text(pages[path], encoding="utf-8")
        print(name)


main()
