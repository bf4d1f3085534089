"""Makes the tables of docs/cpu.md. Each ratio compares with the fastest rival that stores at least as many bits."""
from pages import markdown
from pages.results import load
from pages.rivals import fastest, is_rival

WEIGHTS = {"q4_1": "Q4_1", "q4_0": "Q4_0", "f16": "F16"}


def against_rival(row):
    return f"{row['ratio']:.2f}x `{row['rival']}`" if row.get("ratio") else "-"


def field_of(document):
    return "prompt_tps" if document["kind"] == "prompt" else "decode_tps"


def rate(value):
    return "-" if not value else f"{value:,.1f}" if value < 200 else f"{value:,.0f}"


class Cpu:
    def __init__(self, folder):
        self.documents = load(folder, "cpu")

    def kind(self, *kinds):
        return [d for d in self.documents if d["kind"] in kinds]

    def attention(self):
        text = "".join(self.attention_table(d) for d in self.kind("attention"))
        return text or "Not measured yet.\n"

    @staticmethod
    def attention_table(document):
        rows = [(f"{row['ctx']:,}", f"`{row['recipe']}`", f"{row['bits']:.2f}", f"{row['us']:,.0f}",
                 f"{row['read_percent']:.0f} %" if row.get("read_percent") else "-", against_rival(row))
                for row in sorted(document["results"], key=lambda row: (row["ctx"], is_rival(row["recipe"])))]
        title = (f"\n### {document['heads']} query heads on {document['kv_heads']} KV heads of {document['dim']}, "
                 f"`{document['backend']}`\n\n" + markdown.code(document["command"]) +
                 f"\n{document['measured_on']}; {document['threads']} threads; medians of {document['repeats']} interleaved "
                 f"rounds; memory is read at {document['read_gbps']:.0f} GB/s.\n\n")
        header = ("tokens", "cache", "bits", "us a layer", "of the read limit", "compared with the fastest rival")
        return title + markdown.table(header, rows)

    def model(self):
        return "".join(self.model_table(d) for d in self.kind("decode", "prompt"))

    def model_table(self, document):
        """Returns a table with caches as rows and types of weights as columns. The last column compares a cache's best
        speed over all types of weights with the best speed of a rival."""
        weights = [w for w in WEIGHTS if any(r["weights"] == w for r in document["results"])]
        names = list(dict.fromkeys(row["recipe"] for row in document["results"]))
        rows = []
        for name in sorted(names, key=is_rival):
            cells = [rate(self.speed(document, name, w)) for w in weights]
            rows.append((f"`{name}`", *cells, self.best(document, name)))
        what = (f"Prompts of {document['prompt']:,} tokens" if document["kind"] == "prompt" else
                f"Decode, {document['depth']:,} tokens deep")
        title = (f"\n### {what}\n\n" + markdown.code(document["command"]) +
                 f"\n{document['measured_on']}; SmolLM2-135M; {document['threads']} threads; medians of "
                 f"{document['repeats']}; tokens a second, by type of weights.\n\n")
        header = ("cache", *(WEIGHTS[w] for w in weights), "its best compared with the fastest rival's best")
        return title + markdown.table(header, rows)

    @staticmethod
    def speed(document, name, weights):
        return next((r.get(field_of(document)) for r in document["results"] if r["recipe"] == name and r["weights"] == weights),
                    None)

    @staticmethod
    def best_of(document, name):
        """Returns the cache's fastest row over all types of weights, the fastest rival's row, and the ratio of their
        speeds."""
        speed = lambda row: row.get(field_of(document)) or 0
        own = max((r for r in document["results"] if r["recipe"] == name), key=speed, default=None)
        rival = own and fastest(document["results"], own["bits"], speed)
        return own, rival, (speed(own) / speed(rival) if rival else None)

    def best(self, document, name):
        if is_rival(name):
            return "-"
        _, rival, ratio = self.best_of(document, name)
        return "-" if rival is None else f"{ratio:.2f}x `{rival['recipe']}`, {WEIGHTS.get(rival['weights'], '')}"

    def sparse(self):
        rows = [(f"{d['depth']:,}", f"`{r['recipe']}`", rate(r.get("decode_tps"))) for d in self.kind("sparse")
                for r in d["results"]]
        if not rows:
            return ""
        first = self.kind("sparse")[0]
        return (markdown.code(first["command"]) + f"\n{first['measured_on']}; caches filled by running a text.\n\n" +
                markdown.table(("depth", "cache", "decode tokens/s"), rows))

    def blocks(self):
        return {"cpu-attention": self.attention, "cpu-model": self.model, "cpu-sparse": self.sparse,
                "cpu-tables": lambda: markdown.measured_tables(self.kind("table"))}
