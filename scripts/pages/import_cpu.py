"""Reduces what scripts/bench-cpu.sh left in a folder to the documents of docs/results/cpu.json."""
from pages.results import documents_in, rounded
from pages.rivals import bits_of, fastest, is_rival

ATTENTION = ("recipe", "ctx", "bits", "us", "read_percent")
MODEL = ("recipe", "depth", "bits", "prompt_tps", "decode_tps", "token_p50", "token_p99")


def reduced(row, fields):
    kept = {field: rounded(row[field]) for field in fields if row.get(field) is not None}
    return {**kept, "bits": rounded(bits_of(row))}


def import_cpu(folder, where):
    """Returns documents of attention and then of whole models. `where` is a line for people about machine and date."""
    raws = [(path, raw) for path in sorted(folder.glob("*.json")) for raw in documents_in(path)]
    return attention(raws, where) + models(raws, where)


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
    """Returns a document for each depth or prompt. A document has rows of all types of weights, because the best rival
    may use other weights."""
    documents = {}
    for path, raw in raws:
        if not raw["schema"].startswith("kvant.bench/"):
            continue
        part, weights = (path.stem.split("-") + ["", ""])[:2]
        for row in raw["results"]:
            field = "prompt_tps" if raw["prompt"] else "decode_tps"
            key = (part, row["depth"], raw["prompt"], raw["decode"])
            document = documents.setdefault(key, {
                "kind": "sparse" if part == "sparse" else "prompt" if raw["prompt"] else "decode", "depth": row["depth"],
                "prompt": raw["prompt"], "decode": raw["decode"], "threads": raw["threads"], "repeats": raw["repeats"],
                "command": f"scripts/bench-cpu.sh OUT {'prompts' if part == 'prompt' else part}", "measured_on": where,
                "results": []})
            if row.get(field):
                document["results"].append({"weights": weights, **reduced(row, MODEL)})
    return [documents[key] for key in sorted(documents)]
