#!/usr/bin/env python3
"""Times PyTorch's BF16 attention, cuDNN and flash back ends, at the shapes of decode_bench: the median over replays of
a CUDA graph of several calls, each with keys and values of its own, so that the L2 cache is cold."""

import argparse
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(1, 32768), (1, 131072), (1, 196608), (8, 32768), (8, 131072), (64, 4096), (64, 32768)]
COLD_BYTES = 600 << 20


def median_us(calls, run, replays):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(calls):
            run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(calls):
            run(i)
    times = []
    for replay in range(replays + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        if replay >= 3:
            times.append(start.elapsed_time(stop) * 1e3 / calls)
    return statistics.median(times)


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
                us = median_us(calls, lambda i: torch.nn.functional.scaled_dot_product_attention(
                    q, cache[i][0], cache[i][1], enable_gqa=True), args.runs)
            print(f"torch {torch.__version__} SDPA {name:6} d{args.head_dim} G{args.group} ({batch:2}, {context // 1024:4}k) "
                  f"{us:9.1f} us  {size / us / 1e3:5.0f} GB/s", flush=True)
        del cache


if __name__ == "__main__":
    main()
