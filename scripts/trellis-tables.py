#!/usr/bin/env python3
"""Trains the tables of src/format/trellis.h and prints src/format/trellis_tables.cc.

    python3 scripts/trellis-tables.py > src/format/trellis_tables.cc && clang-format -i src/format/trellis_tables.cc

Needs PyTorch; a minute on a GPU, an hour without. Lloyd's iteration: rows of Gaussian values of unit variance are
encoded along their best paths (Viterbi, the same first and last state), and each state's level becomes the mean of
the values that chose it. Of six starts, the one that leaves the least error on other rows is kept, as INT8.

States here have the newest bits lowest, so that a state's predecessors lie a power of two apart; the tables that are
printed are indexed by the little-endian window of the stream, which is the state with its bits reversed.
"""

import math

import torch

STATE_BITS, STATES, VALUES = 8, 256, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def gaussian_rows(n, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, VALUES, generator=generator).to(DEVICE)
    return rows / rows.pow(2).mean(1, keepdim=True).sqrt()


def viterbi(x, levels, bits, start):
    """Costs [n, STATES] of the best paths over x [n, steps], and the choices [steps, n, STATES >> bits]."""
    n, symbols = x.shape[0], 1 << bits
    if start is None:
        cost = torch.zeros(n, STATES, device=DEVICE)
    else:
        cost = torch.full((n, STATES), 1e9, device=DEVICE).scatter_(1, start[:, None], 0.0)
    choices = []
    for step in range(x.shape[1]):
        least, choice = cost.view(n, symbols, STATES // symbols).min(1)
        choices.append(choice.to(torch.uint8))
        cost = least.repeat_interleave(symbols, 1) + (x[:, step : step + 1] - levels[None]) ** 2
    return cost, choices


def trace(choices, state, bits):
    """The states [n, steps] of the paths that end in `state`."""
    path = []
    for choice in reversed(choices):
        path.append(state)
        parent = state >> bits
        state = parent | (choice.gather(1, parent[:, None])[:, 0].long() << (STATE_BITS - bits))
    return torch.stack(path[::-1], 1)


def encode(rows, levels, bits):
    """The states of each row's best path that ends where it begins; the seam's state is found half a row away."""
    half = rows.shape[1] // 2
    cost, choices = viterbi(torch.roll(rows, half, 1), levels, bits, None)
    seam = trace(choices, cost.argmin(1), bits)[:, half - 1]
    _, choices = viterbi(rows, levels, bits, seam)
    return trace(choices, seam, bits)


def first_levels(bits, seed):
    quantiles = (torch.arange(STATES, dtype=torch.float64) + 0.5) / STATES
    normal = (torch.erfinv(2 * quantiles - 1) * math.sqrt(2)).float()
    generator = torch.Generator().manual_seed(seed)
    if seed >= 100:  # any order
        return normal[torch.randperm(STATES, generator=generator)].to(DEVICE)
    # The symbols that may follow a state are spread over the whole range.
    symbols, old_states = 1 << bits, STATES >> bits
    order = torch.arange(old_states) if seed == 0 else torch.randperm(old_states, generator=generator)
    place = torch.empty(STATES, dtype=torch.long)
    for old in range(old_states):
        for symbol in range(symbols):
            place[old * symbols + symbol] = symbol * old_states + order[old]
    return normal[place].to(DEVICE)


def train(bits, rows, held_out):
    best = None
    for seed in (0, 1, 2, 3, 100, 101):
        levels = first_levels(bits, seed)
        for _ in range(30):
            states = encode(rows, levels, bits).reshape(-1)
            total = torch.zeros(STATES, device=DEVICE).index_add_(0, states, rows.reshape(-1))
            count = torch.bincount(states, minlength=STATES).float()
            levels = torch.where(count > 0, total / count.clamp_min(1), levels)
        error = (levels[encode(held_out, levels, bits)] - held_out).pow(2).mean().item()
        if best is None or error < best[0]:
            best = (error, levels)
    return best[1]


def reversed_bits(state):
    return int(f"{state:08b}"[::-1], 2)


def main():
    rows, held_out = gaussian_rows(32768, 1), gaussian_rows(32768, 2)
    print("// Printed by scripts/trellis-tables.py; see trellis.h.")
    print('#include "format/trellis.h"\n\nnamespace kvant {\nnamespace {\n')
    print("// clang-format off\nconstexpr std::array<TrellisTable, kMostTrellisBits> kTables = {{")
    for bits in range(1, 7):
        levels = train(bits, rows, held_out)
        scale = levels.abs().max().item() / 127
        integers = (levels / scale).round().int().tolist()
        windows = [integers[reversed_bits(window)] for window in range(STATES)]
        print(f"  {{{bits}, {scale:.9f}F, {{{{")
        for i in range(0, STATES, 16):
            print("    " + ", ".join(str(x) for x in windows[i : i + 16]) + ",")
        print("  }}},")
    print("}};\n// clang-format on\n\n}  // namespace\n")
    print("std::span<const TrellisTable> trellis_tables() {\n  return kTables;\n}\n\n}  // namespace kvant")


if __name__ == "__main__":
    main()
