#!/usr/bin/env python3
"""Checks that docs/reference/json.md names every field that the program writes.

    scripts/check-json.py KVANT MODEL
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = str(ROOT / "data/sample/canals.txt")
# Each run lists the command and the arguments that follow the model. The runs are small, but produce every kind of row.
RUNS = (
    ("info", "--kv", "kivi-2bit", "-c", "512"),
    ("run", "-p", "Say hello.", "-n", "4", "--kv", "q4_0-h", "--guard", "1/1"),
    ("run", "-p", "Say hello.", "-n", "4", "--session", "SESSION"),
    ("eval", "-f", TEXT, "-c", "128", "--chunks", "1", "--kv", "vquant-k4v2"),
    ("eval", "-f", TEXT, "-c", "256", "--chunks", "1", "--layers", "--kv", "vquant-k4v2,skip=1e-6"),
    ("eval", "-f", TEXT, "--drift", "-n", "4", "--chunks", "1", "--kv", "q4_0-h"),
    ("eval", "--tasks", "gsm8k", "--task-data", "TASKS", "-n", "4", "--kv", "q4_0-h"),
    ("bench", "-d", "128", "-p", "8", "-n", "2", "-r", "1", "--kv", "q4_0-h"),
)
PROBLEM = {"question": "What is 1 + 1?", "answer": "#### 2"}
ATTENTION = ("bench", "attention", "--heads", "2", "--kv-heads", "1", "--dim", "64", "-c", "128", "-r", "1", "--kv", "q4_0-h")


def keys(value):
    """Returns the names of all fields, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def document(program, words):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        (pathlib.Path(folder) / "gsm8k-test.jsonl").write_text(json.dumps(PROBLEM), encoding="utf-8")
        places = {"SESSION": str(pathlib.Path(folder) / "a.session"), "TASKS": folder}
        words = [places.get(word, word) for word in words]
        subprocess.run([program, *words, "-t", "2", "--json", str(path)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return json.loads(path.read_text(encoding="utf-8"))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, model = sys.argv[1:]
    page = (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")
    known = set(re.findall(r"`([^`]+)`", page))
    schemas = set(re.findall(r"kvant\.[a-z.]+/\d+", page))
    wrong = []
    for words in (*((r[0], "-m", model, *r[1:]) for r in RUNS), ATTENTION):
        found = document(program, words)
        if found["schema"] not in schemas:
            wrong.append(f"{' '.join(words[:2])}: docs/reference/json.md doesn't describe {found['schema']}")
        wrong += [f"{found['schema']}: docs/reference/json.md doesn't name the field {key}"
                  for key in sorted(set(keys(found)) - known)]
    if wrong:
        sys.exit("\n".join(wrong))


main()
