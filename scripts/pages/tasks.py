"""Makes the tables of docs/results/quality-tasks.md: scores of tasks, needles in long texts, and divergence along
completions."""
import pathlib

from pages import markdown
from pages.models import MODELS
from pages.results import day_of, documents_in, load, merged, reduced

# Lists the columns of the tables of tasks, in the words of their authors.
TITLES = {"humaneval": "HumanEval", "gsm8k": "GSM8K", "bfcl-simple": "BFCL simple", "bfcl-multiple": "BFCL multiple",
          "bfcl-parallel": "BFCL parallel"}
ROW = ("recipe", "task", "depth", "problems", "right", "score", "score_lo", "score_hi", "gained", "lost", "change", "change_lo",
       "change_hi", "valid_share", "cut", "mean_tokens")
DRIFT_ROW = ("recipe", "kld_mean", "kld_lo", "kld_hi", "top1", "blocks")
BLOCK = ("first", "count", "kld_mean", "top1")
NEEDLE_ROW = ("recipe", "questions", "exact", "logp_change", "logp_lo", "logp_hi")
CELL = ("context", "task", "questions", "exact")


def import_tasks(folder, where):
    """Returns the documents of `kvant eval --tasks`, `--retrieval` and `--drift` in a folder, without completions. Rows
    of one run of --drift or --retrieval may lie in several files."""
    documents = []
    for path in sorted(folder.rglob("*.json")):
        for raw in documents_in(path):
            kind = raw.get("schema", "").partition("/")[0].removeprefix("kvant.")
            if kind == "tasks":
                head = {"parallel": raw["parallel"], "weights": raw["weights"], "device": raw["device"]}
                rows = [reduced(row, ROW) for row in raw["results"]]
            elif kind == "drift":
                head = {key: raw[key] for key in ("generated_tokens", "prompts", "text", "ends")}
                rows = [reduced(row, DRIFT_ROW) | {"blocks": [reduced(block, BLOCK) for block in row["blocks"]]}
                        for row in raw["results"]]
            elif kind == "retrieval":
                head = {key: raw[key] for key in ("contexts", "documents", "seed", "text")}
                rows = [reduced(row, NEEDLE_ROW) | {"cells": [reduced(cell, CELL) for cell in row["cells"]]}
                        for row in raw["results"]]
            else:
                continue
            model = next(name for name, model in MODELS.items() if model.file == pathlib.Path(raw["model"]).name)
            head = {"kind": kind, "model": model, "measured_on": where, **head}
            document = next((d for d in documents if {**d, "results": []} == {**head, "results": []}), None)
            if document is None:
                document = {**head, "results": []}
                documents.append(document)
            known = {tuple(row.get(key) for key in ("recipe", "task", "depth")) for row in document["results"]}
            document["results"] += [row for row in rows
                                    if tuple(row.get(key) for key in ("recipe", "task", "depth")) not in known]
    return documents


def merged_tasks(known, measured):
    return merged(known, measured, lambda document: {**document, "measured_on": "", "results": []})


def places(document, cells):
    """Returns a sentence for each line about machine and date. The sentences name the cells {(recipe, column): row}.
    The last sentence has the line that most cells have."""
    found = {}
    for (recipe, column), row in cells.items():
        found.setdefault(row.get("measured_on", document["measured_on"]).rstrip("."), {}).setdefault(recipe, []).append(column)
    usual = max(found, key=lambda line: sum(map(len, found[line].values())))
    sentences = []
    for line in sorted(found, key=lambda line: (line == usual, day_of(line))):
        names = [f"`{recipe}`" + ("" if len(columns) == sum(key[0] == recipe for key in cells) else f" ({', '.join(columns)})")
                 for recipe, columns in found[line].items()]
        if line != usual:
            sentences.append(f"{line}: {', '.join(names)}.")
        else:
            sentences.append(f"{line}: all other cells." if sentences else f"{line}.")
    return " ".join(sentences)


def points(share):
    return f"{100 * share:.1f}"


def score(row):
    return f"{points(row['score'])} ({points(row['score_lo'])} - {points(row['score_hi'])})"


def change(row):
    interval = f"{100 * row['change_lo']:+.1f} to {100 * row['change_hi']:+.1f}"
    return f"{100 * row['change']:+.1f} ({interval}); +{row['gained']} -{row['lost']}"


def valid(row):
    return points(row["valid_share"])


def divergence(part):
    """Returns the divergence of a block of positions, or of all positions with its interval."""
    interval = f" ({part['kld_lo']:.2g} - {part['kld_hi']:.2g})" if "blocks" in part else ""
    return f"{part['kld_mean']:.2g}{interval}"


class Tasks:
    def __init__(self, folder):
        self.documents = load(folder, "tasks")

    def of(self, kind):
        return [document for document in self.documents if document["kind"] == kind]

    def by_recipe(self, cell, wanted=TITLES, leaves_out_reference=False):
        """Returns a table with a row for each recipe and a column for each task."""
        text = ""
        for document in self.of("tasks"):
            rows = {(row["recipe"], row["task"]): row for row in document["results"] if row["depth"] == 0}
            tasks = [task for task in wanted if any(key[1] == task for key in rows)]
            recipes = list(dict.fromkeys(recipe for recipe, _ in rows))[int(leaves_out_reference):]
            problems = {task: next(row["problems"] for key, row in rows.items() if key[1] == task) for task in tasks}
            header = ("cache", *(f"{TITLES[task]} ({problems[task]})" for task in tasks))
            body = [(f"`{recipe}`", *(cell(rows[recipe, task]) if (recipe, task) in rows else "-" for task in tasks))
                    for recipe in recipes]
            shown = {(recipe, TITLES[task]): rows[recipe, task] for recipe in recipes for task in tasks if (recipe, task) in rows}
            text += (markdown.paragraph(f"{MODELS[document['model']].title}. {places(document, shown)}") + "\n" +
                     markdown.table(header, body))
        return text or "Not measured yet.\n"

    def by_depth(self):
        """Returns a table of the tasks that were asked for after other text, a row for each cache and depth."""
        text = ""
        for document in self.of("tasks"):
            rows = [row for row in document["results"] if row["depth"] > 0]
            if not rows:
                continue
            body = [(TITLES[row["task"]], f"{row['depth']:,}", f"`{row['recipe']}`", str(row["problems"]), score(row), change(row),
                     valid(row)) for row in rows]
            shown = {(row["recipe"], row["task"], row["depth"]): row for row in rows}
            lines = {(recipe, f"{TITLES[task]}, {depth:,}"): row for (recipe, task, depth), row in shown.items()}
            header = ("task", "tokens before", "cache", "problems", "right, %", "change", "valid, %")
            text += (markdown.paragraph(f"{MODELS[document['model']].title}. {places(document, lines)}") + "\n" +
                     markdown.table(header, body))
        return text or "Not measured yet.\n"

    def needles(self):
        """Returns a table with a row for each cache: right values by length, and the change of their log-probability."""
        text = ""
        for document in self.of("retrieval"):
            contexts = document["contexts"]
            body = []
            for row in document["results"]:
                cells = {c: [cell for cell in row["cells"] if cell["context"] == c] for c in contexts}
                right = {c: round(sum(cell["exact"] * cell["questions"] for cell in cells[c])) for c in contexts}
                asked = {c: sum(cell["questions"] for cell in cells[c]) for c in contexts}
                logp = f"{row['logp_change']:+.2g} ({row['logp_lo']:+.2g} to {row['logp_hi']:+.2g})"
                body.append((f"`{row['recipe']}`", *(f"{right[c]} of {asked[c]}" for c in contexts),
                             logp if row is not document["results"][0] else "-"))
            header = ("cache", *(f"{c:,} tokens" for c in contexts), "change of log-probability")
            shown = {(row["recipe"], "all"): row for row in document["results"]}
            text += (markdown.paragraph(f"{MODELS[document['model']].title}, {document['documents']} documents of each "
                                        f"length. {places(document, shown)}") + "\n" + markdown.table(header, body))
        return text or "Not measured yet.\n"

    def drift(self, cell):
        """Returns a table with a row for each recipe and a column for each block of positions."""
        text = ""
        for document in self.of("drift"):
            blocks = document["results"][0]["blocks"]
            header = ("cache", *(f"{b['first']:,}" for b in blocks), "all")
            body = [(f"`{row['recipe']}`", *(cell(block) for block in row["blocks"]), cell(row))
                    for row in document["results"][1:]]
            shown = {(row["recipe"], "all"): row for row in document["results"][1:]}
            text += (markdown.paragraph(f"{MODELS[document['model']].title}, {document['prompts']} prompts. {places(document, shown)}") +
                     "\n" + markdown.table(header, body))
        return text or "Not measured yet.\n"

    def blocks(self):
        return {
            "tasks-scores": lambda: self.by_recipe(score),
            "tasks-changes": lambda: self.by_recipe(change, leaves_out_reference=True),
            "tasks-valid": lambda: self.by_recipe(valid, [task for task in TITLES if task.startswith("bfcl-")]),
            "tasks-depths": self.by_depth,
            "needles": self.needles,
            "drift-divergence": lambda: self.drift(divergence),
            "drift-same-token": lambda: self.drift(lambda part: points(part["top1"])),
        }
