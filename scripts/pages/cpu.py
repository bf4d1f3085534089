"""The tables of docs/cpu.md: every ratio is to the fastest rival that stores at least as many bits."""
from pages import markdown
from pages.results import load

# Bits of an element that rivals store; those of kvant's rows are in the results.
RIVAL_BITS = {"f16": 16, "bf16": 16, "f32": 32, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "int8": 8,
              "int4": 4}


def is_rival(name):
    return ":" in name and "=" not in name


def bits_of(row):
    if row.get("bits"):
        return row["bits"]
    kind = row["recipe"].split(":", 1)[1].split()[0].split("-")[0]
    sides = [RIVAL_BITS[side] for side in kind.split("/")]
    return sum(sides) / len(sides)


def fastest(rivals, bits, speed):
    """The fastest of those rows that store at least `bits`; None where there is none."""
    able = [row for row in rivals if row["bits"] >= bits - 0.005 and speed(row)]
    return max(able, key=speed, default=None)


def with_bits(rows, known):
    """Rows with the bits of each element: in `kvant bench` the rows don't carry them, those of attention do."""
    made = []
    for row in rows:
        if is_rival(row["recipe"]) or row.get("bits"):
            made.append({**row, "bits": bits_of(row)})
        else:
            made.append({**row, "bits": known.get(row["recipe"].split(" ")[0], 16.0)})
    return made


def ratio(value, rival, speed):
    return "-" if rival is None else f"{value / speed(rival):.2f}x `{rival['recipe']}`"


class Cpu:
    def __init__(self, folder):
        self.documents = load(folder, "cpu")

    def kind(self, kind):
        return [d for d in self.documents if d["kind"] == kind]

    def known_bits(self):
        return {row["recipe"]: row["bits"] for d in self.kind("attention") for row in d["results"] if row.get("bits")}

    def attention(self):
        text = "".join(self.attention_table(d) for d in self.kind("attention"))
        return text or "Not measured yet.\n"

    def attention_rows(self, document):
        """(row, its fastest rival) in the order of the run."""
        speed = lambda row: 1 / row["us"]
        rows = with_bits(document["results"], {})
        for row in rows:
            rivals = [r for r in rows if is_rival(r["recipe"]) and r["ctx"] == row["ctx"]]
            yield row, None if is_rival(row["recipe"]) else fastest(rivals, row["bits"], speed)

    def attention_table(self, document):
        cells = []
        for row, rival in self.attention_rows(document):
            share = f"{row['read_percent']:.0f} %" if row.get("read_percent") else "-"
            cells.append((f"{row['ctx']:,}", f"`{row['recipe']}`", f"{row['bits']:.2f}", f"{row['us']:,.0f}", share,
                          ratio(1 / row["us"], rival, lambda r: 1 / r["us"])))
        title = (f"\n**{document['heads']} query heads on {document['kv_heads']} KV heads of {document['dim']}**; "
                 f"{document['threads']} threads" +
                 (f", backend `{document['backend']}`" if document.get("backend") else "") +
                 f"; medians of {document['repeats']} interleaved rounds; {document['measured_on']}; memory is read at "
                 f"{document['read_gbps']:.0f} GB/s\n\n")
        header = ("tokens", "cache", "bits", "us a layer", "of the read limit", "beside the fastest rival")
        return title + markdown.code(document["command"]) + "\n" + markdown.table(header, cells)

    def compared(self, document, recipe, field):
        """Rows of a recipe in a run of a whole model, each with the fastest rival of at least its bits at its depth."""
        rows = with_bits(document["results"], self.known_bits())
        found = []
        for row in rows:
            rivals = [r for r in rows if is_rival(r["recipe"]) and r["depth"] == row["depth"]]
            if row["recipe"] == recipe and row.get(field):
                found.append((row, fastest(rivals, row["bits"], lambda r: r.get(field))))
        return found

    def model(self):
        text = "".join(self.model_table(d) for d in self.kind("model"))
        return text or "Not measured yet.\n"

    def model_table(self, document):
        rows = with_bits(document["results"], self.known_bits())
        cells = []
        for row in rows:
            rivals = [r for r in rows if is_rival(r["recipe"]) and r["depth"] == row["depth"]]
            made = [f"{row['depth']:,}", f"`{row['recipe']}`"]
            for field in ("prompt_tps", "decode_tps"):
                speed = lambda r, field=field: r.get(field)
                rival = None if is_rival(row["recipe"]) else fastest(rivals, row["bits"], speed)
                value = row.get(field)
                made += ["-", "-"] if not value else [f"{value:,.1f}" if value < 200 else f"{value:,.0f}",
                                                      ratio(value, rival, speed)]
            cells.append(tuple(made))
        settings = [f"prompt of {document['prompt']}, {document['decode']} generated tokens",
                    f"{document['threads']} threads", f"medians of {document['repeats']}", document["measured_on"]]
        for extra in ("weights", "beside"):
            if document.get(extra):
                settings.insert(0, document[extra])
        header = ("depth", "cache", "prompt tokens/s", "beside the fastest rival", "decode tokens/s",
                  "beside the fastest rival")
        return "\n" + "; ".join(settings) + "\n\n" + markdown.code(document["command"]) + "\n" + markdown.table(header, cells)

    def blocks(self):
        return {"cpu-attention": self.attention, "cpu-model": self.model}
