"""Holds what the layers of a model share, from step to step and within a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvant.torch import TorchLibrary
from kvant.paged import decode, draft_rows, prefill, step_rules, summary
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.filled_pages import FilledPages
from kvant.paged.model_cache import Layout, ModelCache
from kvant.paged.model_constants import ModelConstants
from kvant.paged.quality_guard import Check, GuardReport, QualityGuard
from kvant.paged.recipes import Recipe


@dataclass
class Step:
    """Describes one step for all layers. `sealed` and `tail` are vLLM's CommonAttentionMetadata for the two kinds of
    blocks. Decoded requests precede prefilled ones."""

    cache: ModelCache
    sealed: Any = None
    tail: Any = None
    n_decodes: int = 0
    n_decode_rows: int = 0
    n_rows: int = 0
    # The flag is true if decoded requests may have several rows.
    has_drafts: bool = False
    prefill: prefill.PrefillStep | None = None
    # `check` is the check that the quality guard makes in the step.
    check: Check | None = None
    # Holds the address of the blocks of the layer to check.
    checked: int = 0
    # The first layer makes `_decode`, so each replay of a captured step makes the object again.
    _decode: decode.DecodeStep | None = field(default=None, repr=False)

    @property
    def decoding(self):
        """Returns the module that handles decoded requests."""
        return draft_rows if self.has_drafts else decode

    def decode(self) -> decode.DecodeStep:
        if self._decode is None:
            n = self.n_decodes
            tables = self.sealed.block_table_tensor[:n], self.tail.block_table_tensor[:n]
            lens = self.sealed.seq_lens[:n]
            begins = self.sealed.query_start_loc[:n + 1] if self.has_drafts else None
            self._decode = decode.prepare(self.cache, lens, *tables, begins)
        return self._decode


class ModelState:
    """Collects the metadata of a step. vLLM describes a step twice, for sealed pages and for tails, in either order;
    the step is complete with the second description."""

    def __init__(self, recipe: Recipe, layout: Layout, n_heads: int, softmax_scale: float, max_drafts: int = 0,
                 constants: ModelConstants | None = None, softcap: float = 0.0):
        """Makes the state before the model's layers exist. max_drafts is the largest number of draft tokens after a
        request's newest token; with drafts, tails need room for two pages. `constants` covers all layers that the model
        will have. ModelCache explains softcap."""
        self.recipe, self.layout, self.n_heads, self.softmax_scale = recipe, layout, n_heads, softmax_scale
        self.max_drafts, self.constants, self.softcap = max_drafts, constants, softcap
        # Lists vLLM's attention layers, whose `kv_cache` are their blocks. With pipeline parallelism, these layers
        # belong to one stage.
        self.layers: list = []
        # Counts the layers of earlier stages.
        self.layers_before = 0
        # Names the stage in messages.
        self.of_stage = ""
        # The flag is false if other layers use blocks of the pool too.
        self.is_all = True
        # Says how such other layers are stored.
        self.others = "layers with a sliding window stay unquantized"
        self.cache: ModelCache | None = None
        # Receives the quality guard's reports; None means no guard.
        self.watcher: Callable[[GuardReport], None] | None = None
        self._guard: QualityGuard | None = None
        self._filled: FilledPages | None = None
        self._step: Step | None = None
        self._max_model_len = 0
        self._is_announced = False

    def start(self, library: TorchLibrary, max_seqs: int, max_model_len: int, device: torch.device) -> None:
        """Prepares the cache before the first step, and again whenever vLLM allocates the cache anew."""
        if self.constants is not None and self.constants.n_layers != len(self.layers):
            raise ValueError(f"kvant: the constants are of {self.constants.n_layers} layers, and the model has {len(self.layers)} "
                             "with kvant's cache")
        self.cache = ModelCache(library, self.recipe, self.layout, self.n_heads, self.softmax_scale, max_seqs, device,
                                1 + self.max_drafts, self.constants, self.softcap)
        if self.cache.kernel is None:
            raise ValueError(f"kvant has no kernel for {self.recipe.text}, heads of {self.layout.head_dim} channels"
                             f"{' and soft-capped scores' if self.softcap else ''}")
        self._filled, self._step, self._max_model_len = FilledPages(self.cache), None, max_model_len
        self._guard = QualityGuard(self.cache, len(self.layers), self.watcher, self.layers_before) if self.watcher else None

    def add(self, kind: str, common) -> Step:
        """Takes the metadata of one kind of blocks. `kind` is "sealed" or "tail"; `common` is vLLM's
        CommonAttentionMetadata."""
        if self._step is None or getattr(self._step, kind) is not None:
            self._step = Step(self.cache)
        step = self._step
        setattr(step, kind, common)
        if step.sealed is not None and step.tail is not None:
            self._step = None
            self._complete(step)
        return step

    def start_up_line(self) -> str | None:
        """Returns a line that announces the cache to users, once after its blocks exist, and None otherwise."""
        if self._is_announced or self._step is not None:
            return None
        self._is_announced = True
        n_blocks = self.layers[0].kv_cache.shape[0]
        return (summary.start_up_line(self.cache, len(self.layers), n_blocks, self._max_model_len, self.of_stage)
                if self.is_all else summary.line_next_to_others(self.cache, len(self.layers), self.others, self.of_stage))

    def seal_filled(self) -> None:
        """Seals the pages that the previous step filled, unless that is done."""
        if self.cache is not None:
            layers = [layer.kv_cache for layer in self.layers]
            self.cache.place_layers(layers)
            self._filled.seal(layers)

    def _complete(self, step: Step) -> None:
        common, cache = step.sealed, self.cache
        if self._guard is not None:
            self._guard.tell()
        self.seal_filled()
        step.n_rows = common.num_actual_tokens
        starts = common.query_start_loc_cpu.numpy()
        query_lens = (starts[1:] - starts[:-1])[:common.num_reqs]
        # The upper bounds are exact, except for requests with drafts.
        seq_lens = common.seq_lens_cpu_upper_bound.numpy()[:common.num_reqs]
        longer = np.flatnonzero(query_lens > 1 + self.max_drafts)
        n = step.n_decodes = step.n_decode_rows = int(longer[0]) if len(longer) else common.num_reqs
        table, tail_table = common.block_table_tensor, step.tail.block_table_tensor
        if self.max_drafts:
            self._add_drafts(step, query_lens)
        else:
            self._add_filled(seq_lens[:n], table, tail_table)
        if n < common.num_reqs:
            plan = step_rules.plan_prefill(seq_lens[n:] - query_lens[n:], query_lens[n:])
            step.prefill = prefill.prepare(cache, plan, table[n:], tail_table[n:])
            if self._guard is not None:
                step.check = self._guard.choose(plan, table[n:])
                step.checked = self.layers[step.check.layer].kv_cache.data_ptr() if step.check else 0

    def _add_drafts(self, step: Step, query_lens: np.ndarray) -> None:
        n = step.n_decodes
        other_lens = query_lens[n:]
        # Only the device knows the lengths of such requests.
        if ((other_lens > 0) & (other_lens <= 1 + self.max_drafts)).any():
            raise RuntimeError("kvant: requests with drafts must come before those with longer steps")
        step.has_drafts, step.n_decode_rows = True, int(query_lens[:n].sum())

    def _add_filled(self, seq_lens: np.ndarray, table: torch.Tensor, tail_table: torch.Tensor) -> None:
        """Notes the pages that requests with one new token fill. `seq_lens` holds the lengths of these requests."""
        seqs, pages = step_rules.filled_pages(seq_lens)
        if len(seqs):
            where = DeviceArrays({"seqs": seqs, "pages": pages}, self.cache.device)
            rows = where["seqs"].long()
            self._filled.add(table[rows, where["pages"].long()], self.cache.tail_ids(tail_table[rows]), where["pages"],
                             has_first=bool((pages == 0).any()), sink_blocks=tail_table[rows, 0] if self.layout.has_sink_block else None)


def append(step: Step, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Stores the new tokens of a layer without attention; `attend` explains the arguments."""
    n, end = step.n_decode_rows, step.n_rows
    if step.prefill is not None:
        prefill.append_and_seal(step.cache, step.prefill, blocks, keys[n:end], values[n:end])
    if n:
        step.decoding.append(step.cache, step.decode(), blocks, keys[:n], values[:n])


def attend(step: Step, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, out: torch.Tensor,
           attention: prefill.VarlenAttention | None, sink_logits: torch.Tensor | None = None) -> None:
    """Runs a layer of a step.

    blocks: uint8 [n_blocks, block_bytes], the layer's blocks. q, out: BF16 or F16 [at least n_rows, n_heads, head_dim].
    keys, values: BF16 or F16 [at least n_rows, n_kv_heads, head_dim]. `attention` computes the attention of prompts and
    must not change between the layers of a step. None selects the library's attention, which capped scores and sink
    logits need. sink_logits: F32 [n_heads], the layer's attention sinks, which are logits that join the denominator of
    a query's softmax; None means that the layer has no attention sinks."""
    n, end = step.n_decode_rows, step.n_rows
    # Prefill runs first, because the pages that it seals may be the prefix of a decoded request.
    if step.prefill is not None:
        check = step.check if step.check is not None and step.checked == blocks.data_ptr() else None
        prefill.attend(step.cache, step.prefill, blocks, q[n:end], keys[n:end], values[n:end], out[n:end], attention, check,
                       sink_logits)
    if n:
        step.decoding.attend(step.cache, step.decode(), blocks, q[:n], keys[:n], values[:n], out[:n], sink_logits)
