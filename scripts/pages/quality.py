"""Makes the tables of docs/quality.md and docs/results/quality-*.md, and docs/results/quality.csv with every row."""
from pages import markdown
from pages.models import FIRST, MODELS, model_of
from pages.origins import FILES, STORED, commands, described, machine, machines, run_of, told
from pages.results import load

CONTROLS = {
    "window=128,sink=4,evict=1": "everything else dropped", "bf16 (steps of 128)": "noise floor", "k=bf16,v=tok2g128":
    "V alone", "k=ch2g128,v=bf16": "K alone", "k=bf16,v=hadamard:tcq2,sink=4": "V alone",
    "k=hadamard:tcq2,v=bf16,sink=4": "K alone"
}
# Older results name the uniform recipes by their formats.
NAMES = {f"k=hadamard:tcq{b},v=hadamard:tcq{b},sink=4": f"uniform-{b}bit" for b in (4, 3, 2)}
TEXTS = {"wikitext-2": "WikiText-2", "essays": "essays", "gsm8k": "GSM8K", "code": "C++ code", "german": "German"}
# Rows in compact coding have the prefix COMPACT.
COMPACT = "compact:"
# Names what attends. If several have a row, the first one counts.
BACKENDS = ("cuda", "reference", "host", "cpu")
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


def loss(row):
    return f"{divergence(row['kld_mean'])}<br>{interval(row)}"


def by_bits(rows):
    return sorted(rows.items(), key=lambda item: (-item[1]["bits_all"], item[1]["kld_mean"]))


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
        """Returns {recipe: row}. Each row also has what told() adds."""
        found = {}
        for run in self.of(model, text, context):
            for row in run["results"]:
                if run["reference"] != "bf16" and not row["recipe"].startswith("llama.cpp:"):
                    continue
                found.setdefault(name_of(row["recipe"]), told(run, row))
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

    def shown(self, models, context, groups):
        """Returns (title, {recipe: row}) of each model, with the recipes of the groups."""
        tables = []
        for model in models:
            rows = self.rows(model, context=context)
            recipes = [recipe for _, of_group in groups for recipe in of_group if recipe in rows]
            tables.append((MODELS[model].title, {recipe: rows[recipe] for recipe in recipes}))
        return tables

    def main(self, context, groups=MAIN):
        """Returns the table of the groups' recipes on all models side by side."""
        models = [model for model in self.models(context) if dict(self.shown([model], context, groups))[MODELS[model].title]]
        if not models:
            return NOTHING
        return described(self.shown(models, context, groups)) + self.side_by_side(models, context, groups)

    def rivals(self):
        """Returns the table of caches with equal tails and sinks on the models that have rows, and the commands."""
        models = [model for model, table in zip(MODELS, self.shown(MODELS, 2048, RIVALS)) if table[1]]
        if not models:
            return NOTHING
        return described(self.shown(models, 2048, RIVALS)) + self.side_by_side(models, 2048, RIVALS)

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
        return f"{row['bits_all']:.2f}", loss(row)

    def recipes(self):
        """Returns the table of all built-in recipes on the first model at two contexts, including the recipes that
        main() leaves out."""
        rows = [(recipe, row) for recipe, row in by_bits(self.rows()) if not set("=, ") & set(recipe)]
        longer = self.rows(context=8192)
        if not rows:
            return NOTHING
        others = [(recipe, longer[recipe]) for recipe, _ in rows if recipe in longer]
        body = [(f"`{recipe}`", f"{row['bits_all']:.2f}", size(row), loss(row), run_of(row),
                 *((loss(longer[recipe]), run_of(longer[recipe])) if recipe in longer else ("-", "-"))) for recipe, row in rows]
        header = ("recipe", "bits", "constants", "mean KLD,<br>95 % interval", "contexts, attention<br>by, day",
                  "at 8,192 tokens,<br>95 % interval", "contexts, attention<br>by, day")
        return commands([row for _, row in rows + others]) + machines(rows + others) + "\n" + markdown.table(header, body)

    def controls(self):
        """Returns the table of rows that help to read the others: the noise floor, one side alone, everything dropped.
        """
        rows = [(recipe, row) for recipe, row in by_bits(self.rows()) if row["recipe"] in CONTROLS or recipe in CONTROLS]
        if not rows:
            return NOTHING
        body = [(marked(recipe), f"{row['bits_all']:.2f}", loss(row), run_of(row)) for recipe, row in rows]
        header = ("cache", "bits", "mean KLD,<br>95 % interval", "contexts, attention<br>by, day")
        return commands([row for _, row in rows]) + machines(rows) + "\n" + markdown.table(header, body)

    def csv(self):
        """Returns the CSV file of every row that a table may show: all models, texts and contexts."""
        rows = []
        for model in MODELS:
            for text in TEXTS:
                for context in sorted({run["context"] for run in self.runs}):
                    rows += [(model, text, context, row["n"], row["backend"], recipe, *(row.get(f) for f in CSV_FIELDS), row["day"],
                              machine(row))
                             for recipe, row in by_bits(self.rows(model, text, context))]
        return markdown.csv_text(("model", "text", "context", "contexts", "backend", "recipe", *CSV_FIELDS, "day", "machine"), rows)

    def tails(self):
        """Returns one table that compares caches with equal tails on all models and contexts."""
        body, tables = [], []
        for model in MODELS:
            for context in (2048, 8192, 32768):
                rows = self.rows(model, context=context)
                shown = {recipe: rows[recipe] for _, *recipes in TAILS for recipe in recipes if recipe in rows}
                if not any("tail=" in recipe or "window=" in recipe for recipe in shown):
                    continue
                tables.append((f"{MODELS[model].title} at {context:,}", shown))
                for title, *recipes in TAILS:
                    of = [rows.get(recipe) for recipe in recipes]
                    if any(of):
                        body.append((MODELS[model].title, f"{context:,}", title, *(self.tail_cell(row) for row in of)))
        if not body:
            return NOTHING
        header = ("model", "context", "cache", "no tail", "64 tokens on average", "192 on average")
        return described(tables) + markdown.table(header, body)

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
                    runs[run["backend"]].setdefault(name_of(row["recipe"]), told(run, row))
        by_cpu = {**runs["cpu"], **runs["host"]}
        body, shown = [], []
        for recipe, row in sorted(by_cpu.items(), key=lambda item: -item[1]["bits_all"]):
            others = [runs[backend].get(recipe) for backend in ("cuda", "reference")]
            if recipe == "bf16" or not any(others):
                continue
            shown += [(recipe, r) for r in (*others, row) if r is not None]
            in_runs = ("-" if r is None else f"{divergence(r['kld_mean'])}<br>{r['n']}, {r['day']}" for r in (*others, row))
            body.append((f"`{recipe}`", f"{row['bits_all']:.2f}", *in_runs, interval(row)))
        if not body:
            return NOTHING
        header = ("recipe", "CPU's bits", "GPU", "reference", "CPU", "95 % interval of the CPU's")
        return commands([row for _, row in shown]) + machines(shown) + "\n" + markdown.table(header, body)

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
            header = ("recipe", *(f"{TEXTS[name]} ({max(rows[recipe]['n'] for recipe in order if recipe in rows)})"
                                  for name, rows in of_text.items()))
            tables = [(TEXTS[name], {recipe: rows[recipe] for recipe in order if recipe in rows}) for name, rows in of_text.items()]
            text += (f"\n### {MODELS[model].title}, other texts, {context:,} tokens\n\n" + described(tables) +
                     markdown.table(header, body))
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
        rows, lines = [], []
        for run in runs:
            kinds = set()
            for row in run["results"]:
                size_of, recipe = told(run, row), hot.get(row["recipe"].removeprefix(COMPACT))
                if row["recipe"].startswith(COMPACT) and recipe:
                    rows += [(recipe, recipe), ({**recipe, **row}, size_of)]
                elif not row["recipe"].startswith(COMPACT) and row["recipe"] != "bf16":
                    rows.append((size_of, size_of))
                kinds.add(row["recipe"].partition(":")[0])
            files = f"{MODELS[FIRST].file} {FILES[run['text']]} {context} {run['chunks']} OUT"
            lines += [f"build/default/cold_tiers {part}"
                      for part, kind in ((f"sizes {files} RECIPE...", "compact"), (f"eval {files} kvtc:FILE:BITS...", "kvtc"))
                      if kind in kinds]
        if not rows:
            return NOTHING
        rows.sort(key=lambda pair: (-pair[0]["bits_all"], pair[0]["kld_mean"]))
        body = [(f"`{row['recipe']}`", f"{row['bits_all']:.2f}", f"{row['bits_sealed']:.2f}", size(row),
                 f"{size_of['n']},<br>{size_of['day']}", loss(row), divergence(row["kld_p999"]), f"{100 * row['top1']:.2f}", run_of(row))
                for row, size_of in rows]
        header = ("recipe", "bits", "sealed", "constants", "bits: contexts,<br>day", "mean KLD,<br>95 % interval", "99.9 %", "top-1 %",
                  "KLD: contexts, attention<br>by, day")
        of_eval = [row for row, _ in rows if row["backend"] != STORED]
        return (markdown.code(*lines) + "\n" + commands(of_eval) + machines([(r["recipe"], r) for pair in rows for r in pair]) + "\n" +
                markdown.table(header, body))

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
