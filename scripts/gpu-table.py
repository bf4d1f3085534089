#!/usr/bin/env python3
"""Makes Markdown tables from the rows of decode_bench, gpu-sdpa.py and gpu-fp8-rivals.py. A cell has microseconds for a
number of sequences and a context. Brackets hold how many times faster the cell is than the fastest BF16 and the fastest
FP8 engine of others, each at its best round. The brackets also hold the share of the limit, which is the time for
reading the same bytes: START_US + bytes / BYTES_PER_US."""

import argparse
import collections
import json

# Reading bytes alone takes this time on an H200, as reads of 5 MB to 1 GB showed.
START_US, BYTES_PER_US = 1.6, 4.617e6


def is_rival(row):
    return not row["what"].startswith("kvant ")


def least_us(row):
    return row.get("least_us", row["us"])


def shape_of(row):
    return row["seqs"], row["context"]


def best_rivals(rows, bits):
    best = {}
    for row in rows:
        if is_rival(row) and row["bits"] == bits:
            best[shape_of(row)] = min(best.get(shape_of(row), least_us(row)), least_us(row))
    return best


def cell(row, bf16, fp8):
    limit = START_US + row["bytes"] / BYTES_PER_US
    notes = [f"{best[shape_of(row)] / row['us']:.2f}x" for best in (bf16, fp8)
             if shape_of(row) in best and not is_rival(row)]
    spread = ""
    if row.get("max_us", 0) > 1.02 * least_us(row):
        spread = f", {row['least_us']:.1f} to {row['max_us']:.1f}"
    notes.append(f"{100 * limit / row['us']:.0f} %")
    return f"{row['us']:.1f} ({', '.join(notes)}{spread})"


def print_table(rows, head_dim):
    rows = [row for row in rows if row["head_dim"] == head_dim]
    shapes = sorted({shape_of(row) for row in rows})
    bf16, fp8 = best_rivals(rows, 16), best_rivals(rows, 8)
    table = collections.defaultdict(dict)
    for row in rows:
        options = "" if is_rival(row) else " ".join(
            row["options"].replace(f"--head-dim {head_dim}", "").split())
        table[row["what"], options][shape_of(row)] = row
    print(f"\nHeads of {head_dim}. In brackets: times faster than the best BF16 and the best FP8 engine, share of the "
          "limit.\n")
    print("| what | bits | " + " | ".join(f"{seqs}, {context // 1024}k" for seqs, context in shapes) + " |")
    print("|---" * (len(shapes) + 2) + "|")
    for (what, options), cells in table.items():
        name = what + (f" `{options}`" if options else "")
        bits = next(iter(cells.values()))["bits"]
        print(f"| {name} | {bits:.2f} | "
              + " | ".join(cell(cells[shape], bf16, fp8) if shape in cells else "" for shape in shapes) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    rows = [json.loads(line) for name in args.files for line in open(name)]
    for head_dim in sorted({row["head_dim"] for row in rows}, reverse=True):
        print_table(rows, head_dim)


if __name__ == "__main__":
    main()
