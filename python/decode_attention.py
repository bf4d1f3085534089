#!/usr/bin/env python3
"""Attends to a low-bit KV cache from Python: an example of libkvant_cuda through ctypes, on PyTorch tensors.

    python3 python/decode_attention.py [path to libkvant_cuda.so]

The script fills the tails of two sequences, seals their pages as ch4g128 keys and tok4g128 values, and attends to them.
The script compares the result with PyTorch's attention to the unquantized values."""

import math
import sys

import torch
from kvant.torch import BF16, PAGE, Layer, Lengths, Shape, TorchLibrary, page_pool


def main():
    kvant = TorchLibrary(*sys.argv[1:2])
    n_seqs, n_kv_heads, group, d, n_pages = 2, 8, 4, 128, 16
    tokens = n_pages * PAGE
    device = {"device": "cuda"}
    torch.manual_seed(1)
    keys, values = (torch.randn(n_seqs, tokens, n_kv_heads, d, dtype=torch.bfloat16, **device) for _ in range(2))
    q = torch.randn(n_seqs, n_kv_heads * group, d, dtype=torch.bfloat16, **device)
    out = torch.empty_like(q)

    # The tables of sealed pages and of tails have an entry for each [seq][head][page].
    table = torch.randperm(n_seqs * n_kv_heads * n_pages, dtype=torch.int32, **device).view(n_seqs, n_kv_heads, n_pages)
    formats = ("ch4g128", "tok4g128")
    sealed_pool, sealed = page_pool(table, *(kvant.page_bytes(name, d) for name in formats))
    tail_pool, tail = page_pool(table, PAGE * d * 2, PAGE * d * 2)
    shape = Shape(n_seqs=n_seqs, n_kv_heads=n_kv_heads, group=group, head_dim=d, softmax_scale=1 / math.sqrt(d),
                  key_format=formats[0].encode(), value_format=formats[1].encode())
    layer = Layer(sealed=sealed, tail=tail, q=q, q_seq_stride=q.stride(0), q_head_stride=q.stride(1), out=out,
                  out_type=BF16, out_seq_stride=out.stride(0), out_head_stride=out.stride(1))

    seq = torch.arange(n_seqs, dtype=torch.int32, **device).repeat_interleave(tokens)
    token = torch.arange(tokens, dtype=torch.int32, **device).repeat(n_seqs)
    kvant.append(shape, layer, seq, token, keys.flatten(0, 1), values.flatten(0, 1))
    first = torch.zeros(n_seqs, dtype=torch.int32, **device)
    kvant.seal_pages(shape, layer, first, first, n_pages)

    sealed_pages = torch.full((n_seqs,), n_pages, dtype=torch.int32, **device)
    lengths = Lengths(sealed_pages=sealed_pages)
    workspace = kvant.new_workspace(shape)
    kvant.decode_schedule(shape, lengths, workspace)
    kvant.decode_attention(shape, lengths, layer, workspace)

    exact = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None].float(), keys.transpose(1, 2).float(), values.transpose(1, 2).float(), enable_gqa=True)[:, :, 0]
    error = ((out.float() - exact).norm() / exact.norm()).item()
    bits = 8 * sealed.page_stride / (2 * PAGE * d)
    print(f"{kvant.decode_kernel(shape)}: {bits:.2f} bits per value, "
          f"relative error {error:.4f} against unquantized attention")
    if not error < 0.2:
        sys.exit("the error is too large")


if __name__ == "__main__":
    main()
