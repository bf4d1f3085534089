"""Requests with one new token. All that depends on lengths is computed on the device, so that a step can be captured into a
CUDA graph and replayed while sequences grow. What attends is the same where requests have several (draft_rows)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant.torch import Layer, Lengths, Shape, type_of
from kvant.paged import step_rules
from kvant.paged.model_cache import ModelCache


@dataclass(frozen=True)
class DecodeStep:
    """The same for all layers."""

    shape: Shape
    block_table: torch.Tensor  # int32 [n_seqs, n_pages]
    tail_ids: torch.Tensor  # int32 [n_seqs, 2 * n_kv_heads]
    row_seq: torch.Tensor  # int32 [n_rows]: of each new token, its sequence
    row_token: torch.Tensor  # int32 [n_rows]: and its place in the tail, -1: there is none
    sink_ids: torch.Tensor | None  # int32 [n_seqs, 2 * n_kv_heads]
    lengths: Lengths
    settled: bool  # whether the kernel before attention leaves sealed pages as they are


def prepare(cache: ModelCache, seq_lens: torch.Tensor, block_table: torch.Tensor, tail_blocks: torch.Tensor) -> DecodeStep:
    """seq_lens: int32 [n_seqs], the new token included, 0: padding. block_table, tail_blocks: int32 [n_seqs, ...]."""
    sealed, tail = step_rules.sealed_pages(seq_lens), step_rules.tail_tokens(seq_lens)
    return describe(cache, cache.shape(len(seq_lens)), block_table, cache.tail_ids(tail_blocks, sealed), sealed, tail,
                    cache.numbers[:len(seq_lens)], tail - 1, settled=True)


def describe(cache: ModelCache, shape: Shape, block_table: torch.Tensor, tail_ids: torch.Tensor, sealed_pages: torch.Tensor,
             tail_tokens: torch.Tensor, row_seq: torch.Tensor, row_token: torch.Tensor, settled: bool,
             query_begins: torch.Tensor | None = None) -> DecodeStep:
    """sealed_pages, tail_tokens: int32 [n_seqs], that each sees; query_begins: int32 [n_seqs + 1], rows of each, or None: one."""
    lengths, sink_ids = dict(sealed_pages=sealed_pages, tail_tokens=tail_tokens, query_begins=query_begins), None
    if n_sink := cache.layout.sink_tokens:
        lengths |= dict(protected_tokens=n_sink * sealed_pages.clip(max=1), protected_seq_stride=1)
        sink_ids = cache.sink_ids(block_table[:, 0])
    step = DecodeStep(shape, block_table, tail_ids, row_seq, row_token, sink_ids, Lengths(**lengths), settled)
    cache.library.decode_schedule(shape, step.lengths, cache.workspace)
    return step


def append(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """New tokens into the tails of their sequences. keys, values: BF16 or F16 [n_rows, n_kv_heads, head_dim]."""
    cache.library.append(step.shape, Layer(tail=cache.tail_pages(step.tail_ids, blocks)), step.row_seq, step.row_token, keys,
                         values, cache.recipe.key_hadamard, cache.recipe.value_hadamard)


def attend(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor) -> None:
    """Appends a token of each sequence to its tail, and attends to the sealed pages, the sink and the tail. blocks: the
    layer's. q, out: BF16 or F16 [n_seqs, n_heads, head_dim]; keys, values: likewise [n_seqs, n_kv_heads, head_dim]."""
    append(cache, step, blocks, keys, values)
    read(cache, step, blocks, q, out)


def read(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
    """Attention of tokens that are in their tails; q, out: BF16 or F16 [n_rows, n_heads, head_dim]."""
    q = cache.rotated(q)
    sink = {} if step.sink_ids is None else dict(sink=cache.layout.sink_tokens,
                                                 protected_pages=cache.sink_pages(step.sink_ids, blocks))
    layer = Layer(sealed=cache.sealed_pages(step.block_table, blocks), tail=cache.tail_pages(step.tail_ids, blocks), q=q,
                  q_seq_stride=q.stride(0), q_head_stride=q.stride(1), q_type=type_of(q), out=out, out_type=type_of(out),
                  out_seq_stride=out.stride(0), out_head_stride=out.stride(1), settled=step.settled,
                  out_hadamard=cache.recipe.value_hadamard, **sink)
    cache.library.decode_attention(step.shape, step.lengths, layer, cache.workspace)
