#!/usr/bin/env python3
"""Times PyTorch's BF16 attention with its cuDNN and flash back ends, at the shapes of decode_bench. A time is the
median over replays of a CUDA graph of several calls. Each call has its own K and V, which keeps the L2 cache cold.
The back ends take turns in rounds. A row has the median, minimum and maximum of a back end's medians over rounds."""

import argparse
import pathlib
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from graph_timing import captured, median_replay_ms  # noqa: E402
from json_rows import RowWriter  # noqa: E402

SHAPES = [(1, 32768), (1, 131072), (1, 196608), (8, 32768), (8, 131072), (64, 4096), (64, 32768)]
COLD_BYTES = 600 << 20
MOST_BYTES = 48 << 30
# A graph has at least LEAST_CALLS calls, unless memory is short, so its launch is a small part of each call.
LEAST_CALLS = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, help="of a graph")
    parser.add_argument("--json", help="a file that rows are added to")
    parser.add_argument("--shapes", metavar="BxTOKENS,...", help="sequences and contexts, instead of those of decode_bench")
    args = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")] if args.shapes else SHAPES
    rows = RowWriter(args.json)
    for batch, context in shapes:
        size = batch * args.kv_heads * context * args.head_dim * 2 * 2
        calls = args.calls or max(2, min(max(LEAST_CALLS, -(-COLD_BYTES // size)), MOST_BYTES // size))
        shape = (batch, args.kv_heads, context, args.head_dim)
        cache = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)] for _ in range(calls)]
        q = torch.randn((batch, args.kv_heads * args.group, 1, args.head_dim), device="cuda", dtype=torch.bfloat16)

        def attend():
            return [torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True) for k, v in cache]

        graphs = {}
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    graphs[name] = captured(attend)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                print(f"torch {torch.__version__} SDPA {name:6} has no kernel for heads of {args.head_dim}", flush=True)
        times = {name: [] for name in graphs}
        for _ in range(args.rounds):
            for name, graph in graphs.items():
                times[name].append(median_replay_ms(graph, args.runs) * 1e3 / calls)
        for name, us in times.items():
            median = statistics.median(us)
            print(f"torch {torch.__version__} SDPA {name:6} d{args.head_dim} G{args.group} ({batch:2}, "
                  f"{context:6}) {median:9.1f} us ({min(us):.1f} to {max(us):.1f})  "
                  f"{size / median / 1e3:5.0f} GB/s", flush=True)
            rows.write(what=f"torch SDPA {name}, BF16", options=f"{calls} calls a graph", head_dim=args.head_dim,
                       group=args.group, kv_heads=args.kv_heads, seqs=batch, context=context, us=median,
                       least_us=min(us), max_us=max(us), bytes=size, bits=16)
        del cache, graphs


if __name__ == "__main__":
    main()
