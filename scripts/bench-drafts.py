#!/usr/bin/env python3
"""Measures speculative decoding on edited code: a model writes a source file again with one name changed.

    scripts/bench-drafts.py build/default/kvant model.gguf                       on the CPU
    scripts/bench-drafts.py build/default/kvant model.gguf --device cuda         on a GPU
    scripts/bench-drafts.py build/default/kvant model.gguf --story               a text that does not repeat itself

Every run is `kvant run --temp 0`. Runs with --draft off and with --draft ngram take turns, --repeats times. The script
prints the tokens per second of both (median, minimum and maximum), how many drafted tokens were right, and whether the
texts are equal.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "data/evaluation/code.txt"
EDIT = ("Rename the variable `sequence` to `chain` in this C++ file. Write out the whole file with the change, and "
        "nothing else.\n\n```cpp\n{}\n```")
STORY = "Write a long story about a lighthouse keeper. Never repeat a sentence."


def prompt(options):
    if options.story:
        return STORY
    return EDIT.format("\n".join(SOURCE.read_text().splitlines()[:options.lines]))


def run(options, prompt_file, draft):
    """Returns the JSON of one run."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        command = [options.kvant, "run", "-m", options.model, "--kv", options.kv, "-f", prompt_file, "--temp", "0", "-n",
                   str(options.tokens), "--draft", draft, "--device", options.device, "--json", result.name]
        if options.threads:
            command += ["-t", str(options.threads)]
        if draft != "off":
            command += ["--draft-max", str(options.draft_max)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.load(open(result.name))


def speed(runs):
    rates = [r["decode_tps"] for r in runs]
    return f"{statistics.median(rates):.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvant", help="the program")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--kv", default="kvant-4bit")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--lines", type=int, default=200, help="of the source file")
    parser.add_argument("--tokens", type=int, default=1500, help="to generate at most")
    parser.add_argument("--draft-max", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--story", action="store_true", help="the worst case: nothing to copy")
    options = parser.parse_args()
    runs = {"off": [], "ngram": []}
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt(options))
        file.flush()
        for _ in range(options.repeats):
            for draft, of_draft in runs.items():
                of_draft.append(run(options, file.name, draft))
    plain, drafted = runs["off"], runs["ngram"]
    print(f"{pathlib.Path(options.model).name}, {plain[0]['recipe']}, {options.device}: prompt of {plain[0]['prompt_tokens']} tokens, "
          f"{plain[0]['generated_tokens']} generated")
    print(f"without drafts: {speed(plain)}")
    ratio = statistics.median(r["decode_tps"] for r in drafted) / statistics.median(r["decode_tps"] for r in plain)
    print(f"with drafts:    {speed(drafted)}, {ratio:.2f}x")
    right, all_drafted = drafted[0]["accepted_tokens"], drafted[0]["drafted_tokens"]
    share = f" ({100 * right / all_drafted:.0f} %)" if all_drafted else ""
    print(f"{right} of {all_drafted} drafted tokens accepted{share}")
    texts = {r["answer"] for r in plain + drafted}
    print("the texts are the same" if len(texts) == 1 else f"THE TEXTS DIFFER: {len(texts)} of them")
    return 0 if len(texts) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
