"""Where pages lie in the blocks of vLLM's pool. A block is as large as 128 tokens of a layer's sealed pages:

    sealed block: the sink (SinkLayout), then K page and V page of KV head 0, of head 1, ...
    tail block:   as many whole unquantized pages (128 tokens of one head and side, BF16) as fit

A request has its sealed blocks, which it may share, and a fixed number of tail blocks for the page that is being filled,
which are its own. Where drafts may reach past that page's end, there is room for the next one, too: pages take turns. Only
the first of its sealed blocks has something in the sink's place: since that place belongs to the block, whoever shares a
prefix shares its sink."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from kvant import PAGE
from kvant.paged.sink_layout import SinkLayout

SIDES = 2
BF16_BYTES = 2
ALIGNMENT = 512  # bytes; tail pages are found and copied in units of this size or larger ones


@dataclass(frozen=True)
class BlockLayout:
    n_kv_heads: int
    head_dim: int
    key_page_bytes: int  # of one KV head
    value_page_bytes: int
    sink_tokens: int = 0
    tail_pages: int = 1  # pages per head and side
    has_rows: bool = False  # as SinkLayout has it

    @cached_property
    def sink(self) -> SinkLayout:
        return SinkLayout(self.n_kv_heads, self.head_dim, self.sink_tokens, self.has_rows)

    @property
    def head_bytes(self) -> int:
        """Bytes of the K page and the V page of one head."""
        return self.key_page_bytes + self.value_page_bytes

    @property
    def tail_page_bytes(self) -> int:
        """Bytes of 128 unquantized tokens of one head and side."""
        return PAGE * self.head_dim * BF16_BYTES

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block. At least one tail page has to fit, so blocks with few heads are larger than their sealed
        pages."""
        sealed = self.sink.bytes + -(-self.n_kv_heads * self.head_bytes // ALIGNMENT) * ALIGNMENT
        return max(sealed, self.tail_page_bytes)

    # Tails and sinks also count in whole blocks, and their pages are found from a block's beginning.
    tail_block_bytes = sink_block_bytes = property(lambda self: self.block_bytes)
    tail_begin = property(lambda self: 0)

    @property
    def sealed_begin(self) -> int:
        return self.sink.bytes

    def tail_units(self, blocks):
        """Views a layer's blocks as uint8 [units, unit_bytes]."""
        return blocks.view(-1, self.unit_bytes)

    @property
    def tail_pages_per_block(self) -> int:
        return self.block_bytes // self.tail_page_bytes

    @property
    def tail_blocks(self) -> int:
        """Number of tail blocks of a request."""
        return -(-self.tail_pages * SIDES * self.n_kv_heads // self.tail_pages_per_block)

    @cached_property
    def unit_bytes(self) -> int:
        """The largest size that divides blocks and tail pages. Tables of tail pages count in it."""
        return math.gcd(self.block_bytes, self.tail_page_bytes)

    def tail_place(self, head: int, side: int, turn: int = 0) -> tuple[int, int]:
        """Returns which of a request's tail blocks holds a page, and where in it, in units. turn: the page's number
        modulo `tail_pages`."""
        index = SIDES * (turn * self.n_kv_heads + head) + side
        block, within = divmod(index, self.tail_pages_per_block)
        return block, within * (self.tail_page_bytes // self.unit_bytes)

    @property
    def bf16_block_bytes(self) -> int:
        """Bytes of 128 tokens of a layer in BF16."""
        return SIDES * self.n_kv_heads * self.tail_page_bytes

    def tokens_that_fit(self, n_blocks: int, tokens_per_request: int) -> int:
        """Returns the capacity in tokens for requests of that length, tails counted."""
        of_request = -(-tokens_per_request // PAGE) + self.tail_blocks
        return n_blocks * tokens_per_request // of_request

    def bf16_tokens_that_fit(self, n_blocks: int) -> int:
        """Returns how many BF16 tokens fit into the same memory."""
        return n_blocks * self.block_bytes * PAGE // self.bf16_block_bytes
