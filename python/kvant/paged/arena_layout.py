"""Says where pages lie in the blocks of a pool whose blocks hold all layers (vLLM's layout BLHNC):

    sealed block: the K page and V page of KV head 0 of layer 0, of head 1, ..., of layer 1, ...
    sink block:   the sinks of all layers (ArenaSinks). Without sink blocks, each sealed block begins with this space
    tail block:   a cell for each layer, with as many whole unquantized pages (128 tokens of one head and side, BF16)
                  as fit

All cells have one size, because vLLM gives all layers equal shares of a block. The pages of a layer need not lie in the
layer's own cell, because a block belongs to one request at a time. Layers and heads may therefore have formats of
different sizes, and only the sum of the layers' bytes is rounded up to whole cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from kvant.c_api import KEY, VALUE
from kvant.paged.block_layout import ALIGNMENT, PoolLayout
from kvant.paged.layer_memory import LayerMemory
from kvant.paged.sink_layout import TILE_TOKENS, pages_per_tile, tile_distance

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ArenaSinks:
    """Keeps the sinks of all layers at the beginning of a block, which is the sequence's sink block or, without sink
    blocks, the sequence's first sealed block. Sinks of several layers share the tiles that the library reads, as the
    sinks of several heads do in SinkLayout. The places of the heads of a layer therefore have equal distances, so a
    table of blocks finds the sinks of all heads."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    n_tokens: int
    has_rows: bool = False

    @property
    def head_distance(self) -> int:
        """Returns the bytes from the sink of a head to the sink of the next head of the layer."""
        return (self.n_tokens if self.has_rows else TILE_TOKENS) * self.head_dim * 2

    @property
    def bytes(self) -> int:
        return (self._groups(KEY) + self._groups(VALUE)) * self._group_bytes if self.n_tokens else 0

    def place(self, layer: int, side: int) -> int:
        """Returns where the sink of the layer's first head begins, in bytes from the block's beginning."""
        group, within = divmod(layer, self._layers_per_group(side))
        first = self._groups(KEY) if side == VALUE else 0
        return (first + group) * self._group_bytes + within * tile_distance(side, self.n_tokens)

    @property
    def _group_bytes(self) -> int:
        return self.n_kv_heads * self.head_distance

    def _layers_per_group(self, side: int) -> int:
        return pages_per_tile(side, self.n_tokens) if self.n_tokens and not self.has_rows else 1

    def _groups(self, side: int) -> int:
        return -(-self.n_layers // self._layers_per_group(side))


@dataclass(frozen=True)
class ArenaLayout(PoolLayout):
    n_kv_heads: int
    head_dim: int
    # Holds the bytes of 128 tokens of the sealed pages of each layer.
    layer_bytes: tuple[int, ...]
    sink_tokens: int = 0
    tail_pages: int = 1  # pages per head and side
    # SinkLayout.has_rows explains the flag.
    has_rows: bool = False
    # Cells have at least this many bytes, because all ranks of tensor parallelism and all stages of pipeline
    # parallelism need equal cells.
    least_block_bytes: int = 0
    has_sink_block: bool = False

    tail_block_bytes = property(lambda self: len(self.layer_bytes) * self.block_bytes)
    # Entries of tables of sinks are blocks.
    sink_places = property(lambda self: [0])
    sink_units_per_block = property(lambda self: 1)

    @cached_property
    def sinks(self) -> ArenaSinks:
        return ArenaSinks(len(self.layer_bytes), self.n_kv_heads, self.head_dim, self.sink_tokens, self.has_rows)

    @property
    def _sealed_at(self) -> int:
        """Returns where the sealed pages begin in a block."""
        return 0 if self.has_sink_block else self.sinks.bytes

    @cached_property
    def block_bytes(self) -> int:
        """Returns the bytes of a cell, in which at least one tail page must fit."""
        share = -(-max(self._sealed_at + sum(self.layer_bytes), self.sinks.bytes) // len(self.layer_bytes))
        return max(-(-share // ALIGNMENT) * ALIGNMENT, self.tail_page_bytes, self.least_block_bytes)

    @property
    def layer_distances(self) -> tuple[int, int] | None:
        """Returns the distances between the sealed pages and the tails of neighbouring layers in bytes, or None if the
        distances differ."""
        return (self.layer_bytes[0], self.block_bytes) if len(set(self.layer_bytes)) == 1 else None

    def memory_of(self, layers: Sequence[torch.Tensor]) -> list[LayerMemory]:
        """Returns where the pages of each layer lie. `layers` holds the cells of each layer, uint8 [n_blocks, ...,
        block_bytes]. Raises RuntimeError if the cells of a block do not follow one another."""
        begins, strides = sorted(cells.data_ptr() for cells in layers), {cells.stride(0) for cells in layers}
        stride, first, n_layers = min(strides), begins[0], len(self.layer_bytes)
        are_cells = all(cells[:1].nbytes == self.block_bytes and cells[:1].is_contiguous() for cells in layers)
        if (not are_cells or len(strides) > 1 or stride % self.unit_bytes or stride < n_layers * self.block_bytes
                or begins != [first + i * self.block_bytes for i in range(n_layers)]):
            raise RuntimeError(f"kvant: vLLM has laid out the cache of {len(layers)} layers in blocks {sorted(strides)} bytes apart, "
                               f"and kvant needs blocks that hold {n_layers} cells of {self.block_bytes} bytes one after another: "
                               "this model is not supported")
        sealed = accumulate(self.layer_bytes[:-1], initial=first + self._sealed_at)
        places = [[self.sinks.place(i, side) for side in (KEY, VALUE)] for i in range(n_layers)]
        return [LayerMemory(
            sealed=begin, block_stride=stride, tail=first + i * self.block_bytes, tail_stride=stride, sinks=first + of_keys,
            sink_stride=stride, sink_offsets=dict(head_offset=self.sinks.head_distance, side_offset=of_values - of_keys))
            for i, (begin, (of_keys, of_values)) in enumerate(zip(sealed, places))]
