"""Turns vLLM's attention layers into kvant's. The specifications of both KV layers depend on vLLM's release and come as
a `Release` (v033).

vLLM has one KV layer per attention layer; in kvant the layer holds sealed pages. The plug-in adds a second KV layer for
tails. Layers with a sliding window stay with vLLM, unquantized or in FP8, on a backend that vLLM chooses. The layers of
a drafter stay with vLLM too (drafters.py)."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import vllm.envs
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from kvant import PAGE
from kvant.paged.arena_layout import ArenaLayout
from kvant.paged.block_layout import BlockLayout
from kvant.paged.model_cache import formats_of_layers
from kvant.paged.recipes import resolved_line, without_constants
from kvant.vllm import drafters, hybrids
from kvant.vllm.drafters import has_cache_type, unquantized_type
from kvant.vllm.own_types import with_own_type
from kvant.vllm.recipes import CACHE_TYPES, CONSTANTS_EXAMPLE, FP8, constants_file, find_recipe, has_fp8_windows
from kvant.vllm.refusals import n_drafts, refuse_unsupported
from kvant.vllm.stages import Stages, stages_of

TAIL_SUFFIX = ".kvant_tail"
# vLLM calls layers with a sliding window "sliding_window".
WINDOWED = "sliding_window"
# If blocks hold all layers, layers with a window have pages of WINDOW_BLOCK tokens. vLLM's planner then needs few
# groups of layers, and the pages fill the blocks well.
WINDOW_BLOCK = 32
# In the first layouts, a block holds all layers. In the others, the blocks of a layer follow one another. vLLM has
# older names for some of them.
ARENA_LAYOUTS = ("BLHNC", "BLNHC")
LAYER_LAYOUTS = ("LBNHC", "LBHNC", "NHD", "HND")


@dataclass(frozen=True)
class Release:
    """Makes the specifications of KV layers, which differ between vLLM's releases."""

    # Takes n_kv_heads, head_size, block_bytes, max_drafts and n_pages, the number of a block's pages.
    sealed_spec: Callable[..., Any]
    # Takes n_kv_heads, head_size, block_bytes, blocks_per_request, n_pages, max_drafts and has_sink_block.
    tail_spec: Callable[..., Any]


class TailLayer(AttentionLayerBase):
    """Asks vLLM for the memory of the tails of one attention layer, as a KV layer of its own."""

    def __init__(self, state, backend, release: Release):
        self.kvant, self._backend, self._release = state, backend, release
        # vLLM replaces the tensor when it binds the blocks.
        self.kv_cache = torch.tensor([])

    def get_attn_backend(self):
        return self._backend

    def get_kv_cache_spec(self, vllm_config):
        layout, n_pages = self.kvant.layout, hybrids.pages_of(vllm_config)
        n_blocks = -(-layout.own_blocks // n_pages)
        return self._release.tail_spec(layout.n_kv_heads, layout.head_dim, layout.block_bytes, n_blocks, n_pages,
                                       self.kvant.max_drafts, layout.has_sink_block)


def wrap_attention(release: Release) -> None:
    original_init, original_spec = Attention.__init__, Attention.get_kv_cache_spec
    signature = inspect.signature(original_init)

    @functools.wraps(original_init)
    def __init__(self, *args, **kwargs):
        given, vllm_config = signature.bind(self, *args, **kwargs), get_current_vllm_config()
        if drafters.is_making_drafter(vllm_config) and (state_of(vllm_config) is not None or has_cache_type(given.arguments)):
            if state_of(vllm_config) is None:
                refuse_unsupported(vllm_config, uses_arenas())
            with drafters.left_to_vllm(given.arguments, vllm_config):
                original_init(*given.args, **given.kwargs)
            drafters.demand_pages(self)
            self.attn_backend = with_own_type(self.attn_backend, self.kv_cache_dtype)
            return
        is_left = leave_windowed(given.arguments, vllm_config)
        demand_backend(given.arguments, vllm_config)
        original_init(*given.args, **given.kwargs)
        if is_left:
            self.attn_backend = with_own_type(self.attn_backend, self.kv_cache_dtype)
        if self.attn_backend.get_name() == "CUSTOM" and self.kv_cache_dtype in CACHE_TYPES:
            if type(self).get_kv_cache_spec is not get_kv_cache_spec:
                raise NotImplementedError(f"kvant does not support layers of the kind {type(self).__name__}")
            _attach(self, vllm_config, release)

    @functools.wraps(original_spec)
    def get_kv_cache_spec(self, vllm_config):
        if hasattr(self, "kvant"):
            layout = self.kvant.layout
            if self is self.kvant.layers[0]:
                stages_of(vllm_config).check(len(self.kvant.layers))
            return release.sealed_spec(layout.n_kv_heads, layout.head_dim, layout.block_bytes, self.kvant.max_drafts,
                                       hybrids.pages_of(vllm_config))
        return spec_of_other(self, functools.partial(original_spec, self), vllm_config)

    Attention.__init__, Attention.get_kv_cache_spec = __init__, get_kv_cache_spec


def leave_windowed(arguments: dict[str, Any], vllm_config) -> bool:
    """Changes the arguments of a layer that vLLM is making, if the layer has a sliding window and kvant's cache type, and
    returns whether that is so."""
    cache = arguments.get("cache_config")
    if not has_cache_type(arguments):
        return False
    if arguments.get("per_layer_sliding_window") is None and cache.sliding_window is None:
        return False
    if vllm_config.model_config.is_hybrid:
        raise NotImplementedError("kvant does not support hybrid models with a sliding window")
    if vllm_config.kv_transfer_config is not None:
        raise NotImplementedError("kvant does not support CPU offload (--kv-offloading-size) of models with a sliding window yet")
    if vllm_config.parallel_config.pipeline_parallel_size > 1 and not getattr(vllm_config.model_config.hf_text_config, "layer_types", None):
        raise NotImplementedError("kvant does not support pipeline parallelism for a model with a sliding window whose configuration "
                                  "does not list layer_types")
    arguments["cache_config"] = copy.copy(cache)
    arguments["cache_config"].cache_dtype = (FP8 if has_fp8_windows(vllm_config.additional_config)
                                             else unquantized_type(vllm_config.model_config))
    # None lets vLLM choose.
    vllm_config.attention_config.backend_per_kind.setdefault(WINDOWED, None)
    return True


def demand_backend(arguments: dict[str, Any], vllm_config) -> None:
    """Checks the arguments of a layer that vLLM is making. Raises ValueError if the layer has kvant's cache type but
    another backend. vLLM would only say that no other backend supports the type."""
    cache, config = arguments.get("cache_config"), vllm_config.attention_config
    chosen = config.backend_per_kind.get("full_attention", config.backend)
    if has_cache_type(arguments) and getattr(chosen, "name", chosen) != "CUSTOM":
        raise ValueError(f"kvant: --kv-cache-dtype {cache.cache_dtype} needs --attention-backend CUSTOM")


def spec_of_other(layer, original_spec: Callable[..., Any], vllm_config):
    """Returns the specification of a layer that is not kvant's. If a block belongs to one layer, all blocks must have the
    size of kvant's."""
    state = state_of(vllm_config)
    if state is None:
        if vllm_config.cache_config.cache_dtype in CACHE_TYPES:
            raise NotImplementedError("kvant does not quantize layers with a sliding window, and this model has no others: "
                                      "use --kv-cache-dtype auto")
        return original_spec(vllm_config)
    if layer.is_draft_layer:
        if drafters.OTHERS not in state.others:
            state.others = drafters.OTHERS if state.is_all else f"{state.others}, {drafters.OTHERS}"
    elif has_fp8_windows(vllm_config.additional_config):
        state.others = "layers with a sliding window stay in FP8"
    state.is_all = False
    if isinstance(state.layout, ArenaLayout):
        own = copy.copy(vllm_config)
        own.cache_config = copy.copy(vllm_config.cache_config)
        # With blocks of PAGE tokens, a drafter's layer shares the blocks and the block table of sealed pages.
        own.cache_config.block_size = WINDOW_BLOCK if layer.sliding_window is not None else PAGE
        return original_spec(own)
    block_bytes = state.layout.block_bytes
    vllm_config.cache_config.skip_page_size_padded = block_bytes
    try:
        spec = original_spec(vllm_config)
        page_bytes = spec.page_size_bytes if spec is not None else block_bytes
    # vLLM raises AssertionError if pages do not fit into blocks.
    except AssertionError:
        page_bytes = None
    if page_bytes != block_bytes:
        raise NotImplementedError(f"kvant's blocks of {block_bytes} bytes are too small for the model's other layers, "
                                  "such as those with a sliding window: a recipe with more bits may help")
    return spec


def state_of(vllm_config):
    """Returns the state that the model's layers share so far, or None."""
    layers = vllm_config.compilation_config.static_forward_context.values()
    return next((x.kvant for x in layers if isinstance(x, TailLayer)), None)


def _attach(layer, vllm_config, release: Release) -> None:
    """Makes a layer one of kvant's: the layer joins the model's state and gets a KV layer for its tails."""
    from kvant.vllm import backend

    refuse_unsupported(vllm_config, uses_arenas())
    if layer.head_size_v != layer.head_size:
        raise NotImplementedError("kvant does not support values whose head size differs from the head size of keys")
    state = state_of(vllm_config)
    mine = _new_state(layer, vllm_config)
    is_packed = uses_arenas()
    if state is None:
        state, stages = mine, stages_of(vllm_config)
        state.layers_before, state.of_stage = stages.n_before, stages.text
        if isinstance(state.layout, ArenaLayout):
            state.layout = _layout_of_stages(state.layout, stages.n_cached)
        _add_constants(state, vllm_config, stages, backend.logger)
    elif _shape_of(state) != _shape_of(mine):
        raise NotImplementedError("kvant needs the same heads, head size, softmax scale and soft cap in all layers; "
                                  f"{layer.layer_name} differs")
    state.layers.append(layer)
    if isinstance(state.layout, ArenaLayout) and not state.recipe.by_head:
        state.layout = replace(state.layout, layer_bytes=len(state.layers) * state.layout.layer_bytes[:1])
    layer.kvant, pool = state, None
    if vllm_config.model_config.is_hybrid:
        pool = hybrids.HybridPool(vllm_config, state, is_packed)
        state.is_all, state.others = False, hybrids.OTHERS
        hybrids.seal_before_states(state_of)
    layer.attn_backend = _for_layout(backend.KvantBackend, is_packed, pool)
    vllm_config.compilation_config.static_forward_context[layer.layer_name + TAIL_SUFFIX] = TailLayer(
        state, _for_layout(backend.KvantTailBackend, is_packed, pool), release)


def _shape_of(state) -> tuple:
    return state.layout.n_kv_heads, state.layout.head_dim, state.n_heads, state.softmax_scale, state.softcap


def _new_state(layer, vllm_config):
    from kvant.torch import TorchLibrary
    from kvant.paged.model_state import ModelState

    recipe, library = find_recipe(layer.kv_cache_dtype, vllm_config.additional_config), TorchLibrary()
    sizes = []
    for format in (recipe.key_format, recipe.value_format):
        sizes.append(library.page_bytes(format, layer.head_size))
        if not sizes[-1] or not library.can_seal(format):
            raise NotImplementedError(f"kvant has no format {format} for heads of {layer.head_size} channels (recipe {recipe.text})")
    drafts = n_drafts(vllm_config)
    common = dict(sink_tokens=recipe.sink, tail_pages=2 if drafts else 1, has_rows=library.has_rows)
    # The pages of a layer in a block of several pages follow one another, whatever the other layers need.
    if uses_arenas() and not vllm_config.model_config.is_hybrid:
        layout = ArenaLayout(layer.num_kv_heads, layer.head_size, (layer.num_kv_heads * sum(sizes),), **common)
        # vLLM's CPU offload stores blocks by the numbers of their pages, so sinks then stay with first pages.
        if vllm_config.kv_transfer_config is None:
            layout = _with_small_blocks(layout)
    else:
        layout = BlockLayout(layer.num_kv_heads, layer.head_size, *sizes, **common)
    if recipe.has_integer_prompts and (layer.impl.softcap or layer.impl.sinks is not None):
        raise NotImplementedError("kvant's prompts in 8-bit integers (prompt=flashq) do not support soft-capped scores and attention sinks: "
                                  "use prompt=exact")
    if recipe.has_sas and (layer.impl.softcap or layer.impl.sinks is not None):
        raise NotImplementedError("kvant's approximation of the exponential (softmax=sas) does not support soft-capped scores and attention "
                                  "sinks: use softmax=exact")
    return ModelState(recipe, layout, layer.num_heads, layer.impl.scale, drafts, softcap=layer.impl.softcap)


def _with_small_blocks(layout: ArenaLayout) -> ArenaLayout:
    """Returns the layout with sinks in blocks of their own, if sealed blocks are then smaller. Blocks with few heads and
    few bits stay as large as a tail page."""
    # The sinks of eight layers fill whole tiles.
    shared = replace(layout, layer_bytes=8 * layout.layer_bytes)
    apart = replace(shared, has_sink_block=True)
    return replace(layout, has_sink_block=apart.block_bytes < shared.block_bytes)


def uses_arenas() -> bool:
    """Returns whether a block holds all layers. VLLM_KV_CACHE_LAYOUT may ask for one of LAYER_LAYOUTS."""
    return vllm.envs.VLLM_KV_CACHE_LAYOUT not in LAYER_LAYOUTS


def _layout_of_stages(layout: ArenaLayout, n_cached: Sequence[int]) -> ArenaLayout:
    """Returns the layout of a stage's first layer. vLLM demands equal blocks of all stages, and n_cached holds the
    number of each stage's layers."""
    sizes = [replace(layout, layer_bytes=n * layout.layer_bytes).block_bytes for n in n_cached]
    return replace(layout, least_block_bytes=max(sizes, default=0))


def _add_constants(state, vllm_config, stages: Stages, log) -> None:
    """Loads the model's constants before its first layer gets its blocks, and logs what serves."""
    from kvant.vllm import constants

    serves_by_head, why = isinstance(state.layout, ArenaLayout), ""
    path = constants_file(vllm_config.additional_config)
    if path is None:
        without_constants(state.recipe, CONSTANTS_EXAMPLE)
        if serves_by_head and state.recipe.may_be_allocated:
            path, why = constants.find_constants(state.recipe, vllm_config, state.softmax_scale, lambda line: log.info("%s", line))
    if path is not None:
        found = constants.constants_of_rank(path, state.recipe, vllm_config, state.softmax_scale, serves_by_head, stages)
        state.recipe, state.constants = found.recipe, found.of_model
        if found.of_ranks:
            state.layout = _layout_of_ranks(state, found)
        if found.warning:
            log.warning("%s", found.warning)
    if (line := resolved_line(state.recipe, serves_by_head, why)) is not None:
        log.info("%s", line)


def _layout_of_ranks(state, found) -> ArenaLayout:
    """Returns the layout of a rank whose formats differ by layer and head. vLLM demands equal blocks of all ranks and
    stages."""
    from kvant.torch import TorchLibrary

    library, layout = TorchLibrary(), state.layout
    of_ranks = []
    for recipe in found.of_ranks:
        for format in sorted(recipe.formats):
            if not library.page_bytes(format, layout.head_dim) or not library.can_seal(format):
                raise NotImplementedError(f"kvant has no format {format} for heads of {layout.head_dim} channels (recipe {recipe.name})")
        formats = formats_of_layers(recipe, layout.n_kv_heads, lambda name: library.page_bytes(name, layout.head_dim))
        of_ranks.append(replace(layout, layer_bytes=tuple(x.block_bytes for x in formats), least_block_bytes=0))
    mine = of_ranks[found.of_ranks.index(found.recipe)]
    return replace(mine, least_block_bytes=max(x.block_bytes for x in of_ranks))


def _for_layout(backend, is_packed: bool, pool: hybrids.HybridPool | None):
    layouts = ARENA_LAYOUTS if is_packed else LAYER_LAYOUTS[:2]
    return type(backend.__name__, (backend,), {"layouts": layouts, "pool": pool})
