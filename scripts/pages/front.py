"""What the README and the guide show of the results: a short table, a picture, a few sentences."""
from pages import chart, markdown
from pages.quality import divergence
from pages.rivals import is_rival

ROWS = ("q8_0", "q4_0", "q4_0-h", "kvant-4bit", "kvant-3bit", "kvant-2bit", "kvant-1.5bit")
NOTES = {"q8_0": "llama.cpp's groups", "q4_0": "llama.cpp's groups", "q4_0-h": "the same, rotated",
         **{f"kvant-{bits}bit": "calibrated" for bits in ("4", "3", "2", "1.5")}}
SHAPE = (32, 8, 128, 32768)  # query heads, KV heads, head size, tokens: Llama-3.1-8B's layer
CHOICES = ("q8_0", "kvant-4bit", "q4_0-h", "kvant-3bit", "turbo3", "kvant-2bit", "kivi-2bit", "vecinfer-2bit")
SHOWN_ON_GPU = (("uniform-4bit", "uniform-2bit", "kivi-4bit", "kivi-2bit"), "8, 128k")
BARS = (("ggml", "llama"), ("bf16", "plain"), ("q8_0", "plain"), ("kvant-4bit", "ours"), ("kvant-3bit", "ours"),
        ("kvant-2bit", "ours"))


def shown(name):
    return f"`{name}`" + (f", {NOTES[name]}" if name in NOTES else "")


def machine(document):
    """Of "2 cores of ..., 2026-11-22": without the date."""
    return document["measured_on"].rpartition(",")[0]


class Front:
    def __init__(self, quality, cpu, gpu):
        self.quality, self.cpu, self.gpu = quality, cpu, gpu

    def attention(self):
        """The run of attention alone that is shown: its rows at SHAPE."""
        heads, kv_heads, dim, tokens = SHAPE
        for document in self.cpu.kind("attention"):
            rows = [r for r in document["results"] if r["ctx"] == tokens]
            if rows and (document["heads"], document["kv_heads"], document["dim"]) == (heads, kv_heads, dim):
                return document, rows
        return None, []

    def speed(self, recipe):
        """A cell: a recipe's attention, and beside the fastest rival of at least its bits."""
        _, rows = self.attention()
        row = next((r for r in rows if r["recipe"] == recipe), None)
        if row is None:
            return "-"
        return f"{row['us'] / 1000:.1f} ms" + (f" ({row['ratio']:.1f}x `{row['rival']}`)" if row.get("ratio") else "")

    def table(self):
        run = self.quality.run()
        if run is None:
            return "Not measured yet.\n"
        rows = []
        for recipe in ROWS:
            row = next((r for r in run["results"] if r["recipe"] == recipe), None)
            if row is not None:
                rows.append((shown(recipe), f"{row['bits_all']:.2f}", divergence(row["kld_mean"]),
                             f"{100 * row['top1']:.1f} %", self.speed(recipe)))
        return markdown.table(("cache", "bits per value", "mean KLD", "same token", "attention, CPU"), rows)

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
        return chart.svg(self.quality.run() and self.merged(), *self.bars())

    def merged(self):
        """The main run, with llama.cpp's rows from the run that has them."""
        rows = {r["recipe"]: r for r in (self.quality.run() or {"results": []})["results"]}
        rows.update({r["recipe"]: r for r in (self.quality.beside_llama() or {"results": []})["results"]})
        return {"results": list(rows.values())}

    def speed_lines(self):
        """One line for each place where speed was measured, as far as it was."""
        lines = [line for line in (self.attention_line(), self.model_line(), self.gpu_line(),
                                  self.gpu_model_line(), self.vllm_line())
                 if line]
        return "".join(f"- {line}\n" for line in lines) or "Speed: not measured yet.\n"

    def attention_line(self):
        document, rows = self.attention()
        shown_rows = [(name, self.speed(name)) for name in ("kvant-4bit", "kvant-2bit", "bf16") if self.speed(name) != "-"]
        if not shown_rows:
            return ""
        heads, kv_heads, dim, tokens = SHAPE
        cells = ", ".join(f"`{name}` {cell}" for name, cell in shown_rows)
        return (f"**Attention on the CPU**, one token over {tokens:,}, {heads} query heads on {kv_heads} KV heads of {dim}, "
                f"{document['threads']} threads, a layer ({machine(document)}): {cells}.{self.elsewhere(document)}")

    def elsewhere(self, shown_document):
        """How kvant-4bit does in the other runs of attention alone: ratios depend on the processor."""
        text = ""
        for document in self.cpu.kind("attention"):
            row = next((r for r in document["results"] if r["recipe"] == "kvant-4bit"), None)
            if document is not shown_document and row and row.get("ratio"):
                text += (f" Heads of {document['dim']}, {row['ctx']:,} tokens, {machine(document)}: `kvant-4bit` "
                         f"{row['ratio']:.1f}x `{row['rival']}`.")
        return text

    def model_line(self):
        found = self.cpu.kind("decode")
        if not found:
            return ""
        document = max(found, key=lambda d: d["depth"])
        own, rival, ratio = self.cpu.best_of(document, "kvant-4bit")
        if rival is None:
            return ""
        return (f"**A whole model on the CPU**, SmolLM2-135M, {document['depth']:,} tokens deep: `kvant-4bit` "
                f"{own['decode_tps']:.0f} tokens/s, {ratio:.1f}x `{rival['recipe']}`, both with their best weights.")

    def gpu_line(self):
        for document in self.gpu.kind("decode"):
            if document["dim"] != 128 or SHOWN_ON_GPU[1] not in document["shapes"]:
                continue
            index = document["shapes"].index(SHOWN_ON_GPU[1])
            rows = [row for name in SHOWN_ON_GPU[0] for row in document["results"] if row.get("recipe") == name]
            rivals = [self.gpu.rivals(document, row, index) for row in rows]
            if not rows or not all(len(each) == 2 for each in rivals):
                continue
            cells = ", ".join(f"`{row['recipe']}` {bf16['us'][index] / row['us'][index]:.1f}x and "
                              f"{fp8['us'][index] / row['us'][index]:.1f}x" for row, (bf16, fp8) in zip(rows, rivals))
            sequences, tokens = SHOWN_ON_GPU[1].split(", ")
            return (f"**Decode attention on an H200**, {sequences} sequences of {tokens} tokens, rotations and tail included, "
                    f"compared with the fastest engine in BF16 ({rivals[0][0]['name'].split(',')[0]}) and in FP8 "
                    f"({rivals[0][1]['name'].split(',')[0]}): {cells}.")
        return ""

    def gpu_model_line(self):
        """How many times the tokens a second of the baseline, and of kvant's own bf16, uniform-4bit decodes, at each depth from 32,768 on."""
        document = next((d for d in self.gpu.kind("whole_model") if d["rate"] == "decode_tps"), None)
        if document is None:
            return ""
        rates = {(r["depth"], r["recipe"]): r["decode_tps"] for r in document["results"] if r["sequences"] == 1}
        rivals = (document["baseline"], "bf16")
        cells = [" and ".join(f"{rates[depth, 'uniform-4bit'] / rates[depth, rival]:.2f}x" for rival in rivals) + f" at context {depth:,}"
                 for depth in sorted({depth for depth, _ in rates if depth >= 32768})
                 if all((depth, recipe) in rates for recipe in ("uniform-4bit", *rivals))]
        if not cells:
            return ""
        return (f"**A whole 8B on an H200**, random weights in Q4_K, one sequence, `uniform-4bit` compared with `{document['baseline']}` "
                f"on its CUDA backend and with kvant's own `bf16`: {', '.join(cells)} ([more](docs/gpu.md#whole-models)).")

    def vllm_line(self):
        """The first column of figures of the table made in vLLM: `848 (1.16x)`, `1,895 (2.59x, 2.24x)`."""
        document = next((d for d in self.gpu.kind("table") if d["title"] == "In vLLM"), None)
        if document is None:
            return ""
        rates = {row[0]: row[1] for row in document["results"]}
        cells = []
        for name in ("`kvant_fast4`", "`uniform-4bit,sink=1`"):
            bf16, fp8 = rates[name].partition("(")[2].rstrip(")").split(", ")
            cells.append(f"{name} {bf16} and {fp8}")
        shape = document["columns"][1].partition(",")[0]
        return (f"**In vLLM on an H200**, Llama-3.1-8B's shape, {shape} tokens: output tokens per second compared with vLLM's own BF16 and "
                f"FP8 caches: {', '.join(cells)} ([guide](docs/guide/vllm.md)).")

    def choosing(self):
        run = self.quality.run()
        if run is None:
            return "Not measured yet.\n"
        rows = []
        for recipe in CHOICES:
            row = next((r for r in run["results"] if r["recipe"] == recipe), None)
            if row is not None:
                rows.append((f"`{recipe}`", f"{row['bits_all']:.2f}", f"{100 * row['bits_all'] / 16:.0f} %",
                             divergence(row["kld_mean"]), f"{100 * row['top1']:.1f} %", self.speed(recipe)))
        return markdown.table(("recipe", "bits per value", "memory of f16's", "mean KLD", "same token",
                               "attention, CPU"), rows)

    def blocks(self):
        return {"readme-table": self.table, "readme-speed": self.speed_lines, "choosing": self.choosing}
