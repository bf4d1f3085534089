"""The tables of docs/gpu.md. Decode: microseconds a layer at each shape, how many times faster than the fastest rival in
BF16 and in FP8, and the share of the time that a kernel needs which only reads the same bytes. Whole models: what
`kvant bench --device cuda --json` gave, tokens a second by depth and cache, and how many times the baseline's that is."""
from pages import markdown
from pages.results import load
from pages.rivals import is_rival


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
    def rivals(document, row, index):
        """The fastest rivals at a shape: in BF16, and in FP8 where the row has about 8 bits or fewer."""
        found = []
        for least, most in ((15, 17), (7, 9)):
            able = [r for r in document["results"] if r.get("rival") and least < r["bits"] < most and r["us"][index]]
            if able and row["bits"] < most:
                found.append(min(able, key=lambda r: r["us"][index]))
        return found

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
        inside = [f"{rival['us'][index] / us:.2f}x" for rival in self.rivals(document, row, index)]
        if row.get("limit_percent") and row["limit_percent"][index] is not None:
            inside.append(f"{row['limit_percent'][index]:.0f} %")
        return f"{us:,.1f}" + (f" ({', '.join(inside)})" if inside else "")

    def models(self):
        text = "".join(self.model_table(d) for d in self.kind("whole_model"))
        return text or "Not measured yet.\n"

    @staticmethod
    def model_table(document):
        """Of rows of `kvant bench`, by depth and number of sequences; `rate`: "prompt_tps" or "decode_tps". In brackets: compared with
        the baseline (what engine and cache gain together), and with kvant's own bf16 (what the cache gains)."""
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
        title = f"\n### {document['title']}\n\n" + (document["text"] + "\n\n" if document.get("text") else "")
        return (title + markdown.code(*document["command"].split("\n")) + f"\n{document['measured_on']}\n\n" +
                markdown.table(("sequences", "depth", *(f"`{cache}`" for cache in caches)), body))

    def tables(self):
        return markdown.measured_tables(self.kind("table"))

    def blocks(self):
        return {"gpu-decode": self.decode, "gpu-models": self.models, "gpu-more": self.tables}
