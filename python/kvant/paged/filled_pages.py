"""Seals the pages of all layers that decoded tokens have filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvant.torch import Layer
from kvant.paged.model_cache import ModelCache


@dataclass(frozen=True)
class _Pending:
    sealed_blocks: torch.Tensor
    tail_ids: torch.Tensor
    page: torch.Tensor
    has_first: bool
    sink_blocks: torch.Tensor


@dataclass(frozen=True)
class _Due:
    """Holds what the calls of all layers share."""

    cache: ModelCache
    pending: _Pending
    place: torch.Tensor
    zeros: torch.Tensor
    table: torch.Tensor
    sink_ids: torch.Tensor | None

    def layer(self, blocks: torch.Tensor, sealed_distance: int = 0, tail_distance: int = 0) -> Layer:
        """Describes the layer whose blocks are `blocks`. The distances lie between neighbouring layers."""
        cache = self.cache
        sealed, tail = cache.sealed_pages(self.table, blocks), cache.tail_pages(self.pending.tail_ids, blocks)
        sealed.layer_offset, tail.layer_offset = sealed_distance, tail_distance
        return Layer(sealed=sealed, tail=tail, **cache.of_sealed(blocks), **cache.sinks(self.sink_ids, blocks))

    def update(self, layers: Sequence[Layer]) -> None:
        """Replaces the tables in the layers' descriptions by the tables of these pages."""
        table, tail, stride = self.table.data_ptr(), self.pending.tail_ids.data_ptr(), self.pending.tail_ids.stride(0)
        sinks = None if self.sink_ids is None else self.sink_ids.data_ptr()
        for layer in layers:
            layer.sealed.table, layer.tail.table, layer.tail.seq_stride = table, tail, stride
            if sinks is not None:
                layer.protected_pages.table = sinks

    def seal(self, blocks: torch.Tensor, sealed_distance: int = 0, tail_distance: int = 0, **how) -> None:
        """Seals the pages of all layers, which have equal formats. `blocks` belongs to the first layer or to the layer
        with the lowest address."""
        self.cache.library.seal_pages(self.cache.shape(len(self.place), blocks=blocks),
                                      self.layer(blocks, sealed_distance, tail_distance), **self._range, **how)

    def seal_each(self, layers: Sequence[torch.Tensor], described: Sequence[Layer]) -> None:
        """Seals the pages of all layers, which may differ in formats."""
        cache, n_seqs = self.cache, len(self.place)
        cache.library.seal_layers([cache.shape(n_seqs, blocks=blocks) for blocks in layers], described,
                                  metrics=cache.metrics_of_layers(self.pending.page), **self._range)

    @property
    def _range(self) -> dict[str, Any]:
        return dict(tail_page=self.zeros, sealed_page=self.place, max_pages=1,
                    keep_sink=self.sink_ids is not None and self.pending.has_first)


class FilledPages:
    """Remembers pages that decoded tokens have filled and that are still unquantized. The pages are sealed before the
    next step, with one call for all layers. The class remembers blocks and not requests, so a page is sealed even if
    its request has ended. No other request can share these pages before the next step (KvantSealedManager)."""

    def __init__(self, cache: ModelCache):
        self._cache = cache
        self._pending: _Pending | None = None
        self._addresses: tuple[int, ...] = ()  # addresses of the layers' blocks
        self._offsets: torch.Tensor | None = None  # int64 [n_layers], bytes from the lowest address
        # Describes each layer, and is kept because new descriptions take longer than the GPU's work.
        self._described: list[Layer] = []

    def add(self, sealed_blocks: torch.Tensor, tail_ids: torch.Tensor, page: torch.Tensor, has_first: bool = True,
            sink_blocks: torch.Tensor | None = None) -> None:
        """Adds pages to seal. sealed_blocks: int32 [n], their destinations. tail_ids: int32 [n, 2 * n_kv_heads], their
        places in the tail. page: int32 [n], the number of each page in its sequence. has_first says whether `page` may
        have a 0. sink_blocks: int32 [n], the blocks of the sinks; None means that first pages have the sinks."""
        self._pending = _Pending(sealed_blocks, tail_ids, page, has_first, sealed_blocks if sink_blocks is None else sink_blocks)

    def seal(self, layers: Sequence[torch.Tensor]) -> None:
        """Seals the pages. `layers` holds the blocks of each layer."""
        if self._pending is None:
            return
        pending, self._pending, cache = self._pending, None, self._cache
        place = pending.page.clip(max=1)
        due = _Due(cache, pending, place, torch.zeros_like(place), cache.either_place(pending.sealed_blocks),
                   cache.sink_ids(pending.sink_blocks))
        if not cache.seals_layers_together(pending.has_first):
            due.seal_each(layers, self._descriptions(due, layers))
        elif (distances := cache.layout.layer_distances) is not None:
            due.seal(layers[0], *distances, metrics=cache.metrics_of_layers(pending.page), n_layers=len(layers))
        else:
            lowest = min(layers, key=torch.Tensor.data_ptr)
            due.seal(lowest, metrics=cache.metrics_of_layers(pending.page), layer_offsets=self._layer_offsets(layers))

    def _descriptions(self, due: _Due, layers: Sequence[torch.Tensor]) -> list[Layer]:
        """Describes each layer, with the pages of `due`."""
        self._note_addresses(layers)
        if not self._described:
            self._described = [due.layer(blocks) for blocks in layers]
        due.update(self._described)
        return self._described

    def _layer_offsets(self, layers: Sequence[torch.Tensor]) -> torch.Tensor:
        self._note_addresses(layers)
        if self._offsets is None:
            low = min(self._addresses)
            self._offsets = torch.tensor([x - low for x in self._addresses], device=self._cache.device)
        return self._offsets

    def _note_addresses(self, layers: Sequence[torch.Tensor]) -> None:
        """Forgets what belonged to other addresses than the layers have now."""
        addresses = tuple(blocks.data_ptr() for blocks in layers)
        if addresses != self._addresses:
            self._addresses, self._offsets, self._described = addresses, None, []
