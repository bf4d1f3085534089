#!/usr/bin/env python3
"""Times PyTorch's BF16 attention, cuDNN and flash back ends, at the shapes of decode_bench: the median over replays of
a CUDA graph of several calls, each with keys and values of its own, so that the L2 cache is cold."""

import argparse
import pathlib
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from graph_timing import median_ms  # noqa: E402

SHAPES = [(1, 32768), (1, 131072), (1, 196608), (8, 32768), (8, 131072), (64, 4096), (64, 32768)]
COLD_BYTES = 600 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    for batch, context in SHAPES:
        size = batch * args.kv_heads * context * args.head_dim * 2 * 2
        calls = max(2, -(-COLD_BYTES // size))
        shape = (batch, args.kv_heads, context, args.head_dim)
        cache = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)] for _ in range(calls)]
        q = torch.randn((batch, args.kv_heads * args.group, 1, args.head_dim), device="cuda", dtype=torch.bfloat16)
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            with sdpa_kernel(backend):
                us = median_ms(lambda: [torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                                        for k, v in cache], args.runs) * 1e3 / calls
            print(f"torch {torch.__version__} SDPA {name:6} d{args.head_dim} G{args.group} ({batch:2}, {context // 1024:4}k) "
                  f"{us:9.1f} us  {size / us / 1e3:5.0f} GB/s", flush=True)
        del cache


if __name__ == "__main__":
    main()
