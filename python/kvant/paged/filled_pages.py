"""Seals the pages of all layers that decoded tokens have filled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from kvant.torch import Layer
from kvant.paged.model_cache import ModelCache

# A GPU runs the launches of this many streams at once, unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise.
STREAMS = 8


@dataclass(frozen=True)
class _Pending:
    sealed_blocks: torch.Tensor
    tail_ids: torch.Tensor
    page: torch.Tensor
    has_first: bool


@dataclass(frozen=True)
class _Due:
    """Holds what the calls of all layers share."""

    cache: ModelCache
    pending: _Pending
    place: torch.Tensor
    zeros: torch.Tensor
    table: torch.Tensor
    sink_ids: torch.Tensor | None

    def seal(self, blocks: torch.Tensor, sealed_distance: int = 0, tail_distance: int = 0, **how) -> None:
        """Seals the pages of one layer, whose blocks are `blocks`, or of all layers. For all layers, `blocks` belongs
        to the first layer or to the layer with the lowest address. The distances lie between neighbouring layers."""
        cache = self.cache
        sealed, tail = cache.sealed_pages(self.table, blocks), cache.tail_pages(self.pending.tail_ids, blocks)
        sealed.layer_offset, tail.layer_offset = sealed_distance, tail_distance
        cache.library.seal_pages(
            cache.shape(len(self.place), blocks=blocks),
            Layer(sealed=sealed, tail=tail, **cache.of_sealed(blocks), **cache.sinks(self.sink_ids, blocks)),
            self.zeros, self.place, 1, keep_sink=self.sink_ids is not None and self.pending.has_first, **how)


class FilledPages:
    """Remembers pages that decoded tokens have filled and that are still unquantized. The pages are sealed before the
    next step, with one launch for all layers if possible. The class remembers blocks and not requests, so a page is
    sealed even if its request has ended. No other request can share these pages before the next step
    (KvantSealedManager)."""

    def __init__(self, cache: ModelCache):
        self._cache = cache
        self._pending: _Pending | None = None
        self._streams: list[torch.cuda.Stream] = []
        self._addresses: tuple[int, ...] = ()  # addresses of the layers' blocks
        self._offsets: torch.Tensor | None = None  # int64 [n_layers], bytes from the lowest address

    def add(self, sealed_blocks: torch.Tensor, tail_ids: torch.Tensor, page: torch.Tensor, has_first: bool = True) -> None:
        """Adds pages to seal. sealed_blocks: int32 [n], their destinations. tail_ids: int32 [n, 2 * n_kv_heads], their
        places in the tail. page: int32 [n], the number of each page in its sequence. has_first says whether `page` may
        have a 0."""
        self._pending = _Pending(sealed_blocks, tail_ids, page, has_first)

    def seal(self, layers: Sequence[torch.Tensor]) -> None:
        """Seals the pages. `layers` holds the blocks of each layer."""
        if self._pending is None:
            return
        pending, self._pending, cache = self._pending, None, self._cache
        place = pending.page.clip(max=1)
        due = _Due(cache, pending, place, torch.zeros_like(place), cache.either_place(pending.sealed_blocks),
                   cache.sink_ids(pending.sealed_blocks))
        if not cache.seals_layers_together(pending.has_first):
            self._seal_one_by_one(due, layers)
        elif (distances := cache.layout.layer_distances) is not None:
            due.seal(layers[0], *distances, metrics=cache.metrics_of_layers(pending.page), n_layers=len(layers))
        else:
            lowest = min(layers, key=torch.Tensor.data_ptr)
            due.seal(lowest, metrics=cache.metrics_of_layers(pending.page), layer_offsets=self._layer_offsets(layers))

    def _seal_one_by_one(self, due: _Due, layers: Sequence[torch.Tensor]) -> None:
        """Seals the pages of each layer with a call of its own. On a GPU, the calls run on several streams, because
        the search for a page's codes takes milliseconds and the few pages of a layer leave most SMs idle."""
        on_gpu = layers[0].is_cuda
        if on_gpu and not self._streams:
            self._streams = [torch.cuda.Stream(layers[0].device) for _ in range(STREAMS)]
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream())
        for i, blocks in enumerate(layers):
            with torch.cuda.stream(self._streams[i % STREAMS]) if on_gpu else nullcontext():
                due.seal(blocks, metrics=due.cache.metrics(blocks, due.pending.page))
        for stream in self._streams:
            torch.cuda.current_stream().wait_stream(stream)

    def _layer_offsets(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        addresses = tuple(blocks.data_ptr() for blocks in layers)
        if addresses != self._addresses or self._offsets is None:
            low = min(addresses)
            self._addresses = addresses
            self._offsets = torch.tensor([x - low for x in addresses], device=self._cache.device)
        return self._offsets
