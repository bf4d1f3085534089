#!/usr/bin/env python3
"""Checks that includes lead one way: neither modules of src/ nor folders of src/device/cuda may include each other in a
circle. Tests may include files of any module."""
import collections
import pathlib
import re
import sys

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "src"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
TEST = re.compile(r"_(test|fuzz)\.\w+$")


# Each device is a module of its own.
def room_of(path):
    return "/".join(path.split("/")[: 2 if path.startswith("device/") else 1])


def cuda_folder_of(path):
    return path.split("/")[2] if path.startswith("device/cuda/") else ""


def includes_between(folder_of, sources):
    """Returns the includes from one folder into another: {folder: {other folder: ["file includes header"]}}."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for path, text in sources.items():
        for header in INCLUDE.findall(text):
            ends = folder_of(path), folder_of(header)
            if "" not in ends and ends[0] != ends[1] and header in sources:
                found[ends[0]][ends[1]].append(f"{path} includes {header}")
    return found


def circle(edges):
    """Returns the folders of one circle in order, or [] without a circle."""
    done, path = set(), []

    def walk(folder):
        if folder in path:
            return path[path.index(folder):]
        if folder in done:
            return []
        path.append(folder)
        for other in sorted(edges.get(folder, ())):
            if found := walk(other):
                return found
        done.add(path.pop())
        return []

    return next((found for folder in sorted(edges) if (found := walk(folder))), [])


def main():
    files = (file for file in SOURCES.rglob("*") if file.suffix in {".h", ".cuh", ".cc", ".cu"})
    sources = {str(file.relative_to(SOURCES)): file.read_text(encoding="utf-8") for file in files
               if not TEST.search(file.name) and "testing" not in file.parts}
    is_wrong = False
    for folder_of in room_of, cuda_folder_of:
        edges = includes_between(folder_of, sources)
        if "--list" in sys.argv[1:]:
            for folder in sorted(edges):
                print(f"{folder}: {', '.join(sorted(edges[folder]))}")
        if folders := circle(edges):
            is_wrong = True
            print(f"folders in a circle: {' -> '.join([*folders, folders[0]])}", file=sys.stderr)
            for one, other in zip(folders, [*folders[1:], folders[0]]):
                print(f"  {edges[one][other][0]}", file=sys.stderr)
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
