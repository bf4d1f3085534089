"""Makes the page and the CSV file of decode attention at the head layouts of real models, from the rows of
scripts/gpu-layouts. A document has the microseconds per layer of each layout, shape and cache."""
from pages import markdown
from pages.import_gpu import lines_of
from pages.results import day_of, with_lines

# Maps the pairs that scripts/gpu-layouts times to what they stand for. Heads of calibrated recipes have unlike widths.
CACHES = {
    "torch SDPA cudnn, BF16": "PyTorch (cuDNN)",
    "kvant bf16+bf16": "bf16",
    "kvant ch4g128+tok4g128": "ch4g128 + tok4g128",
    "kvant tcq4+tcq4": "uniform-4bit",
    "kvant tcq3+tcq3": "uniform-3bit",
    "kvant tcq2+tcq2": "uniform-2bit",
    "kvant tcq5+tcq4/tcq4+tcq3": "two widths",
}
TEXT = ("The first table has microseconds per layer with `bf16`, kvant's own unquantized cache. The second table has the "
        "speed of `uniform-4bit` relative to `bf16`. The third table has the speed of a mix of heads with two code widths, "
        "as in calibrated recipes. Half of the heads have `tcq5` + `tcq4`, and the others `tcq4` + `tcq3`. In the last table "
        "the rival of `bf16` is PyTorch's attention with cuDNN, which does not rotate outputs. Values are random. "
        "[gpu-layouts.csv](gpu-layouts.csv) has all caches, and the time that reading their bytes alone takes.")


def import_layouts(path, measured_on):
    results = {}
    for row in lines_of([path]):
        if row["what"] in CACHES:
            layout = f"{row['group'] * row['kv_heads']}/{row['kv_heads']}/{row['head_dim']}"
            results[layout, row["seqs"], row["context"], CACHES[row["what"]]] = {
                "layout": layout, "sequences": row["seqs"], "context": row["context"], "cache": CACHES[row["what"]],
                "us": round(row["us"], 2), "limit_us": round(row["limit_us"], 2) if "limit_us" in row else None}
    return {"kind": "layouts", "command": "scripts/gpu-layouts FILE", "measured_on": measured_on, "results": list(results.values())}


def shown_shape(sequences, context):
    return f"{sequences} x " + (f"{context // 1024}k" if context >= 1024 else str(context))


class Layouts:
    def __init__(self, document):
        self.document, self.rows = document, with_lines(document)
        self.us = {(r["layout"], r["sequences"], r["context"], r["cache"]): r["us"] for r in document["results"]}
        self.layouts = list(dict.fromkeys(r["layout"] for r in document["results"]))
        self.shapes = sorted({(r["sequences"], r["context"]) for r in document["results"]})

    def table(self, cell):
        rows = [(layout, *(cell(layout, *shape) for shape in self.shapes)) for layout in self.layouts]
        return markdown.table(("query heads / KV heads / channels", *(shown_shape(*shape) for shape in self.shapes)), rows)

    def ratios(self, cache, rival="bf16"):
        def cell(*place):
            of_rival, own = self.us.get((*place, rival)), self.us.get((*place, cache))
            return f"{of_rival / own:.2f}x" if of_rival and own else "-"
        return self.table(cell)

    def page(self):
        text = (markdown.paragraph(TEXT) + "\n" + markdown.code(self.document["command"]) + "\n" +
                markdown.paragraph(self.document["measured_on"]) + self.other_runs())
        times = self.table(lambda *place: f"{self.us[*place, 'bf16']:.1f}" if (*place, "bf16") in self.us else "-")
        return "\n".join([text, times, "`uniform-4bit` relative to `bf16`:\n", self.ratios("uniform-4bit"),
                          "A mix of two code widths relative to `bf16`:\n", self.ratios("two widths"),
                          "`bf16` relative to PyTorch with cuDNN:\n", self.ratios("bf16", "PyTorch (cuDNN)")])

    def other_runs(self):
        """Says which times are from other runs than most times."""
        text = ""
        for line in sorted({r["measured_on"] for r in self.rows} - {self.document["measured_on"]}):
            rows = [r for r in self.rows if r["measured_on"] == line]
            of_layouts = [self.times_of(layout, [r for r in rows if r["layout"] == layout])
                          for layout in dict.fromkeys(r["layout"] for r in rows)]
            text += "\n" + markdown.paragraph(f"Another run measured {', and '.join(of_layouts)}. {line}")
        return text

    def times_of(self, layout, rows):
        """Describes the times of a layout in `rows`."""
        if len(rows) == sum(r["layout"] == layout for r in self.rows):
            return f"all times of {layout}"
        caches = list(dict.fromkeys(r["cache"].replace("two widths", "the mix") for r in rows))
        shapes = sorted({(r["sequences"], r["context"]) for r in rows})
        if shapes == self.shapes:
            return f"{len(rows)} times of {layout}"
        return f"{layout} with {', '.join(caches)}, at {len(shapes)} of {len(self.shapes)} shapes"

    def csv(self):
        rows = [(r["layout"], r["sequences"], r["context"], r["cache"], r["us"], r["limit_us"] or "",
                 day_of(r["measured_on"])) for r in self.rows]
        return markdown.csv_text(("layout", "sequences", "context", "cache", "us_a_layer", "us_reading_alone", "day"), rows)
