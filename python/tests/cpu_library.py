"""Lets tests of the Python code run on libkvant_cpu. The file records what the code asked of the library, computes what
formats make of rows, and has an attention on rows to compare with."""

import ctypes
import functools
import os
import unittest

# The matrices are too small for more threads. NumPy reads the variable when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch

from kvant import PAGE
from kvant.c_api import Layer, PageMetrics, library_candidates
from kvant.torch import Lengths, Shape, TorchLibrary, page_pool

torch.set_num_threads(1)
if not any(path.exists() for path in library_candidates("cpu")):
    raise unittest.SkipTest("libkvant_cpu is not built")


def memory(address, dtype, count):
    """Returns a view of `count` numbers at an address."""
    size = int(count) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(int(address)), dtype)


def from_bf16(words):
    return (words.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x):
    return torch.from_numpy(np.ascontiguousarray(x, np.float32)).bfloat16().view(torch.uint16).numpy()


@functools.cache
def hadamard(d):
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return (h / np.sqrt(d)).astype(np.float32)


def page_address(pages, seq, head, side, page):
    seq, page = int(seq), int(page)
    entry = pages.table + 4 * (seq * pages.seq_stride + head * pages.head_stride + side * pages.side_stride + page)
    number = int(memory(entry, np.int32, 1)[0])
    return pages.pool + number * pages.page_stride + head * pages.head_offset + side * pages.side_offset


def sealed_address(layer, seq, head, side, page):
    offset = memory(layer.sealed_offsets + 8 * (2 * head + side), np.int64, 1)[0] if layer.sealed_offsets else 0
    return page_address(layer.sealed, seq, head, side, page) + int(offset)


def format_of(shape, head, side):
    names = (shape.head_key_formats, shape.head_value_formats)[side]
    if names:
        return (ctypes.c_char_p * (head + 1)).from_address(names)[head].decode()
    return (shape.key_format, shape.value_format)[side].decode()


class CpuLibrary(TorchLibrary):
    """Calls the CPU library and counts what it is asked for."""

    def __init__(self):
        super().__init__(device="cpu")
        # These members count calls.
        self.prompts_in_bytes = self.prompts_of_rows = 0
        # Holds the formats and sides of sealed pages.
        self.formats_sealed = set()
        # Maps the address of each sealed page of keys to the first direction of the head's metric, and to the page's
        # number.
        self.metrics_seen = {}

    def call(self, name, *arguments):
        if name == "prompt_attention":
            shape, prompt = arguments[:2]
            self.prompts_of_rows += bool(prompt.k)
            self.prompts_in_bytes += not shape.half_products
        elif name == "seal_pages":
            self._see_pages(*arguments)
        elif name == "seal_layers":
            n, shapes, layers, pages = arguments
            for i in range(n):
                self._see_pages(Shape.from_address(shapes[i]), Layer.from_address(layers[i]), pages, i)
        super().call(name, *arguments)

    def _see_pages(self, shape, layer, pages, first_layer=0):
        """Records the pages of a call before they are sealed. first_layer is the layer's number in the call."""
        first, to, n_pages = (memory(x, np.int32, shape.n_seqs) if x else None for x in (pages.tail_page, pages.sealed_page, pages.n_pages))
        first_rows = memory(pages.first_rows, np.int32, shape.n_seqs) if pages.rows else None
        offsets = memory(pages.layer_offsets, np.int64, pages.n_layers) if pages.layer_offsets else [0]
        for nth, away in enumerate(offsets, first_layer):
            at = Layer.from_buffer_copy(layer)
            at.sealed.pool += int(away)
            for seq in range(shape.n_seqs):
                if not any(x is not None and x[seq] >= 0 for x in (first, first_rows)):
                    continue
                self.formats_sealed |= {(format_of(shape, head, side), "KV"[side]) for head in range(shape.n_kv_heads) for side in range(2)}
                for page in range(n_pages[seq] if pages.n_pages else pages.max_pages):
                    if pages.page_metrics:
                        self._see_metrics(shape, at, PageMetrics.from_address(pages.page_metrics), nth, seq, to[seq] + page, page)

    def _see_metrics(self, shape, layer, metrics, nth, seq, to, after_first):
        d = shape.head_dim
        # An orthonormal basis keeps the lengths of queries.
        if metrics.basis:
            basis = memory(metrics.basis, np.float32, d * d).reshape(d, d)
            assert np.abs(basis @ basis.T - np.eye(d)).max() < 1e-5
        number = memory(metrics.first_pages, np.int32, shape.n_seqs)[seq] + after_first if metrics.first_pages else to
        for head in range(shape.n_kv_heads):
            at = metrics.directions + 4 * (nth * metrics.direction_layer_stride + head * d * 8)
            self.metrics_seen[sealed_address(layer, seq, head, 0, to)] = float(memory(at, np.float32, 1)[0]), int(number)


_rows_kept = functools.cache(CpuLibrary)


def coded(rows, format, n_left_out=0, book=None):
    """Returns what a format makes of the rows of one page: F32 [128, d]. The first n_left_out tokens have no weight and
    stay unquantized. `book` is F32 [256, 2] for formats with a codebook."""
    library, d = _rows_kept(), rows.shape[1]
    table = torch.zeros(1, 1, 1, dtype=torch.int32)
    numbers = torch.from_numpy(np.ascontiguousarray(rows, np.float32))[:, None]
    pool, sealed = page_pool(table, *2 * [library.page_bytes(format, d)])
    kept_pool, plain = page_pool(table, *2 * [PAGE * d * 2])
    books = {} if book is None else dict(zip(("key_codebooks", "value_codebooks"), 2 * [torch.from_numpy(book.reshape(-1)).half()]))
    shape = Shape(n_seqs=1, n_kv_heads=1, group=1, head_dim=d, softmax_scale=1, key_format=format.encode(), value_format=format.encode())
    layer = Layer(sealed=sealed, tail=plain, protected_pages=plain, sink=n_left_out, **books)
    zero, one = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    tokens = torch.arange(PAGE, dtype=torch.int32)
    library.append(shape, layer, torch.zeros_like(tokens), tokens, numbers, numbers)
    library.seal_pages(shape, layer, zero, zero, 1)
    out = torch.empty(1, PAGE, 1, d, dtype=torch.float16)
    library.dequantize(shape, Lengths(sealed_pages=one), layer, 0, 1, out, torch.empty_like(out))
    return out[0, :, 0].float().numpy()


def varlen_attention(q, k, v, *, cu_seqlens_q, max_seqlen_q, max_seqlen_k, softmax_scale, causal, return_softmax_lse,
                     cu_seqlens_k=None, seqused_k=None, block_table=None, out=None):
    """Implements flash_attn_varlen_func from its documentation. q: [rows, heads, d]. Keys and values: [rows, kv heads,
    d], or pages [pages, 128, kv heads, d] with a block table. A causal mask is aligned to the last row and key."""
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[1], q.shape[0], device=q.device)
    for i in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[i], cu_seqlens_q[i + 1])
        if block_table is None:
            keys, values = (x[cu_seqlens_k[i]:cu_seqlens_k[i + 1]] for x in (k, v))
        else:
            n = int(seqused_k[i])
            keys, values = (x[block_table[i, :-(-n // PAGE)].long()].flatten(0, 1)[:n] for x in (k, v))
        group = q.shape[1] // keys.shape[1]
        keys, values = (x.float().repeat_interleave(group, 1).transpose(0, 1) for x in (keys, values))
        scores = q[rows].float().transpose(0, 1) @ keys.transpose(1, 2) * softmax_scale  # [heads, rows, keys]
        n_rows, n_keys = scores.shape[1:]
        assert n_rows <= max_seqlen_q and n_keys <= max_seqlen_k and n_keys > 0
        if causal:
            later = torch.ones(n_rows, n_keys, dtype=torch.bool, device=q.device).triu(n_keys - n_rows + 1)
            scores = scores.masked_fill(later, float("-inf"))
        lse[:, rows] = scores.logsumexp(-1)
        out[rows] = (scores.softmax(-1) @ values).transpose(0, 1).to(out.dtype)
    return out, lse
