"""Says where pages lie in the blocks of vLLM's pool if a block belongs to one layer. A block of one page has room for
128 tokens (kvant.vllm.hybrids has blocks of several pages):

    sealed block: the sink (SinkLayout), then K page and V page of KV head 0, of head 1, ...
    tail block:   as many whole unquantized pages (128 tokens of one head and side, BF16) as fit

A request has sealed blocks, which it may share. A request also has a fixed number of tail blocks of its own, for the
page that is being filled. If drafts may reach past that page's end, the tail blocks have room for the next page too,
and the two places alternate. Only the first sealed block of a request has a sink. Requests that share this block,
because they share a prefix, thereby share the sink."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvant import PAGE
from kvant.paged.layer_memory import LayerMemory
from kvant.paged.sink_layout import UNIT_BYTES, SinkLayout

if TYPE_CHECKING:
    import torch

SIDES = 2
BF16_BYTES = 2
# Tail pages are found and copied in units of at least ALIGNMENT bytes.
ALIGNMENT = 512


class PoolLayout:
    """Computes what all layouts of a pool have in common. Subclasses have the members n_kv_heads, head_dim, tail_pages
    and block_bytes, the bytes of a layer's share of a block."""

    n_kv_heads: int
    head_dim: int
    tail_pages: int
    block_bytes: int
    # The flag is true if a sequence's sinks have a block of their own instead of space in each sealed block.
    has_sink_block: bool = False

    @property
    def tail_page_bytes(self) -> int:
        """Returns the bytes of 128 unquantized tokens of one head and side."""
        return PAGE * self.head_dim * BF16_BYTES

    @property
    def tail_pages_per_block(self) -> int:
        return self.block_bytes // self.tail_page_bytes

    @property
    def tail_blocks(self) -> int:
        """Returns the number of tail blocks of a request."""
        return -(-self.tail_pages * SIDES * self.n_kv_heads // self.tail_pages_per_block)

    @property
    def own_blocks(self) -> int:
        """Returns the number of blocks that a request has next to its sealed blocks: the block of the sinks, if there is
        one, and then the tail blocks."""
        return self.has_sink_block + self.tail_blocks

    @cached_property
    def unit_bytes(self) -> int:
        """Returns the largest size that divides both blocks and tail pages. Tables of tail pages count in this unit."""
        return math.gcd(self.block_bytes, self.tail_page_bytes)

    def tail_place(self, head: int, side: int, turn: int = 0) -> tuple[int, int]:
        """Returns which of a request's own blocks holds a page of the tail, and the place in that block in units. `turn`
        is the page's number modulo `tail_pages`."""
        index = SIDES * (turn * self.n_kv_heads + head) + side
        block, within = divmod(index, self.tail_pages_per_block)
        return self.has_sink_block + block, within * (self.tail_page_bytes // self.unit_bytes)

    @property
    def bf16_block_bytes(self) -> int:
        """Returns the bytes of 128 tokens of a layer in BF16."""
        return SIDES * self.n_kv_heads * self.tail_page_bytes

    def tokens_that_fit(self, n_blocks: int, tokens_per_request: int) -> int:
        """Returns how many tokens fit in requests of tokens_per_request tokens each, including their own blocks."""
        of_request = -(-tokens_per_request // PAGE) + self.own_blocks
        return n_blocks * tokens_per_request // of_request

    def bf16_tokens_that_fit(self, n_blocks: int) -> int:
        """Returns how many BF16 tokens fit into the memory of n_blocks blocks."""
        return n_blocks * self.block_bytes * PAGE // self.bf16_block_bytes


@dataclass(frozen=True)
class BlockLayout(PoolLayout):
    n_kv_heads: int
    head_dim: int
    key_page_bytes: int  # bytes of one KV head
    value_page_bytes: int
    sink_tokens: int = 0
    tail_pages: int = 1  # pages per head and side
    # SinkLayout.has_rows explains the flag.
    has_rows: bool = False

    @cached_property
    def sink(self) -> SinkLayout:
        return SinkLayout(self.n_kv_heads, self.head_dim, self.sink_tokens, self.has_rows)

    @property
    def head_bytes(self) -> int:
        """Returns the bytes of the K page and the V page of one head."""
        return self.key_page_bytes + self.value_page_bytes

    @cached_property
    def block_bytes(self) -> int:
        """Returns the bytes of a block. At least one tail page must fit, so blocks with few heads are larger than their
        sealed pages."""
        sealed = self.sink.bytes + -(-self.n_kv_heads * self.head_bytes // ALIGNMENT) * ALIGNMENT
        return max(sealed, self.tail_page_bytes)

    # Only vLLM knows the distances between layers.
    layer_distances = None
    tail_block_bytes = property(lambda self: self.block_bytes)

    @property
    def sink_places(self) -> list[int]:
        """Returns the places of the sinks of each head, K then V, from the beginning of a block. Tables of sinks count
        in units of UNIT_BYTES."""
        return [self.sink.place(head, side) // UNIT_BYTES for head in range(self.n_kv_heads) for side in range(SIDES)]

    @property
    def sink_units_per_block(self) -> int:
        return self.block_bytes // UNIT_BYTES

    def memory_of(self, layers: Sequence[torch.Tensor]) -> list[LayerMemory]:
        """Returns where the pages of each layer lie. `layers` holds the blocks of each layer, uint8 [n_blocks, ...,
        block_bytes]. Raises RuntimeError if blocks have gaps, because the next blocks would then be those of another
        layer."""
        for number, blocks in enumerate(layers):
            block_bytes, stride = blocks[:1].nbytes, blocks.stride(0) * blocks.element_size()
            if block_bytes != self.block_bytes or stride != block_bytes or not blocks[:1].is_contiguous():
                raise RuntimeError(f"kvant: vLLM has laid out the cache of layer {number} in blocks of {block_bytes} bytes, "
                                   f"{stride} bytes apart, and kvant's blocks are {self.block_bytes} bytes without gaps: "
                                   "this model is not supported")
        begins = [blocks.data_ptr() for blocks in layers]
        return [LayerMemory(sealed=begin + self.sink.bytes, block_stride=self.block_bytes, tail=begin, tail_stride=self.block_bytes,
                            sinks=begin, sink_stride=UNIT_BYTES) for begin in begins]
