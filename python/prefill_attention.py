#!/usr/bin/env python3
"""Prefills over a low-bit prefix from Python. A prompt block attends to itself and to a sealed prefix, which is
dequantized chunk by chunk into memory of a fixed size. The parts are merged by their log-sum-exp (LSE).

    python3 python/prefill_attention.py [--library PATH] [--prefix TOKENS] [--block TOKENS]

The script seals random keys and values. The script compares the merged attention with PyTorch's on the dequantized and
on the original values. The script compares the time with PyTorch's attention to everything in BF16."""

import argparse
import ctypes
import math
import sys

import torch
from graph_timing import median_ms
from kvant.c_api import Prompt, PromptPages, PromptShape
from kvant.torch import PAGE, Layer, Lengths, Shape, TorchLibrary, page_pool

REPLAYS = 9
FORMATS = [("ch4g128", "tok4g128"), ("ch2g128", "tok2g128"), ("lm4", "lm4"), ("tcq3", "tcq3"), ("tcq4", "tcq4"),
           ("prog4", "prog4")]


def attention(q, k, v, causal):
    """Returns cuDNN's attention and its log-sum-exp (LSE). q, k and v are [1][heads][tokens][d] views, with KV heads
    repeated without copies."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) if group > 1 and not GQA_WORKS else x for x in (k, v))
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    return out, lse.view(q.shape[:3])


GQA_WORKS = True


def find_gqa():
    """Finds out whether this PyTorch's cuDNN attention accepts fewer KV heads than query heads."""
    global GQA_WORKS
    q = torch.randn(1, 8, 256, 128, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(1, 2, 256, 128, device="cuda", dtype=torch.bfloat16)
    try:
        out, _ = attention(q, k, k, False)
        wide = k.repeat_interleave(4, 1)
        exact = torch.nn.functional.scaled_dot_product_attention(q, wide, wide)
        GQA_WORKS = (out - exact).abs().max().item() < 0.05
    except RuntimeError:
        GQA_WORKS = False


class SealedPrefix:
    """Holds one layer's sealed keys and values [tokens][KV heads][d]."""

    def __init__(self, kvant, formats, keys, values, group):
        self.kvant = kvant
        tokens, heads, d = keys.shape
        self.pages = tokens // PAGE
        device = {"device": "cuda", "dtype": torch.int32}
        table = torch.randperm(heads * self.pages, **device).view(1, heads, self.pages)
        tail_pool, tail = page_pool(table, PAGE * d * 2, PAGE * d * 2)
        pool, sealed = page_pool(table, *(kvant.page_bytes(name, d) for name in formats))
        self.shape = Shape(n_seqs=1, n_kv_heads=heads, group=group, head_dim=d, softmax_scale=1 / math.sqrt(d),
                           key_format=formats[0].encode(), value_format=formats[1].encode())
        self.layer = Layer(sealed=sealed, tail=tail)
        seq = torch.zeros(tokens, **device)
        token = torch.arange(tokens, **device)
        kvant.append(self.shape, self.layer, seq, token, keys, values)
        first = torch.zeros(1, **device)
        kvant.seal_pages(self.shape, self.layer, first, first, self.pages)
        torch.cuda.synchronize()
        self.sealed_pages = torch.full((1,), self.pages, **device)
        self.lengths = Lengths(sealed_pages=self.sealed_pages)
        self.keep = (table, pool)

    def dequantize(self, first, n, keys, values):
        """Dequantizes n pages from `first` on into rows [tokens][heads][d]."""
        self.kvant.dequantize(self.shape, self.lengths, self.layer, first, n, keys[None], values[None])


class Integers:
    """Runs kvant_prompt_attention of q [1][heads][tokens][d] to a sealed prefix and to new rows [tokens][KV heads][d].
    """

    def __init__(self, prefix, q, keys, values):
        _, heads, tokens, d = q.shape
        device = {"device": "cuda", "dtype": torch.int32}
        begins = torch.tensor([0, tokens], **device)
        self.kvant, self.q = prefix.kvant, q[0].transpose(0, 1).contiguous()
        self.shape = PromptShape(n_seqs=1, n_heads=heads, n_kv_heads=keys.shape[1], head_dim=d, n_queries=tokens,
                                 n_tokens=tokens, softmax_scale=1 / math.sqrt(d), causal=1, n_sealed_pages=prefix.pages)
        self.workspace = torch.empty(self.kvant.prompt_workspace_bytes(self.shape), device="cuda", dtype=torch.uint8)
        self.out = torch.empty_like(self.q)
        pages = PromptPages(shape=prefix.shape, layer=prefix.layer,
                            sealed_begins=torch.tensor([0, prefix.pages], **device))
        self.prompt = Prompt(
            query_begins=begins, token_begins=begins, q=self.q, q_token_stride=heads * d, q_head_stride=d, k=keys,
            k_token_stride=keys.stride(0), k_head_stride=d, v=values, v_token_stride=values.stride(0), v_head_stride=d,
            out=self.out, out_token_stride=heads * d, out_head_stride=d, pages=pages)

    def run(self):
        """Returns the output [1][heads][tokens][d]."""
        self.kvant.call("prompt_attention", self.shape, self.prompt, ctypes.c_void_p(self.workspace.data_ptr()),
                        ctypes.c_size_t(self.workspace.numel()))
        return self.out.transpose(0, 1)[None]


def merge(kvant, into, other):
    """Merges the output [1][heads][tokens][d] and LSE [1][heads][tokens] of other tokens into the output and LSE of
    `into`."""
    kvant.merge(*(x[0].transpose(0, 1) for x in (*into, *other)))


def prefill(prefix, q, block_keys, block_values, chunk, rows):
    """Returns the attention of a block to the sealed prefix and to itself: [1][heads][tokens][d], F32."""
    out, lse = attention(q, block_keys, block_values, True)
    total = out.float()
    lse = lse.clone()
    for first in range(0, prefix.pages, chunk):
        n = min(chunk, prefix.pages - first)
        prefix.dequantize(first, n, *rows)
        part, part_sums = attention(q, *(x[:n * PAGE].transpose(0, 1)[None] for x in rows), False)
        merge(prefix.kvant, (total, lse), (part, part_sums))
    return total


def relative_error(x, exact):
    return ((x.float() - exact.float()).norm() / exact.float().norm()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libkvant_cuda.so; without it the one that the package kvant finds")
    parser.add_argument("--prefix", type=int, default=30 * 1024)
    parser.add_argument("--block", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=64, help="pages that are dequantized at a time")
    args = parser.parse_args()
    kvant = TorchLibrary(args.library)
    find_gqa()
    heads, group, d = 8, 4, 128
    torch.manual_seed(1)
    tokens = args.prefix + args.block
    # Channels have means, because outputs average thousands of values and would otherwise vanish.
    rows = [torch.randn(tokens, heads, d, device="cuda", dtype=torch.bfloat16)
            + torch.randn(heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    q = torch.randn(1, heads * group, args.block, d, device="cuda", dtype=torch.bfloat16)
    block = [x[args.prefix:].transpose(0, 1)[None] for x in rows]
    dequantized = [torch.empty(args.chunk * PAGE, heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2)]

    def whole(keys, values):
        # A causal mask is aligned to the first token, so the block's own part must be merged here as well.
        out, lse = attention(q, *block, True)
        total, lse = out.float(), lse.clone()
        part, part_sums = attention(q, *(x.transpose(0, 1)[None] for x in (keys, values)), False)
        merge(kvant, (total, lse), (part, part_sums))
        return total

    originals = [x[:args.prefix] for x in rows]
    bf16_ms = median_ms(lambda: whole(*originals), REPLAYS)
    exact = whole(*originals)
    print(f"torch {torch.__version__}, a block of {args.block} tokens after {args.prefix}: cuDNN on BF16 {bf16_ms:.3f} ms")
    for formats in FORMATS:
        prefix = SealedPrefix(kvant, formats, *originals, group)
        everything = [torch.empty_like(x) for x in originals]
        prefix.dequantize(0, prefix.pages, *everything)
        merged = prefill(prefix, q, *block, args.chunk, dequantized)
        to_dequantized = relative_error(merged, whole(*everything))
        of_rows = [relative_error(x, y) for x, y in zip(everything, originals)]
        ms = median_ms(lambda: prefill(prefix, q, *block, args.chunk, dequantized), REPLAYS)
        dequantize_ms = median_ms(lambda: [prefix.dequantize(first, min(args.chunk, prefix.pages - first), *dequantized)
                                       for first in range(0, prefix.pages, args.chunk)], REPLAYS)
        integers = Integers(prefix, q, *(x[args.prefix:] for x in rows))
        of_integers = relative_error(integers.run(), whole(*everything))
        integers_ms = median_ms(integers.run, REPLAYS)
        again_ms = median_ms(lambda: whole(*originals), REPLAYS)
        sealed_bytes = prefix.layer.sealed.page_stride * heads * prefix.pages
        rate = (sealed_bytes + sum(x.numel() * 2 for x in originals)) / dequantize_ms / 1e6
        print(f"{'+'.join(formats):18} {ms:.3f} ms, of which dequantizing {dequantize_ms:.3f} ms ({rate:.0f} GB/s); relative error "
              f"{to_dequantized:.4f} against attention to the dequantized values, {relative_error(merged, exact):.4f} to the originals "
              f"(keys {of_rows[0]:.3f}, values {of_rows[1]:.3f}); in integers {integers_ms:.3f} ms, {again_ms / integers_ms:.2f} times cuDNN's "
              f"{again_ms:.3f} on BF16, error {of_integers:.4f}", flush=True)
        if not to_dequantized < 0.01:
            sys.exit("the error is too large")


if __name__ == "__main__":
    main()
