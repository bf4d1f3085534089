#!/usr/bin/env python3
"""Prints the results of `kvant eval --json` as rows of a Markdown table, sorted by bits_all.

usage: quality-table.py RESULT.json...
Files must share model, context and chunks. A row that occurs twice is taken from the first file.
"""
import json
import sys

COLUMNS = ("recipe", "bits sealed", "bits all", "mean KLD", "95 % interval", "99.9 %", "top-1 %", "ppl")


def load(paths):
    rows, setting = {}, None
    for path in paths:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        this = (result["model"], result["context"], result["chunks"])
        if setting not in (None, this):
            sys.exit(f"{path} was measured with {this}, the files before it with {setting}")
        setting = this
        for row in result["results"]:
            rows.setdefault(row["recipe"], row)
    return sorted(rows.values(), key=lambda row: -row["bits_all"])


def cells(row):
    return (f"`{row['recipe']}`", f"{row['bits_sealed']:.2f}", f"{row['bits_all']:.2f}", f"{row['kld_mean']:.3g}",
            f"{row['kld_lo']:.3g} - {row['kld_hi']:.3g}", f"{row['kld_p999']:.3g}", f"{100 * row['top1']:.2f}",
            f"{row['ppl']:.3f}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for row in load(sys.argv[1:]):
        print("| " + " | ".join(cells(row)) + " |")


main()
