"""Says where pages lie in the blocks of vLLM's pool. A block is as large as 128 tokens of a layer's sealed pages:

    sealed block: the sink (SinkLayout), then K page and V page of KV head 0, of head 1, ...
    tail block:   as many whole unquantized pages (128 tokens of one head and side, BF16) as fit

A request has sealed blocks, which it may share. A request also has a fixed number of tail blocks of its own, for the
page that is being filled. If drafts may reach past that page's end, the tail blocks have room for the next page too,
and the two places alternate. Only the first sealed block of a request has a sink. Requests that share this block,
because they share a prefix, thereby share the sink."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from kvant import PAGE
from kvant.paged.sink_layout import SinkLayout

SIDES = 2
BF16_BYTES = 2
# Tail pages are found and copied in units of at least ALIGNMENT bytes.
ALIGNMENT = 512


@dataclass(frozen=True)
class BlockLayout:
    n_kv_heads: int
    head_dim: int
    key_page_bytes: int  # bytes of one KV head
    value_page_bytes: int
    sink_tokens: int = 0
    tail_pages: int = 1  # pages per head and side
    # The flag has the meaning of SinkLayout.has_rows.
    has_rows: bool = False

    @cached_property
    def sink(self) -> SinkLayout:
        return SinkLayout(self.n_kv_heads, self.head_dim, self.sink_tokens, self.has_rows)

    @property
    def head_bytes(self) -> int:
        """Returns the bytes of the K page and the V page of one head."""
        return self.key_page_bytes + self.value_page_bytes

    @property
    def tail_page_bytes(self) -> int:
        """Returns the bytes of 128 unquantized tokens of one head and side."""
        return PAGE * self.head_dim * BF16_BYTES

    @cached_property
    def block_bytes(self) -> int:
        """Returns the bytes of a block. At least one tail page must fit, so blocks with few heads are larger than their
        sealed pages."""
        sealed = self.sink.bytes + -(-self.n_kv_heads * self.head_bytes // ALIGNMENT) * ALIGNMENT
        return max(sealed, self.tail_page_bytes)

    # Tails and sinks are also counted in whole blocks, and their pages are addressed from the beginning of a block.
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
        """Returns the number of tail blocks of a request."""
        return -(-self.tail_pages * SIDES * self.n_kv_heads // self.tail_pages_per_block)

    @cached_property
    def unit_bytes(self) -> int:
        """Returns the largest size that divides both blocks and tail pages. Tables of tail pages count in this unit."""
        return math.gcd(self.block_bytes, self.tail_page_bytes)

    def tail_place(self, head: int, side: int, turn: int = 0) -> tuple[int, int]:
        """Returns which of a request's tail blocks holds a page, and the place in that block in units. `turn` is the
        page's number modulo `tail_pages`."""
        index = SIDES * (turn * self.n_kv_heads + head) + side
        block, within = divmod(index, self.tail_pages_per_block)
        return block, within * (self.tail_page_bytes // self.unit_bytes)

    @property
    def bf16_block_bytes(self) -> int:
        """Returns the bytes of 128 tokens of a layer in BF16."""
        return SIDES * self.n_kv_heads * self.tail_page_bytes

    def tokens_that_fit(self, n_blocks: int, tokens_per_request: int) -> int:
        """Returns how many tokens fit in requests of tokens_per_request tokens each, including their tails."""
        of_request = -(-tokens_per_request // PAGE) + self.tail_blocks
        return n_blocks * tokens_per_request // of_request

    def bf16_tokens_that_fit(self, n_blocks: int) -> int:
        """Returns how many BF16 tokens fit into the memory of n_blocks blocks."""
        return n_blocks * self.block_bytes * PAGE // self.bf16_block_bytes
