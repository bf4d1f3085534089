"""Requests with one new token. All that depends on lengths is computed on the device, so that a step can be captured into a
CUDA graph and replayed while sequences grow."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant.torch import BF16, Layer, Lengths
from kvant.paged import step_rules
from kvant.paged.model_cache import ModelCache


@dataclass(frozen=True)
class DecodeStep:
    """The same for all layers."""

    n_seqs: int
    block_table: torch.Tensor  # int32 [n_seqs, n_pages]
    tail_ids: torch.Tensor  # int32 [n_seqs, 2 * n_kv_heads]
    sealed_pages: torch.Tensor  # int32 [n_seqs]
    tail_tokens: torch.Tensor  # int32 [n_seqs]
    tail_token: torch.Tensor  # int32 [n_seqs]: the new token's place in the tail, -1: no sequence
    sink_ids: torch.Tensor | None  # int32 [n_seqs, 2 * n_kv_heads]
    lengths: Lengths


def prepare(cache: ModelCache, seq_lens: torch.Tensor, block_table: torch.Tensor, tail_blocks: torch.Tensor) -> DecodeStep:
    """seq_lens: int32 [n_seqs], the new token included, 0: padding. block_table, tail_blocks: int32 [n_seqs, ...]."""
    sealed, tail = step_rules.sealed_pages(seq_lens), step_rules.tail_tokens(seq_lens)
    n_seqs = len(seq_lens)
    lengths, sink_ids = Lengths(sealed_pages=sealed, tail_tokens=tail), None
    if n_sink := cache.layout.sink_tokens:
        lengths = Lengths(sealed_pages=sealed, tail_tokens=tail, protected_tokens=n_sink * sealed.clip(max=1),
                          protected_seq_stride=1)
        sink_ids = cache.sink_ids(block_table[:, 0])
    cache.library.decode_schedule(cache.shape(n_seqs), lengths, cache.workspace)
    return DecodeStep(n_seqs, block_table, cache.tail_ids(tail_blocks, sealed), sealed, tail, tail - 1, sink_ids, lengths)


def append(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """A token of each sequence into its tail. keys, values: BF16 [n_seqs, n_kv_heads, head_dim]."""
    cache.library.append(cache.shape(step.n_seqs), Layer(tail=cache.tail_pages(step.tail_ids, blocks)),
                         cache.numbers[:step.n_seqs], step.tail_token, keys, values, cache.recipe.key_hadamard,
                         cache.recipe.value_hadamard)


def attend(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor) -> None:
    """Appends a token of each sequence to its tail, and attends to the sealed pages, the sink and the tail. blocks: the
    layer's. q, out: BF16 [n_seqs, n_heads, head_dim]; keys, values: BF16 [n_seqs, n_kv_heads, head_dim]."""
    append(cache, step, blocks, keys, values)
    read(cache, step, blocks, q, out)


def read(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, out: torch.Tensor) -> None:
    """Attention of tokens that are in their tails."""
    q = cache.rotated(q)
    sink = {} if step.sink_ids is None else dict(sink=cache.layout.sink_tokens,
                                                 protected_pages=cache.sink_pages(step.sink_ids, blocks))
    layer = Layer(sealed=cache.sealed_pages(step.block_table, blocks), tail=cache.tail_pages(step.tail_ids, blocks), q=q,
                  q_seq_stride=q.stride(0), q_head_stride=q.stride(1), out=out, out_type=BF16,
                  out_seq_stride=out.stride(0), out_head_stride=out.stride(1), settled=1, **sink)
    cache.library.decode_attention(cache.shape(step.n_seqs), step.lengths, layer, cache.workspace)
    cache.rotate_back(out)
