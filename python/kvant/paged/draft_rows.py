"""Requests whose newest token has drafts behind it. All of these tokens are *rows*, of which the library takes several for the
queries of a sequence, and reads its pages once for them. All queries of a sequence see the same sealed pages, so that a request
is two sequences (more, if the library takes fewer queries): its rows up to the end of a page, and those behind it.

How many drafts of the step before were accepted is known on the device, and not always on the host, so nothing here depends
on the host's lengths, and a step can be captured into a CUDA graph. A page whose end the rows reach is sealed in the step, for the
rows behind that end, although some of its tokens may be rejected. That leaves no trace: the page goes into a block that is the
request's own until all of its tokens are accepted (KvantSealedManager), what it was made of stays in the tail, where rows behind
its end have a place of their own, and it is sealed again, before anyone sees it, when other tokens have taken the place of
rejected ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant import PAGE
from kvant.torch import Layer
from kvant.paged import decode
from kvant.paged.model_cache import ModelCache, SinkRows

NULL_BLOCK = 0  # vLLM's, which no request reads


@dataclass(frozen=True)
class DraftStep:
    """The same for all layers."""

    rows: decode.DecodeStep
    block_table: torch.Tensor  # int32 [n_requests, n_pages]
    tail_ids: torch.Tensor  # int32 [n_requests, 2 * n_kv_heads]: of the page that a request's first row lies in,
    page: torch.Tensor  # int32 [n_requests]: its number,
    tail_page: torch.Tensor  # int32 [n_requests]: 0 if the rows reach its end, -1 if they don't
    sink_rows: SinkRows | None
    sink_ids: torch.Tensor | None  # int32 [n_requests, 2 * n_kv_heads]: where sinks go, if that page is the request's first


@dataclass(frozen=True)
class Sequences:
    """The parts of requests. int32 [n_requests, parts], but for `begins`."""

    begins: torch.Tensor  # [n_requests * parts + 1]: rows of each
    page: torch.Tensor  # that its rows lie in, and how many it sees sealed, if it has rows
    sealed_pages: torch.Tensor
    tail_tokens: torch.Tensor  # of the page, behind its last row


def divide(seq_lens: torch.Tensor, row_begins: torch.Tensor, parts: torch.Tensor, max_queries: int) -> Sequences:
    """seq_lens: int32 [n_requests], rows included, 0: padding; row_begins: int32 [n_requests + 1]; parts: int32, 0, 1, ..., the
    first half of which are of rows up to the end of a page."""
    n_rows = row_begins[1:] - row_begins[:-1]
    first = seq_lens - n_rows
    page = first // PAGE
    up_to_end = torch.minimum((page + 1) * PAGE - first, n_rows)[:, None]
    n_rows, half = n_rows[:, None], len(parts) // 2
    within = parts[:half] * max_queries
    begins = torch.cat([torch.minimum(within, up_to_end), torch.minimum(within + up_to_end, n_rows)], 1)
    ends = torch.cat([begins[:, 1:], n_rows], 1)
    page = page[:, None] + (parts >= half)
    has_rows = ends > begins
    return Sequences(torch.cat([(begins + row_begins[:-1, None]).flatten(), row_begins[-1:]]), page, page * has_rows,
                     (first[:, None] + ends - page * PAGE) * has_rows)


def prepare(cache: ModelCache, seq_lens: torch.Tensor, row_begins: torch.Tensor, n_rows: int, block_table: torch.Tensor,
            tail_blocks: torch.Tensor) -> DraftStep:
    """seq_lens: int32 [n_requests], all rows included; row_begins: int32 [n_requests + 1], rows of each, 0: padding; n_rows: of all,
    with rows of padding behind theirs. block_table, tail_blocks: int32 [n_requests, ...]."""
    parts = cache.numbers[:cache.parts]
    of = divide(seq_lens, row_begins, parts, cache.max_queries)
    n_seqs = of.page.numel()
    rows, sealed, tail_tokens = cache.numbers[:n_rows], of.sealed_pages.flatten(), of.tail_tokens.flatten()
    seq = torch.searchsorted(of.begins[1:], rows, right=True, out_int32=True).clip(max=n_seqs - 1)
    behind = of.begins[1:][seq] - rows  # up to its sequence's end, the row included; not of padding
    token = (tail_tokens[seq] - behind).where(behind > 0, -1)
    tables, tails = (x[:, None].expand(-1, cache.parts, -1).flatten(0, 1) for x in (block_table, tail_blocks))
    # What rotates queries runs between sealing and attention.
    described = decode.describe(cache, cache.shape(n_seqs, cache.max_queries), tables, cache.tail_ids(tails, of.page.flatten()),
                                sealed, tail_tokens, seq, token, settled=cache.recipe.key_hadamard, query_begins=of.begins)
    page = of.page[:, 0].contiguous()
    reaches_end = seq_lens // PAGE > page
    sink_rows = sink_ids = None
    if cache.layout.sink_tokens:
        # They are copied in every step, mostly to where nobody looks.
        sink_rows = cache.sink_rows(len(seq_lens))
        sink_ids = cache.sink_ids(block_table[:, 0].where(reaches_end & (page == 0), NULL_BLOCK))
    return DraftStep(described, block_table, cache.tail_ids(tail_blocks, page), page, reaches_end.to(torch.int32) - 1, sink_rows,
                     sink_ids)


def append(cache: ModelCache, step: DraftStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Rows into the tails, and on into pages whose end they reach. keys, values: BF16 [n_rows, n_kv_heads, head_dim]."""
    decode.append(cache, step.rows, blocks, keys, values)
    tail = cache.tail_pages(step.tail_ids, blocks)
    cache.library.seal_pages(cache.shape(len(step.page)), Layer(sealed=cache.sealed_pages(step.block_table, blocks), tail=tail,
                                                                sink=cache.layout.sink_tokens), step.tail_page, step.page, 1, metrics=cache.metrics(blocks))
    if step.sink_rows is not None:
        cache.keep_sinks(step.sink_rows, tail, cache.sink_pages(step.sink_ids, blocks))


def attend(cache: ModelCache, step: DraftStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor) -> None:
    """As decode.attend, for rows."""
    append(cache, step, blocks, keys, values)
    decode.read(cache, step.rows, blocks, q, out)
