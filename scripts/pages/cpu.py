"""Makes the tables of docs/cpu.md. Each ratio compares with the fastest rival that stores at least as many bits."""
from pages import markdown
from pages.results import day_of, load, machine_of
from pages.rivals import is_rival


# The page shows these backends on the machine that was measured last, and these caches. Other programs stand in the
# first table of a machine. The CSV file has all.
BACKENDS = ("cpu/avx512", "cpu/avx2")
SHOWN = ("bf16", "q8_0", "uniform-4bit", "uniform-2bit", "kvant-4bit", "kvant-2bit",
         "kivi-4bit", "kivi-2bit", "turbo4", "turboattention-4bit", "vecinfer-2bit", "vquant-k4v2", "ggml:f16",
         "ggml:f16-plain", "ggml:q8_0-f16-plain", "ggml:q4_0", "ggml:q4_0-f16-plain", "onnxruntime:int8",
         "onnxruntime:int8-f16", "onnxruntime:int4")


def shape_of(document):
    """Returns a shape for a heading: 32/8/128 x 32k."""
    tokens = document["results"][0]["ctx"]
    return f"{document['heads']}/{document['kv_heads']}/{document['dim']} x {tokens // 1024}k"


def bits_between(rows):
    """Returns the bits of a cache. Bits depend on the shape, because sinks and tails have few tokens."""
    bits = sorted({f"{row['bits']:.2f}" for row in rows if row}, key=float)
    return bits[0] if len(bits) == 1 else f"{bits[0]} to {bits[-1]}"


def time_share_ratio(row):
    """Returns microseconds, the share of the read limit, and the ratio to the fastest rival."""
    if row is None:
        return "-"
    share = f", {row['read_percent']:.0f} %" if row.get("read_percent") else ""
    return f"{row['us']:,.0f}{share}" + (f", {row['ratio']:.2f}x" if row.get("ratio") else "")


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

    def measured_last(self, kinds, fields):
        """Returns the documents of these kinds. Of documents with equal `fields`, only one machine's remain: the machine that
        was measured last. The file has machines in the order of their measurement, which decides between equal days."""
        last = {}
        for document in self.kind(*kinds):
            key, line = tuple(document[field] for field in fields), document["measured_on"]
            last[key] = max(line, last.get(key, line), key=day_of)
        return [d for d in self.kind(*kinds) if d["measured_on"] == last[tuple(d[field] for field in fields)]]

    def attention(self):
        text, machines = "", set()
        found = self.measured_last(["attention"], ["backend"])
        for backend in BACKENDS:
            documents = [document for document in found if document["backend"] == backend]
            if not documents:
                continue
            machine = documents[0]["measured_on"]
            text += self.attention_tables(documents, [n for n in SHOWN if not (is_rival(n) and machine in machines)])
            machines.add(machine)
        return text or "Not measured yet.\n"

    @staticmethod
    def attention_tables(documents, names):
        """Returns a table of one machine and backend. Caches are rows, and shapes are columns."""
        documents = sorted(documents, key=lambda document: -document["heads"])
        rows = []
        for name in names:
            found = [next((r for r in document["results"] if r["recipe"] == name), None) for document in documents]
            if any(found):
                rows.append((f"`{name}`", bits_between(found), *map(time_share_ratio, found)))
        first = documents[0]
        limits = ", ".join(f"{document['read_gbps']:.0f}" for document in documents)
        title = (f"\n### `{first['backend']}`\n\n" + markdown.code(first["command"]) + "\n" +
                 markdown.paragraph(f"{first['measured_on']}; {first['threads']} threads; medians of {first['repeats']} "
                                    f"interleaved rounds. By column, the read limit is {limits} GB/s.") + "\n")
        return title + markdown.table(("cache", "bits", *map(shape_of, documents)), rows)

    def attention_csv(self):
        rows = [(d["backend"], d["heads"], d["kv_heads"], d["dim"], r["ctx"], r["recipe"], r["bits"], r["us"],
                 r.get("read_percent", ""), r.get("rival", ""), r.get("ratio", ""), day_of(d["measured_on"]), machine_of(d["measured_on"]))
                for d in self.kind("attention") for r in d["results"]]
        return markdown.csv_text(("backend", "query_heads", "kv_heads", "channels", "tokens", "cache", "bits", "us_a_layer",
                                  "percent_of_read_limit", "rival", "ratio_to_rival", "day", "machine"), rows)

    def model(self):
        return "".join(map(self.model_table, self.measured_last(["decode", "prompt"], ["kind", "model", "threads"])))

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
                 f"\n{document['measured_on']}; medians of {document['repeats']}; tokens per second, and the ratio to the fastest "
                 "rival with at least as many bits.\n\n")
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
