"""What the layers of a model share on a GPU: library, shapes, workspace, and where pages lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant.torch import Layer, Lengths, Pages, Shape, TorchLibrary
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.recipes import Recipe
from kvant.paged.sink_layout import UNIT_BYTES

MAX_TABLE_ENTRY = 2**31 - 1
MAX_SEQS = 32767  # of kvant_dequantize


@dataclass(frozen=True)
class SinkRows:
    """Rows of some sequences' sinks."""

    n_tokens: torch.Tensor  # int32 [n_seqs]
    seq: torch.Tensor  # int32 [n_seqs * tokens]: of each row, its sequence
    token: torch.Tensor  # and its place in the sink


class ModelCache:
    """One model's KV cache. A layer's blocks are uint8 [n_blocks, block_bytes]."""

    def __init__(self, library: TorchLibrary, recipe: Recipe, layout: BlockLayout, n_heads: int, softmax_scale: float,
                 max_seqs: int, device: torch.device):
        """n_heads: query heads; max_seqs: the most sequences of a step."""
        self.library, self.recipe, self.layout, self.device = library, recipe, layout, device
        self.n_heads, self.softmax_scale = n_heads, softmax_scale
        self._shapes: dict[int, Shape] = {}
        self.workspace = library.new_workspace(self.shape(max_seqs), device)
        self.numbers = torch.arange(max_seqs, dtype=torch.int32, device=device)
        pages = [(head, side) for head in range(layout.n_kv_heads) for side in range(SIDES)]
        places = [[layout.tail_place(*page, turn) for page in pages] for turn in range(layout.tail_pages)]
        self._tail_block = torch.tensor([[block for block, _ in turn] for turn in places], device=device)
        self._tail_unit = torch.tensor([[unit for _, unit in turn] for turn in places], dtype=torch.int32, device=device)
        if layout.sink_tokens:
            self._sink_unit = torch.tensor([layout.sink.place(*page) // UNIT_BYTES for page in pages],
                                           dtype=torch.int32, device=device)

    def shape(self, n_seqs: int) -> Shape:
        if n_seqs not in self._shapes:
            self._shapes[n_seqs] = Shape(
                n_seqs=n_seqs, n_kv_heads=self.layout.n_kv_heads, group=self.n_heads // self.layout.n_kv_heads,
                head_dim=self.layout.head_dim, softmax_scale=self.softmax_scale,
                key_format=self.recipe.key_format.encode(), value_format=self.recipe.value_format.encode())
        return self._shapes[n_seqs]

    @property
    def kernel(self) -> str | None:
        return self.library.decode_kernel(self.shape(1))

    def tail_ids(self, tail_blocks: torch.Tensor, page: torch.Tensor | None = None) -> torch.Tensor:
        """int32 [n_seqs, 2 * n_kv_heads]: where the tail pages of each head, K then V, lie in a layer's blocks, in units.
        tail_blocks: int32 [n_seqs, at least layout.tail_blocks]; page: int32 [n_seqs], which page of each sequence, where there
        is room for several."""
        if self.layout.tail_pages == 1:
            blocks, unit = tail_blocks.index_select(1, self._tail_block[0]), self._tail_unit[0]
        else:
            turn = (page % self.layout.tail_pages).long()
            blocks, unit = tail_blocks.gather(1, self._tail_block[turn]), self._tail_unit[turn]
        return blocks * (self.layout.block_bytes // self.layout.unit_bytes) + unit

    def tail_pages(self, tail_ids: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """A layer's tails, a page of each sequence."""
        return Pages(table=tail_ids, seq_stride=tail_ids.stride(0), head_stride=SIDES, side_stride=1, pool=blocks,
                     page_stride=self.layout.unit_bytes)

    def sealed_pages(self, block_table: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """A layer's sealed pages. block_table: int32 [n_seqs, n_pages]."""
        return Pages(table=block_table, seq_stride=block_table.stride(0),
                     pool=blocks.data_ptr() + self.layout.sink.bytes, page_stride=self.layout.block_bytes,
                     head_offset=self.layout.head_bytes, side_offset=self.layout.key_page_bytes)

    def sink_ids(self, first_blocks: torch.Tensor) -> torch.Tensor:
        """int32 [n_seqs, 2 * n_kv_heads]: where the sink's pages of each head, K then V, lie in a layer's blocks, in units of
        UNIT_BYTES. first_blocks: int32 [n_seqs], the block of each sequence's first page."""
        return first_blocks[:, None] * (self.layout.block_bytes // UNIT_BYTES) + self._sink_unit

    def sink_pages(self, sink_ids: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """A layer's sinks, a page of each sequence."""
        if blocks.numel() // UNIT_BYTES > MAX_TABLE_ENTRY:
            raise RuntimeError("kvant: recipes with a sink need layers of less than 32 GiB; --kv-cache-memory-bytes limits them")
        return sink_pages(sink_ids, blocks.data_ptr())

    def sink_rows(self, n_seqs: int) -> SinkRows:
        """Of n_seqs sinks."""
        n_tokens = self.layout.sink_tokens
        numbers = torch.arange(n_seqs * n_tokens, dtype=torch.int32, device=self.device)
        return SinkRows(torch.full((n_seqs,), n_tokens, dtype=torch.int32, device=self.device), numbers // n_tokens,
                        numbers % n_tokens)

    def first_tokens(self, tail: Pages, sinks: SinkRows) -> torch.Tensor:
        """Those of the sinks, out of tail pages, one of each sequence: BF16 [2, n_seqs, tokens, n_kv_heads, head_dim]."""
        layout, n_seqs = self.layout, len(sinks.n_tokens)
        rows = torch.empty((SIDES, n_seqs, layout.sink_tokens, layout.n_kv_heads, layout.head_dim),
                           dtype=torch.bfloat16, device=self.device)
        self.library.dequantize(self.shape(n_seqs), Lengths(tail_tokens=sinks.n_tokens), Layer(tail=tail), 0, 1, *rows)
        return rows

    def write_sinks(self, pages: Pages, rows: torch.Tensor, sinks: SinkRows, is_due: torch.Tensor | None = None) -> None:
        """rows: as first_tokens gives them; is_due: bool [n_seqs], which of them are written (None: all)."""
        token = sinks.token
        if is_due is not None:
            token = token.where(is_due.repeat_interleave(rows.shape[2]), -1)
        self.library.append(self.shape(rows.shape[1]), Layer(tail=pages), sinks.seq, token, *rows.flatten(1, 2))

    def rotated(self, q: torch.Tensor) -> torch.Tensor:
        """Queries [n, n_heads, head_dim] as stored keys want them."""
        if not self.recipe.key_hadamard:
            return q
        rotated = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.library.rotate(rotated, q)
        return rotated

    def rotate_back(self, out: torch.Tensor) -> None:
        """Outputs [n, n_heads, head_dim], in place."""
        if self.recipe.value_hadamard:
            self.library.rotate(out)


def sink_pages(sink_ids: torch.Tensor, pool: int) -> Pages:
    """sink_ids: int32 [n_seqs, 2 * n_kv_heads], in units of UNIT_BYTES from the address `pool`."""
    return Pages(table=sink_ids, seq_stride=sink_ids.stride(0), head_stride=SIDES, side_stride=1, pool=pool,
                 page_stride=UNIT_BYTES)
