"""Effective bits by the length of a cache: a picture and a table."""
from pages import chart, markdown
from pages.models import MODELS
from pages.results import load

SERIES = {
    "kivi-4bit": "kivi", "q4_0-h": "turbo", "uniform-4bit": "uniform", "llama.cpp:q4_0": "llama", "kivi-2bit": "fp8",
    "uniform-2bit": "ours"
}


class Bits:
    def __init__(self, folder):
        self.document = next(iter(load(folder, "bits")), None)

    def table(self):
        if self.document is None:
            return "Not computed yet.\n"
        header = ("cache", *(f"{context:,}" for context in self.document["contexts"]))
        body = [(f"`{row['recipe']}`", *(f"{bits:.2f}" for bits in row["bits"])) for row in self.document["results"]]
        return markdown.code(
            self.document["command"]) + f"\n{MODELS[self.document['model']].title}.\n\n" + markdown.table(header, body)

    def picture(self):
        if self.document is None:
            return chart.bits_svg([], "not computed yet", [1, 2])
        by_name = {row["recipe"]: row["bits"] for row in self.document["results"]}
        series = [(kind, name, by_name[name]) for name, kind in SERIES.items() if name in by_name]
        caption = f"{MODELS[self.document['model']].title}, heads of 128, tail, window and sink included; by `kvant info`"
        return chart.bits_svg(series, caption, self.document["contexts"])

    def blocks(self):
        return {"quality-bits": self.table}
