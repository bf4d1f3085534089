"""Makes docs/results/bits.json: the bits that `kvant info` predicts for caches by their length. Nothing is measured."""
import json
import pathlib
import subprocess
import tempfile

from pages.models import MODELS

CONTEXTS = [512, 1024, 2048, 4096, 8192, 16384, 32768]
RECIPES = ["kivi-4bit", "q4_0-h", "uniform-4bit", "kivi-2bit", "uniform-2bit"]


def import_bits(program, model):
    """Returns the document of bits. `model` must be one of the files of MODELS."""
    name = next((name for name, known in MODELS.items() if known.file == pathlib.Path(model).name), None)
    if name is None:
        raise SystemExit(f"--bits needs one of {', '.join(known.file for known in MODELS.values())}")
    rows = [{"recipe": recipe, "bits": [bits(program, model, recipe, context) for context in CONTEXTS]}
            for recipe in RECIPES]
    rows.append({"recipe": "llama.cpp:q4_0", "bits":
                 # A block has 18 bytes for 32 values at any length.
                 [4.5] * len(CONTEXTS)})
    return [{
        "kind": "bits", "model": name, "contexts": CONTEXTS, "command": "kvant info -m MODEL --kv RECIPE -c CONTEXT",
        "results": rows
    }]


def bits(program, model, recipe, context):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "info.json"
        subprocess.run([program, "info", "-m", model, "--kv", recipe, "-c",
                        str(context), "--json",
                        str(path)],
                       check=True,
                       stdout=subprocess.DEVNULL)
        return round(json.loads(path.read_text(encoding="utf-8"))["bits_all"], 4)
