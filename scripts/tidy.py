#!/usr/bin/env python3
"""Runs clang-tidy on the sources of src/, a dozen sources at a time, as a unity build compiles them.

The headers of a dozen sources are parsed once, which takes a fraction of the time. A unit that was clean is skipped
until the code of one of its files or .clang-tidy changes.

    scripts/tidy.py BUILD [FILE...]        BUILD has compile_commands.json; FILE limits the run to the units with FILE
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include "(.*)"', re.MULTILINE)
# clang does not know these options of GCC, and cannot read precompiled headers of GCC.
GCC_ONLY = re.compile(
    r" (?:-fno-tree-[a-z]+|-include [^ ]*cmake_pch\.hxx|-Winvalid-pch|-fpch-preprocess|--param=[^ ]*)(?= |$)")
# A changed comment changes no finding, unless the comment has a NOLINT.
COMMENT = re.compile(rb"^\s*//(?!.*NOLINT).*\n", re.MULTILINE)


def units(database):
    """Returns the compile command and the sources of each C++ unit of src/. clang cannot read CUDA 13's headers."""
    found = {}
    for entry in database:
        file = pathlib.Path(entry["file"])
        if file.suffix == ".cu":
            continue
        names = INCLUDE.findall(file.read_text(encoding="utf-8")) if file.name.startswith("unity_") else [str(file)]
        sources = [path for path in map(pathlib.Path, names) if ROOT / "src" in path.parents]
        if sources:
            found.setdefault(str(file), (entry, sources))
    return found


def fingerprint(entry):
    """Returns a hash of the command, of .clang-tidy, and of all files of the project that the unit includes."""
    command = [part for part in shlex.split(entry["command"]) if part not in ("-c", "-MD")]
    command[command.index("-o"):command.index("-o") + 2] = []
    rule = subprocess.run([*command, "-MM", "-MG"], cwd=entry["directory"], capture_output=True, text=True)
    if rule.returncode:
        return ""
    digest = hashlib.sha256(entry["command"].encode())
    for name in sorted(set(shlex.split(rule.stdout.replace("\\\n", " "))[1:])):
        path = pathlib.Path(entry["directory"], name)
        if path.is_file():
            digest.update(COMMENT.sub(b"", path.read_bytes()))
    digest.update((ROOT / ".clang-tidy").read_bytes())
    return digest.hexdigest()


def check(build, entry):
    """Returns clang-tidy's findings for a unit, and whether there are none."""
    stamps = build / "clean"
    stamps.mkdir(exist_ok=True)
    key = fingerprint(entry)
    if key and (stamps / key).exists():
        return "", True
    command = ["clang-tidy", "--quiet", "-p", str(build), "--extra-arg=-Wno-unknown-warning-option", entry["file"]]
    run = subprocess.run(command, capture_output=True, text=True)
    clean = run.returncode == 0 and not run.stdout.strip()
    if clean and key:
        (stamps / key).touch()
    return run.stdout if clean or run.stdout.strip() else run.stderr, clean


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path, help="folder of a configured build")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="sources to check; all by default")
    options = parser.parse_args()
    build = options.build.resolve()
    path = build / "compile_commands.json"
    database = json.loads(path.read_text(encoding="utf-8"))
    for entry in database:
        entry["command"] = GCC_ONLY.sub("", entry["command"])
    path.write_text(json.dumps(database, indent=1), encoding="utf-8")

    wanted = {file.resolve() for file in options.files}
    work = [unit for unit in units(database).values() if not wanted or wanted & set(unit[1])]
    start, dirty, findings = time.monotonic(), 0, set()
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for run in concurrent.futures.as_completed([pool.submit(check, build, entry) for entry, _ in work]):
            text, clean = run.result()
            dirty += not clean
            if text and text not in findings:
                print(text, flush=True)
            findings.add(text)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes, processor = (time.monotonic() - start) / 60, (usage.ru_utime + usage.ru_stime) / 60
    print(f"clang-tidy: {dirty} of {len(work)} units have findings, after {minutes:.1f} minutes "
          f"({processor:.1f} minutes of processor time)", file=sys.stderr)
    sys.exit(dirty > 0)


if __name__ == "__main__":
    main()
