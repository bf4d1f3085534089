"""The tables of docs/quality.md."""
from pages import markdown
from pages.results import day_of, load

CONTROLS = {"window=128,sink=4,evict=1": "everything else dropped", "bf16 (steps of 128)": "noise floor",
            "k=bf16,v=tok2g128": "V alone", "k=ch2g128,v=bf16": "K alone", "k=bf16,v=hadamard:tcq2,sink=4": "V alone",
            "k=hadamard:tcq2,v=bf16,sink=4": "K alone",
            **{f"k=hadamard:tcq{b},v=hadamard:tcq{b},sink=4": f"uniform-{b}bit" for b in (4, 3, 2)}}
TEXTS = {"wikitext-2": "WikiText-2", "essays": "essays", "gsm8k": "GSM8K", "code": "C++ code", "german": "German"}
FILES = {"wikitext-2": "wikitext-2-test.txt", "essays": "essays.txt", "gsm8k": "gsm8k.txt",
         "code": "data/evaluation/code.txt", "german": "data/evaluation/german.txt"}
STORED = "stored"  # in place of a backend: rows of caches as they are stored
COMPACT = "compact:"  # in compact coding
HEADER = ("recipe", "bits", "sealed", "constants", "mean KLD", "95 % interval", "99.9 %", "top-1 %", "perplexity")


def divergence(value):
    return "0" if value == 0 else f"{value:.3g}" if value >= 1e-4 else f"{value:.1e}"


def number(value, text):
    return "-" if value is None else text.format(value)


def size(row):
    """Constants of the model that a recipe needs: bytes, and bits an element at this context."""
    count = row.get("constant_bytes", 0)
    if not count:
        return "-"
    amount = f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"
    return amount + number(row.get("constant_bits"), " ({:.2f})")


def cells(row):
    note = CONTROLS.get(row["recipe"])
    return (f"`{row['recipe']}`" + (f" ({note})" if note else "") + (" ¹" if "measured_on" in row else ""),
            f"{row['bits_all']:.2f}",
            number(row.get("bits_sealed"), "{:.2f}"), size(row), divergence(row["kld_mean"]),
            f"{divergence(row['kld_lo'])} - {divergence(row['kld_hi'])}", divergence(row["kld_p999"]),
            f"{100 * row['top1']:.2f}", f"{row['ppl']:.3f}")


def command(run, rows="RECIPE;RECIPE;..."):
    backend = "" if run["backend"] == "reference" else f" --backend {run['backend']}"
    reference = "" if run["reference"] == "bf16" else f" --reference {run['reference']}"
    return (f"kvant eval -m smollm2-135m-instruct.gguf -f {FILES[run['text']]} -c {run['context']} "
            f"--chunks {run['chunks']}{backend}{reference} --kv \"{rows}\"")


def earlier(rows):
    """A footnote on rows whose run was another one than the table's: their bits are today's, by `kvant info`."""
    dates = sorted({row["measured_on"] for row in rows if "measured_on" in row})
    return f"\n¹ run on {', '.join(dates)}; bits counted as they are now (of what a text selects: as it was there).\n" if dates else ""


class Quality:
    def __init__(self, folder):
        self.runs = load(folder, "quality")

    def run(self, text="wikitext-2", context=2048, backend="reference", reference="bf16"):
        wanted = {"text": text, "context": context, "backend": backend, "reference": reference}
        return next((r for r in self.runs if all(r[key] == value for key, value in wanted.items())), None)

    def beside_llama(self, context=2048):
        """The rows against an f16 cache: kvant's, and beside them those that were run against llama.cpp's own."""
        ours, theirs = (self.run(context=context, reference=reference) for reference in ("f16", "llama.cpp:f16"))
        if ours is None or theirs is None:
            return ours or theirs
        known = {row["recipe"] for row in ours["results"]}
        day = day_of(theirs["measured_on"])
        return {**ours, "results": ours["results"] + [{"measured_on": day, **row} for row in theirs["results"]
                                                      if row["recipe"] not in known]}

    def full(self, **which):
        return self.table(self.run(**which))

    @staticmethod
    def table(run):
        if run is None:
            return "Not measured yet.\n"
        rows = sorted(run["results"], key=lambda row: (-row["bits_all"], row["kld_mean"]))
        return (markdown.code(command(run)) + f"\n{run['chunks']} contexts; {run['measured_on']}.\n\n" +
                markdown.table(HEADER, map(cells, rows)) + earlier(rows))

    def backends(self):
        exact = self.run()
        runs = [run for run in self.runs if run["backend"] == "cpu" and run["text"] == "wikitext-2"]
        if not runs or exact is None:
            return "Not measured yet.\n"
        return "\n".join(self.beside_reference(run, exact) for run in runs)

    @staticmethod
    def beside_reference(run, exact):
        """A run on the fast backend, and the reference's. Rows of the latter that were measured later may be of another recipe by
        that name: they are left out."""
        known = {row["recipe"]: row for row in exact["results"]
                 if day_of(row.get("measured_on", exact["measured_on"])) <= day_of(run["measured_on"])}
        rows = []
        for row in sorted(run["results"], key=lambda row: -row["bits_all"]):
            if row["recipe"] == "bf16":
                continue
            other = known.get(row["recipe"])
            rows.append((f"`{row['recipe']}`", f"{row['bits_all']:.2f}", divergence(other["kld_mean"]) if other else "-",
                         divergence(row["kld_mean"]), f"{divergence(row['kld_lo'])} - {divergence(row['kld_hi'])}",
                         f"{100 * row['top1']:.2f}"))
        header = ("recipe", "bits", "mean KLD, reference", "mean KLD, CPU", "95 % interval", "top-1 %")
        return (markdown.code(command(run)) + f"\n{run['chunks']} contexts; {run['measured_on']}.\n\n" +
                markdown.table(header, rows))

    def texts(self, context):
        """Runs by text, of those on the reference backend, if there are others than WikiText-2; and their recipes."""
        runs = {text: run for text in TEXTS if (run := self.run(text=text, context=context)) is not None}
        checked = {row["recipe"] for text, run in runs.items() if text != "wikitext-2" for row in run["results"]}
        return runs, sorted(checked - {"bf16"}, key=lambda r: (-self.bits_of(r, runs), r))

    @staticmethod
    def by_text(runs, recipes, figure):
        """The header and the rows of a table with a column a text: what `figure` says of a recipe's result there."""
        rows = []
        for recipe in recipes:
            found = [next((r for r in run["results"] if r["recipe"] == recipe), None) for run in runs.values()]
            rows.append((f"`{recipe}`", *("-" if r is None else figure(r) for r in found)))
        return ("recipe", *(f"{TEXTS[text]} ({run['chunks']})" for text, run in runs.items())), rows

    def domains(self):
        runs, recipes = self.texts(2048)
        if not recipes:
            return "Not measured yet.\n"
        header, rows = self.by_text(runs, recipes, lambda r: divergence(r["kld_mean"]))
        commands = [command(run) for text, run in runs.items() if text != "wikitext-2"]
        return markdown.code(*commands) + "\n" + markdown.table(header, rows)

    def long_texts(self):
        """At 8192 tokens: the mean with its interval, and the 99.9 % quantile."""
        runs, recipes = self.texts(8192)
        if not recipes:
            return "Not measured yet.\n"
        header, rows = self.by_text(
            runs, recipes, lambda r: f"{divergence(r['kld_mean'])} ({divergence(r['kld_lo'])} - "
                                     f"{divergence(r['kld_hi'])}); {divergence(r['kld_p999'])}")
        header = (header[0], "bits", *header[1:])
        rows = [(name, f"{self.bits_of(recipe, runs):.2f}", *cells) for recipe, (name, *cells) in zip(recipes, rows)]
        others = [run for text, run in runs.items() if text != "wikitext-2"]
        places = "; ".join(sorted({run["measured_on"] for run in others}))
        return (markdown.code(*map(command, others)) + f"\nMean KLD (95 % interval); 99.9 %. {places}.\n\n" +
                markdown.table(header, rows))

    def stored(self, context):
        """Caches as they are stored (scripts/cold-tiers.cc). Compact coding loses nothing: a recipe's row, with other bits."""
        hot = self.run(context=context)
        runs = [run for run in self.runs if run["backend"] == STORED and run["context"] == context]
        if not runs or hot is None:
            return "Not measured yet.\n"
        recipes = {row["recipe"]: {key: value for key, value in row.items() if key != "measured_on"}
                   for row in hot["results"]}
        rows, commands, places = [], [], []
        for run in runs:
            for row in run["results"]:
                if row["recipe"].startswith(COMPACT):
                    recipe = recipes.get(row["recipe"].removeprefix(COMPACT))
                    rows += [recipe, {**recipe, **row}] if recipe else []
                elif row["recipe"] != "bf16":
                    rows.append(row)
            what = " and ".join(sorted({f"`{row['recipe'].split(':')[0]}`" for row in run["results"] if ":" in row["recipe"]}))
            place = f"smollm2-135m-instruct.gguf {FILES[run['text']]} {context} {run['chunks']} OUT"
            commands += [f"build/default/cold_tiers {part}" for part, kind in
                         ((f"sizes {place} RECIPE...", "compact"), (f"eval {place} kvtc:FILE:BITS...", "kvtc")) if kind in what]
            places.append(f"{what}: {run['chunks']} contexts; {run['measured_on']}.")
        return (markdown.code(*commands) + "\n" + " ".join(places) + "\n\n" +
                markdown.table(HEADER, map(cells, sorted(rows, key=lambda row: (-row["bits_all"], row["kld_mean"])))))

    @staticmethod
    def bits_of(recipe, runs):
        return max(r["bits_all"] for run in runs.values() for r in run["results"] if r["recipe"] == recipe)

    def blocks(self):
        return {"quality-2048": self.full, "quality-8192": lambda: self.full(context=8192),
                "quality-f16-2048": lambda: self.table(self.beside_llama()),
                "quality-f16-8192": lambda: self.table(self.beside_llama(8192)),
                "quality-backends": self.backends, "quality-domains": self.domains,
                "quality-domains-8192": self.long_texts,
                "quality-stored-2048": lambda: self.stored(2048), "quality-stored-8192": lambda: self.stored(8192)}
