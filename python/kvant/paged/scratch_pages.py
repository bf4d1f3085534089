"""Moves new rows of prompts into pages. The tokens are cut at page borders into pieces (step_rules.PrefillPlan). A
layer's keys and values go into scratch pages, one per piece. Full scratch pages are sealed, and the others go on to
tails. If rows need no change before sealing, full pieces are sealed and read where the model left them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvant.torch import Layer, Pages, new_rows
from kvant.paged.block_layout import SIDES
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.model_cache import ModelCache
from kvant.paged.step_rules import PrefillPlan


@dataclass
class PrefillStep:
    """Holds what all layers share. Arrays are on the device; PrefillPlan explains them."""

    plan: PrefillPlan
    block_table: torch.Tensor  # int32 [prefilled requests, pages]
    sink_blocks: torch.Tensor  # int32 [prefilled requests]
    piece_numbers: torch.Tensor  # int32 [n_pieces]: 0, 1, ...
    row_piece: torch.Tensor
    row_token: torch.Tensor
    full: torch.Tensor
    # Holds the blocks of full pieces: int32 [n, 2].
    full_table: torch.Tensor
    # Holds columns of full_table, int32 [n]: 0 for the first page of a request, else 1.
    full_place: torch.Tensor
    # Holds the numbers of full pieces' pages in their requests: int32 [n].
    full_page: torch.Tensor
    # Holds the places of the sinks of full pieces that are first pages: int32 [n, 2 * n_kv_heads].
    full_sinks: torch.Tensor | None
    # Holds one zero per full piece: int32.
    zeros: torch.Tensor
    entering: torch.Tensor  # int64
    # Holds the places of entering pieces in the layer's blocks: int64 [n * 2 * n_kv_heads * units of a page].
    entering_units: torch.Tensor
    leaving: torch.Tensor
    leaving_units: torch.Tensor
    # The value is None if a request starts within a page, or if rows must be changed or read several times.
    in_place: InPlace | None
    # The first layer's attention stores `attention` for the other layers.
    attention: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class InPlace:
    """Describes how rows go into pages from where the model left them."""

    full_rows: torch.Tensor  # int32 [n], the first rows of full pieces
    leaving_rows: torch.Tensor  # int64 [rows of leaving pieces]
    # Holds for each row the leaving piece that contains the row: int32.
    leaving_row_piece: torch.Tensor
    # Holds for each row its place in the page: int32.
    leaving_row_token: torch.Tensor
    # Holds the tail pages of leaving pieces: int32 [n leaving, 2 * n_kv_heads].
    leaving_ids: torch.Tensor


def prepare(cache: ModelCache, plan: PrefillPlan, block_table: torch.Tensor, own_blocks: torch.Tensor) -> PrefillStep:
    """Prepares the moves for all layers. block_table, own_blocks: int32 [prefilled requests, ...]."""
    arrays = DeviceArrays({
        "piece_numbers": np.arange(plan.n_pieces), "row_piece": plan.row_piece, "row_token": plan.row_token,
        "full": plan.full, "full_request": plan.request[plan.full], "full_page": plan.page[plan.full],
        "entering": plan.entering, "entering_request": plan.request[plan.entering], "entering_page": plan.page[plan.entering],
        "leaving": plan.leaving, "leaving_request": plan.request[plan.leaving], "leaving_page": plan.page[plan.leaving],
        "full_place": np.minimum(plan.page[plan.full], 1), **_rows_in_place(cache, plan)}, cache.device)
    of_page = cache.layout.tail_page_bytes // cache.layout.unit_bytes

    def blocks_of(name):
        return block_table[arrays[name + "_request"].long(), arrays[name + "_page"].long()].contiguous()

    def ids_of(name):
        return cache.tail_ids(own_blocks[arrays[name + "_request"].long()], arrays[name + "_page"])

    def units_of(name):
        if not arrays[name].numel():
            return arrays[name].long()
        return (ids_of(name).long()[:, :, None] + torch.arange(of_page, device=cache.device)).flatten()

    full_blocks, sink_blocks = blocks_of("full"), cache.sink_blocks(block_table, own_blocks)[:, 0]
    full_sinks = sink_blocks[arrays["full_request"].long()] if cache.layout.has_sink_block else full_blocks
    in_place = None
    if "full_rows" in arrays:
        in_place = InPlace(arrays["full_rows"], arrays["leaving_rows"].long(), arrays["leaving_row_piece"],
                           arrays["leaving_row_token"], ids_of("leaving"))
    return PrefillStep(
        plan, block_table, sink_blocks, **{name: arrays[name] for name in ("piece_numbers", "row_piece", "row_token", "full", "full_place",
                                                             "full_page")},
        full_table=cache.either_place(full_blocks), full_sinks=cache.sink_ids(full_sinks), zeros=torch.zeros_like(full_blocks),
        entering=arrays["entering"].long(), entering_units=units_of("entering"),
        leaving=arrays["leaving"].long(), leaving_units=units_of("leaving"), in_place=in_place)


def _rows_in_place(cache: ModelCache, plan: PrefillPlan) -> dict[str, np.ndarray]:
    """Returns the arrays of InPlace, or an empty dictionary if rows must go through scratch pages."""
    if not cache.seals_rows or len(plan.entering):
        return {}
    which = np.full(plan.n_pieces, -1)
    which[plan.leaving] = np.arange(len(plan.leaving))
    rows = np.flatnonzero(which[plan.row_piece] >= 0)
    return dict(full_rows=plan.first_rows[plan.full], leaving_rows=rows, leaving_row_piece=which[plan.row_piece[rows]],
                leaving_row_token=plan.row_token[rows])


@dataclass(frozen=True)
class ScratchPages:
    """Holds the scratch pages of a layer."""

    pool: torch.Tensor  # uint8 [n_pieces, 2 * n_kv_heads, units of a page, bytes of a unit]
    page_bytes: int

    def pages(self, table: torch.Tensor) -> Pages:
        """Describes pages to the library. table: int32 [n_seqs] or [n_seqs, n_pages], the numbers of pieces."""
        return Pages(table=table, seq_stride=table.stride(0), pool=self.pool, page_stride=self.pool.stride(0),
                     head_offset=SIDES * self.page_bytes, side_offset=self.page_bytes)


@dataclass(frozen=True)
class ModelRows:
    """Holds the rows of a layer as the model made them: BF16 [n_rows, n_kv_heads, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor


def append_and_seal(cache: ModelCache, step: PrefillStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
                    in_pages: bool = False) -> ScratchPages | ModelRows:
    """Stores new rows, BF16 or F16 [n_rows, n_kv_heads, head_dim], in sealed pages, sinks and tails. Returns all rows
    in a form for attention; with in_pages, the form is scratch pages."""
    if step.in_place is not None and not in_pages and all(map(_can_be_read_in_place, (keys, values))):
        _seal_in_place(cache, step, step.in_place, blocks, keys, values)
        return ModelRows(keys, values)
    return _seal_from_scratch(cache, step, blocks, keys, values)


def _can_be_read_in_place(rows: torch.Tensor) -> bool:
    """Returns whether kvant_prompt_attention can read the rows: BF16 numbers in pieces of 16 bytes."""
    return (rows.dtype == torch.bfloat16 and rows.stride(2) == 1 and rows.stride(0) % 8 == rows.stride(1) % 8 == 0
            and rows.data_ptr() % 16 == 0)


def _seal_in_place(cache: ModelCache, step: PrefillStep, places: InPlace, blocks: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor) -> None:
    library, n_full = cache.library, len(step.plan.full)
    if n_full:
        library.seal_pages(cache.shape(n_full, blocks=blocks),
                           Layer(sealed=cache.sealed_pages(step.full_table, blocks), **cache.of_sealed(blocks),
                                 **cache.sinks(step.full_sinks, blocks)), None, step.full_place, 1, rows=new_rows(keys, values), first_rows=places.full_rows,
                           keep_sink=step.full_sinks is not None)
    if len(places.leaving_ids):
        library.append(cache.shape(len(places.leaving_ids)), Layer(tail=cache.tail_pages(places.leaving_ids, blocks)),
                       places.leaving_row_piece, places.leaving_row_token,
                       *(x.index_select(0, places.leaving_rows) for x in (keys, values)))


def _seal_from_scratch(cache: ModelCache, step: PrefillStep, blocks: torch.Tensor, keys: torch.Tensor,
                       values: torch.Tensor) -> ScratchPages:
    layout, recipe, library, plan = cache.layout, cache.recipe, cache.library, step.plan
    of_page = layout.tail_page_bytes // layout.unit_bytes
    pool = torch.empty((plan.n_pieces, SIDES * layout.n_kv_heads, of_page, layout.unit_bytes), dtype=torch.uint8,
                       device=blocks.device)
    units = cache.tail_units(blocks)
    if len(plan.entering):
        pool.index_copy_(0, step.entering, units.index_select(0, step.entering_units).view(-1, *pool.shape[1:]))
    scratch = ScratchPages(pool, layout.tail_page_bytes)
    library.append(cache.shape(plan.n_pieces), Layer(tail=scratch.pages(step.piece_numbers)), step.row_piece, step.row_token,
                   keys, values, recipe.key_hadamard, recipe.value_hadamard, key_factors=cache.key_factors(blocks))
    if len(plan.full):
        library.seal_pages(cache.shape(len(plan.full), blocks=blocks),
                           Layer(tail=scratch.pages(step.full), sealed=cache.sealed_pages(step.full_table, blocks),
                                 **cache.of_sealed(blocks), **cache.sinks(step.full_sinks, blocks)), step.zeros, step.full_place, 1,
                           metrics=cache.metrics(blocks, step.full_page), keep_sink=step.full_sinks is not None)
    if len(plan.leaving):
        units.index_copy_(0, step.leaving_units, pool.index_select(0, step.leaving).view(-1, layout.unit_bytes))
    return scratch
