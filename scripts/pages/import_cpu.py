"""Reduces what scripts/bench-cpu.sh left in a folder to the documents of docs/results/cpu.json."""
from pages.models import MODELS
from pages.results import documents_in, machine_of, rounded
from pages.rivals import bits_of, fastest, is_rival

ATTENTION = ("recipe", "ctx", "bits", "us", "read_percent")
PARTS = {"decode": "model", "prompt": "prompts", "sparse": "sparse"}
SPEEDS = {"decode": "decode_tps", "prompt": "prompt_tps", "sparse": "decode_tps"}


def reduced(row, fields):
    kept = {field: rounded(row[field]) for field in fields if row.get(field) is not None}
    return {**kept, "bits": rounded(bits_of(row))}


def import_cpu(folder, where):
    """Returns documents of attention and then of whole models. `where` is a line for people about machine and date."""
    raws = [(path, raw) for path in sorted(folder.glob("*.json")) for raw in documents_in(path)]
    return attention(raws, where) + models(raws, where)


def merged_cpu(known, measured):
    """Returns the documents of `known` that were not measured again on the same machine, and then those of `measured`."""
    runs = [run_of(document) for document in measured]
    return [d for d in known if d["kind"] != "table" and run_of(d) not in runs] + measured + [
        d for d in known if d["kind"] == "table"]


def run_of(document):
    """Returns what is measured and where. The line about machine and date ends with the date."""
    fields = (document.get(field) for field in ("kind", "heads", "kv_heads", "dim", "backend", "model", "threads"))
    return (*fields, machine_of(document["measured_on"]))


def attention(raws, where):
    """Returns a document for each shape and backend, from all files that measured them. Other programs at a shape
    compete too."""
    documents = {}
    for path, raw in raws:
        if not raw["schema"].startswith("kvant.bench.attention/"):
            continue
        shape = (raw["heads"], raw["kv_heads"], raw["dim"])
        backend = raw.get("backend") or backend_in(path.stem)
        document = documents.setdefault((*shape, backend), {
            "kind": "attention", "heads": shape[0], "kv_heads": shape[1], "dim": shape[2], "threads": raw["threads"],
            "repeats": raw["repeats"], "backend": backend, "read_gbps": rounded(raw["read_gbps"]),
            "command": "scripts/bench-cpu.sh OUT attention onnxruntime", "measured_on": where, "results": []})
        others = [row for _, other in raws if other["schema"].startswith("kvant.bench.onnxruntime/") and
                  (other["heads"], other["kv_heads"], other["dim"]) == shape for row in other["results"]]
        add_attention(document, raw["results"], others)
    return sorted(documents.values(), key=lambda d: (d["heads"], ["avx512", "avxvnni", "avx2"].index(d["backend"].split("/")[-1])
                                                     if d["backend"].split("/")[-1] in ("avx512", "avxvnni", "avx2") else 9))


def backend_in(stem):
    """Returns the backend in a file's name: "cpu/avx512" for attention-9-3-64-avx512-0."""
    parts = stem.split("-")
    return "cpu/" + parts[4] if len(parts) > 5 else "cpu"


def add_attention(document, rows, others):
    known = {(row["recipe"], row["ctx"]) for row in document["results"]}
    for row in [*rows, *others]:
        if (row["recipe"], row["ctx"]) in known or row.get("us") is None:
            continue
        made = reduced(row, ATTENTION)
        if not is_rival(row["recipe"]):
            rival = fastest([r for r in [*rows, *others] if r["ctx"] == row["ctx"] and r.get("us")], bits_of(row),
                            lambda r: 1 / r["us"])
            if rival is not None:
                made |= {"rival": rival["recipe"], "ratio": rounded(rival["us"] / row["us"])}
        document["results"].append(made)


def models(raws, where):
    """Returns a document for each model, kind of work and number of threads, from all files that measured them. Rows are
    ordered by depth, or by length of prompt."""
    documents = {}
    for path, raw in raws:
        if not raw["schema"].startswith("kvant.bench/"):
            continue
        kind = "sparse" if path.stem.startswith("sparse") else "prompt" if raw["prompt"] else "decode"
        key = (kind, raw["model"], raw["threads"])
        document = documents.setdefault(key, {
            "kind": kind, "model": title_of(raw["model"]), "threads": raw["threads"], "repeats": raw["repeats"],
            "command": f"THREADS={raw['threads']} scripts/bench-cpu.sh OUT {PARTS[kind]}", "measured_on": where, "results": []})
        document["results"] += [model_row(row, kind, raw["prompt"]) for row in raw["results"] if row.get(SPEEDS[kind])]
    for document in documents.values():
        document["results"].sort(key=lambda row: row["at"])
    return [documents[key] for key in sorted(documents)]


def model_row(row, kind, prompt):
    made = {"recipe": row["recipe"], "at": prompt if kind == "prompt" else row["depth"], "bits": rounded(bits_of(row)),
            "tps": rounded(row[SPEEDS[kind]])}
    rival, ratio = (row.get(f"{SPEEDS[kind].split('_')[0]}_{what}") for what in ("rival", "ratio"))
    return {**made, "rival": rival, "ratio": rounded(ratio)} if ratio and not is_rival(row["recipe"]) else made


def title_of(file):
    """Returns the name of a model file for people."""
    name = file.split("/")[-1]
    return next((model.title for model in MODELS.values() if model.file == name), name.removesuffix(".gguf"))
