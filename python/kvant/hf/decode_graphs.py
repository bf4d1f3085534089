"""Runs steps of one new token per sequence as CUDA graphs: one graph for what the layers share, and one graph per layer
for attention. Without graphs, transformers keeps the host so busy that describing a layer's launches takes longer than
running them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvant.paged import decode
from kvant.paged.model_cache import ModelCache


class DecodeGraphs:
    """Holds the graphs for a cache whose blocks and tables keep their place. Each step calls `begin`, and then `attend`
    for each layer."""

    def __init__(self, cache: ModelCache, seq_lens: torch.Tensor, block_table: torch.Tensor, tail_table: torch.Tensor):
        """seq_lens is int32 [n_seqs], including the new token. The caller changes it in place from step to step."""
        self._cache, layout = cache, cache.layout
        n_seqs, device = len(seq_lens), seq_lens.device
        # Queries are F32, because the library rotates them in place.
        self._q = torch.zeros(n_seqs, cache.n_heads, layout.head_dim, device=device, dtype=torch.float32)
        self._keys, self._values = torch.zeros(2, n_seqs, layout.n_kv_heads, layout.head_dim, device=device, dtype=torch.float32)
        self._out: torch.Tensor | None = None
        self._pool = torch.cuda.graph_pool_handle()
        self._layers: dict[int, torch.cuda.CUDAGraph] = {}
        # CUDA loads kernels at their first use, which must happen outside a capture.
        decode.prepare(cache, seq_lens, block_table, tail_table)
        self._shared, self._step = self._captured(lambda: decode.prepare(cache, seq_lens, block_table, tail_table))

    def begin(self) -> None:
        self._shared.replay()

    def attend(self, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attends for the layer with the given blocks. q: [n_seqs, n_heads, head_dim], of one type in all steps.
        keys, values: [n_seqs, n_kv_heads, head_dim]. Returns [n_seqs, n_heads, head_dim] of q's type, which the next
        layer overwrites."""
        if self._out is None:
            self._out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for ours, new in ((self._q, q), (self._keys, keys), (self._values, values)):
            ours.copy_(new)
        graph = self._layers.get(blocks.data_ptr())
        if graph is None:
            # The attention must run for this step too, because a capture runs nothing. Writing a token twice changes
            # nothing.
            self._attend(blocks)
            self._layers[blocks.data_ptr()], _ = self._captured(lambda: self._attend(blocks))
        else:
            graph.replay()
        return self._out

    def _attend(self, blocks: torch.Tensor) -> None:
        decode.attend(self._cache, self._step, blocks, self._q, self._keys, self._values, self._out)

    def _captured(self, launches: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        """Captures what a function launches, and returns the graph and the function's result. torch.cuda.graph would
        first empty PyTorch's memory, which is too slow once per layer."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self._pool)
            try:
                result = launches()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph, result
