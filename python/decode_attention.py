#!/usr/bin/env python3
"""Decode attention on a low-bit KV cache from Python: libkvant_cuda through ctypes, on PyTorch tensors.

    python3 python/decode_attention.py [path to libkvant_cuda.so]

Fills the tails of two sequences, seals their pages as ch4g128 keys and tok4g128 values, attends to them, and compares
with PyTorch's attention on the unquantized values."""

import ctypes
import math
import sys

import torch

PAGE = 128  # tokens


class Pages(ctypes.Structure):
    _fields_ = [("table", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("seq_stride", "layer_stride", "head_stride", "side_stride")
    ] + [("pool", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("page_stride", "layer_offset", "head_offset", "side_offset")
    ]


class Shape(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_int32) for name in ("n_seqs", "n_kv_heads", "group", "head_dim")
    ] + [("score_scale", ctypes.c_float), ("key_format", ctypes.c_char_p), ("value_format", ctypes.c_char_p)]


class Lengths(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_void_p) for name in ("sealed_pages", "tail_tokens", "side_tokens")
    ] + [("side_seq_stride", ctypes.c_int64), ("side_head_stride", ctypes.c_int64)]


class Layer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("layer", ctypes.c_int32),
        ("sealed", Pages), ("tail", Pages), ("side", Pages),
        ("sink", ctypes.c_int32), ("masks", ctypes.c_void_p),
        ("mask_seq_stride", ctypes.c_int64), ("mask_head_stride", ctypes.c_int64),
        ("key_codebooks", ctypes.c_void_p), ("value_codebooks", ctypes.c_void_p),
        ("key_codebook_stride", ctypes.c_int64), ("value_codebook_stride", ctypes.c_int64),
        ("q", ctypes.c_void_p), ("q_seq_stride", ctypes.c_int64), ("q_head_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p), ("out_type", ctypes.c_int),
        ("out_seq_stride", ctypes.c_int64), ("out_head_stride", ctypes.c_int64), ("settled", ctypes.c_int32),
        ("log_sums", ctypes.c_void_p),
    ]


class NewRows(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("n_rows", ctypes.c_int32),
        ("seq", ctypes.c_void_p), ("tail_token", ctypes.c_void_p),
        ("keys", ctypes.c_void_p), ("key_row_stride", ctypes.c_int64), ("key_head_stride", ctypes.c_int64),
        ("values", ctypes.c_void_p), ("value_row_stride", ctypes.c_int64), ("value_head_stride", ctypes.c_int64),
        ("key_factors", ctypes.c_void_p), ("value_factors", ctypes.c_void_p),
        ("key_hadamard", ctypes.c_int32), ("value_hadamard", ctypes.c_int32),
    ]


def made(kind, **members):
    """A structure with its size and these members set; tensors become their addresses."""
    result = kind(**{name: x.data_ptr() if isinstance(x, torch.Tensor) else x for name, x in members.items()})
    if hasattr(result, "struct_size"):
        result.struct_size = ctypes.sizeof(kind)
    return result


def main():
    library = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "build/cuda/libkvant_cuda.so")
    library.kvant_page_bytes.restype = ctypes.c_size_t
    library.kvant_status_text.restype = ctypes.c_char_p
    library.kvant_decode_kernel.restype = ctypes.c_char_p

    def call(name, *arguments):
        status = getattr(library, name)(*arguments)
        if status != 0:
            sys.exit(f"{name}: {library.kvant_status_text(status).decode()}")

    n_seqs, n_kv_heads, group, d, n_pages = 2, 8, 4, 128, 16
    tokens = n_pages * PAGE
    device = {"device": "cuda"}
    torch.manual_seed(1)
    keys, values = (torch.randn(n_seqs, tokens, n_kv_heads, d, dtype=torch.bfloat16, **device) for _ in range(2))
    q = torch.randn(n_seqs, n_kv_heads * group, d, dtype=torch.bfloat16, **device)
    out = torch.empty_like(q)

    # Entry [seq][head][page] of both tables; a key page and its value page lie side by side.
    table = torch.randperm(n_seqs * n_kv_heads * n_pages, dtype=torch.int32, **device)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def pages(key_bytes, value_bytes):
        stride = key_bytes + value_bytes
        pool = torch.zeros(table.numel() * stride, dtype=torch.uint8, **device)
        return pool, made(Pages, table=table, seq_stride=n_kv_heads * n_pages, head_stride=n_pages, pool=pool,
                          page_stride=stride, side_offset=key_bytes)

    formats = (b"ch4g128", b"tok4g128")
    sealed_pool, sealed = pages(*(library.kvant_page_bytes(ctypes.c_char_p(name), d) for name in formats))
    tail_pool, tail = pages(PAGE * d * 2, PAGE * d * 2)
    shape = made(Shape, n_seqs=n_seqs, n_kv_heads=n_kv_heads, group=group, head_dim=d, score_scale=1 / math.sqrt(d),
                 key_format=formats[0], value_format=formats[1])
    layer = made(Layer, sealed=sealed, tail=tail, q=q, q_seq_stride=q.stride(0), q_head_stride=q.stride(1), out=out,
                 out_type=0, out_seq_stride=out.stride(0), out_head_stride=out.stride(1))

    seq = torch.arange(n_seqs, dtype=torch.int32, **device).repeat_interleave(tokens)
    token = torch.arange(tokens, dtype=torch.int32, **device).repeat(n_seqs)
    rows = made(NewRows, n_rows=n_seqs * tokens, seq=seq, tail_token=token, keys=keys, key_row_stride=n_kv_heads * d,
                key_head_stride=d, values=values, value_row_stride=n_kv_heads * d, value_head_stride=d)
    call("kvant_append", ctypes.byref(shape), ctypes.byref(layer), ctypes.byref(rows), stream)
    for page in range(n_pages):
        which = torch.full((n_seqs,), page, dtype=torch.int32, **device)
        call("kvant_seal", ctypes.byref(shape), ctypes.byref(layer), ctypes.c_void_p(which.data_ptr()),
             ctypes.c_void_p(which.data_ptr()), stream)

    sealed_pages = torch.full((n_seqs,), n_pages, dtype=torch.int32, **device)
    lengths = made(Lengths, sealed_pages=sealed_pages)
    size = ctypes.c_size_t()
    call("kvant_decode_workspace", ctypes.byref(shape), ctypes.byref(size))
    workspace = torch.empty(size.value, dtype=torch.uint8, **device)
    space = (ctypes.c_void_p(workspace.data_ptr()), size)
    call("kvant_decode_schedule", ctypes.byref(shape), ctypes.byref(lengths), *space, stream)
    call("kvant_decode_attention", ctypes.byref(shape), ctypes.byref(lengths), ctypes.byref(layer), *space, stream)

    exact = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None].float(), keys.transpose(1, 2).float(), values.transpose(1, 2).float(), enable_gqa=True)[:, :, 0]
    error = ((out.float() - exact).norm() / exact.norm()).item()
    bits = 8 * sealed.page_stride / (2 * PAGE * d)
    print(f"{library.kvant_decode_kernel(ctypes.byref(shape)).decode()}: {bits:.2f} bits an element, "
          f"relative error {error:.4f} against unquantized attention")
    if not error < 0.2:
        sys.exit("the error is too large")


if __name__ == "__main__":
    main()
