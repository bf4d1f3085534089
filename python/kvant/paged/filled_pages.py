"""Pages that decoded tokens have filled, of all layers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvant.torch import Layer
from kvant.paged.model_cache import ModelCache


@dataclass(frozen=True)
class _Pending:
    sealed_blocks: torch.Tensor
    tail_ids: torch.Tensor
    page: torch.Tensor


@dataclass(frozen=True)
class _Places:
    """Of the layers' blocks, by address."""

    low: torch.Tensor  # the blocks with the lowest address
    offsets: torch.Tensor  # int64 [n_layers]: bytes from there


class FilledPages:
    """Pages that decoded tokens have filled, and that are still unquantized: they are sealed before the next step, those of
    all layers by one launch. They are known by their blocks, so that it doesn't matter which requests are still there.
    (Until the next step no request can have come to share them: KvantSealedManager.)"""

    def __init__(self, cache: ModelCache):
        self._cache = cache
        self._pending: _Pending | None = None
        self._places: _Places | None = None
        self._addresses: tuple[int, ...] = ()

    def add(self, sealed_blocks: torch.Tensor, tail_ids: torch.Tensor, page: torch.Tensor) -> None:
        """sealed_blocks: int32 [n], where the pages go; tail_ids: int32 [n, 2 * n_kv_heads], where they are; page: int32 [n],
        which page of its sequence each is."""
        self._pending = _Pending(sealed_blocks, tail_ids, page)

    def seal(self, layers: Sequence[torch.Tensor]) -> None:
        """layers: the blocks of each."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        cache, layout, places = self._cache, self._cache.layout, self._place_layers(layers)
        # A page's block, once as a sequence's first page and once as a later one.
        blocks = pending.sealed_blocks[:, None].expand(-1, 2).contiguous()
        place, sink = pending.page.clip(max=1), {}
        if layout.sink_tokens:
            ids = cache.sink_ids(pending.sealed_blocks)
            sink = dict(sink=layout.sink_tokens, protected_pages=cache.sink_pages(ids, places.low))
        cache.library.seal_pages(
            cache.shape(len(blocks)), Layer(sealed=cache.sealed_pages(blocks, places.low),
                                            tail=cache.tail_pages(pending.tail_ids, places.low), **sink),
            torch.zeros_like(place), place, 1, layer_offsets=places.offsets, keep_sink=bool(sink),
            metrics=cache.metrics_of_layers(pending.page))

    def _place_layers(self, layers: Sequence[torch.Tensor]) -> _Places:
        addresses = tuple(blocks.data_ptr() for blocks in layers)
        if addresses != self._addresses or self._places is None:
            low = min(layers, key=torch.Tensor.data_ptr)
            offsets = torch.tensor([x - low.data_ptr() for x in addresses], device=low.device)
            self._addresses, self._places = addresses, _Places(low, offsets)
        return self._places
