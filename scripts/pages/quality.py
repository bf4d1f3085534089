"""Makes the tables of docs/quality.md and docs/results/quality-*.md, and docs/results/quality.csv with every row."""
from pages import markdown
from pages.models import FIRST, MODELS, model_of
from pages.results import day_of, load

CONTROLS = {
    "window=128,sink=4,evict=1": "everything else dropped", "bf16 (steps of 128)": "noise floor", "k=bf16,v=tok2g128":
    "V alone", "k=ch2g128,v=bf16": "K alone", "k=bf16,v=hadamard:tcq2,sink=4": "V alone",
    "k=hadamard:tcq2,v=bf16,sink=4": "K alone"
}
# Older results name the uniform recipes by their formats.
NAMES = {f"k=hadamard:tcq{b},v=hadamard:tcq{b},sink=4": f"uniform-{b}bit" for b in (4, 3, 2)}
TEXTS = {"wikitext-2": "WikiText-2", "essays": "essays", "gsm8k": "GSM8K", "code": "C++ code", "german": "German"}
FILES = {
    "wikitext-2": "wikitext-2-test.txt", "essays": "essays.txt", "gsm8k": "gsm8k.txt", "code":
    "data/evaluation/code.txt", "german": "data/evaluation/german.txt"
}
# STORED in place of a backend marks rows of caches as they are stored.
STORED = "stored"
# Rows in compact coding have the prefix COMPACT.
COMPACT = "compact:"
HEADER = ("recipe", "bits", "sealed", "constants", "mean KLD", "95 % interval", "99.9 %", "top-1 %", "perplexity",
          "contexts")
# Names what attends. If several have a row, the first one counts.
BACKENDS = ("cuda", "reference", "host", "cpu")
ATTENDED = {"cuda": "", "reference": "the reference backend attends", "host": "the CPU attends", "cpu": "the CPU attends"}
WHO = {"cuda": "GPU", "reference": "reference", "host": "CPU", "cpu": "CPU"}
CSV_FIELDS = ("bits_all", "bits_sealed", "constant_bytes", "kld_mean", "kld_lo", "kld_hi", "kld_p999", "top1", "ppl")
# An interval needs at least FEWEST contexts. A browser breaks no line at TO.
FEWEST = 8
TO = "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}"
# The tables of several models show the groups of MAIN: a title, and recipes with remarks.
MAIN = (
    ("kvant, calibrated", {"kvant-4bit": "", "kvant-3bit": "", "kvant-2bit": "", "kvant-1.5bit": ""}),
    ("kvant, without calibration", {"uniform-4bit": "", "uniform-3bit": "", "uniform-2bit": ""}),
    ("kvant, queries sampled at first use", {f"uniform-{b}bit,encode=sampled": "" for b in (4, 3, 2)}),
    ("llama.cpp's own code, rotated", {"llama.cpp:q8_0": "", "llama.cpp:q4_0": ""}),
    ("llama.cpp's groups in kvant, BF16 tail", {"q8_0": "", "q4_0": "not rotated", "q4_0-h": "rotated"}),
    ("FP8",
     {"fp8-s1": "scale 1, vLLM's default", "fp8-amax": "a calibrated scale per layer", "fp8": "a scale per token"}),
    ("KIVI", {"kivi-4bit": "", "kivi-2bit": ""}),
    ("TurboQuant", {"turbo4": "", "turbo3": "", "turbo2": ""}),
)
# The table of published methods shows these groups. Main recipes that other tables have are left out, except for the
# baselines that the methods' papers compare with.
METHODS = (
    ("VecInfer", dict.fromkeys(("vecinfer-4bit", "vecinfer-3bit", "vecinfer-2bit", "vecinfer-r2", "vecinfer-1.5bit",
                                "vecinfer-1.25bit"), "")),
    ("TurboAttention", {"turboattention-4bit": "", "turboattention-mix": "half of the heads in 2 bits"}),
    ("Sparse V on TurboQuant", {"turbo3-sparse-v": "", "q8-turbo3": ""}),
    ("KVLinC", {"kvlinc-2bit": "", "kvlinc-1bit": ""}),
    ("VQuant", {"vquant-k4v2-10pct": "10 % protected", "vquant-k4v2": "5 %", "vquant-k4v2-1pct": "1 %"}),
    ("KIVI", dict.fromkeys(("kivi-4bit", "kivi-3bit", "kivi-2bit-g32", "kivi-2bit", "kivi-1bit"), "")),
    ("8-bit keys, 4-bit values", {"q8_0/q4_0": ""}),
)
# The table of rivals shows these groups. All caches keep the first 128 tokens and the tokens of an unfinished page in
# BF16.
RIVALS = (
    ("kvant, calibrated", {"kvant-4bit,sink=128": "", "kvant-3bit,sink=128": "", "kvant-2bit,sink=128": ""}),
    ("kvant, without calibration", {"uniform-4bit,sink=128": "", "uniform-3bit,sink=128": "", "uniform-2bit,sink=128": ""}),
    ("KIVI", dict.fromkeys((f"kivi-{b}bit,sink=128,window=0" for b in (4, 3, 2)), "")),
    ("KVarN", dict.fromkeys((f"kvarn-{which},tail=bf16" for which in ("k4v4", "k4v2", "k2v2", "k2v2-mended")), "")),
    ("NOVA-KV", {"nova-2bit,sink=128,window=0": ""}),
    ("OSCAR", {"oscar-2bit,sink=128,window=0": "", "oscar-2bit-centred,sink=128,window=0": "mean of K subtracted",
               "oscar-2bit-lm,window=0": "mean subtracted, Lloyd-Max steps"}),
    ("vLLM's TurboQuant, four layers unquantized",
     dict.fromkeys((f"vllm-tq-{preset},sink=128" for preset in ("k8v4", "4bit-nc", "k3v4-nc", "3bit-nc")), "")),
    ("vLLM's TurboQuant, all layers quantized",
     {"k=fp8-s1,v=tok4g512,sink=128": "k8v4", "k=hadamard:lm4n,v=tok4g512,sink=128": "4bit-nc",
      "k=hadamard:lm3n,v=tok4g512,sink=128": "k3v4-nc", "k=hadamard:lm3n,v=tok3g512,sink=128": "3bit-nc"}),
    ("UltraQuant", {"ultraquant,sink=128": "four layers unquantized",
                    "k=hadamard:mxfp4c156,v=mxfp4c156,sink=128": "all layers quantized"}),
)
# Each entry has a title and a cache for each of three tails. The first tail is quantized to 4 bits; the other tails
# hold 64 and 192 unquantized tokens on average.
TAILS = (
    ("`llama.cpp:q4_0`", "llama.cpp:q4_0", None, None),
    ("`q4_0-h`", "q4_0-h,tail=tok4g32s", "q4_0-h", "q4_0-h,window=128"),
    ("`turbo4`", "turbo4,tail=tok4g32s", "turbo4", "turbo4,window=128"),
    ("`kivi-4bit`", "kivi-4bit,tail=tok4g32s,window=0", "kivi-4bit,window=0", "kivi-4bit"),
    ("`uniform-4bit`", "uniform-4bit,tail=tok4g32s", "uniform-4bit", "uniform-4bit,window=128"),
    ("`kvant-4bit`", "kvant-4bit,tail=tok4g32s", "kvant-4bit", "kvant-4bit,window=128"),
    ("`kvant-2bit`", "kvant-2bit,tail=tok4g32s", "kvant-2bit", "kvant-2bit,window=128"),
    ("`kivi-2bit`", None, "kivi-2bit,window=0", "kivi-2bit"),
)
NOTHING = "Not measured yet.\n"


def divergence(value):
    return "0" if value == 0 else f"{value:.3g}" if value >= 1e-4 else f"{value:.1e}"


def number(value, text):
    return "-" if value is None else text.format(value)


def size(row):
    """Returns the size of the constants that a recipe needs: bytes, and bits per value at this context."""
    count = row.get("constant_bytes", 0)
    if not count:
        return "-"
    amount = f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
    return amount + number(row.get("constant_bits"), " ({:.2f})")


def interval(row):
    if row["n"] < FEWEST:
        return f"n = {row['n']}"
    return f"{divergence(row['kld_lo'])}{TO}{divergence(row['kld_hi'])}"


def name_of(recipe):
    """Returns one name for all ways to write a recipe: items after the first name are sorted alphabetically."""
    recipe = NAMES.get(recipe, recipe)
    head, *more = recipe.split(",")
    return recipe if "=" in head else ",".join([head, *sorted(more)])


def marked(recipe):
    note = CONTROLS.get(recipe)
    return f"`{recipe}`" + (f" ({note})" if note else "")


def by_bits(rows):
    return sorted(rows.items(), key=lambda item: (-item[1]["bits_all"], item[1]["kld_mean"]))


def cells(row):
    return (marked(name_of(row["recipe"])), f"{row['bits_all']:.2f}", number(row.get("bits_sealed"),
                                                           "{:.2f}"), size(row), divergence(row["kld_mean"]),
            interval(row), divergence(row["kld_p999"]), f"{100 * row['top1']:.2f}", f"{row['ppl']:.3f}", str(row["n"]))


def command(run, rows="RECIPE;RECIPE;..."):
    backend = {"reference": "", "cuda": " --device cuda", "host": " --device cuda --no-kv-offload --backend cpu"}.get(
        run["backend"], f" --backend {run['backend']}")
    reference = "" if run["reference"] == "bf16" else f" --reference {run['reference']}"
    options = f" {run['options']}" if run.get("options") else ""
    return (f"kvant eval -m {MODELS[model_of(run)].file} -f {FILES[run['text']]} -c {run['context']} "
            f"--chunks {run['chunks']}{backend}{reference}{options} --kv \"{rows}\"")


class Quality:
    def __init__(self, folder):
        self.runs = load(folder, "quality")

    def of(self, model=FIRST, text="wikitext-2", context=2048):
        """Returns the runs of this model, text and context. Runs whose rows take precedence come first."""
        found = [
            r for r in self.runs
            if (model_of(r), r["text"], r["context"]) == (model, text, context) and r["backend"] in BACKENDS
        ]
        return sorted(found, key=lambda r: (BACKENDS.index(r["backend"]), r["reference"] != "bf16", -r["chunks"]))

    def rows(self, model=FIRST, text="wikitext-2", context=2048):
        """Returns {recipe: row}. Each row also has the contexts (`n`), the backend and the day of its run."""
        found = {}
        for run in self.of(model, text, context):
            for row in run["results"]:
                if run["reference"] != "bf16" and not row["recipe"].startswith("llama.cpp:"):
                    continue
                line = row.get("measured_on", run["measured_on"])
                known = {**row, "n": run["chunks"], "backend": run["backend"], "line": line, "day": day_of(line)}
                found.setdefault(name_of(row["recipe"]), known)
        return found

    def models(self, context=2048, text="wikitext-2"):
        """Returns the models that have rows at this context and text, in the order of MODELS."""
        return [model for model in MODELS if self.rows(model, text, context)]

    def longest(self, recipe, model):
        """Returns a recipe's row at the longest context that has one on WikiText-2, and this context."""
        for context in (32768, 8192, 2048):
            row = self.rows(model, context=context).get(recipe)
            if row is not None:
                return row, context
        return None, 0

    def places(self, models, context, recipes):
        """Returns which runs the rows come from: commands, and a paragraph about each model, which names recipes from
        another run. Models with equal runs share a paragraph."""
        commands, sentences = [], {}
        for model in models:
            rows = [(recipe, row) for recipe, row in self.rows(model, context=context).items() if recipe in recipes]
            runs = self.of(model, context=context)
            usual = next(((run["chunks"], run["backend"], day_of(run["measured_on"])) for run in runs
                          if run["reference"] == "bf16"), None)
            if not rows or usual is None:
                continue
            others = {}
            for recipe, row in rows:
                if (row["n"], row["backend"], row["day"]) != usual:
                    others.setdefault((row["n"], row["backend"], row["day"]), []).append(f"`{recipe}`")
            commands += [command(runs[0])] if runs[0]["reference"] == "bf16" else []
            text = f"{usual[0]} contexts. {runs[0]['measured_on'].rstrip('.')}."
            for (n, backend, day), names in others.items():
                text += f" {', '.join(names)}: {n} contexts, {day}" + (f", {ATTENDED[backend]}." if ATTENDED[backend] else ".")
            sentences.setdefault(text, []).append(MODELS[model].title)
        paragraphs = [markdown.paragraph(f"{', '.join(titles)}: {text}") for text, titles in sentences.items()]
        return (markdown.code(*commands) if commands else "") + "\n" + "\n".join(paragraphs) + "\n"

    def main(self, context, groups=MAIN):
        """Returns the table of the groups' recipes on all models side by side."""
        models = self.models(context)
        if not models:
            return NOTHING
        shown = {recipe for _, recipes in groups for recipe in recipes}
        return self.places(models, context, shown) + self.side_by_side(models, context, groups)

    def rivals(self):
        """Returns the table of caches with equal tails and sinks on the models that have rows, and the commands."""
        shown = {recipe for _, recipes in RIVALS for recipe in recipes}
        commands, places = [], []
        for model in MODELS:
            rows = self.rows(model)
            for run in self.of(model):
                found = [rows[name] for name in (name_of(row["recipe"]) for row in run["results"]) if name in shown & set(rows)]
                lines = dict.fromkeys(row["line"].rstrip(".") for row in found
                                      if (row["n"], row["backend"]) == (run["chunks"], run["backend"]))
                if lines:
                    commands.append(command(run))
                    places.append(f"{MODELS[model].title}, the {WHO[run['backend']]} attends: {run['chunks']} contexts; "
                                  f"{'; '.join(lines)}.")
        models = [model for model in MODELS if shown & set(self.rows(model))]
        if not models:
            return NOTHING
        return (markdown.code(*commands) + "\n" + "\n".join(map(markdown.paragraph, places)) + "\n" +
                self.side_by_side(models, 2048, RIVALS))

    def side_by_side(self, models, context, groups):
        of_model = [self.rows(model, context=context) for model in models]
        body = []
        for title, recipes in groups:
            kept = [recipe for recipe in recipes if any(recipe in rows for rows in of_model)]
            if kept:
                body.append((f"**{title}**", *[""] * 2 * len(models)))
            for recipe in kept:
                found = [rows.get(recipe) for rows in of_model]
                body.append((f"`{recipe}`" + (f", {recipes[recipe]}" if recipes[recipe] else ""),
                             *(cell for row in found for cell in self.main_cells(row))))
        header = ("cache", *(cell for model in models
                             for cell in (f"{MODELS[model].title}: bits", "mean KLD,<br>95 % interval")))
        return markdown.table(header, body)

    @staticmethod
    def main_cells(row):
        if row is None:
            return ("-", ) * 2
        return (f"{row['bits_all']:.2f}", f"{divergence(row['kld_mean'])}<br>{interval(row)}")

    def recipes(self):
        """Returns the table of all built-in recipes on the first model at two contexts, including the recipes that
        main() leaves out."""
        rows, longer = self.rows(), self.rows(context=8192)
        body = [(f"`{recipe}`", f"{row['bits_all']:.2f}", size(row), divergence(row["kld_mean"]), interval(row),
                 divergence(longer[recipe]["kld_mean"]) if recipe in longer else "-", self.run_of(row))
                for recipe, row in by_bits(rows) if not set("=, ") & set(recipe)]
        if not body:
            return NOTHING
        header = ("recipe", "bits", "constants", "mean KLD", "95 % interval", "mean KLD at 8,192", "contexts, who attends, day")
        return markdown.code(command(self.of()[0])) + "\n" + markdown.table(header, body)

    def controls(self):
        """Returns the table of rows that help to read the others: the noise floor, one side alone, everything dropped.
        """
        body = [(marked(recipe), f"{row['bits_all']:.2f}", divergence(row["kld_mean"]), interval(row), self.run_of(row))
                for recipe, row in by_bits(self.rows()) if row["recipe"] in CONTROLS or recipe in CONTROLS]
        header = ("cache", "bits", "mean KLD", "95 % interval", "contexts, who attends, day")
        return markdown.table(header, body) if body else NOTHING

    @staticmethod
    def run_of(row):
        return f"{row['n']}, {WHO[row['backend']]}, {row['day']}"

    def csv(self):
        """Returns the CSV file of every row that a table may show: all models, texts and contexts."""
        rows = []
        for model in MODELS:
            for text in TEXTS:
                for context in sorted({run["context"] for run in self.runs}):
                    rows += [(model, text, context, row["n"], row["backend"], recipe, *(row.get(f) for f in CSV_FIELDS), row["day"])
                             for recipe, row in by_bits(self.rows(model, text, context))]
        return markdown.csv_text(("model", "text", "context", "contexts", "backend", "recipe", *CSV_FIELDS, "day"), rows)

    def tails(self):
        """Returns one table that compares caches with equal tails on all models and contexts."""
        body, places = [], []
        for model in MODELS:
            for context in (2048, 8192, 32768):
                rows = self.rows(model, context=context)
                found = [(shown, [rows.get(recipe) if recipe else None for recipe in recipes])
                         for shown, *recipes in TAILS]
                if not any(row is not None and ("tail=" in row["recipe"] or "window=" in row["recipe"])
                           for _, of in found for row in of):
                    continue
                for shown, of in found:
                    if any(of):
                        body.append((MODELS[model].title, f"{context:,}", shown, *(self.tail_cell(row) for row in of)))
                places.append(f"{MODELS[model].title} at {context:,}")
        if not body:
            return NOTHING
        return markdown.table(("model", "context", "cache", "no tail", "64 tokens on average", "192 on average"), body)

    @staticmethod
    def tail_cell(row):
        if row is None:
            return "-"
        few = f", n = {row['n']}" if row["n"] < FEWEST else ""
        return f"{divergence(row['kld_mean'])} at {row['bits_all']:.2f} bits{few}"

    def backends(self):
        """Returns a table of recipes on one model, with attention by the GPU, by the reference backend and by the CPU
        backend."""
        runs = {backend: {} for backend in BACKENDS}
        for run in self.of():
            if run["reference"] == "bf16":
                for row in run["results"]:
                    day = day_of(row.get("measured_on", run["measured_on"]))
                    known = {**row, "n": run["chunks"], "day": day}
                    runs[run["backend"]].setdefault(name_of(row["recipe"]), known)
        by_cpu = {**runs["cpu"], **runs["host"]}
        body = []
        for recipe, row in sorted(by_cpu.items(), key=lambda item: -item[1]["bits_all"]):
            others = [runs[backend].get(recipe) for backend in ("cuda", "reference")]
            if recipe == "bf16" or not any(others):
                continue
            shown = ("-" if r is None else f"{divergence(r['kld_mean'])} ({r['n']})" for r in (*others, row))
            body.append((f"`{recipe}`", f"{row['bits_all']:.2f}", *shown, interval(row), row["day"]))
        if not body:
            return NOTHING
        shown = {name_of(row["recipe"]) for run in self.of() if run["backend"] in ("cuda", "reference") for row in run["results"]}
        cpu = [run for run in self.of()
               if run["backend"] == "cpu" and shown & {name_of(row["recipe"]) for row in run["results"]} - {"bf16"}]
        places = sorted({run["measured_on"].rstrip(".") for run in cpu}, key=day_of)
        return (markdown.code(*dict.fromkeys(map(command, cpu))) + "\nThe CPU's: " + "; ".join(places) + ".\n\n" +
                markdown.table(("recipe", "bits", "GPU", "reference", "CPU", "95 % interval of the CPU's", "day"), body))

    def domains(self, context=2048):
        """Returns results on other texts: a table for each model with a column for each text."""
        text = ""
        for model in MODELS:
            of_text = {name: self.rows(model, name, context) for name in TEXTS}
            of_text = {name: rows for name, rows in of_text.items() if rows}
            checked = {recipe for name, rows in of_text.items() if name != "wikitext-2" for recipe in rows} - {"bf16"}
            if not checked:
                continue
            order = sorted(checked,
                           key=lambda r: (-max(rows[r]["bits_all"] for rows in of_text.values() if r in rows), r))
            body = [(f"`{recipe}`", *("-" if recipe not in rows else self.of_text(rows[recipe], context)
                                      for rows in of_text.values())) for recipe in order]
            runs = [self.of(model, name, context)[0] for name in of_text if name != "wikitext-2"]
            header = ("recipe", *(f"{TEXTS[name]} ({max(row['n'] for row in rows.values())})"
                                  for name, rows in of_text.items()))
            places = dict.fromkeys(run["measured_on"].rstrip(".") for run in runs)
            text += (f"\n### {MODELS[model].title}, other texts, {context:,} tokens\n\n" +
                     markdown.code(*map(command, runs)) + f"\n{'; '.join(places)}.\n\n" + markdown.table(header, body))
        return text or NOTHING

    @staticmethod
    def of_text(row, context):
        mean = divergence(row["kld_mean"])
        return mean if context == 2048 else f"{mean} ({interval(row)}); {divergence(row['kld_p999'])}"

    def stored(self, context):
        """Returns the table of caches as they are stored (lab/kvtc/cold_tiers.cc). Compact coding loses nothing, so its
        row has the recipe's divergence with fewer bits."""
        hot = self.rows(context=context)
        runs = [run for run in self.runs if run["backend"] == STORED and run["context"] == context]
        if not runs or not hot:
            return NOTHING
        rows, commands, places = [], [], []
        for run in runs:
            for row in run["results"]:
                if row["recipe"].startswith(COMPACT):
                    recipe = hot.get(row["recipe"].removeprefix(COMPACT))
                    rows += [recipe, {**recipe, **row}] if recipe else []
                elif row["recipe"] != "bf16":
                    rows.append({**row, "n": run["chunks"]})
            what = " and ".join(
                sorted({f"`{row['recipe'].split(':')[0]}`"
                        for row in run["results"] if ":" in row["recipe"]}))
            place = f"{MODELS[FIRST].file} {FILES[run['text']]} {context} {run['chunks']} OUT"
            commands += [
                f"build/default/cold_tiers {part}"
                for part, kind in ((f"sizes {place} RECIPE...", "compact"), (f"eval {place} kvtc:FILE:BITS...", "kvtc"))
                if kind in what
            ]
            places.append(f"{what}: {run['chunks']} contexts; {run['measured_on']}.")
        return (markdown.code(*commands) + "\n" + " ".join(places) + "\n\n" + markdown.table(
            HEADER, [cells(row) for row in sorted(rows, key=lambda row: (-row["bits_all"], row["kld_mean"]))]))

    @staticmethod
    def models_table():
        return markdown.table(("model", "file", "shape", "trained context"),
                              [(m.title, f"`{m.file}`", m.heads, m.trained) for m in MODELS.values()])

    def blocks(self):
        contexts = (2048, 8192, 32768)
        return {
            "quality-models": self.models_table,
            "quality-recipes": self.recipes,
            "quality-methods": lambda: self.main(2048, METHODS),
            "quality-methods-8192": lambda: self.main(8192, METHODS),
            "quality-rivals": self.rivals,
            "quality-controls": self.controls,
            "quality-tails": self.tails,
            "quality-backends": self.backends,
            "quality-domains": self.domains,
            "quality-domains-8192": lambda: self.domains(8192),
            "quality-stored-8192": lambda: self.stored(8192),
            **{f"quality-main-{c}": lambda c=c: self.main(c) if self.models(c) or c != contexts[-1] else ""
               for c in contexts}
        }
