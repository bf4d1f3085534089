"""Pages that decoded tokens have filled, of all layers at once: to the library, layers are sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kvant.torch import Layer, Pages
from kvant.paged.block_layout import SIDES
from kvant.paged.model_cache import MAX_TABLE_ENTRY, ModelCache, sink_pages
from kvant.paged.sink_layout import UNIT_BYTES


@dataclass(frozen=True)
class _Pending:
    sealed_blocks: torch.Tensor
    tail_ids: torch.Tensor
    place: torch.Tensor
    first: torch.Tensor


@dataclass(frozen=True)
class _Places:
    """Of the layers' blocks, by address."""

    low: int  # the lowest address
    distances: tuple[int, ...]  # bytes from there
    unit: int  # divides all of them
    in_units: torch.Tensor  # int64 [n_layers]
    layer_bytes: int


class FilledPages:
    """Pages that decoded tokens have filled, and that are still unquantized: they are sealed before the next step, those of
    all layers by one launch. They are known by their blocks, so that it doesn't matter which requests are still there.
    (Until the next step no request can have come to share them: KvantSealedManager.)"""

    def __init__(self, cache: ModelCache):
        self._cache = cache
        self._pending: _Pending | None = None
        self._places: _Places | None = None
        self._addresses: tuple[int, ...] = ()

    def add(self, sealed_blocks: torch.Tensor, tail_ids: torch.Tensor, place: torch.Tensor, first: torch.Tensor) -> None:
        """sealed_blocks: int32 [n], where the pages go; tail_ids: int32 [n, 2 * n_kv_heads], where they are; place: int32 [n],
        0 for the first page of a sequence and 1 for others; first: int64, which of them are first pages."""
        self._pending = _Pending(sealed_blocks, tail_ids, place, first)

    def seal(self, layers: Sequence[torch.Tensor]) -> None:
        """layers: the blocks of each."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        cache, layout, places = self._cache, self._cache.layout, self._place_layers(layers)
        sealed = places.in_units[:, None] + pending.sealed_blocks * (layout.block_bytes // places.unit)
        sealed = sealed.flatten().to(torch.int32)[:, None].expand(-1, 2).contiguous()
        place = pending.place.repeat(len(layers))
        cache.library.seal_pages(
            cache.shape(len(sealed)), Layer(
                sealed=Pages(table=sealed, seq_stride=2, pool=places.low + layout.sink.bytes, page_stride=places.unit,
                             head_offset=layout.head_bytes, side_offset=layout.key_page_bytes),
                tail=self._tail_pages(pending.tail_ids, places.in_units), sink=layout.sink_tokens),
            torch.zeros_like(place), place, 1)
        if layout.sink_tokens and len(pending.first):
            self._keep_sinks(pending.sealed_blocks[pending.first], pending.tail_ids[pending.first])

    def _keep_sinks(self, first_blocks: torch.Tensor, tail_ids: torch.Tensor) -> None:
        cache, places = self._cache, self._places
        ids = cache.sink_ids(first_blocks)
        for layers in self._neighbours():
            low = places.distances[layers][0]
            away = torch.tensor([(x - low) // UNIT_BYTES for x in places.distances[layers]], device=ids.device)
            table = (away[:, None, None] + ids).flatten(0, 1).to(torch.int32)
            cache.keep_sinks(cache.sink_rows(len(table)), self._tail_pages(tail_ids, places.in_units[layers]),
                             sink_pages(table, places.low + low))

    def _neighbours(self) -> Iterator[slice]:
        """Layers whose sinks one table reaches."""
        places, first = self._places, 0
        for i in range(1, len(places.distances) + 1):
            if i == len(places.distances) or (
                    places.distances[i] + places.layer_bytes - places.distances[first] > MAX_TABLE_ENTRY * UNIT_BYTES):
                yield slice(first, i)
                first = i

    def _tail_pages(self, tail_ids: torch.Tensor, layers: torch.Tensor) -> Pages:
        """layers: distances in units."""
        places = self._places
        table = layers[:, None, None] + tail_ids * (self._cache.layout.unit_bytes // places.unit)
        table = table.flatten(0, 1).to(torch.int32)
        return Pages(table=table, seq_stride=table.stride(0), head_stride=SIDES, side_stride=1, pool=places.low,
                     page_stride=places.unit)

    def _place_layers(self, layers: Sequence[torch.Tensor]) -> _Places:
        addresses = tuple(sorted(blocks.data_ptr() for blocks in layers))
        if addresses != self._addresses or self._places is None:
            low, layer_bytes = addresses[0], layers[0].numel()
            distances = tuple(x - low for x in addresses)
            unit = math.gcd(self._cache.layout.unit_bytes, *distances)
            if unit % UNIT_BYTES != 0 or (distances[-1] + layer_bytes) // unit > MAX_TABLE_ENTRY:
                raise RuntimeError(f"kvant: the layers' blocks lie at addresses that no page table of {unit}-byte units holds")
            in_units = torch.tensor([x // unit for x in distances], device=layers[0].device)
            self._addresses, self._places = addresses, _Places(low, distances, unit, in_units, layer_bytes)
        return self._places
