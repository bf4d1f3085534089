"""Makes the table of bits per value by the length of a cache."""
from pages import markdown
from pages.models import MODELS
from pages.results import load


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

    def blocks(self):
        return {"quality-bits": self.table}
