"""Decodes requests with one new token, or with several (draft_rows). The device computes everything that depends on
lengths (kvant_plan_step). A step can therefore be captured into a CUDA graph and replayed while sequences grow."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant import PAGE
from kvant.torch import Layer, Lengths, Shape, StepPlan, step_table, type_of
from kvant.paged.block_layout import SIDES
from kvant.paged.model_cache import ModelCache

# If tables have room for more sealed pages, kernels are chosen for sequences of this many pages, or 32,768 tokens.
TYPICAL_PAGES = 256


@dataclass(frozen=True)
class DecodeStep:
    """Holds what all layers of a step share. A request is one sequence of the library, or with several new tokens the
    n_parts sequences of StepPlan."""

    plan: StepPlan
    shape: Shape
    lengths: Lengths
    request_blocks: torch.Tensor  # int32 [n_requests, n_pages]
    block_table: torch.Tensor  # int32 [n_seqs, n_pages]
    tail_ids: torch.Tensor  # int32 [n_seqs, 2 * n_kv_heads]
    sink_ids: torch.Tensor | None  # int32 [n_seqs, sink_entries of the cache]


def prepare(cache: ModelCache, seq_lens: torch.Tensor, block_table: torch.Tensor, own_blocks: torch.Tensor,
            row_begins: torch.Tensor | None = None) -> DecodeStep:
    """Prepares a decode step for all layers. seq_lens: int32 [n_requests], including new tokens, with 0 for padding.
    block_table, own_blocks: int32 [n_requests, ...]. row_begins: int32 [n_requests + 1], the first new token of each
    request; None means one new token per request."""
    n_requests, n_sink, n_pages = len(seq_lens), cache.layout.sink_tokens, SIDES * cache.layout.n_kv_heads
    plan = StepPlan(n_requests, cache.max_rows, cache.max_queries, sink=n_sink, device=cache.device)

    def new_table(width):
        return torch.empty(plan.n_seqs, width, dtype=torch.int32, device=cache.device)

    tail_ids, sink_ids, of_seqs = new_table(n_pages), new_table(cache.sink_entries) if n_sink else None, block_table
    tables = dict(tail=cache.tail_table(tail_ids, own_blocks))
    if n_sink:
        tables["protected_pages"] = cache.sink_table(sink_ids, cache.sink_blocks(block_table, own_blocks))
    if plan.n_parts > 1:
        of_seqs = new_table(block_table.shape[1])
        tables["sealed"] = step_table(of_seqs[:, None], block_table)
    # A captured step serves all lengths for which its tables have room. The kernels for so many pages serve shorter and
    # longer sequences, too.
    lengths = plan.lengths(max_sealed_pages=min(block_table.shape[1], TYPICAL_PAGES),
                           max_tail_tokens=cache.layout.tail_pages * PAGE)
    step = DecodeStep(plan, cache.shape(plan.n_seqs, cache.max_queries), lengths, block_table, of_seqs, tail_ids, sink_ids)
    cache.library.plan_step(plan.step(seq_lens, row_begins, **tables))
    cache.library.decode_schedule(step.shape, step.lengths, cache.workspace)
    return step


def append(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
           q: torch.Tensor | None = None) -> None:
    """Writes new tokens into the tails of their sequences. keys, values: BF16 or F16 [n_rows, n_kv_heads, head_dim]. q:
    BF16 or F16 [n_rows, n_heads, head_dim], the new tokens' queries, which are transformed in place to match stored
    keys."""
    n_rows = len(keys)
    cache.library.append(step.shape, Layer(tail=cache.tail_pages(step.tail_ids, blocks)), step.plan.row_seq[:n_rows],
                         step.plan.row_tail_token[:n_rows], keys, values, cache.recipe.key_hadamard, cache.recipe.value_hadamard,
                         q if cache.changes_queries else None, cache.key_factors(blocks), cache.query_factors(blocks))


def attend(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor, sink_logits: torch.Tensor | None = None) -> None:
    """Appends a token of each sequence to its tail, and attends to the sealed pages, the sink and the tail.

    `blocks` belong to the layer. q, out: BF16 or F16 [n_seqs, n_heads, head_dim]. keys, values: BF16 or F16 [n_seqs,
    n_kv_heads, head_dim]. With rotated or smoothed keys, q is changed in place, which saves a launch.
    model_state.attend explains sink_logits."""
    append(cache, step, blocks, keys, values, q)
    read(cache, step, blocks, q, out, sink_logits)


def read(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, out: torch.Tensor,
         sink_logits: torch.Tensor | None = None) -> None:
    """Attends with tokens that are already in their tails. q, out: BF16 or F16 [n_rows, n_heads, head_dim]. q must
    match stored keys already."""
    # With drafts, this step may have sealed pages.
    settled = cache.max_rows == 1
    layer = Layer(sealed=cache.sealed_pages(step.block_table, blocks), tail=cache.tail_pages(step.tail_ids, blocks), q=q,
                  q_seq_stride=q.stride(0), q_head_stride=q.stride(1), q_type=type_of(q), out=out, out_type=type_of(out),
                  out_seq_stride=out.stride(0), out_head_stride=out.stride(1), settled=settled,
                  out_hadamard=cache.recipe.value_hadamard, sink_logits=sink_logits, **cache.of_sealed(blocks),
                  **cache.sinks(step.sink_ids, blocks))
    shape = cache.shape(step.plan.n_seqs, cache.max_queries, blocks)
    cache.library.decode_attention(shape, step.lengths, layer, cache.workspace)
