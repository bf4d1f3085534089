"""Makes the tables of docs/cpu.md. Each ratio compares with the fastest rival that stores at least as many bits."""
from pages import markdown
from pages.results import load
from pages.rivals import is_rival


def against_rival(row):
    return f"{row['ratio']:.2f}x `{row['rival']}`" if row.get("ratio") else "-"


def rate(value):
    return "-" if not value else f"{value:,.1f}" if value < 200 else f"{value:,.0f}"


def speed_and_ratio(row):
    compared = f" ({row['ratio']:.2f}x `{row['rival'].removeprefix('llama.cpp:')}`)" if row.get("ratio") else ""
    return rate(row["tps"]) + compared


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

    @staticmethod
    def model_table(document):
        """Returns a table with caches as rows, and depths or lengths of prompts as columns."""
        columns = sorted({row["at"] for row in document["results"]})
        rows = []
        for name in sorted(dict.fromkeys(row["recipe"] for row in document["results"]), key=is_rival):
            found = {row["at"]: row for row in document["results"] if row["recipe"] == name}
            cells = [speed_and_ratio(found[at]) if at in found else "-" for at in columns]
            rows.append((f"`{name}`", *cells))
        what = "Prompts" if document["kind"] == "prompt" else "Decode"
        of = "tokens" if document["kind"] == "prompt" else "tokens deep"
        title = (f"\n### {what}, {document['model']}, {document['threads']} threads\n\n" + markdown.code(document["command"]) +
                 f"\n{document['measured_on']}; medians of {document['repeats']}; tokens a second, and the ratio to the fastest "
                 "rival of at least the cache's bits.\n\n")
        return title + markdown.table(("cache", *(f"{at:,} {of}" for at in columns)), rows)

    def sparse(self):
        rows = [(f"{r['at']:,}", f"`{r['recipe']}`", rate(r["tps"])) for d in self.kind("sparse")
                for r in d["results"]]
        if not rows:
            return ""
        first = self.kind("sparse")[0]
        return (markdown.code(first["command"]) + f"\n{first['measured_on']}; caches filled by running a text.\n\n" +
                markdown.table(("depth", "cache", "decode tokens/s"), rows))

    def blocks(self):
        return {"cpu-attention": self.attention, "cpu-model": self.model, "cpu-sparse": self.sparse,
                "cpu-tables": lambda: markdown.measured_tables(self.kind("table"))}
