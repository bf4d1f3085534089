"""Attends with prompts by another library's kernel, such as vLLM's FlashAttention, on rows into which pages are
dequantized:

1. One causal attention covers all pieces. Each piece attends to its own page, unquantized, and to earlier pages of its
request that this step sealed.
2. Pages from earlier steps are dequantized a few at a time. Attention to them needs no mask and is merged into the
result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvant import PAGE
from kvant.torch import Layer, Lengths
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.model_cache import ModelCache
from kvant.paged.scratch_pages import PrefillStep, ScratchPages

# STRETCH is the number of pages that are dequantized at a time.
STRETCH = 256

# The signature equals the signature of vLLM's flash_attn_varlen_func, which returns (out [n_rows, n_heads, head_dim],
# log-sum-exp F32 [n_heads, n_rows]).
VarlenAttention = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Stretch:
    """Describes some pages of a request's prefix, and the rows of the step that attend to them."""

    first_row: int
    end_row: int
    first_page: int
    n_pages: int
    # Holds the number of pages of the whole prefix: int32 [1].
    pages: torch.Tensor
    table: torch.Tensor  # int32 [n_pages of the request]
    row_bounds: torch.Tensor  # int32 [2]: 0, rows
    token_bounds: torch.Tensor  # int32 [2]: 0, tokens
    # Holds the sink pages, int32 [1, 2 * n_kv_heads], for the stretch that begins with a sink.
    sink_ids: torch.Tensor | None


@dataclass(frozen=True)
class VisibleRows:
    """Holds what all layers share. Arrays are on the device; PrefillPlan explains them."""

    first_rows: torch.Tensor
    n_tokens: torch.Tensor
    visible: torch.Tensor
    n_visible_tokens: torch.Tensor
    # Holds the blocks of the full pieces that later pieces see: int32.
    seen_blocks: torch.Tensor
    # Holds as many ones as seen_blocks has entries: int32.
    ones: torch.Tensor
    # Holds the unquantized pages of pieces with sinks that later pieces see: int64 indices.
    first: torch.Tensor
    # Holds the quantized pages of these pieces: int64 indices.
    first_seen: torch.Tensor
    stretches: tuple[Stretch, ...]


def prepare(cache: ModelCache, step: PrefillStep) -> VisibleRows:
    plan, block_table = step.plan, step.block_table
    stretches = [(prefix, first, min(STRETCH, prefix.n_pages - first))
                 for prefix in plan.prefixes for first in range(0, prefix.n_pages, STRETCH)]
    bounds = [[0, prefix.end_row - prefix.first_row, 0, n * PAGE, prefix.n_pages] for prefix, _, n in stretches]
    arrays = DeviceArrays({
        "first_rows": plan.first_rows, "n_tokens": plan.n_tokens, "visible": plan.visible,
        "n_visible_tokens": plan.n_visible_tokens, "seen_request": plan.request[plan.seen], "seen_page": plan.page[plan.seen],
        "first": len(plan.seen) + plan.first[plan.first_seen >= 0], "first_seen": plan.first_seen[plan.first_seen >= 0],
        "bounds": np.array(bounds).reshape(-1, 5)}, cache.device)
    seen_blocks = block_table[arrays["seen_request"].long(), arrays["seen_page"].long()].contiguous()

    def sink_of(prefix, first):
        return cache.sink_ids(step.sink_blocks[prefix.request:prefix.request + 1]) if first == 0 else None

    return VisibleRows(
        **{name: arrays[name] for name in ("first_rows", "n_tokens", "visible", "n_visible_tokens")},
        seen_blocks=seen_blocks, ones=torch.ones_like(seen_blocks), first=arrays["first"].long(),
        first_seen=arrays["first_seen"].long(),
        stretches=tuple(Stretch(prefix.first_row, prefix.end_row, first, n, arrays["bounds"][i, 4:],
                                block_table[prefix.request], arrays["bounds"][i, :2], arrays["bounds"][i, 2:4],
                                sink_of(prefix, first))
                        for i, (prefix, first, n) in enumerate(stretches)))


def scratch_bytes(layout: BlockLayout, n_heads: int, n_rows: int) -> int:
    """Returns roughly the most memory, in bytes, that attention with n_rows rows takes, including scratch pages but not
    its arguments."""
    row = SIDES * layout.n_kv_heads * layout.head_dim * 2
    queries = n_rows * n_heads * layout.head_dim
    return row * (3 * (n_rows + 2 * PAGE) + STRETCH * PAGE) + queries * (2 + 4 + 2)


def attend(cache: ModelCache, step: PrefillStep, scratch: ScratchPages, blocks: torch.Tensor, q: torch.Tensor,
           out: torch.Tensor, attention: VarlenAttention) -> None:
    """Attends with the rows of a step. q, out: BF16 or F16 [n_rows, n_heads, head_dim]."""
    q = cache.queries(q, blocks)
    if step.attention is None:
        step.attention = prepare(cache, step)
    plan, mine = step.plan, step.attention
    _, lse = attention(q, *_visible_rows(cache, step, scratch, blocks, q.dtype), out=out, cu_seqlens_q=mine.first_rows,
                       max_seqlen_q=int(plan.n_rows.max()), seqused_k=mine.n_visible_tokens,
                       max_seqlen_k=int(plan.n_visible_tokens.max()), block_table=mine.visible,
                       softmax_scale=cache.softmax_scale, causal=True, return_softmax_lse=True)
    _merge_prefixes(cache, mine.stretches, blocks, q, out, lse.t(), attention)
    cache.rotate_back(out)


def _visible_rows(cache: ModelCache, step: PrefillStep, scratch: ScratchPages, blocks: torch.Tensor,
                  dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns keys and values [pages, 128, n_kv_heads, head_dim], in the order of `visible`."""
    layout, library, plan, mine = cache.layout, cache.library, step.plan, step.attention
    n_seen = len(plan.seen)
    rows = torch.empty((SIDES, n_seen + plan.n_pieces, PAGE, layout.n_kv_heads, layout.head_dim), dtype=dtype,
                       device=blocks.device)
    # Tokens after the last token of a page have weight 0, but must be finite.
    if len(plan.leaving):
        rows.index_fill_(1, step.leaving + n_seen, 0)
    if n_seen:
        library.dequantize(cache.shape(n_seen, blocks=blocks), Lengths(sealed_pages=mine.ones),
                           Layer(sealed=cache.sealed_pages(mine.seen_blocks[:, None], blocks), **cache.of_sealed(blocks)), 0, 1,
                           *rows[:, :n_seen])
    library.dequantize(cache.shape(plan.n_pieces), Lengths(tail_tokens=mine.n_tokens),
                       Layer(tail=scratch.pages(step.piece_numbers)), 0, 1, *rows[:, n_seen:])
    if layout.sink_tokens and len(mine.first):
        rows[:, mine.first_seen, :layout.sink_tokens] = rows[:, mine.first, :layout.sink_tokens]
    return rows[0], rows[1]


def _merge_prefixes(cache, stretches, blocks, q, out, lse, attention) -> None:
    """Merges attention to pages of earlier steps into `out`. lse: F32 [n_rows, n_heads]."""
    layout, library = cache.layout, cache.library
    for i, stretch in enumerate(stretches):
        of_request = slice(stretch.first_row, stretch.end_row)
        if stretch.first_page == 0:
            total = out[of_request].float()
        rows = torch.empty((SIDES, 1, stretch.n_pages * PAGE, layout.n_kv_heads, layout.head_dim), dtype=q.dtype,
                           device=blocks.device)
        library.dequantize(cache.shape(1, blocks=blocks), Lengths(sealed_pages=stretch.pages),
                           Layer(sealed=cache.sealed_pages(stretch.table[None], blocks), **cache.of_sealed(blocks),
                                 **cache.sinks(stretch.sink_ids, blocks)), stretch.first_page,
                           stretch.n_pages, *rows)
        part, part_lse = attention(q[of_request], *rows[:, 0], cu_seqlens_q=stretch.row_bounds,
                                   max_seqlen_q=stretch.end_row - stretch.first_row,
                                   cu_seqlens_k=stretch.token_bounds, max_seqlen_k=stretch.n_pages * PAGE,
                                   softmax_scale=cache.softmax_scale, causal=False, return_softmax_lse=True)
        library.merge(total, lse[of_request], part, part_lse.t())
        if i + 1 == len(stretches) or stretches[i + 1].first_page == 0:
            out[of_request] = total
