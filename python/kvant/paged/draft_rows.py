"""Requests whose newest token has drafts behind it. Each of these tokens is a sequence of its own to the library, a *row*:
the rows of a request share its pages, and their lengths grow by one.

How many drafts of the step before were accepted is known on the device, and not always on the host, so nothing here depends
on the host's lengths. A page whose end the rows reach is sealed in the step, for the rows behind that end, although some of
its tokens may be rejected. That leaves no trace: the page goes into a block that is the request's own until all of its tokens
are accepted (KvantSealedManager), what it was made of stays in the tail, where rows behind its end have a place of their own,
and it is sealed again, before anyone sees it, when other tokens have taken the place of rejected ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvant import PAGE
from kvant.torch import Layer
from kvant.paged import decode
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.model_cache import ModelCache


@dataclass(frozen=True)
class DraftStep:
    """The same for all layers."""

    rows: decode.DecodeStep
    block_table: torch.Tensor  # int32 [n_requests, n_pages]
    tail_ids: torch.Tensor  # int32 [n_requests, 2 * n_kv_heads]: of the page that a request's first row lies in,
    page: torch.Tensor  # int32 [n_requests]: its number,
    tail_page: torch.Tensor  # int32 [n_requests]: 0 if the rows reach its end, -1 if they don't,
    is_first: torch.Tensor  # bool [n_requests]: they do, and it is the request's first page
    sink_ids: torch.Tensor | None  # int32 [n_requests, 2 * n_kv_heads]


def prepare(cache: ModelCache, seq_lens: torch.Tensor, query_lens: np.ndarray, block_table: torch.Tensor,
            tail_blocks: torch.Tensor) -> DraftStep:
    """seq_lens: int32 [n_requests], all rows included; query_lens: [n_requests], rows of each, at most 128, 0: padding.
    block_table, tail_blocks: int32 [n_requests, ...]."""
    ends = np.cumsum(query_lens)
    request = np.repeat(np.arange(len(query_lens)), query_lens)
    arrays = DeviceArrays({"request": request, "behind": ends[request] - 1 - np.arange(len(request)), "rows": query_lens},
                          cache.device)
    of_row = arrays["request"].long()
    rows = decode.prepare(cache, seq_lens[of_row] - arrays["behind"], block_table[of_row], tail_blocks[of_row])
    page = (seq_lens - arrays["rows"]) // PAGE
    reaches_end = seq_lens // PAGE > page
    sink_ids = cache.sink_ids(block_table[:, 0]) if cache.layout.sink_tokens else None
    return DraftStep(rows, block_table, cache.tail_ids(tail_blocks, page), page, reaches_end.to(torch.int32) - 1,
                     reaches_end & (page == 0), sink_ids)


def append(cache: ModelCache, step: DraftStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Rows into the tails, and on into pages whose end they reach. keys, values: BF16 [n_rows, n_kv_heads, head_dim]."""
    decode.append(cache, step.rows, blocks, keys, values)
    n_requests, tail = len(step.page), cache.tail_pages(step.tail_ids, blocks)
    cache.library.seal_pages(cache.shape(n_requests), Layer(sealed=cache.sealed_pages(step.block_table, blocks), tail=tail,
                                                            sink=cache.layout.sink_tokens), step.tail_page, step.page, 1)
    if step.sink_ids is not None:
        sinks = cache.sink_rows(n_requests)
        cache.write_sinks(cache.sink_pages(step.sink_ids, blocks), cache.first_tokens(tail, sinks), sinks, step.is_first)


def attend(cache: ModelCache, step: DraftStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor) -> None:
    """As decode.attend, for rows."""
    append(cache, step, blocks, keys, values)
    decode.read(cache, step.rows, blocks, q, out)
