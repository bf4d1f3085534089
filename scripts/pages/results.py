"""Reads and writes docs/results/*.json, which hold the measured figures that the tables show. Each row has its own
line, which makes changes readable."""
import json
import re

from pages.models import model_of

QUALITY_FIELDS = ("recipe", "label", "bits_sealed", "bits_all", "constant_bytes", "constant_bits", "ppl", "kld_mean",
                  "kld_lo", "kld_hi", "kld_p999", "top1")


def load(folder, name):
    """Returns the documents of FOLDER/NAME.json, or an empty list if the file does not exist."""
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    return json.loads(path.read_text(encoding="utf-8"))["documents"]


def save(folder, name, documents):
    text = json.dumps({"documents": []})[:-2]  # '{"documents": ['
    text += ",\n".join(document_text(d) for d in documents) + "\n]}\n"
    (folder / f"{name}.json").write_text(text, encoding="utf-8")


def document_text(document):
    head = {key: value for key, value in document.items() if key != "results"}
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in document["results"])
    return "\n" + json.dumps(head, ensure_ascii=False)[:-1] + ', "results": [\n  ' + rows + "]}"


def rounded(value):
    return float(f"{value:.6g}") if isinstance(value, float) else value


def reduced(row, fields):
    return {field: rounded(row[field]) for field in fields if row.get(field) is not None}


def documents_in(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    return document if isinstance(document, list) else [document]


def import_quality(folder, where):
    """Returns documents of quality from a folder. `where` is a line for people about machine, program and date."""
    documents = []
    for path in sorted(folder.rglob("*.json")):
        for raw in documents_in(path):
            if not raw.get("schema", "").startswith("kvant.eval/") or "measured" not in raw:
                continue
            measured = raw["measured"]
            document = next((d for d in documents if same_run(d, raw)), None)
            if document is None:
                document = {**measured, "context": raw["context"], "chunks": raw["chunks"], "measured_on": where,
                            "results": []}
                documents.append(document)
            add_rows(document, [reduced(row, QUALITY_FIELDS) for row in raw["results"]])
    return documents


def same_run(document, raw):
    return run_of(document) == run_of({**raw["measured"], "context": raw["context"], "chunks": raw["chunks"]})


def run_of(document):
    """Returns what all rows of one document have in common."""
    run = (document[key] for key in ("text", "backend", "reference", "context", "chunks"))
    return (model_of(document), *run, document.get("options", ""))


def add_rows(document, rows):
    known = {(row["recipe"], row.get("label")) for row in document["results"]}
    document["results"] += [row for row in rows if (row["recipe"], row.get("label")) not in known]


def day_of(measured_on):
    """Returns the date in a line about machine, program and date, or the whole line if it has no date."""
    found = re.search(r"\d{4}-\d{2}-\d{2}", measured_on)
    return found.group() if found else measured_on


def machine_of(measured_on):
    """Returns the machine in a line about machine and date that ends with the date."""
    return measured_on.rsplit(", ", 1)[0]


def merged(known, measured, run_of):
    """Merges documents that were measured again into known ones of the same run. New rows replace old rows. A document
    has the line about machine and date that most of its rows share. Each other row has a line of its own."""
    documents = [dict(document) for document in known]
    for document in measured:
        earlier = next((d for d in documents if run_of(d) == run_of(document)), None)
        if earlier is None:
            documents.append(document)
            continue
        new = {key_of(row): row for row in with_lines(document)}
        rows = [new.pop(key_of(row), row) for row in with_lines(earlier)] + list(new.values())
        lines = [row["measured_on"] for row in rows]
        usual = max(lines, key=lambda line: (lines.count(line), line == document["measured_on"]))
        results = [{key: value for key, value in row.items() if (key, value) != ("measured_on", usual)} for row in rows]
        earlier.update(measured_on=usual, results=results)
    return documents


def key_of(row):
    fields = ("recipe", "label", "task", "depth", "layout", "sequences", "context", "cache")
    return tuple(row.get(field) for field in fields)


def with_lines(document):
    """Returns the rows, each with a line about machine and date."""
    return [{**row, "measured_on": row.get("measured_on", document["measured_on"])} for row in document["results"]]


def merged_quality(known, measured):
    return merged(known, measured, run_of)
