#!/usr/bin/env python3
"""Learns what KVTC (arXiv 2511.01815) needs for coding: principal directions, and groups of components with their bits.

    lab/kvtc/learn-kvtc.py FILE BITS...     after `cold_tiers rows MODEL FILE`; needs numpy

The script writes FILE.directions in F32. For K and V it holds the mean [width], and the directions [width, width] as
rows in the order of falling variance. BITS are mean bits per element before entropy coding. For each of BITS the script
writes FILE-BITS.groups, with one line for K and one for V that list SIZExBITS of each group. Without BITS, it only
writes directions.

As in the paper, dynamic programming over components and bits finds the groups with the smallest squared error on some
tokens of the text. Groups have 1, 16, 64, 256 or 1024 components, values of 0, 2, 4 or 8 (E4M3) bits, and 32 bits for
shift and scale. K and V have equal bits. Groups of one component may begin anywhere. Larger groups begin at multiples
of 16, or 1, 2, 4 or 8 components after one. A full search would take three times as long.
"""
import concurrent.futures
import pathlib
import sys

import numpy as np

SIZES = (1, 16, 64, 256, 1024)
BITS = (0, 2, 4, 8)
PARAMETER_BITS = 32
# All costs are multiples of UNIT bits.
UNIT = 2
# Groups begin at multiples of GRID components, plus one of BEHIND.
GRID, BEHIND = 16, (0, 1, 2, 4, 8)
# Errors are measured on JUDGED tokens.
JUDGED = 512


def read_rows(path, width):
    stored = np.fromfile(path, dtype=np.uint16).reshape(-1, width)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def principal_directions(rows):
    """Returns the mean [width], and the eigenvectors of the covariance as rows, the largest eigenvalue first."""
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = rows - mean
    covariance = centred.T @ centred / np.float32(len(rows))
    _, vectors = np.linalg.eigh(covariance)
    return mean, np.ascontiguousarray(vectors[:, ::-1].T)


def as_stored(values):
    return values.astype(np.float16).astype(np.float32)


def e4m3(x):
    """Returns the nearest E4M3 numbers; |x| must be at most 448."""
    unit = np.exp2(np.maximum(np.frexp(x)[1] - 4, -9)).astype(np.float32)
    return np.rint(x / unit) * unit


def decoded(x, bits):
    """Returns groups [tokens, size] after coding and decoding, as lab/kvtc/component_coder.h describes."""
    if bits == 0:
        return np.zeros_like(x)
    least, most = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    if bits == 8:
        shift, scale = as_stored((least + most) / 2), as_stored((most - least) / 2 / 448)
    else:
        shift, scale = as_stored(least), as_stored((most - least) / (2**bits - 1))
    scaled = np.divide(x - shift, scale, out=np.zeros_like(x), where=scale > 0)
    codes = e4m3(np.clip(scaled, -448, 448)) if bits == 8 else np.clip(np.rint(scaled), 0, 2**bits - 1)
    return shift + scale * codes


def group_errors(components):
    """Returns the squared error of every possible group: {(first, size, bits): error}."""
    width = components.shape[1]
    errors = {}
    for size in SIZES:
        for first in range(width - size + 1):
            if size > 1 and first % GRID not in BEHIND:
                continue
            x = components[:, first:first + size]
            for bits in BITS:
                errors[first, size, bits] = float(np.square(x - decoded(x, bits), dtype=np.float64).sum())
    return errors


def cost_of(size, bits):
    return 0 if bits == 0 else size * bits + PARAMETER_BITS


def best_groups(errors, width, budgets):
    """Finds for each budget, in bits per token, the groups with the smallest error, [(size, bits)], by dynamic
    programming."""
    n = max(budgets) // UNIT + 1
    # least[i, j] is the smallest error of the first i components with at most j units of bits.
    least = np.full((width + 1, n), np.inf)
    least[0] = 0
    choices = [(size, bits) for size in SIZES for bits in BITS]
    chosen = np.zeros((width + 1, n), dtype=np.int8)
    for end in range(1, width + 1):
        for number, (size, bits) in enumerate(choices):
            error = errors.get((end - size, size, bits))
            units = cost_of(size, bits) // UNIT
            if error is None or units >= n:
                continue
            candidate = least[end - size, :n - units] + error
            better = candidate < least[end, units:]
            least[end, units:][better] = candidate[better]
            chosen[end, units:][better] = number
    found = {}
    for budget in budgets:
        groups, end, units = [], width, budget // UNIT
        while end > 0:
            size, bits = choices[chosen[end, units]]
            groups.insert(0, (size, bits))
            end, units = end - size, units - cost_of(size, bits) // UNIT
        while groups and groups[-1][1] == 0:
            groups.pop()
        found[budget] = groups
    return found


def merged(groups):
    """Returns groups as text, with neighbouring groups of 0 bits joined."""
    joined = []
    for size, bits in groups:
        if bits == 0 and joined and joined[-1][1] == 0:
            joined[-1] = (joined[-1][0] + size, 0)
        else:
            joined.append((size, bits))
    return " ".join(f"{size}x{bits}" for size, bits in joined)


def learned_side(path, width, budgets):
    """Returns the mean, the directions, and the groups as text for each budget in bits per token."""
    rows = read_rows(path, width)
    mean, directions = principal_directions(rows)
    if not budgets:
        return mean, directions, {}
    errors = group_errors((rows[::max(1, len(rows) // JUDGED)] - mean) @ directions.T)
    return mean, directions, {budget: merged(groups) for budget, groups in best_groups(errors, width, budgets).items()}


def main(path, targets):
    width = int(pathlib.Path(f"{path}.width").read_text())
    budgets = {target: int(float(target) * width) // UNIT * UNIT for target in targets}
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        sides = list(pool.map(learned_side, (f"{path}.k", f"{path}.v"), [width] * 2, [list(budgets.values())] * 2))
    with open(f"{path}.directions", "wb") as file:
        for mean, directions, _ in sides:
            mean.tofile(file)
            directions.tofile(file)
    for target, budget in budgets.items():
        pathlib.Path(f"{path}-{target}.groups").write_text("".join(groups[budget] + "\n" for _, _, groups in sides))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
