#!/usr/bin/env python3
"""Checks that the class names of headers are unique. The linker believes that two classes with one name in one
namespace are the same, and uses either of the two destructors for both."""
import collections
import pathlib
import re
import sys

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "src"
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
CLASS = re.compile(r"^(?:class|struct) (\w+)(?: final)?\s*(?::[^;{]*)?\{", re.MULTILINE)


def main():
    files = collections.defaultdict(set)
    for header in sorted(SOURCES.rglob("*.h")):
        text = header.read_text(encoding="utf-8")
        namespace = NAMESPACE.search(text)
        for name in CLASS.findall(text):
            files[namespace.group(1) if namespace else "", name].add(str(header.relative_to(SOURCES)))
    for (namespace, name), places in files.items():
        if len(places) > 1:
            print(f"{namespace}::{name} is a class of {' and of '.join(sorted(places))}", file=sys.stderr)
    sys.exit(any(len(places) > 1 for places in files.values()))


if __name__ == "__main__":
    main()
