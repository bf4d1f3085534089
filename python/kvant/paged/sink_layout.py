"""Keeps the sink, the first tokens of a sequence, unquantized at the beginning of the sequence's first block.

The library reads unquantized pages in tiles of 16 tokens of one head and side, ordered for tensor cores. A tile has
head_dim / 16 pieces of 512 bytes. In each piece, a token's keys are spread over 64 contiguous bytes, and its
values over 16 of every 64 bytes. The rest of a tile with few tokens is read but has weight 0. Pages of several heads can
therefore overlap: with a sink of one token, eight key pages or four value pages share a tile. On a CPU, unquantized
pages are plain rows, and the pages of all heads follow each other without overlap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvant.c_api import KEY

MAX_SINK = 4  # tokens
TILE_TOKENS = 16
PIECE_BYTES = 512
KEY_BYTES = 64  # bytes of a token in a piece
VALUE_BYTES = 16  # bytes of two tokens in each VALUE_PERIOD
VALUE_PERIOD = 64
# Pages begin at multiples of UNIT_BYTES.
UNIT_BYTES = 16


def tile_distance(side: int, n_tokens: int) -> int:
    """Returns the bytes from one page of n_tokens tokens to the next page that shares its tile."""
    return KEY_BYTES * n_tokens if side == KEY else VALUE_BYTES * -(-n_tokens // 2)


def pages_per_tile(side: int, n_tokens: int) -> int:
    return (PIECE_BYTES if side == KEY else VALUE_PERIOD) // tile_distance(side, n_tokens)


@dataclass(frozen=True)
class SinkLayout:
    n_kv_heads: int
    head_dim: int
    # The number is 0 (no sink) to MAX_SINK.
    n_tokens: int
    # The flag is true if unquantized pages are rows, as on a CPU.
    has_rows: bool = False

    def __post_init__(self):
        if not 0 <= self.n_tokens <= MAX_SINK:
            raise ValueError(f"a sink has 0 to {MAX_SINK} tokens, not {self.n_tokens}")

    @property
    def tile_bytes(self) -> int:
        return TILE_TOKENS * self.head_dim * 2

    @cached_property
    def bytes(self) -> int:
        """Returns the bytes of keys and then values of all heads. The last page's tile includes bytes after the last
        sink token, which have weight 0."""
        return (self._tiles(0) + self._tiles(1)) * self.tile_bytes if self.n_tokens else 0

    def place(self, head: int, side: int) -> int:
        """Returns where the page of a head and side begins, in bytes from the block's beginning."""
        if self.has_rows:
            return (self.n_kv_heads * side + head) * self.n_tokens * self.head_dim * 2
        tile, within = divmod(head, pages_per_tile(side, self.n_tokens))
        first_tile = 0 if side == KEY else self._tiles(KEY)
        return (first_tile + tile) * self.tile_bytes + within * tile_distance(side, self.n_tokens)

    def _tiles(self, side: int) -> int:
        return -(-self.n_kv_heads // pages_per_tile(side, self.n_tokens))
