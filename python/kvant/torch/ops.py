"""Offers the library's operations as `torch.library` operators, `torch.ops.kvant.NAME`. torch.compile traces them
without graph breaks, even without a GPU, and CUDA graphs capture them. Importing this file registers them; the first
call loads the library.

Pages lie in pools as `page_pool` makes them. A key page and its value page lie side by side, and an int32 table
[n_seqs, n_kv_heads, n_pages] finds them. Tail pages are BF16. All tensors of a call must be on one GPU. Wrong types,
shapes and devices are refused. The contents of tables and counts are not checked, because only the GPU reads them.
Sinks, codebooks and corrections need TorchLibrary."""

import functools

import torch

from kvant import PAGE
from kvant.c_api import Layer, Lengths, Pages, Shape
from kvant.torch.arguments import dense, on_one_gpu, shaped, typed
from kvant.torch.library import TorchLibrary, type_of

# torch.library reads annotations as types, so this file must not import `annotations` from __future__, which would turn
# them into texts.


@functools.cache
def library() -> TorchLibrary:
    return TorchLibrary()


def _pages(pool: torch.Tensor, table: torch.Tensor, key_bytes: int, value_bytes: int) -> Pages:
    return Pages(table=table, seq_stride=table.stride(0), head_stride=table.stride(1), pool=pool,
                 page_stride=key_bytes + value_bytes, side_offset=key_bytes)


def _tail_pages(pool: torch.Tensor, table: torch.Tensor, head_dim: int) -> Pages:
    return _pages(pool, table, *2 * [PAGE * head_dim * 2])


def _sealed_pages(pool: torch.Tensor, table: torch.Tensor, key_format: str, value_format: str, head_dim: int) -> Pages:
    return _pages(pool, table, *(library().page_bytes(format, head_dim) for format in (key_format, value_format)))


def _check_pages(pool: torch.Tensor, table: torch.Tensor, n_seqs: int | None = None, n_kv_heads: int | None = None,
                 what: str = "sealed") -> None:
    typed(torch.uint8, **{what + "_pool": pool})
    typed(torch.int32, **{what + "_table": table})
    dense(**{what + "_pool": pool, what + "_table": table})
    shaped(**{what + "_pool": (pool, (None,)), what + "_table": (table, (n_seqs, n_kv_heads, None))})


def _check_counts(n: int, **counts: torch.Tensor) -> None:
    typed(torch.int32, **counts)
    dense(**counts)
    shaped(**{name: (x, (n,)) for name, x in counts.items()})


def _shape(table: torch.Tensor, head_dim: int, key_format: str = "", value_format: str = "", n_heads: int = 0,
           softmax_scale: float = 1.0, max_queries: int = 1) -> Shape:
    n_seqs, n_kv_heads, _ = table.shape
    return Shape(n_seqs=n_seqs, n_kv_heads=n_kv_heads, group=max(1, n_heads // n_kv_heads), head_dim=head_dim,
                 softmax_scale=softmax_scale, key_format=key_format.encode() or None,
                 value_format=value_format.encode() or None, max_queries=max_queries)


@torch.library.custom_op("kvant::rotate", mutates_args=())
def rotate(rows: torch.Tensor) -> torch.Tensor:
    """Multiplies rows [n_rows, n_heads, head_dim], BF16, F16 or F32, by the orthonormal Walsh-Hadamard matrix, which is
    its own inverse."""
    shaped(rows=(rows, (None, None, None)))
    rotated = torch.empty_like(rows, memory_format=torch.contiguous_format)
    if rows.numel():
        with on_one_gpu(library(), rows=rows):
            library().rotate(rotated, rows)
    return rotated


@rotate.register_fake
def _(rows):
    return torch.empty_like(rows, memory_format=torch.contiguous_format)


@torch.library.custom_op("kvant::merge", mutates_args=("into", "into_lse"))
def merge(into: torch.Tensor, into_lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> None:
    """Merges attention to other tokens into attention to some tokens. into, other: [n_tokens, n_heads, head_dim];
    into_lse, other_lse, log-sum-exps: F32 [n_tokens, n_heads]."""
    shaped(into=(into, (None, None, None)), other=(other, tuple(into.shape)))
    shaped(into_lse=(into_lse, tuple(into.shape[:2])), other_lse=(other_lse, tuple(into.shape[:2])))
    typed(torch.float32, into_lse=into_lse, other_lse=other_lse)
    dense(into=into, other=other)
    if into.numel():
        with on_one_gpu(library(), into=into, into_lse=into_lse, other=other, other_lse=other_lse):
            library().merge(into, into_lse, other, other_lse)


@merge.register_fake
def _(into, into_lse, other, other_lse):
    pass


@torch.library.custom_op("kvant::append", mutates_args=("tail_pool",))
def append(tail_pool: torch.Tensor, tail_table: torch.Tensor, seq: torch.Tensor, tail_token: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, key_hadamard: bool, value_hadamard: bool) -> None:
    """Writes rows into tail pages at seq, tail_token, int32 [n_rows]; a row with a negative tail_token is left out.
    keys, values: [n_rows, n_kv_heads, head_dim]."""
    _check_pages(tail_pool, tail_table, what="tail")
    shaped(keys=(keys, (None, tail_table.shape[1], None)), values=(values, tuple(keys.shape)))
    _check_counts(len(keys), seq=seq, tail_token=tail_token)
    dense(keys=keys, values=values)
    d = keys.shape[2]
    with on_one_gpu(library(), tail_pool=tail_pool, tail_table=tail_table, seq=seq, tail_token=tail_token, keys=keys, values=values):
        library().append(_shape(tail_table, d), Layer(tail=_tail_pages(tail_pool, tail_table, d)), seq, tail_token, keys, values,
                         key_hadamard, value_hadamard)


@append.register_fake
def _(tail_pool, tail_table, seq, tail_token, keys, values, key_hadamard, value_hadamard):
    pass


@torch.library.custom_op("kvant::seal", mutates_args=("sealed_pool",))
def seal(sealed_pool: torch.Tensor, sealed_table: torch.Tensor, tail_pool: torch.Tensor, tail_table: torch.Tensor,
         tail_page: torch.Tensor, sealed_page: torch.Tensor, key_format: str, value_format: str, head_dim: int) -> None:
    """Encodes a full tail page of each sequence. tail_page: int32 [n_seqs], the page to encode (negative: none).
    sealed_page: int32 [n_seqs], its destination."""
    _check_pages(sealed_pool, sealed_table)
    n_seqs, n_kv_heads, _ = sealed_table.shape
    _check_pages(tail_pool, tail_table, n_seqs, n_kv_heads, "tail")
    _check_counts(n_seqs, tail_page=tail_page, sealed_page=sealed_page)
    if not n_seqs:
        return
    with on_one_gpu(library(), sealed_pool=sealed_pool, sealed_table=sealed_table, tail_pool=tail_pool, tail_table=tail_table,
                    tail_page=tail_page, sealed_page=sealed_page):
        library().seal_pages(
            _shape(sealed_table, head_dim, key_format, value_format),
            Layer(sealed=_sealed_pages(sealed_pool, sealed_table, key_format, value_format, head_dim),
                  tail=_tail_pages(tail_pool, tail_table, head_dim)), tail_page, sealed_page, 1)


@seal.register_fake
def _(sealed_pool, sealed_table, tail_pool, tail_table, tail_page, sealed_page, key_format, value_format, head_dim):
    pass


@torch.library.custom_op("kvant::decode_attention", mutates_args=())
def decode_attention(q: torch.Tensor, sealed_pool: torch.Tensor, sealed_table: torch.Tensor, sealed_pages: torch.Tensor,
                     tail_pool: torch.Tensor, tail_table: torch.Tensor, tail_tokens: torch.Tensor, key_format: str,
                     value_format: str, softmax_scale: float) -> torch.Tensor:
    """Attends with one token of each sequence, q [n_seqs, n_heads, head_dim], to its sealed pages and the tokens of its
    tail. sealed_pages, tail_tokens: int32 [n_seqs], their counts. The result has q's type. A q of [n_seqs, tokens,
    n_heads, head_dim] holds the last 2 to 8 tokens of each sequence. Each of these tokens sees the tokens up to itself.
    """
    _check_pages(sealed_pool, sealed_table)
    n_seqs, n_kv_heads, _ = sealed_table.shape
    _check_pages(tail_pool, tail_table, n_seqs, n_kv_heads, "tail")
    _check_counts(n_seqs, sealed_pages=sealed_pages, tail_tokens=tail_tokens)
    shaped(q=(q, (n_seqs, *(q.dim() - 1) * [None])))
    if q.dim() not in (3, 4) or q.shape[-2] % n_kv_heads:
        raise ValueError(f"kvant: q has the shape {list(q.shape)}; it must be [{n_seqs}, heads, channels] or [{n_seqs}, tokens, heads, "
                         f"channels], with a multiple of {n_kv_heads} heads")
    if not q.numel():
        return torch.empty(q.shape, dtype=q.dtype, device=q.device)
    with on_one_gpu(library(), q=q, sealed_pool=sealed_pool, sealed_table=sealed_table, sealed_pages=sealed_pages, tail_pool=tail_pool,
                    tail_table=tail_table, tail_tokens=tail_tokens):
        return _attend(q, sealed_pool, sealed_table, sealed_pages, tail_pool, tail_table, tail_tokens, key_format, value_format,
                       softmax_scale)


def _attend(q, sealed_pool, sealed_table, sealed_pages, tail_pool, tail_table, tail_tokens, key_format, value_format, softmax_scale):
    """Does what decode_attention does, with arguments that are already checked."""
    max_queries = q.shape[1] if q.dim() == 4 else 1
    rows = (q if q.stride(-1) == 1 else q.contiguous()).reshape(-1, *q.shape[-2:])
    shape = _shape(sealed_table, rows.shape[2], key_format, value_format, rows.shape[1], softmax_scale, max_queries)
    lengths = Lengths(sealed_pages=sealed_pages, tail_tokens=tail_tokens)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    out_rows, d = out.view(rows.shape), rows.shape[2]
    workspace = library().new_workspace(shape, q.device)
    library().decode_schedule(shape, lengths, workspace)
    library().decode_attention(shape, lengths, Layer(
        sealed=_sealed_pages(sealed_pool, sealed_table, key_format, value_format, d), tail=_tail_pages(tail_pool, tail_table, d),
        q=rows, q_seq_stride=rows.stride(0), q_head_stride=rows.stride(1), q_type=type_of(rows), out=out_rows, out_type=type_of(out),
        out_seq_stride=out_rows.stride(0), out_head_stride=out_rows.stride(1), settled=1), workspace)
    return out


@decode_attention.register_fake
def _(q, sealed_pool, sealed_table, sealed_pages, tail_pool, tail_table, tail_tokens, key_format, value_format, softmax_scale):
    return q.new_empty(q.shape)


@torch.library.custom_op("kvant::dequantize", mutates_args=())
def dequantize(sealed_pool: torch.Tensor, sealed_table: torch.Tensor, sealed_pages: torch.Tensor, key_format: str,
               value_format: str, head_dim: int, first_page: int, n_pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns n_pages sealed pages from first_page on of each sequence as keys and values, BF16 [n_seqs, n_pages * 128,
    n_kv_heads, head_dim]. Rows after a sequence's last page are zeros."""
    _check_pages(sealed_pool, sealed_table)
    n_seqs, n_kv_heads, _ = sealed_table.shape
    _check_counts(n_seqs, sealed_pages=sealed_pages)
    if first_page < 0 or n_pages < 0:
        raise ValueError(f"kvant: first_page is {first_page} and n_pages {n_pages}; neither may be negative")
    keys, values = (torch.zeros((n_seqs, n_pages * PAGE, n_kv_heads, head_dim), dtype=torch.bfloat16, device=sealed_pool.device)
                    for _ in range(2))
    if n_seqs and n_pages:
        with on_one_gpu(library(), sealed_pool=sealed_pool, sealed_table=sealed_table, sealed_pages=sealed_pages):
            library().dequantize(
                _shape(sealed_table, head_dim, key_format, value_format), Lengths(sealed_pages=sealed_pages),
                Layer(sealed=_sealed_pages(sealed_pool, sealed_table, key_format, value_format, head_dim)), first_page, n_pages,
                keys, values)
    return keys, values


@dequantize.register_fake
def _(sealed_pool, sealed_table, sealed_pages, key_format, value_format, head_dim, first_page, n_pages):
    shape = sealed_table.shape[0], n_pages * PAGE, sealed_table.shape[1], head_dim
    return tuple(sealed_pool.new_empty(shape, dtype=torch.bfloat16) for _ in range(2))
