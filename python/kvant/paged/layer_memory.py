"""Describes where the pages of a layer begin in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LayerMemory:
    """Holds the addresses of the first entries of a layer's tables, and the bytes from one entry to the next."""

    # Entries of tables of sealed pages are blocks.
    sealed: int
    # Entries of tables of tails are units (unit_bytes of the layout).
    tail: int
    # Holds the bytes from one tail block to the next.
    tail_stride: int
    # Entries of tables of sinks are the layout's sink_places.
    sinks: int
    sink_stride: int
    # Holds the bytes from one sealed block to the next; 0 means the bytes of the layer's formats.
    block_stride: int = 0
    # Holds the members of Pages that give the places of heads and sides from an entry of the table of sinks.
    sink_offsets: Mapping[str, int] = field(default_factory=dict)
