#!/usr/bin/env python3
"""Measures the decode latency of a whole model at batch 1: milliseconds per token of a network of Llama-3.1-8B's shape
with random weights.

Attention reads a low-bit cache (libkvant_cuda) or a BF16 cache (PyTorch's attention). Everything else is the same: BF16
linear layers, RMSNorm, RoPE, SwiGLU, and each step is a CUDA graph. Variants take turns in one process.
"""

import argparse
import math
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(pathlib.Path(__file__).resolve().parent)]
from graph_timing import WARM_UP, captured, replay_ms  # noqa: E402
from kvant.torch import BF16, PAGE, Layer, Lengths, Shape, TorchLibrary, page_pool  # noqa: E402
from llama_shape import D, HEADS, KV_HEADS, LAYERS, Network, rotation_of  # noqa: E402

VARIANTS = ["bf16", "ch4g128+tok4g128", "ch2g128+tok2g128", "vq-d4b8+vq-d4b8", "tcq3+tcq3"]
# A cache repeats UNIQUE_PAGES pages per head.
UNIQUE_PAGES = 16


class Bf16Cache:
    """Keeps K and V of all tokens in BF16, and attends with PyTorch."""

    def __init__(self, context):
        self.rows = [torch.randn(LAYERS, 1, KV_HEADS, context, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]

    def begin_step(self):
        pass

    def attend(self, layer, q, k, v):
        for rows, new in zip(self.rows, (k, v)):
            rows[layer, 0, :, -1] = new
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q.view(1, HEADS, 1, D), *(rows[layer] for rows in self.rows),
                                                  enable_gqa=True).view(1, HEADS * D)


class LowBitCache:
    """Keeps sealed pages. The tail has the tokens of the last page, including the newest token."""

    def __init__(self, kvant, formats, context):
        self.kvant = kvant
        pages = context // PAGE - 1
        device = {"device": "cuda", "dtype": torch.int32}
        sizes = [kvant.page_bytes(name, D) for name in formats]
        if 0 in sizes:
            sys.exit(f"no kernel reads {'+'.join(formats)}")
        codebooks = {}
        for side, name in zip(("key", "value"), formats):
            if name.startswith("vq"):
                dim, bits = int(name[4]), int(name[6:])
                books = torch.randn(KV_HEADS, dim << bits, device="cuda", dtype=torch.float16)
                codebooks |= {side + "_codebooks": books, side + "_codebook_stride": dim << bits}
        self.shape = Shape(n_seqs=1, n_kv_heads=KV_HEADS, group=HEADS // KV_HEADS, head_dim=D,
                           softmax_scale=1 / math.sqrt(D), key_format=formats[0].encode(), value_format=formats[1].encode())
        # A layer's tail has one page. The sealed pages of all layers and heads lie in random places of a pool of
        # copies.
        self.tail_table = torch.arange(LAYERS * KV_HEADS, **device).view(LAYERS, KV_HEADS, 1)
        self.tail_pool, tail = page_pool(self.tail_table, PAGE * D * 2, PAGE * D * 2)
        tail.layer_stride, tail.seq_stride = KV_HEADS, 0
        self.table = torch.randperm(LAYERS * KV_HEADS * pages, **device).view(LAYERS, KV_HEADS, pages)
        self.pool, sealed = page_pool(self.table, *sizes)
        sealed.layer_stride, sealed.seq_stride = KV_HEADS * pages, 0
        unique = self.unique_pages(formats, sizes, codebooks)
        self.pool.view(-1, sum(sizes)).copy_(unique.repeat(-(-self.table.numel() // len(unique)), 1)[:self.table.numel()])
        self.out = torch.empty(LAYERS, HEADS * D, device="cuda", dtype=torch.bfloat16)
        self.layers = [Layer(layer=i, sealed=sealed, tail=tail, out=self.out[i], out_type=BF16, q_head_stride=D,
                             out_head_stride=D, settled=1, **codebooks) for i in range(LAYERS)]
        self.counts = [torch.tensor([n], **device) for n in (pages, PAGE, 0, PAGE - 1)]
        sealed_pages, tail_tokens, self.seq, self.token = self.counts
        self.lengths = Lengths(sealed_pages=sealed_pages, tail_tokens=tail_tokens)
        self.workspace = kvant.new_workspace(self.shape)
        self.keep = codebooks

    def unique_pages(self, formats, sizes, codebooks):
        """Returns UNIQUE_PAGES pages of every head, sealed from random values: [pages][bytes of both sides]."""
        device = {"device": "cuda", "dtype": torch.int32}
        table = torch.arange(KV_HEADS * UNIQUE_PAGES, **device).view(1, KV_HEADS, UNIQUE_PAGES)
        tail_pool, tail = page_pool(table, PAGE * D * 2, PAGE * D * 2)
        pool, sealed = page_pool(table, *sizes)
        tokens = UNIQUE_PAGES * PAGE
        rows = [torch.randn(tokens, KV_HEADS, D, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        seq, token = torch.zeros(tokens, **device), torch.arange(tokens, **device)
        layer = Layer(sealed=sealed, tail=tail, **codebooks)
        self.kvant.append(self.shape, layer, seq, token, *rows)
        first = torch.zeros(1, **device)
        self.kvant.seal_pages(self.shape, layer, first, first, UNIQUE_PAGES)
        torch.cuda.synchronize()
        return pool.view(-1, sum(sizes))

    def begin_step(self):
        self.kvant.decode_schedule(self.shape, self.lengths, self.workspace)

    def attend(self, layer, q, k, v):
        self.kvant.append(self.shape, self.layers[layer], self.seq, self.token, k.view(1, KV_HEADS, D),
                          v.view(1, KV_HEADS, D))
        self.layers[layer].q = q.data_ptr()
        self.kvant.decode_attention(self.shape, self.lengths, self.layers[layer], self.workspace)
        return self.out[layer:layer + 1]


class NoAttention:
    """Attends to nothing, which gives the time of everything but attention."""

    def begin_step(self):
        pass

    def attend(self, layer, q, k, v):
        return q.reshape(1, HEADS * D)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", default=str(ROOT / "build/cuda/libkvant_cuda.so"))
    parser.add_argument("--contexts", type=int, nargs="+", default=[32768, 196608])
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(1)
    kvant = TorchLibrary(args.library)
    model = Network()
    token = torch.zeros(1, dtype=torch.int64, device="cuda")
    for context in args.contexts:
        rotation = rotation_of(torch.tensor([context - 1], device="cuda"))
        caches = {"no attention": NoAttention()}
        for name in args.variants:
            caches[name] = Bf16Cache(context) if name == "bf16" else LowBitCache(kvant, name.split("+"), context)
        graphs = {name: captured(lambda cache=cache: model.forward(token, cache, rotation)) for name, cache in caches.items()}
        times = {name: [] for name in graphs}
        for run in range(args.runs + WARM_UP):
            for name, graph in graphs.items():
                ms = replay_ms(graph)
                if run >= WARM_UP:
                    times[name].append(ms)
        medians = {name: statistics.median(values) for name, values in times.items()}
        for name, ms in medians.items():
            ratio = f"{medians['bf16'] / ms:.2f}x the speed of bf16" if "bf16" in medians else ""
            print(f"context {context // 1024:4}k  {name:18} {ms:7.3f} ms a token  {ratio}", flush=True)
        del caches, graphs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
