"""Says which runs the rows of a table come from: commands, contexts, what computed attention, machine and day."""
from pages import markdown
from pages.models import MODELS, model_of
from pages.results import day_of

FILES = {
    "wikitext-2": "wikitext-2-test.txt", "essays": "essays.txt", "gsm8k": "gsm8k.txt", "code":
    "data/evaluation/code.txt", "german": "data/evaluation/german.txt"
}
# STORED in place of a backend marks rows of caches as they are stored, whose attention the reference code computes.
STORED = "stored"
WHO = {"cuda": "GPU", "reference": "reference", STORED: "reference", "host": "CPU", "cpu": "CPU"}
ATTENTION = {"GPU": "attention on the GPU", "reference": "attention in the reference code", "CPU": "attention on the CPU"}


def told(run, row):
    """Returns a row together with what its run says about it. A row of an earlier day has a machine of its own."""
    place = row.get("measured_on", run["measured_on"]).rstrip(".")
    return {**row, "n": run["chunks"], "backend": run["backend"], "place": place, "day": day_of(place), "run": run}


def command(run, file, rows="RECIPE;RECIPE;..."):
    backend = {"cuda": " --device cuda", "host": " --device cuda --no-kv-offload --backend cpu"}.get(
        run["backend"], f" --backend {run['backend']}")
    reference = "" if run["reference"] == "bf16" else f" --reference {run['reference']}"
    options = f" {run['options']}" if run.get("options") else ""
    return (f"kvant eval -m {file} -f {FILES[run['text']]} -c {run['context']} "
            f"--chunks {run['chunks']}{backend}{reference}{options} --kv \"{rows}\"")


def commands(rows):
    """Returns the commands that measured rows. Commands that differ in the model alone are one command."""
    runs = []
    for row in rows:
        runs += [row["run"]] if row["run"] not in runs else []
    runs.sort(key=lambda run: (run["context"], list(WHO).index(run["backend"]), run["reference"] != "bf16"))
    files = [model.file for name, model in MODELS.items() if any(model_of(run) == name for run in runs)]
    name = files[0] if len(files) == 1 else "FILE"
    code = markdown.code(*dict.fromkeys(command(run, name) for run in runs))
    if len(files) == 1:
        return code + "\n"
    return code + "\n" + markdown.paragraph("FILE is the model's file: " + ", ".join(f"`{f}`" for f in files) + ".") + "\n"


def names(recipes):
    return ", ".join(f"`{recipe}`" for recipe in recipes)


def in_a_sentence(place):
    """Returns a machine and its day without a capital at the beginning."""
    return place[0].lower() + place[1:] if place.startswith(("One ", "Two ")) else place


def places(tables):
    """Returns a paragraph about each (title, {recipe: row}), and a list of the recipes from other runs than most rows.
    Tables with equal runs share a paragraph."""
    texts = {}
    for title, rows in tables:
        runs = {}
        for recipe, row in rows.items():
            options = f" with `{row['run']['options']}`" if row["run"].get("options") else ""
            runs.setdefault((f"{row['n']} contexts{options}, {ATTENTION[WHO[row['backend']]]}", row["place"]), []).append(recipe)
        if not runs:
            continue
        usual = max(runs, key=lambda run: len(runs[run]))
        others = [f"{names(recipes)}: {how}, {'the same machine and day' if place == usual[1] else in_a_sentence(place)}."
                  for (how, place), recipes in sorted(runs.items(), key=lambda run: run[0][1] != usual[1])
                  if (how, place) != usual]
        texts.setdefault((f"{usual[0]}, {in_a_sentence(usual[1])}.", *others), []).append(title)
    return "\n".join(
        markdown.paragraph(f"{', '.join(titles)}: {usual}" + (" Exceptions:" if others else "")) +
        ("\n" + markdown.items(others) if others else "") for (usual, *others), titles in texts.items()) + "\n"


def described(tables):
    """Returns the commands and the places of (title, {recipe: row}) tables."""
    return commands([row for _, rows in tables for row in rows.values()]) + places(tables)


def run_of(row):
    """Returns a cell that says how a row was measured. machines() has the machine."""
    return f"{row['n']}, {WHO[row['backend']]},<br>{row['day']}"


def machine(row):
    """Returns the line about machine and date of a row without the date."""
    return row["place"].replace(row["day"], "").strip(", ").replace(", , ", ", ")


def machines(rows):
    """Returns a table of the machines on which (recipe, row) pairs were measured, by what computed attention and day."""
    found = {}
    for recipe, row in rows:
        where = found.setdefault((row["day"], WHO[row["backend"]]), {}).setdefault(machine(row), [])
        where += [] if recipe in where else [recipe]
    body = []
    for (day, who), of_machine in sorted(found.items(), reverse=True):
        usual = max(of_machine, key=lambda place: len(of_machine[place]))
        others = [f"{names(recipes)}: {place}" for place, recipes in of_machine.items() if place != usual]
        body.append((f"{who}, {day}", "; ".join([usual, *others])))
    return markdown.table(("attention by, day", "machine"), body)
