"""Makes what the README and the guide show of the results: a short table, and speeds with the quality of each cache."""
import re

from pages import markdown
from pages.models import MODELS
from pages.origins import places
from pages.quality import MAIN, NOTHING, divergence
from pages.results import day_of

CONTEXT = 2048
README = ("q8_0", "kvant-4bit", "kvant-3bit", "kvant-2bit", "uniform-4bit", "uniform-3bit", "uniform-2bit", "llama.cpp:q8_0",
          "llama.cpp:q4_0", "fp8-s1", "fp8-amax", "kivi-4bit", "kivi-2bit", "turbo4", "turbo2")
CHOICES = ("q8_0", "kvant-4bit", "kvant-3bit", "kvant-2bit", "uniform-4bit", "uniform-2bit", "q4_0-h", "turbo3",
           "kivi-4bit", "kivi-2bit")
CPU_DEPTH = 16384
SHOWN_ON_GPU = (("uniform-4bit", "uniform-2bit", "kivi-4bit", "kivi-2bit"), "8, 128k")
KLD_IN_VLLM = "mean KLD, 2,048 tokens"
SHAPE_IN_VLLM = "In vLLM 0.33, the shape of an 8B"
NEWEST_VLLM = "In vLLM 0.33, speed"
# Rows with random weights show the quality of QUALITY_MODEL with the cache.
QUALITY_MODEL = "qwen2.5-coder-1.5b"
SPEED_HEADER = ("what was timed", "cache", "speed", "bits per value", "mean KLD of this cache", "KLD measured on",
                "date of the speed")


def times(ours, theirs):
    return f"{ours / theirs:.2f}x"


def plain(cell):
    """Returns the number in a cell such as `1,989 (2.63x)`."""
    return float(cell.partition(" ")[0].replace(",", ""))


class Front:
    def __init__(self, quality, cpu, gpu):
        self.quality, self.cpu, self.gpu = quality, cpu, gpu

    def table(self):
        """Returns the README's table: the main recipes on all models, with calibrated and uncalibrated recipes in
        separate groups."""
        models = self.quality.models(CONTEXT)
        if not models:
            return NOTHING
        of_model = [self.quality.rows(model, context=CONTEXT) for model in models]
        body = []
        for title, recipes in MAIN:
            kept = [recipe for recipe in recipes if recipe in README and any(recipe in rows for rows in of_model)]
            if kept:
                body.append((f"**{title}**", *[""] * 2 * len(models)))
            for recipe in kept:
                found = [rows.get(recipe) for rows in of_model]
                body.append((f"`{recipe}`" + (f", {recipes[recipe]}" if recipes[recipe] else ""),
                             *(cell for row in found for cell in self.bits_and_kld(row))))
        header = ("cache", *(cell for model in models for cell in (f"{MODELS[model].title}: bits", "mean KLD")))
        return markdown.table(header, body)

    @staticmethod
    def bits_and_kld(row):
        return ("-", "-") if row is None else (f"{row['bits_all']:.2f}", divergence(row["kld_mean"]))

    def caption(self):
        """Returns the text below the README's table: contexts and days of its rows."""
        models = self.quality.models(CONTEXT)
        rows = [
            row for model in models for recipe, row in self.quality.rows(model, context=CONTEXT).items()
            if recipe in README
        ]
        if not rows:
            return NOTHING
        counts, days = sorted({row["n"] for row in rows}), sorted({row["day"] for row in rows})
        fewer = sorted({recipe for model in models for recipe, row in self.quality.rows(model, context=CONTEXT).items()
                        if recipe in README and row["n"] < counts[-1]})
        place = self.quality.of(models[0], context=CONTEXT)[0]["measured_on"].rpartition(",")[0]
        names = " and ".join(f"`{recipe}`" for recipe in fewer)
        exception = f" The rows {names} have the first {counts[0]} contexts, with attention on the CPU." if fewer else ""
        return (f"The text is WikiText-2, in {counts[-1]} contexts of {CONTEXT:,} tokens. Attention ran on the GPU.{exception} "
                f"Machine: {place}, " + (days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}") + ".\n")

    def decode(self):
        """Returns the document of decode attention on a GPU with heads of 128, and the index of the shape that is
        shown."""
        for document in self.gpu.kind("decode"):
            if document["dim"] == 128 and SHOWN_ON_GPU[1] in document["shapes"]:
                return document, document["shapes"].index(SHOWN_ON_GPU[1])
        return None, 0

    def cell_of(self, recipe, model=QUALITY_MODEL):
        """Returns the KLD of exactly this recipe at the longest measured context, and the model, contexts and day of
        the measurement."""
        row, context = self.quality.longest(recipe, model)
        if row is None:
            return "not measured", f"{MODELS[model].title}"
        return divergence(row["kld_mean"]), (f"{MODELS[model].title}, {row['n']} contexts of {context:,} tokens, "
                                             f"{row['bits_all']:.2f} bits there, {row['day']}")

    def speeds(self):
        """Returns the README's table of speeds. Each row belongs to one configuration and shows the bits and the
        divergence of its cache."""
        body = [*self.decode_rows(), *self.model_rows(), *self.vllm_rows(), *self.cpu_rows()]
        return markdown.table(SPEED_HEADER, body) if body else "Speed: not measured yet.\n"

    def decode_rows(self):
        document, index = self.decode()
        if document is None:
            return
        day = day_of(document["measured_on"])
        sequences, tokens = SHOWN_ON_GPU[1].split(", ")
        what = f"decode attention on an H200, {sequences} x {tokens} tokens, random values"
        for name in SHOWN_ON_GPU[0]:
            for row in document["results"]:
                rivals = self.gpu.rivals(document, row, index)
                if row.get("recipe") == name and len(rivals) == 2:
                    bf16, fp8 = (f"{times(rival['us'][index], row['us'][index])} {rival['name'].split(',')[0]}"
                                 for rival in rivals)
                    yield (
                        what, f"`{name}`",
                        f"{row['us'][index]:.0f} us a layer: {bf16} in BF16, {fp8} in FP8 ({self.fp8_day(document)})",
                        f"{document.get('bits_at', {}).get(SHOWN_ON_GPU[1], {}).get(name, row['bits']):.2f}", *self.cell_of(name), day)

    @staticmethod
    def fp8_day(document):
        return document.get("fp8_measured", "in the same session")

    def model_rows(self):
        """Yields rows of a whole 8B model: the gain of the engine over llama.cpp, and the gain of the cache over
        kvant's own bf16."""
        document = next(
            (d for d in self.gpu.kind("whole_model") if d["rate"] == "decode_tps" and d["baseline"] != "bf16"), None)
        if document is None:
            return
        rates = {(r["depth"], r["recipe"]): r["decode_tps"] for r in document["results"] if r["sequences"] == 1}
        bits = document.get("bits", {})
        for depth in sorted({depth for depth, _ in rates if depth >= 32768}):
            rivals = (document["baseline"], "bf16")
            if not all((depth, recipe) in rates for recipe in ("uniform-4bit", *rivals)):
                continue
            ours = rates[depth, "uniform-4bit"]
            yield (
                f"a whole 8B on an H200, random weights in Q4_K, one sequence at context {depth:,}", "`uniform-4bit`",
                f"{ours:.0f} tokens/s: {times(ours, rates[depth, rivals[0]])} `{rivals[0]}`, {times(ours, rates[depth, 'bf16'])} kvant's own `bf16`",
                bits.get(str(depth), "4.13"), *self.cell_of("uniform-4bit"), day_of(document["measured_on"]))

    def vllm_rows(self):
        """Yields rows of vLLM: a trained model, whose quality was measured in the same run, and the shape of an 8B
        with dummy weights. The bits are those of a block of vLLM's cache."""
        trained = next((d for d in self.gpu.kind("table") if d.get("quality_of")), None)
        if trained is None:
            return
        title = MODELS[trained["quality_of"]].title
        klds = {row[0]: row[trained["columns"].index(KLD_IN_VLLM)].partition(" ")[0] for row in trained["results"]}
        on = f"{title} in vLLM, 8 prompts of 2,048 tokens, {day_of(trained['measured_on'])}"
        dummy = next((d for d in self.gpu.kind("table") if d["title"] == SHAPE_IN_VLLM), None)
        for document, what in ((trained, title), (dummy, "an 8B with dummy weights")):
            batch = "" if document is None else document["columns"][1].partition(",")[0]
            for row in () if document is None else document["results"]:
                bits = document["bits"].get(row[0])
                if bits is None or not klds.get(row[0], "-")[0].isdigit():
                    continue
                bf16, fp8 = row[1].partition("(")[2].rstrip(")").split(", ")
                yield (f"{what} in vLLM 0.33 on an H200, {batch} tokens", row[0],
                       f"{row[1].partition(' ')[0]} tokens/s: {bf16} BF16, {fp8} FP8",
                       f"{bits:.2f}", klds[row[0]], on, day_of(document["measured_on"]))

    def vllm_table(self):
        """Returns the tables of the guide's quick start: speed and divergence in the newest vLLM that was run."""
        tables = []
        for document in self.gpu.kind("table"):
            if document["title"].startswith(NEWEST_VLLM):
                kept = [i for i, name in enumerate(document["columns"]) if not name.startswith("same token")]
                tables.append(markdown.table([document["columns"][i] for i in kept],
                                             [[row[i] for i in kept] for row in document["results"]]) +
                              "\n" + markdown.paragraph(document["measured_on"]))
        return "\n".join(tables) or NOTHING

    def cpu_rows(self):
        title = MODELS[QUALITY_MODEL].title
        for document in self.cpu.measured_last(["decode"], ["model", "threads"]):
            rows = {row["recipe"]: row for row in document["results"] if row["at"] == CPU_DEPTH}
            if document["model"] != title or "bf16" not in rows:
                continue
            for row in (rows[recipe] for recipe in ("uniform-4bit", "uniform-2bit") if rows.get(recipe, {}).get("ratio")):
                yield (f"{title} on {document['threads']} CPU cores, context {CPU_DEPTH:,}", f"`{row['recipe']}`",
                       f"{row['tps']:.1f} tokens/s: {row['ratio']:.2f}x `{row['rival']}`, "
                       f"{times(row['tps'], rows['bf16']['tps'])} kvant's own `bf16`", f"{row['bits']:.2f}",
                       *self.cell_of(row["recipe"]), day_of(document["measured_on"]))

    def choosing(self):
        models = self.quality.models(CONTEXT)
        if not models:
            return NOTHING
        of_model = [self.quality.rows(model, context=CONTEXT) for model in models]
        body = []
        for recipe in CHOICES:
            found = [rows.get(recipe) for rows in of_model]
            if any(found):
                bits = next(row for row in found if row)["bits_all"]
                body.append((f"`{recipe}`", f"{bits:.2f}", f"{100 * bits / 16:.0f} %",
                             *("-" if row is None else divergence(row["kld_mean"]) for row in found)))
        shown = [(MODELS[model].title, {recipe: rows[recipe] for recipe in CHOICES if recipe in rows})
                 for model, rows in zip(models, of_model)]
        return (f"Each mean KLD is from contexts of {CONTEXT:,} tokens of WikiText-2.\n\n" + places(shown) +
                markdown.table(("recipe", f"bits per value, {MODELS[models[0]].title}", "share of f16's memory",
                                *(f"mean KLD, {MODELS[model].title}" for model in models)), body))

    def blocks(self):
        return {
            "readme-table": self.table, "readme-caption": self.caption, "readme-speed": self.speeds, "choosing":
            self.choosing, "quick-start-vllm": self.vllm_table
        }


def faults_of_speeds(text):
    """Returns what is wrong with a README: rows of speeds that lack a cell, and speeds outside the table. An empty list
    means nothing."""
    match = re.search(r"<!-- begin readme-speed[^>]*-->\n(.*?)<!-- end readme-speed -->", text, re.DOTALL)
    if match is None:
        return ["there is no table of speeds"]
    lines = [line for line in match.group(1).splitlines() if line.strip()]
    if not lines or [cell.strip() for cell in lines[0].strip("|").split("|")] != list(SPEED_HEADER):
        return ["the columns of the table of speeds are not " + ", ".join(SPEED_HEADER)]
    checks = (("a speed", 2, r"\d"), ("bits", 3, r"^\d+\.\d+$"), ("a KLD", 4, r"^\d[\d.e-]*$"),
              ("a model", 5, "|".join(re.escape(m.title)
                                      for m in MODELS.values())), ("a date", 6, r"^\d{4}-\d\d-\d\d$"))
    faults = []
    for line in lines[2:]:
        row = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(row) != len(SPEED_HEADER):
            faults.append(f"a row that is none: {line}")
            continue
        faults += [
            f"{row[1]}, {row[0]}: lacks {what}" for what, column, pattern in checks
            if not re.search(pattern, row[column])
        ]
    outside = text.replace(match.group(0), "")
    faults += [
        f"a speed outside the table: {line}" for line in outside.splitlines()
        if re.search(r"\b\d+(\.\d+)?x\b|\d tokens/s|\d (ms|us)\b", line)
    ]
    return faults
