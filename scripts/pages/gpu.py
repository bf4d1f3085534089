"""Makes the tables of docs/gpu.md and docs/results/gpu-*.md, and CSV files of all rows.

Tables of decode attention show microseconds per layer at each shape. The tables also show the speed-up over the fastest
rivals in BF16 and FP8, and the share of the limit. The limit is the time of a kernel that only reads the same bytes.
Tables of whole models show the tokens per second of `kvant bench --device cuda --json` by depth and cache, and their
ratio to the baseline."""
from pages import markdown
from pages.layouts import Layouts
from pages.results import day_of, load
from pages.rivals import is_rival


def shown(row):
    if row.get("rival"):
        return row["name"]
    formats = ", ".join(" + ".join(f"`{part}`" for part in pair.split("+")) for pair in row["name"].split("/"))
    return f"{formats}: {row['recipe']}" if row.get("recipe") else formats


# The pages show the rows DECISIVE of the decode tables; docs/results/gpu-decode.csv has all formats and shapes.
DECISIVE = ("bf16+bf16", "fp8+fp8", "ch4g128+tok4g128", "ch2g128+tok2g128", "tcq4+tcq4", "tcq3+tcq3", "tcq2+tcq2")
DECISIVE_RECIPES = ("uniform-4bit", "uniform-2bit", "kivi-4bit", "kivi-2bit", "turbo4", "turbo2")
DECISIVE_SHAPES = ("1, 32k", "1, 128k", "8, 128k", "64, 4k", "64, 32k")
NOTHING = "Not measured yet.\n"


class Gpu:
    def __init__(self, folder):
        self.documents = load(folder, "gpu")

    def kind(self, kind):
        return [d for d in self.documents if d["kind"] == kind]

    def decode(self, dim):
        document = next((d for d in self.kind("decode") if d["dim"] == dim), None)
        return self.decode_table(document) if document else NOTHING

    @staticmethod
    def rivals(document, row, index):
        """Returns the fastest rivals at a shape: one in BF16, and one in FP8 if the row has about 8 bits or fewer."""
        found = []
        for least, most in ((15, 17), (7, 9)):
            able = [r for r in document["results"] if r.get("rival") and least < r["bits"] < most and r["us"][index]]
            if able and row["bits"] < most:
                found.append(min(able, key=lambda r: r["us"][index]))
        return found

    def decode_table(self, document):
        shapes = [shape for shape in DECISIVE_SHAPES if shape in document["shapes"]]
        rows = []
        for row in document["results"]:
            if row.get("rival") or row.get("recipe") in DECISIVE_RECIPES or (row["name"] in DECISIVE and not row.get("recipe")):
                cells = [self.cell(document, row, document["shapes"].index(shape)) for shape in shapes]
                rows.append((shown(row), f"{row['bits']:.2f}", *cells))
        return (markdown.code(document["command"]) + f"\n{markdown.paragraph(document['measured_on'])}\n" +
                markdown.table(("formats (K + V)", "bits", *shapes), rows))

    def cell(self, document, row, index):
        us = row["us"][index]
        if us is None:
            return "-"
        if row.get("rival"):
            return f"{us:,.1f}"
        inside = [f"{rival['us'][index] / us:.2f}x" for rival in self.rivals(document, row, index)]
        if row.get("limit_percent") and row["limit_percent"][index] is not None:
            inside.append(f"{row['limit_percent'][index]:.0f} %")
        return f"{us:,.1f}" + (f" ({', '.join(inside)})" if inside else "")

    def decode_csv(self):
        rows = []
        for document in self.kind("decode"):
            for row in document["results"]:
                for i, shape in enumerate(document["shapes"]):
                    if row["us"][i] is None:
                        continue
                    ratios = {"bf16": "", "fp8": ""}
                    if not row.get("rival"):
                        for rival, against in zip(self.rivals(document, row, i), ratios):
                            ratios[against] = f"{rival['us'][i] / row['us'][i]:.3f}"
                    limit = row["limit_percent"][i] if row.get("limit_percent") else ""
                    rows.append((document["dim"], row["name"], row.get("recipe", ""), row["bits"], *shape.split(", "), row["us"][i],
                                 *ratios.values(), limit, day_of(document["measured_on"])))
        return markdown.csv_text(("head_size", "formats", "recipe", "bits", "sequences", "context", "us_a_layer", "times_bf16",
                                  "times_fp8", "percent_of_limit", "day"), rows)

    def layouts_csv(self):
        return "".join(Layouts(d).csv() for d in self.kind("layouts"))

    def models_csv(self):
        rows = [(d["title"], row.get("sequences", 1), row["depth"], row["recipe"], d["rate"], row[d["rate"]], day_of(d["measured_on"]))
                for d in self.kind("whole_model") for row in d["results"]]
        return markdown.csv_text(("model", "sequences", "depth", "cache", "rate", "tokens_per_second", "day"), rows)

    @staticmethod
    def model_table(document):
        """Returns a table of rows of `kvant bench` by depth and number of sequences. `rate` of the document is
        "prompt_tps" or "decode_tps". Brackets compare with the baseline, which shows the gain of engine and cache
        together. The brackets also compare with kvant's own bf16, which shows the gain of the cache."""
        rate = document["rate"]
        rows = {((row.get("sequences", 1), row["depth"]), row["recipe"]): row[rate] for row in document["results"]}
        caches = list(dict.fromkeys(cache for _, cache in rows))

        def cell(key, cache):
            if (key, cache) not in rows:
                return "-"
            against = [document["baseline"]] + ([] if cache == "bf16" or is_rival(cache) else ["bf16"])
            others = [] if cache == document["baseline"] else [rows.get((key, other)) for other in dict.fromkeys(against)]
            ratios = [f"{rows[key, cache] / other:.2f}x" if other else "-" for other in others]
            while ratios and ratios[-1] == "-":
                ratios.pop()
            return f"{rows[key, cache]:,.1f}" + (f" ({', '.join(ratios)})" if ratios else "")

        keys = dict.fromkeys(key for key, _ in rows)
        body = [(f"{key[0]:,}", f"{key[1]:,}", *(cell(key, cache) for cache in caches)) for key in keys]
        title = f"## {document['title']}\n\n" + markdown.text_of(document)
        return (title + markdown.code(*document["command"].split("\n")) + f"\n{markdown.paragraph(document['measured_on'])}\n" +
                markdown.table(("sequences", "depth", *(f"`{cache}`" for cache in caches)), body))

    def blocks(self):
        """Returns one block for each head size, and one block for each document, named by its title."""
        documents = {f"gpu-{markdown.block_of(d['title'])}": lambda d=d: self.model_table(d) for d in self.kind("whole_model")}
        documents |= {f"gpu-{markdown.block_of(d['title'])}": lambda d=d: markdown.measured_table(d) for d in self.kind("table")}
        documents |= {"gpu-layouts": lambda d=d: Layouts(d).page() for d in self.kind("layouts")}
        return {**{f"gpu-decode-{dim}": lambda dim=dim: self.decode(dim) for dim in (128, 64)}, **documents}
