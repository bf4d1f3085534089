"""Says where pages lie in the memory of a layer that belongs to one batch of sequences:

    sinks (SinkLayout) of all sequences, their tails (128 tokens of each head and side, BF16), then blocks of sealed pages

A block is 128 tokens of a sequence: K page and V page of KV head 0, then of head 1, and so on. Each page has the bytes
of its format. Layers with other formats therefore have blocks of a different size. The numbers of tails, sinks and blocks
are equal in all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvant import PAGE
from kvant.paged.block_layout import BF16_BYTES, SIDES
from kvant.paged.layer_memory import LayerMemory
from kvant.paged.sink_layout import UNIT_BYTES, SinkLayout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SequenceLayout:
    n_kv_heads: int
    head_dim: int
    sink_tokens: int = 0
    n_sequences: int = 1
    tail_pages: int = 1  # pages per head and side
    # Each sequence has one tail block, which has the sequence's number.
    tail_blocks: int = 1
    # The flag has the meaning of SinkLayout.has_rows.
    has_rows: bool = False

    def of_sequences(self, n: int) -> SequenceLayout:
        return replace(self, n_sequences=n)

    @cached_property
    def sink(self) -> SinkLayout:
        return SinkLayout(self.n_kv_heads, self.head_dim, self.sink_tokens, self.has_rows)

    @property
    def tail_page_bytes(self) -> int:
        """Returns the bytes of 128 unquantized tokens of one head and side."""
        return PAGE * self.head_dim * BF16_BYTES

    @property
    def unit_bytes(self) -> int:
        """Returns the unit, in bytes, in which tables of tail pages count."""
        return self.tail_page_bytes

    layer_distances = None
    has_sink_block = False

    @property
    def sink_places(self) -> list[int]:
        """Returns the places of the sinks of each head, as BlockLayout.sink_places does."""
        return [self.sink.place(head, side) // UNIT_BYTES for head in range(self.n_kv_heads) for side in range(SIDES)]

    @property
    def sink_units_per_block(self) -> int:
        """Returns the units from one sequence's sink to the next."""
        return self.sink.bytes // UNIT_BYTES

    @property
    def tail_block_bytes(self) -> int:
        return SIDES * self.n_kv_heads * self.tail_page_bytes

    @property
    def tail_begin(self) -> int:
        return self.n_sequences * self.sink.bytes

    @property
    def sealed_begin(self) -> int:
        return self.tail_begin + self.n_sequences * self.tail_block_bytes

    def tail_place(self, head: int, side: int, turn: int = 0) -> tuple[int, int]:
        """Returns the tail block and the place in it, as BlockLayout.tail_place does."""
        return 0, SIDES * head + side

    def memory_of(self, layers: Sequence[torch.Tensor]) -> list[LayerMemory]:
        """Returns where the pages of each layer lie. `layers` holds the memory of each layer."""
        begins = [memory.data_ptr() for memory in layers]
        return [LayerMemory(sealed=begin + self.sealed_begin, tail=begin + self.tail_begin, tail_stride=self.tail_block_bytes,
                            sinks=begin, sink_stride=UNIT_BYTES) for begin in begins]
