"""What the README and the guide show of the results: a short table, a picture, a few sentences."""
from pages import chart, markdown
from pages.cpu import bits_of, fastest, is_rival
from pages.quality import divergence

ROWS = ("llama.cpp:q8_0", "llama.cpp:q5_0", "llama.cpp:q4_0", "kvant-4bit", "kvant-3bit", "kvant-2bit")
SHAPE = (32, 8, 128, 32768)  # query heads, KV heads, head size, tokens: Llama-3.1-8B's layer
BARS = (("ggml", "llama"), ("bf16", "plain"), ("q8_0", "plain"), ("kvant-4bit", "ours"), ("kvant-3bit", "ours"),
        ("kvant-2bit", "ours"))


def shown(name):
    return f"llama.cpp `{name.split(':')[1]}`" if name.startswith("llama.cpp:") else f"`{name}`"


class Front:
    def __init__(self, quality, cpu, gpu):
        self.quality, self.cpu, self.gpu = quality, cpu, gpu

    def attention(self):
        """The run of attention alone that is shown: rows at SHAPE, with bits."""
        heads, kv_heads, dim, tokens = SHAPE
        for document in self.cpu.kind("attention"):
            if (document["heads"], document["kv_heads"], document["dim"]) != (heads, kv_heads, dim):
                continue
            rows = [{**r, "bits": bits_of(r)} for r in document["results"] if r["ctx"] == tokens]
            if rows:
                return document, rows
        return None, []

    def speed(self, recipe):
        """A recipe's attention beside the fastest rival of at least its bits: a cell."""
        _, rows = self.attention()
        name = recipe.replace("llama.cpp:", "ggml:")
        row = next((r for r in rows if r["recipe"] == name), None)
        if row is None:
            return "-"
        if is_rival(name):
            return f"{row['us'] / 1000:.1f} ms"
        rival = fastest([r for r in rows if is_rival(r["recipe"])], row["bits"], lambda r: 1 / r["us"])
        beside = "" if rival is None else f" ({rival['us'] / row['us']:.1f}x `{rival['recipe']}`)"
        return f"{row['us'] / 1000:.1f} ms{beside}"

    def table(self):
        run = self.quality.run(reference="f16")
        if run is None:
            return "Not measured yet.\n"
        rows = []
        for recipe in ROWS:
            row = next((r for r in run["results"] if r["recipe"] == recipe), None)
            if row is not None:
                rows.append((shown(recipe), f"{row['bits_all']:.2f}", divergence(row["kld_mean"]),
                             f"{100 * row['top1']:.1f} %", self.speed(recipe)))
        return markdown.table(("cache", "bits of an element", "mean KLD", "same token", "attention, CPU"), rows)

    def bars(self):
        document, rows = self.attention()
        if document is None:
            return [], "", ""
        found = []
        for name, kind in BARS:
            if name == "ggml":
                rival = min((r for r in rows if is_rival(r["recipe"])), key=lambda r: r["us"], default=None)
                if rival:
                    found.append((rival["recipe"], rival["us"], kind))
            else:
                found += [(r["recipe"], r["us"], kind) for r in rows if r["recipe"] == name]
        heads, kv_heads, dim, tokens = SHAPE
        return (found, "Attention of one token on the CPU",
                f"a layer, {tokens:,} tokens, {heads} / {kv_heads} heads of {dim}, {document['threads']} threads")

    def picture(self):
        return chart.svg(self.quality.run(reference="f16") and self.merged(), *self.bars())

    def merged(self):
        """The main run, with llama.cpp's rows from the run that has them."""
        rows = {r["recipe"]: r for r in (self.quality.run() or {"results": []})["results"]}
        rows.update({r["recipe"]: r for r in self.quality.run(reference="f16")["results"]})
        return {"results": list(rows.values())}

    def blocks(self):
        return {"readme-table": self.table}
