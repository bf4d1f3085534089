"""Where the sink, the first tokens of a sequence, lies unquantized: at the beginning of the sequence's first block.

The library reads unquantized pages in tiles of 16 tokens of one head and side, in an order for tensor cores: a tile is
head_dim / 16 pieces of 512 bytes. Of every piece, a token's keys have 64 bytes side by side, and the values of two tokens
16 of every 64. All else in the tile of a page with few tokens is read but has no weight, so pages of several heads lie one in
another: eight of keys in the place of a tile, or four of values, if the sink is one token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvant.c_api import KEY

MAX_SINK = 4  # tokens
TILE_TOKENS = 16
PIECE_BYTES = 512
KEY_BYTES = 64  # of a token in a piece
VALUE_BYTES = 16  # of a pair of tokens, in every VALUE_PERIOD
VALUE_PERIOD = 64
UNIT_BYTES = 16  # pages begin at multiples of it


@dataclass(frozen=True)
class SinkLayout:
    n_kv_heads: int
    head_dim: int
    n_tokens: int  # 0 (no sink) to MAX_SINK

    def __post_init__(self):
        if not 0 <= self.n_tokens <= MAX_SINK:
            raise ValueError(f"a sink has 0 to {MAX_SINK} tokens, not {self.n_tokens}")

    @property
    def tile_bytes(self) -> int:
        return TILE_TOKENS * self.head_dim * 2

    @cached_property
    def bytes(self) -> int:
        """Of keys, then values, of all heads. (The last page's tile ends behind them, with bytes of no weight.)"""
        return (self._tiles(0) + self._tiles(1)) * self.tile_bytes if self.n_tokens else 0

    def place(self, head: int, side: int) -> int:
        """Where the page of a head and side begins, in bytes from the block's beginning."""
        tile, within = divmod(head, self._pages_per_tile(side))
        first_tile, distance = (0, self._key_distance) if side == KEY else (self._tiles(KEY), self._value_distance)
        return (first_tile + tile) * self.tile_bytes + within * distance

    @property
    def _key_distance(self) -> int:
        return KEY_BYTES * self.n_tokens

    @property
    def _value_distance(self) -> int:
        return VALUE_BYTES * -(-self.n_tokens // 2)

    def _pages_per_tile(self, side: int) -> int:
        return PIECE_BYTES // self._key_distance if side == KEY else VALUE_PERIOD // self._value_distance

    def _tiles(self, side: int) -> int:
        return -(-self.n_kv_heads // self._pages_per_tile(side))
