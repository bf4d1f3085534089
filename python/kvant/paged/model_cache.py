"""Holds what the layers of a model share on a device: the library, shapes, a workspace, and the places of pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kvant.torch import PageMetrics, Pages, Shape, StepPlan, StepTable, TorchLibrary, step_table
from kvant.paged.arena_layout import ArenaLayout
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.layer_memory import LayerMemory
from kvant.paged.model_constants import ModelConstants
from kvant.paged.page_formats import PageFormats
from kvant.paged.recipes import Recipe
from kvant.paged.sequence_layout import SequenceLayout

MAX_TABLE_ENTRY = 2**31 - 1
Layout = ArenaLayout | BlockLayout | SequenceLayout
# A sequence has at most MAX_QUERIES queries in one call.
MAX_QUERIES = 8


class ModelCache:
    """Describes one model's KV cache. A layer's blocks are uint8 [n_blocks, ..., block_bytes] or, with a SequenceLayout,
    the layer's whole memory."""

    def __init__(self, library: TorchLibrary, recipe: Recipe, layout: Layout, n_heads: int, softmax_scale: float,
                 max_requests: int, device: torch.device, max_rows: int = 1, constants: ModelConstants | None = None,
                 softcap: float = 0.0):
        """Makes the cache of a model with n_heads query heads. A step decodes at most max_requests requests, each with
        at most max_rows new tokens. `constants` holds what calibration has learned about the model. softcap is the c in
        c * tanh(score / c), which replaces scores; 0 means no cap."""
        self.library, self.recipe, self.layout, self.device = library, recipe, layout, device
        self.n_heads, self.softmax_scale, self.softcap = n_heads, softmax_scale, softcap
        constants = ModelConstants() if constants is None else constants.to(device)
        self._metrics, self._codebooks, self._key_scales = constants.metrics, constants.codebooks, constants.key_scales
        # With key scales, queries must be scaled to match stored keys, and the scales differ by layer.
        self.has_key_scales = self._key_scales is not None
        # Sealing may read prompts' rows where the model left them if stored rows equal the model's rows, and if sealing
        # reads rows only once.
        self.seals_rows = self._metrics is None and not (
            recipe.key_hadamard or recipe.value_hadamard or self.has_key_scales) and all(
            library.can_seal_rows(name) for name in recipe.formats)
        # Holds the number and the memory of the layer whose blocks begin at each address.
        self._layer_at: dict[int, tuple[int, LayerMemory]] = {}
        self._addresses: tuple[int, ...] = ()
        self._tail_units = layout.tail_block_bytes // layout.unit_bytes
        self._formats = formats_of_layers(recipe, layout.n_kv_heads, lambda name: library.page_bytes(name, layout.head_dim))
        self._shapes: dict[tuple[int, int, PageFormats], Shape] = {}
        self.max_rows, self.max_queries = max_rows, self._queries_together(max_rows)
        n_seqs = StepPlan(max_requests, max_rows, self.max_queries, device=device).n_seqs
        shapes = [self._shape(n_seqs, self.max_queries, formats) for formats in set(self._formats)]
        # All layers share the workspace.
        self.workspace = library.new_workspace(max(shapes, key=library.workspace_bytes), device)
        pages = [(head, side) for head in range(layout.n_kv_heads) for side in range(SIDES)]
        places = [[layout.tail_place(*page, turn) for page in pages] for turn in range(layout.tail_pages)]
        self._tail_block = torch.tensor([[block for block, _ in turn] for turn in places], device=device)
        self._tail_unit = torch.tensor([[unit for _, unit in turn] for turn in places], dtype=torch.int32, device=device)
        self._tail_places = torch.tensor(places, dtype=torch.int32, device=device)
        self._sink_unit = torch.tensor(layout.sink_places if layout.sink_tokens else [], dtype=torch.int32, device=device)
        self._sink_places = torch.stack([torch.zeros_like(self._sink_unit), self._sink_unit], 1)[None].contiguous()

    def shape(self, n_seqs: int, max_queries: int = 1, blocks: torch.Tensor | None = None) -> Shape:
        """Returns the shape of n_seqs sequences with max_queries queries each. `blocks` belongs to the layer whose
        sealed pages are read or written; None means that there are none."""
        return self._shape(n_seqs, max_queries, self._formats[0] if blocks is None else self._formats_of(blocks))

    def _shape(self, n_seqs: int, max_queries: int, formats: PageFormats) -> Shape:
        if (n_seqs, max_queries, formats) not in self._shapes:
            self._shapes[n_seqs, max_queries, formats] = formats.shape(
                n_seqs=n_seqs, n_kv_heads=self.layout.n_kv_heads, group=self.n_heads // self.layout.n_kv_heads,
                head_dim=self.layout.head_dim, softmax_scale=self.softmax_scale, score_softcap=self.softcap, max_queries=max_queries,
                skip_threshold=self.recipe.skip, sas=self.recipe.has_sas)
        return self._shapes[n_seqs, max_queries, formats]

    def _formats_of(self, blocks: torch.Tensor) -> PageFormats:
        """Returns the formats of the layer with these blocks."""
        return self._formats[self._layer_of(blocks)] if len(self._formats) > 1 else self._formats[0]

    def _queries_together(self, max_rows: int) -> int:
        """Returns how many rows of a request are queries of one sequence. With heads of 256, kernels for several
        queries are slower than one sequence per query."""
        return min(max_rows, MAX_QUERIES) if self.layout.head_dim <= 128 else 1

    @property
    def kernel(self) -> str | None:
        """Returns the names of the decode kernels of all layers, or None if a layer has none."""
        names = [self.library.decode_kernel(self._shape(1, 1, formats)) for formats in self._formats]
        return None if None in names else ", ".join(dict.fromkeys(names))

    def tail_ids(self, own_blocks: torch.Tensor, page: torch.Tensor | None = None) -> torch.Tensor:
        """Returns int32 [n_seqs, 2 * n_kv_heads], the places of each head's tail pages in a layer's blocks, K then V,
        in units. own_blocks: int32 [n_seqs, at least layout.own_blocks]. page: int32 [n_seqs], the number of each
        sequence's page, needed if the tail has room for several pages."""
        if self.layout.tail_pages == 1:
            blocks, unit = own_blocks.index_select(1, self._tail_block[0]), self._tail_unit[0]
        else:
            turn = (page % self.layout.tail_pages).long()
            blocks, unit = own_blocks.gather(1, self._tail_block[turn]), self._tail_unit[turn]
        return blocks * self._tail_units + unit

    def tail_table(self, table: torch.Tensor, own_blocks: torch.Tensor) -> StepTable:
        """Tells kvant_plan_step how to make tail_ids. Each step writes table, int32 [n_seqs, 2 * n_kv_heads], from
        own_blocks, int32 [n_requests, ...]."""
        return step_table(table[:, :, None], own_blocks, self._tail_places, self._tail_units)

    @property
    def sink_entries(self) -> int:
        """Returns the number of entries per sequence in a table of sinks."""
        return len(self._sink_unit)

    def sink_blocks(self, block_table: torch.Tensor, own_blocks: torch.Tensor) -> torch.Tensor:
        """Returns the table whose first column has the block of each request's sinks."""
        return own_blocks if self.layout.has_sink_block else block_table

    def sink_table(self, table: torch.Tensor, sink_blocks: torch.Tensor) -> StepTable:
        """Tells kvant_plan_step how to make sink_ids. table: int32 [n_seqs, sink_entries]. sink_blocks() returns
        sink_blocks."""
        return step_table(table[:, :, None], sink_blocks, self._sink_places, self.layout.sink_units_per_block)

    def tail_pages(self, tail_ids: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """Describes a layer's tails, one page per sequence."""
        return Pages(table=tail_ids, seq_stride=tail_ids.stride(0), head_stride=SIDES, side_stride=1,
                     pool=self._memory_of(blocks).tail, page_stride=self.layout.unit_bytes)

    def tail_units(self, blocks: torch.Tensor) -> torch.Tensor:
        """Views memory from a layer's first tail on as uint8 [units, unit_bytes]."""
        storage, unit = blocks.untyped_storage(), self.layout.unit_bytes
        begin = self._memory_of(blocks).tail - storage.data_ptr()
        return blocks.as_strided(((storage.nbytes() - begin) // unit, unit), (unit, 1), begin)

    def sealed_pages(self, block_table: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """Describes a layer's sealed pages. A Layer needs them together with of_sealed(). block_table: int32 [n_seqs,
        n_pages]."""
        formats, memory = self._formats_of(blocks), self._memory_of(blocks)
        return Pages(table=block_table, seq_stride=block_table.stride(0), pool=memory.sealed,
                     page_stride=memory.block_stride or formats.block_bytes, **formats.offsets)

    def of_sealed(self, blocks: torch.Tensor) -> dict[str, Any]:
        """Returns the other members of a Layer with sealed pages, for the layer with these blocks. The members are
        codebooks, and the places of pages in a block if formats differ by head."""
        codebooks = {} if self._codebooks is None else self._codebooks.of_layer(self._layer_of(blocks))
        return self._formats_of(blocks).of_sealed | codebooks

    def place_layers(self, layers: Sequence[torch.Tensor]) -> None:
        """Tells the cache the blocks of each layer. Must be called before a step that uses these blocks. Raises
        RuntimeError if the blocks do not lie as the layout says."""
        addresses = tuple(blocks.data_ptr() for blocks in layers)
        if addresses == self._addresses:
            return
        memories = self.layout.memory_of(layers)
        self._layer_at = dict(zip(addresses, enumerate(memories)))
        self._addresses, self._tail_units = addresses, memories[0].tail_stride // self.layout.unit_bytes

    def _layer_of(self, blocks: torch.Tensor) -> int:
        return self._layer_at[blocks.data_ptr()][0]

    def _memory_of(self, blocks: torch.Tensor) -> LayerMemory:
        found = self._layer_at.get(blocks.data_ptr())
        return self.layout.memory_of([blocks])[0] if found is None else found[1]

    def metrics(self, blocks: torch.Tensor, first_pages: torch.Tensor | None = None) -> PageMetrics | None:
        """Returns the metrics for sealing keys of the layer with these blocks. KeyMetrics.of_layer explains
        first_pages."""
        return None if self._metrics is None else self._metrics.of_layer(self._layer_of(blocks), first_pages)

    def metrics_of_layers(self, first_pages: torch.Tensor) -> PageMetrics | None:
        return None if self._metrics is None else self._metrics.of_layers(first_pages)

    def seals_layers_together(self, with_sinks: bool) -> bool:
        """Returns whether one call can seal pages of all layers. Codebooks and formats by head differ between layers,
        so they prevent it. with_sinks says whether the call copies sinks, which have other distances between layers in
        an ArenaLayout."""
        is_linear = not isinstance(self.layout, ArenaLayout) or not (with_sinks and self.layout.sink_tokens)
        return self._codebooks is None and len(self._formats) == 1 and is_linear

    def key_factors(self, blocks: torch.Tensor) -> torch.Tensor | None:
        """Returns F32 [n_kv_heads, head_dim], the factors of the layer's keys before rotation, or None."""
        return None if self._key_scales is None else self._key_scales.of_keys[self._layer_of(blocks)]

    def query_factors(self, blocks: torch.Tensor) -> torch.Tensor | None:
        """Returns the factors of queries, which also undo the factors of stored keys, or None."""
        return None if self._key_scales is None else self._key_scales.of_queries[self._layer_of(blocks)]

    @property
    def changes_queries(self) -> bool:
        """Returns whether queries must be transformed to match stored keys."""
        return self.recipe.key_hadamard or self.has_key_scales

    @staticmethod
    def either_place(block: torch.Tensor) -> torch.Tensor:
        """Returns block tables of one page each, int32 [n, 2]. The two columns hold one block. The first column serves
        a sequence's first page (page 0), the second any other page (page 1)."""
        return block[:, None].expand(-1, 2).contiguous()

    def sink_ids(self, sink_blocks: torch.Tensor) -> torch.Tensor | None:
        """Returns int32 [n_seqs, sink_entries], the places of each head's sink pages in a layer's blocks, K then V, or
        one place for all heads. Returns None without a sink. sink_blocks: int32 [n_seqs], the block of each sequence's
        sinks."""
        if self.layout.sink_tokens == 0:
            return None
        return sink_blocks[:, None] * self.layout.sink_units_per_block + self._sink_unit

    def sink_pages(self, sink_ids: torch.Tensor, blocks: torch.Tensor) -> Pages:
        """Describes a layer's sinks, one page per sequence. sink_ids: int32 [n_seqs, sink_entries]."""
        memory = self._memory_of(blocks)
        if blocks.numel() // memory.sink_stride > MAX_TABLE_ENTRY:
            raise RuntimeError("kvant: recipes with a sink need layers of less than 32 GiB; --kv-cache-memory-bytes limits them")
        by_head = dict(head_stride=SIDES, side_stride=1) if self.sink_entries > 1 else memory.sink_offsets
        return Pages(table=sink_ids, seq_stride=sink_ids.stride(0), pool=memory.sinks, page_stride=memory.sink_stride, **by_head)

    def sinks(self, sink_ids: torch.Tensor | None, blocks: torch.Tensor) -> dict[str, Any]:
        """Returns the members of a Layer that describe sinks, or none if sink_ids is None."""
        return {} if sink_ids is None else dict(sink=self.layout.sink_tokens, protected_pages=self.sink_pages(sink_ids, blocks))

    def queries(self, q: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Transforms queries [n, n_heads, head_dim] to match the layer's stored keys."""
        if not self.changes_queries:
            return q
        changed = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.library.transform(changed, q, self.recipe.key_hadamard, self.query_factors(blocks))
        return changed

    def keys_back(self, rows: torch.Tensor, blocks: torch.Tensor) -> None:
        """Transforms stored keys [n, n_kv_heads, head_dim] of the layer back to the model's keys, in place."""
        if self.changes_queries:
            self.library.transform(rows, hadamard=self.recipe.key_hadamard, factors_after=self.query_factors(blocks))

    def rotate_back(self, out: torch.Tensor) -> None:
        """Rotates outputs [n, n_heads, head_dim], or values, back to the model's, in place."""
        if self.recipe.value_hadamard:
            self.library.rotate(out)


def formats_of_layers(recipe: Recipe, n_kv_heads: int, page_bytes: Callable[[str], int]) -> list[PageFormats]:
    """Returns the formats of each layer, or a single entry if all layers have equal formats. Layers with equal formats
    share one object."""
    found: dict[tuple, PageFormats] = {}
    layers = recipe.by_head or (((recipe.key_format, recipe.value_format),) * n_kv_heads,)
    return [found.setdefault(heads, PageFormats(heads, page_bytes)) for heads in layers]
