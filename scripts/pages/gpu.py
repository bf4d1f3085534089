"""The tables of docs/gpu.md. Decode: microseconds a layer at each shape, how many times faster than the fastest rival in
BF16 and in FP8, and the share of the time that a kernel needs which only reads the same bytes."""
from pages import markdown
from pages.results import load


def shown(row):
    if row.get("rival"):
        return row["name"]
    formats = ", ".join(" + ".join(f"`{part}`" for part in pair.split("+")) for pair in row["name"].split("/"))
    return f"{formats}: {row['recipe']}" if row.get("recipe") else formats


class Gpu:
    def __init__(self, folder):
        self.documents = load(folder, "gpu")

    def kind(self, kind):
        return [d for d in self.documents if d["kind"] == kind]

    def decode(self):
        text = "".join(self.decode_table(d) for d in self.kind("decode"))
        return text or "Not measured yet.\n"

    @staticmethod
    def fastest(document, row, index):
        """The fastest rival at a shape that stores at least the bits of `row`."""
        able = [r for r in document["results"] if r.get("rival") and r["bits"] >= row["bits"] - 0.005 and r["us"][index]]
        return min(able, key=lambda r: r["us"][index], default=None)

    def decode_table(self, document):
        rows = []
        for row in document["results"]:
            cells = [self.cell(document, row, i) for i in range(len(document["shapes"]))]
            rows.append((shown(row), f"{row['bits']:.2f}", *cells))
        title = f"\n### Heads of {document['dim']}\n\n" + markdown.code(document["command"]) + f"\n{document['measured_on']}\n\n"
        return title + markdown.table(("formats (K + V)", "bits", *document["shapes"]), rows)

    def cell(self, document, row, index):
        us = row["us"][index]
        if us is None:
            return "-"
        if row.get("rival"):
            return f"{us:,.1f}"
        inside = []
        for least_bits in sorted({r["bits"] for r in document["results"] if r.get("rival")}, reverse=True):  # BF16, FP8
            rivals = [r["us"][index] for r in document["results"] if r.get("rival") and r["bits"] == least_bits and r["us"][index]]
            if rivals and row["bits"] <= least_bits + 0.005:
                inside.append(f"{min(rivals) / us:.2f}x")
        if row.get("limit_percent") and row["limit_percent"][index] is not None:
            inside.append(f"{row['limit_percent'][index]:.0f} %")
        return f"{us:,.1f}" + (f" ({', '.join(inside)})" if inside else "")

    def tables(self):
        return markdown.measured_tables(self.kind("table"))

    def blocks(self):
        return {"gpu-decode": self.decode, "gpu-more": self.tables}
