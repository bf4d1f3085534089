"""Reduces rows of decode_bench, gpu-sdpa.py and the scripts for other engines to the documents of
docs/results/gpu.json. The rows are one JSON object per line. Documents are by head size: formats alone, and formats
with everything that recipes need (rotations, sinks, tails)."""
import json

# Reading bytes alone takes this time on an H200, as reads of 5 MB to 1 GB showed.
START_US, BYTES_PER_US = 1.6, 4.617e6
# Maps options of decode_bench, as scripts/gpu-bench gives them, to the recipes that they stand for.
RECIPES = {
    "tcq4+tcq4 --rotate qo --sink 4 --tail 64": "uniform-4bit",
    "tcq3+tcq3 --rotate qo --sink 4 --tail 64": "uniform-3bit",
    "tcq2+tcq2 --rotate qo --sink 4 --tail 64": "uniform-2bit",
    "lm4+lm4 --rotate qo --tail 64": "turbo4", "lm3+lm3 --rotate qo --tail 64": "turbo3", "lm2+lm2 --rotate qo --tail 64": "turbo2",
    "vq-d2b8+vq-d2b8 --rotate q --sink 4 --tail 192": "vecinfer-4bit",
    "vq-d4b8+vq-d4b8 --rotate q --sink 4 --tail 192": "vecinfer-2bit",
    "ch2g128+tok2g128 --rotate o --correction 1 --tail 192": "kvlinc-2bit",
    "ch4g128+tok4g128 --tail 192": "kivi-4bit", "ch2g128+tok2g128 --tail 192": "kivi-2bit",
    "prog4+prog4 --sas 1 --sink 4 --tail 64": "turboattention-4bit",
    "prog4+prog4/prog2+prog2 --sas 1 --sink 4 --tail 64": "turboattention-mix",
    "ch4g128+tok2g128 --protected 5 --tail 192": "vquant-k4v2",
}


def lines_of(paths):
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith("{"):
                yield json.loads(line)


def shown_shape(shape):
    return f"{shape[0]}, {shape[1] // 1024}k"


def import_gpu(folder, where):
    rows = [row for row in lines_of(sorted(folder.glob("*.json"))) if "what" in row and "seqs" in row]
    documents = []
    for head_dim in sorted({row["head_dim"] for row in rows}, reverse=True):
        of_size = [row for row in rows if row["head_dim"] == head_dim]
        shapes = sorted({(row["seqs"], row["context"]) for row in of_size})
        found = {}
        for row in of_size:
            name, recipe, rival = named(row, head_dim)
            add(found.setdefault((name, recipe), start(name, recipe, rival, row, len(shapes))), row,
                shapes.index((row["seqs"], row["context"])))
        documents.append({"kind": "decode", "dim": head_dim, "shapes": [shown_shape(s) for s in shapes],
                          "command": "scripts/gpu-bench; lab/gpu-fp8-rivals.py", "measured_on": where,
                          "results": sorted(found.values(), key=lambda r: (not r.get("rival"), r.get("recipe", "") != "",))})
    return documents


def named(row, head_dim):
    """Returns the name, what goes with the formats (a recipe's name or options), and whether the row is a rival."""
    if not row["what"].startswith("kvant "):
        return row["what"], "", True
    formats = row["what"].removeprefix("kvant ")
    options = " ".join(row.get("options", "").replace(f"--head-dim {head_dim}", "").split())
    return formats, RECIPES.get(f"{formats} {options}".strip(), f"`{options}`" if options else ""), False


def start(name, recipe, rival, row, n_shapes):
    made = {"name": name, "bits": row["bits"], "us": [None] * n_shapes, "limit_percent": [None] * n_shapes}
    if rival:
        made["rival"] = True
    if recipe:
        made["recipe"] = recipe
    return made


def add(made, row, index):
    """Adds a time to a row. If runs are repeated, a rival's best time counts, but kvant's newest time. `bits` is taken
    from the longest context."""
    us = row.get("least_us", row["us"]) if made.get("rival") else row["us"]
    if made.get("rival") and made["us"][index] is not None:
        us = min(us, made["us"][index])
    limit = START_US + row["bytes"] / BYTES_PER_US
    made["us"][index] = us
    made["limit_percent"][index] = round(100 * limit / us, 1)
    made["bits"] = row["bits"]
