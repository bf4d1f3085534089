#!/usr/bin/env python3
"""Prints the results of `kvant eval --json` as Markdown tables, one for each model and context.

usage: quality-table.py RESULT.json...

Bits are per value of K and V, on average over the positions of a page. All files of one table must have equal chunks.
If a row occurs twice, the first file counts. Rows are sorted by bits_all, but rows of a suite keep their order. Results
of `--layers` become one table of all layers together, and one of each layer.
"""
import json
import sys

COLUMNS = ("recipe", "bits sealed", "bits all", "constants", "mean KLD", "95 % interval", "99.9 %", "top-1 %", "ppl")
LAYER_FIGURES = (("mse", "MSE", "{:.3g}", 1), ("relative", "relative RMS error", "{:.4f}", 1),
                 ("skip_rate", "skipped %", "{:.2f}", 100), ("skipped_mass", "skipped mass", "{:.2g}", 1),
                 ("mass_unsealed", "mass on the window %", "{:.1f}", 100),
                 ("mass_protected", "mass on protected tokens %", "{:.1f}", 100))


def documents(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    return result if isinstance(result, list) else [result]


def tables(paths):
    """Returns the first document of each table, extended with the rows of the table's other documents."""
    found = {}
    for path in paths:
        for document in documents(path):
            table = found.setdefault((document["schema"], document["model"], document["context"]), document)
            if document["chunks"] != table["chunks"]:
                sys.exit(f"{path} was measured on {document['chunks']} chunks, a file before it on {table['chunks']}")
            if table is not document:
                known = {key(row) for row in table["results"]}
                table["results"] += [row for row in document["results"] if key(row) not in known]
    return found.values()


def key(row):
    return row.get("label"), row["recipe"]


def print_row(cells):
    print("| " + " | ".join(cells) + " |")


def print_table(header, rows):
    print_row(header)
    print("|---" * len(header) + "|")
    for row in rows:
        print_row(row)


def number(value, text):
    return "-" if value is None else text.format(value)


def constants(row):
    """Returns the size of the model constants: KiB, and bits per value of one sequence at the row's context."""
    if not row.get("constant_bytes"):
        return "-"
    return f"{row['constant_bytes'] / 1024:,.0f} KiB, {row['constant_bits']:.2g} bits"


def figures(row):
    return (f"`{row['recipe']}`", number(row["bits_sealed"], "{:.2f}"), f"{row['bits_all']:.2f}", constants(row),
            f"{row['kld_mean']:.3g}", f"{row['kld_lo']:.3g} - {row['kld_hi']:.3g}", f"{row['kld_p999']:.3g}",
            f"{100 * row['top1']:.2f}", f"{row['ppl']:.3f}")


def print_predictions(document):
    rows = document["results"]
    if "suite" not in document:
        rows = sorted(rows, key=lambda row: -row["bits_all"])
    if not any("label" in row for row in rows):
        return print_table(COLUMNS, map(figures, rows))
    print_table(("", *COLUMNS), ((row.get("label", ""), *figures(row)) for row in rows))


def print_layers(document):
    rows = document["results"]
    print_table(("", "recipe", "MSE", "relative RMS error"),
                ((row.get("label", ""), f"`{row['recipe']}`", f"{row['mse']:.3g}", f"{row['relative']:.4f}")
                 for row in rows))
    for name, title, text, scale in LAYER_FIGURES:
        having = [row for row in rows if name in row["layers"][0]]
        if not having:
            continue
        print(f"\n{title}:\n")
        print_table(("layer", *(row.get("label") or f"`{row['recipe']}`" for row in having)),
                    ((str(i), *(text.format(scale * row["layers"][i][name]) for row in having))
                     for i in range(len(having[0]["layers"]))))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    found = tables(sys.argv[1:])
    for document in found:
        if len(found) > 1:
            print(f"\nContext {document['context']}:\n")
        (print_layers if document["schema"].startswith("kvant.layers/") else print_predictions)(document)


main()
