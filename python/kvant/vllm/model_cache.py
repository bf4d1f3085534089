"""What the layers of a model share on a GPU: library, shapes, workspace, and the pages that the last step has filled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kvant.torch import Layer, Pages, Shape, TorchLibrary
from kvant.vllm.block_layout import SIDES, BlockLayout
from kvant.vllm.recipes import Recipe

MAX_TABLE_ENTRY = 2**31 - 1


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
        places = [layout.tail_place(head, side) for head in range(layout.n_kv_heads) for side in range(SIDES)]
        self._tail_block = torch.tensor([block for block, _ in places], device=device)
        self._tail_unit = torch.tensor([unit for _, unit in places], dtype=torch.int32, device=device)

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

    def tail_ids(self, tail_blocks: torch.Tensor) -> torch.Tensor:
        """int32 [n_seqs, 2 * n_kv_heads]: where the tail pages of each head, K then V, lie in a layer's blocks, in units.
        tail_blocks: int32 [n_seqs, at least layout.tail_blocks]."""
        blocks = tail_blocks.index_select(1, self._tail_block)
        return blocks * (self.layout.block_bytes // self.layout.unit_bytes) + self._tail_unit

    def tail_pages(self, tail_ids: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """A layer's tails, a page of each sequence."""
        return Pages(table=tail_ids, seq_stride=tail_ids.stride(0), head_stride=SIDES, side_stride=1, pool=blocks,
                     page_stride=self.layout.unit_bytes)

    def sealed_pages(self, block_table: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """A layer's sealed pages. block_table: int32 [n_seqs, n_pages]."""
        return Pages(table=block_table, seq_stride=block_table.stride(0), pool=blocks,
                     page_stride=self.layout.block_bytes, head_offset=self.layout.head_bytes,
                     side_offset=self.layout.key_page_bytes)

    def rotated(self, q: torch.Tensor) -> torch.Tensor:
        """Queries [n, n_heads, head_dim] as stored keys want them."""
        if not self.recipe.key_hadamard:
            return q
        q = q.clone(memory_format=torch.contiguous_format)
        self.library.rotate(q)
        return q

    def rotate_back(self, out: torch.Tensor) -> None:
        """Outputs [n, n_heads, head_dim], in place."""
        if self.recipe.value_hadamard:
            self.library.rotate(out)


class FilledPages:
    """Pages that decoded tokens have filled, and that are still unquantized: they are sealed before the next step, those of
    all layers by one launch. They are known by their blocks, so that it doesn't matter which requests are still there.
    (Until the next step no request can have come to share them: KvantSealedManager.)"""

    def __init__(self, cache: ModelCache):
        self._cache = cache
        self._pending: tuple[torch.Tensor, torch.Tensor] | None = None
        self._layers: tuple[int, int, torch.Tensor] | None = None  # address, unit, int64 [n_layers] offsets in units
        self._addresses: tuple[int, ...] = ()

    def add(self, sealed_blocks: torch.Tensor, tail_ids: torch.Tensor) -> None:
        """sealed_blocks: int32 [n], where the pages go; tail_ids: int32 [n, 2 * n_kv_heads], where they are."""
        self._pending = sealed_blocks, tail_ids

    def seal(self, layers: Sequence[torch.Tensor]) -> None:
        """layers: the blocks of each."""
        if self._pending is None:
            return
        sealed_blocks, tail_ids = self._pending
        self._pending = None
        cache, layout = self._cache, self._cache.layout
        address, unit, offsets = self._place_layers(layers)
        sealed = offsets[:, None] + sealed_blocks * (layout.block_bytes // unit)
        tail = offsets[:, None, None] + tail_ids * (layout.unit_bytes // unit)
        sealed, tail = (x.flatten(0, 1).to(torch.int32) for x in (sealed, tail))
        n = len(sealed)
        first = torch.zeros(n, dtype=torch.int32, device=sealed.device)
        cache.library.seal_pages(
            cache.shape(n), Layer(
                sealed=Pages(table=sealed, seq_stride=1, pool=address, page_stride=unit,
                             head_offset=layout.head_bytes, side_offset=layout.key_page_bytes),
                tail=Pages(table=tail, seq_stride=tail.stride(0), head_stride=SIDES, side_stride=1, pool=address,
                           page_stride=unit)), first, first, 1)

    def _place_layers(self, layers: Sequence[torch.Tensor]) -> tuple[int, int, torch.Tensor]:
        """The lowest address, a size that divides all distances, and each layer's distance in it."""
        addresses = tuple(blocks.data_ptr() for blocks in layers)
        if addresses != self._addresses or self._layers is None:
            low = min(addresses)
            unit = math.gcd(self._cache.layout.unit_bytes, *(x - low for x in addresses))
            if unit % 16 != 0 or (max(addresses) - low + layers[0].numel()) // unit > MAX_TABLE_ENTRY:
                raise RuntimeError(f"kvant: the layers' blocks lie at addresses that no page table of {unit}-byte units holds")
            offsets = torch.tensor([(x - low) // unit for x in addresses], device=layers[0].device)
            self._addresses, self._layers = addresses, (low, unit, offsets)
        return self._layers
