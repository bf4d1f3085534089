"""Requests with several new tokens. Their tokens are cut at page borders into pieces (step_rules.PrefillPlan). A layer's keys
and values go into scratch pages, one a piece; full ones are sealed from there. Then

1. one causal attention of all pieces, each to the pages that the step has sealed before it in its request, dequantized, and
   to its own, unquantized;
2. for requests with pages from earlier steps: these are dequantized a stretch at a time, attended to without a mask, and
   merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvant import PAGE
from kvant.torch import Layer, Lengths, Pages
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.model_cache import ModelCache
from kvant.paged.step_rules import PrefillPlan

STRETCH = 256  # pages that are dequantized at a time

# vLLM's flash_attn_varlen_func: (out [n_rows, n_heads, head_dim], log-sum-exp F32 [n_heads, n_rows])
VarlenAttention = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Stretch:
    """Pages of a request's prefix, and the rows of the step that attend to them."""

    first_row: int
    end_row: int
    first_page: int
    n_pages: int
    pages: torch.Tensor  # int32 [1]: pages of the whole prefix
    table: torch.Tensor  # int32 [n_pages of the request]
    row_bounds: torch.Tensor  # int32 [2]: 0, rows
    token_bounds: torch.Tensor  # int32 [2]: 0, tokens
    sink_ids: torch.Tensor | None  # int32 [1, 2 * n_kv_heads]: of the stretch that begins with a sink


@dataclass(frozen=True)
class Sinks:
    """Of the first pages that a step completes."""

    pieces: torch.Tensor  # int32
    ids: torch.Tensor  # int32 [n, 2 * n_kv_heads]: where they go
    of_seen: torch.Tensor  # int64: which of them later pieces see,
    seen: torch.Tensor  # int64: and these pieces' numbers among PrefillPlan.seen


@dataclass(frozen=True)
class PrefillStep:
    """The same for all layers. Arrays are on the device, as PrefillPlan describes them."""

    plan: PrefillPlan
    piece_numbers: torch.Tensor  # int32 [n_pieces]: 0, 1, ...
    row_piece: torch.Tensor
    row_token: torch.Tensor
    first_rows: torch.Tensor
    n_tokens: torch.Tensor
    visible: torch.Tensor
    n_visible_tokens: torch.Tensor
    full: torch.Tensor
    full_blocks: torch.Tensor  # int32 [n, 2]: where full pieces go, once as a first page and once as a later one,
    full_place: torch.Tensor  # int32: and which they are, 0 or 1
    seen_blocks: torch.Tensor  # int32: where those are that later pieces see
    zeros: torch.Tensor  # int32, as many as there are full pieces
    ones: torch.Tensor  # likewise
    sinks: Sinks | None  # None: there are none
    entering: torch.Tensor  # int64
    entering_units: torch.Tensor  # int64 [n, 2 * n_kv_heads, units of a page]: where they are in the layer's blocks
    leaving: torch.Tensor
    leaving_units: torch.Tensor
    stretches: tuple[Stretch, ...]


def prepare(cache: ModelCache, plan: PrefillPlan, block_table: torch.Tensor, tail_blocks: torch.Tensor) -> PrefillStep:
    """block_table, tail_blocks: int32 [prefilled requests, ...]."""
    stretches = [(prefix, first, min(STRETCH, prefix.n_pages - first))
                 for prefix in plan.prefixes for first in range(0, prefix.n_pages, STRETCH)]
    bounds = [[0, prefix.end_row - prefix.first_row, 0, n * PAGE, prefix.n_pages] for prefix, _, n in stretches]
    arrays = DeviceArrays({
        "piece_numbers": np.arange(plan.n_pieces), "row_piece": plan.row_piece, "row_token": plan.row_token,
        "first_rows": plan.first_rows, "n_tokens": plan.n_tokens, "visible": plan.visible,
        "n_visible_tokens": plan.n_visible_tokens, "full": plan.full, "full_request": plan.request[plan.full],
        "full_page": plan.page[plan.full], "seen_request": plan.request[plan.seen], "seen_page": plan.page[plan.seen],
        "entering": plan.entering, "entering_request": plan.request[plan.entering], "entering_page": plan.page[plan.entering],
        "leaving": plan.leaving, "leaving_request": plan.request[plan.leaving], "leaving_page": plan.page[plan.leaving],
        "full_place": np.minimum(plan.page[plan.full], 1),
        "first": plan.first, "first_request": plan.request[plan.first], "first_page": plan.page[plan.first],
        "first_of_seen": np.flatnonzero(plan.first_seen >= 0), "seen_first": plan.first_seen[plan.first_seen >= 0],
        "bounds": np.array(bounds).reshape(-1, 5)}, cache.device)
    of_page = cache.layout.tail_page_bytes // cache.layout.unit_bytes

    def blocks_of(name):
        return block_table[arrays[name + "_request"].long(), arrays[name + "_page"].long()].contiguous()

    def units_of(name):
        ids = cache.tail_ids(tail_blocks[arrays[name + "_request"].long()], arrays[name + "_page"]).long()
        return ids[:, :, None] + torch.arange(of_page, device=cache.device)

    def sink_of(prefix, first):
        has_sink = cache.layout.sink_tokens > 0 and first == 0
        return cache.sink_ids(block_table[prefix.request, :1]) if has_sink else None

    sinks = None
    if cache.layout.sink_tokens and len(plan.first):
        sinks = Sinks(arrays["first"], cache.sink_ids(blocks_of("first")), arrays["first_of_seen"].long(),
                      arrays["seen_first"].long())
    full_blocks = blocks_of("full")
    return PrefillStep(
        plan=plan, **{name: arrays[name] for name in ("piece_numbers", "row_piece", "row_token", "first_rows", "n_tokens",
                                                      "visible", "n_visible_tokens", "full", "full_place")},
        full_blocks=full_blocks[:, None].expand(-1, 2).contiguous(), seen_blocks=blocks_of("seen"),
        zeros=torch.zeros_like(full_blocks), ones=torch.ones_like(full_blocks), sinks=sinks,
        entering=arrays["entering"].long(), entering_units=units_of("entering"),
        leaving=arrays["leaving"].long(), leaving_units=units_of("leaving"),
        stretches=tuple(Stretch(prefix.first_row, prefix.end_row, first, n, arrays["bounds"][i, 4:],
                                block_table[prefix.request], arrays["bounds"][i, :2], arrays["bounds"][i, 2:4],
                                sink_of(prefix, first))
                        for i, (prefix, first, n) in enumerate(stretches)))


def scratch_bytes(layout: BlockLayout, n_heads: int, n_rows: int) -> int:
    """About the most memory that `attend` takes for so many rows, beside its arguments."""
    row = SIDES * layout.n_kv_heads * layout.head_dim * 2
    queries = n_rows * n_heads * layout.head_dim
    return row * (3 * (n_rows + 2 * PAGE) + STRETCH * PAGE) + queries * (2 + 4 + 2)


def attend(cache: ModelCache, step: PrefillStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor, attention: VarlenAttention) -> None:
    """q, out: BF16 [n_rows, n_heads, head_dim]; keys, values: BF16 [n_rows, n_kv_heads, head_dim]; blocks: the layer's."""
    q = cache.rotated(q)
    scratch, first_tokens = append_and_seal(cache, step, blocks, keys, values)
    rows = _visible_rows(cache, step, blocks, scratch, first_tokens)
    plan = step.plan
    _, lse = attention(q, *rows, out=out, cu_seqlens_q=step.first_rows, max_seqlen_q=int(plan.n_rows.max()),
                       seqused_k=step.n_visible_tokens, max_seqlen_k=int(plan.n_visible_tokens.max()),
                       block_table=step.visible, softmax_scale=cache.softmax_scale, causal=True, return_softmax_lse=True)
    _merge_prefixes(cache, step, blocks, q, out, lse.t(), attention)
    cache.rotate_back(out)


def append_and_seal(cache, step, blocks, keys, values) -> tuple[Pages, torch.Tensor | None]:
    """New rows into scratch pages and on into sealed pages, sinks and tails. The scratch pages, a sequence for each piece, and
    what goes into `step.sinks`."""
    layout, recipe, library, plan = cache.layout, cache.recipe, cache.library, step.plan
    of_page = layout.tail_page_bytes // layout.unit_bytes
    pool = torch.empty((plan.n_pieces, SIDES * layout.n_kv_heads, of_page, layout.unit_bytes), dtype=torch.uint8,
                       device=blocks.device)
    units = blocks.view(-1, layout.unit_bytes)
    if len(plan.entering):
        pool[step.entering] = units[step.entering_units]
    piece_bytes = pool.stride(0)

    def pages(table):
        return Pages(table=table, seq_stride=1, pool=pool, page_stride=piece_bytes,
                     head_offset=SIDES * layout.tail_page_bytes, side_offset=layout.tail_page_bytes)

    scratch = pages(step.piece_numbers)
    library.append(cache.shape(plan.n_pieces), Layer(tail=scratch), step.row_piece, step.row_token, keys, values,
                   recipe.key_hadamard, recipe.value_hadamard)
    if len(plan.full):
        library.seal_pages(cache.shape(len(plan.full)),
                           Layer(tail=pages(step.full), sealed=cache.sealed_pages(step.full_blocks, blocks),
                                 sink=layout.sink_tokens), step.zeros, step.full_place, 1)
    first_tokens = None
    if step.sinks is not None:
        first_tokens = cache.first_tokens(pages(step.sinks.pieces), len(plan.first))
        cache.write_sinks(cache.sink_pages(step.sinks.ids, blocks), first_tokens)
    if len(plan.leaving):
        units[step.leaving_units] = pool[step.leaving]
    return scratch, first_tokens


def _visible_rows(cache, step, blocks, scratch, first_tokens) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, BF16 [pages, 128, n_kv_heads, head_dim], in the order of `visible`."""
    layout, library, plan = cache.layout, cache.library, step.plan
    n_seen = len(plan.seen)
    rows = torch.empty((SIDES, n_seen + plan.n_pieces, PAGE, layout.n_kv_heads, layout.head_dim), dtype=torch.bfloat16,
                       device=blocks.device)
    if len(plan.leaving):  # what lies behind the last token of a page has no weight, but must be finite
        rows.index_fill_(1, step.leaving + n_seen, 0)
    if n_seen:
        library.dequantize(cache.shape(n_seen), Lengths(sealed_pages=step.ones),
                           Layer(sealed=cache.sealed_pages(step.seen_blocks[:, None], blocks)), 0, 1,
                           *rows[:, :n_seen])
        if step.sinks is not None and len(step.sinks.seen):
            rows[:, step.sinks.seen, :layout.sink_tokens] = first_tokens[:, step.sinks.of_seen]
    library.dequantize(cache.shape(plan.n_pieces), Lengths(tail_tokens=step.n_tokens), Layer(tail=scratch), 0, 1,
                       *rows[:, n_seen:])
    return rows[0], rows[1]


def _merge_prefixes(cache, step, blocks, q, out, lse, attention) -> None:
    """lse: F32 [n_rows, n_heads]."""
    layout, library = cache.layout, cache.library
    for i, stretch in enumerate(step.stretches):
        of_request = slice(stretch.first_row, stretch.end_row)
        if stretch.first_page == 0:
            total = out[of_request].float()
        rows = torch.empty((SIDES, 1, stretch.n_pages * PAGE, layout.n_kv_heads, layout.head_dim), dtype=torch.bfloat16,
                           device=blocks.device)
        sink = {} if stretch.sink_ids is None else dict(sink=layout.sink_tokens,
                                                        protected_pages=cache.sink_pages(stretch.sink_ids, blocks))
        library.dequantize(cache.shape(1), Lengths(sealed_pages=stretch.pages),
                           Layer(sealed=cache.sealed_pages(stretch.table[None], blocks), **sink), stretch.first_page,
                           stretch.n_pages, *rows)
        part, part_lse = attention(q[of_request], *rows[:, 0], cu_seqlens_q=stretch.row_bounds,
                                   max_seqlen_q=stretch.end_row - stretch.first_row,
                                   cu_seqlens_k=stretch.token_bounds, max_seqlen_k=stretch.n_pages * PAGE,
                                   softmax_scale=cache.softmax_scale, causal=False, return_softmax_lse=True)
        library.merge(total, lse[of_request], part, part_lse.t())
        if i + 1 == len(step.stretches) or step.stretches[i + 1].first_page == 0:
            out[of_request] = total
