"""The seams of vLLM 0.26: all that its next version may want otherwise.

- cache types: `--kv-cache-dtype` is a closed list, which `register` extends;
- two KV layers for each attention layer: the one that vLLM knows holds sealed pages; another, for tails, is added with it;
- specifications of both, and the managers that hand out their blocks."""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvant import PAGE
from kvant.vllm.recipes import CACHE_TYPES, find_recipe

TAIL_SUFFIX = ".kvant_tail"
NEED_CONSTANTS = ("vq", "pq", "nvq")  # beginnings of formats with codebooks


def register() -> None:
    if getattr(Attention, "_kvant_is_registered", False):
        return
    Attention._kvant_is_registered = True
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "kvant.vllm.backend.KvantBackend")
    _add_cache_types()
    _add_specs()
    _wrap_attention()


def _add_cache_types() -> None:
    import pydantic.dataclasses
    import vllm.config.cache
    import vllm.config.vllm
    import vllm.utils.torch_utils
    import vllm.v1.attention.selector

    names = typing.Literal[tuple(typing.get_args(vllm.config.cache.CacheDType)) + CACHE_TYPES]
    vllm.config.cache.CacheDType = vllm.v1.attention.selector.CacheDType = names
    for name in CACHE_TYPES:
        vllm.utils.torch_utils.STR_DTYPE_TO_TORCH_DTYPE[name] = torch.uint8
    config = vllm.config.cache.CacheConfig
    config.__annotations__["cache_dtype"] = names
    config.__dataclass_fields__["cache_dtype"].type = names
    pydantic.dataclasses.rebuild_dataclass(config, force=True)
    pydantic.dataclasses.rebuild_dataclass(vllm.config.vllm.VllmConfig, force=True)  # which embeds its schema


@dataclass(frozen=True, kw_only=True)
class KvantSealedSpec(FullAttentionSpec):
    """Blocks of 128 tokens."""

    block_bytes: int = 0

    @property
    def real_page_size_bytes(self) -> int:
        return self.block_bytes

    @classmethod
    def merge(cls, specs):
        if any(spec != specs[0] for spec in specs):  # vLLM asks in this way, and waits for this exception
            raise AssertionError("kvant: all layers must have the same KV heads, head size and recipe")
        return specs[0]


@dataclass(frozen=True, kw_only=True)
class KvantTailSpec(AttentionSpec):
    """A fixed number of blocks for each request."""

    block_bytes: int = 0
    blocks_per_request: int = 0

    @property
    def real_page_size_bytes(self) -> int:
        return self.block_bytes

    def max_memory_usage_bytes(self, vllm_config) -> int:
        return self.blocks_per_request * self.page_size_bytes


class KvantSealedManager(FullAttentionManager):
    """Pages that a decoded token fills are sealed before the next step (FilledPages), so they are published only then: no
    request of the same step may come to share them. Pages that a prompt fills are sealed at once."""

    supports_fine_grained_hash_lookup = False

    def cache_blocks(self, request, num_tokens, *args, **kwargs) -> None:
        """num_tokens: those behind the step, down to a multiple of the block size."""
        if num_tokens == request.num_computed_tokens + 1:
            num_tokens -= 1
        super().cache_blocks(request, num_tokens, *args, **kwargs)


class KvantTailManager(SingleTypeKVCacheManager):
    """A request gets its tail blocks with its first step and keeps them; they are never shared. A prefix hit of any whole number
    of pages needs none of them."""

    def get_num_blocks_to_allocate(self, request_id, *args, **kwargs) -> int:
        return 0 if self.req_to_blocks.get(request_id) else self.kv_cache_spec.blocks_per_request

    def allocate_new_blocks(self, request_id, num_tokens, num_tokens_main_model) -> list:
        held = self.req_to_blocks[request_id]
        if held:
            return []
        new = self.block_pool.get_new_blocks(self.kv_cache_spec.blocks_per_request)
        held.extend(new)
        return new

    def add_local_computed_blocks(self, *args, **kwargs) -> None:
        pass

    def allocate_external_computed_blocks(self, *args, **kwargs) -> None:
        pass

    def cache_blocks(self, *args, **kwargs) -> None:
        pass

    def remove_skipped_blocks(self, *args, **kwargs) -> None:
        pass

    def get_num_common_prefix_blocks(self, running_request_id) -> int:
        return 0

    @classmethod
    def find_longest_cache_hit(cls, block_hashes, max_length, kv_cache_group_ids, *args, alignment_tokens, **kwargs):
        return tuple([] for _ in kv_cache_group_ids), max_length // alignment_tokens * alignment_tokens


def _add_specs() -> None:
    KVCacheSpecRegistry._ensure_registered()  # it adds vLLM's own only to an empty list
    KVCacheSpecRegistry.register(KvantSealedSpec, KvantSealedManager, uniform_type_base_spec=FullAttentionSpec)
    KVCacheSpecRegistry.register(KvantTailSpec, KvantTailManager, uniform_type_base_spec=KvantTailSpec)


class TailLayer(AttentionLayerBase):
    """The KV layer of an attention layer's tails."""

    def __init__(self, state, backend):
        self.kvant, self._backend = state, backend
        self.kv_cache = torch.tensor([])  # until vLLM binds the blocks

    def get_attn_backend(self):
        return self._backend

    def get_kv_cache_spec(self, vllm_config):
        layout = self.kvant.layout
        return KvantTailSpec(block_size=PAGE, num_kv_heads=layout.n_kv_heads, head_size=layout.head_dim,
                             dtype=torch.uint8, block_bytes=layout.block_bytes, blocks_per_request=layout.tail_blocks)


def _wrap_attention() -> None:
    original_init, original_spec = Attention.__init__, Attention.get_kv_cache_spec

    @functools.wraps(original_init)
    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        if self.attn_backend.get_name() == "CUSTOM" and self.kv_cache_dtype in CACHE_TYPES:
            _attach(self, get_current_vllm_config())

    @functools.wraps(original_spec)
    def get_kv_cache_spec(self, vllm_config):
        if not hasattr(self, "kvant"):
            return original_spec(self, vllm_config)
        layout = self.kvant.layout
        return KvantSealedSpec(block_size=PAGE, num_kv_heads=layout.n_kv_heads, head_size=layout.head_dim,
                               dtype=torch.uint8, block_bytes=layout.block_bytes)

    Attention.__init__, Attention.get_kv_cache_spec = __init__, get_kv_cache_spec


def _attach(layer, vllm_config) -> None:
    """Makes a layer one of kvant's: it joins the model's state, and gets a layer for its tails."""
    from kvant.vllm import backend

    _refuse_unsupported(vllm_config)
    if layer.head_size_v != layer.head_size:
        raise NotImplementedError("kvant does not support values with another head size than keys")
    context = vllm_config.compilation_config.static_forward_context
    state = next((x.kvant for x in context.values() if isinstance(x, TailLayer)), None)
    mine = _new_state(layer, vllm_config.additional_config)
    if state is None:
        state = mine
    elif (state.layout, state.n_heads, state.softmax_scale) != (mine.layout, mine.n_heads, mine.softmax_scale):
        raise NotImplementedError("kvant needs the same heads, head size and softmax scale in all layers; "
                                  f"{layer.layer_name} differs")
    tail_blocks = state.layout.tail_blocks
    if vllm_config.model_config.max_model_len < tail_blocks * PAGE:
        raise NotImplementedError(f"kvant needs --max-model-len of at least {tail_blocks * PAGE}, as much as a request's "
                                  "newest tokens take")
    state.layers.append(layer)
    layer.kvant = state
    layer.attn_backend = _with_block_bytes(backend.KvantBackend, state.layout.block_bytes)
    context[layer.layer_name + TAIL_SUFFIX] = TailLayer(
        state, _with_block_bytes(backend.KvantTailBackend, state.layout.block_bytes))


def _new_state(layer, additional_config):
    from kvant.torch import TorchLibrary
    from kvant.paged.block_layout import BlockLayout
    from kvant.paged.model_state import ModelState

    recipe, library = find_recipe(layer.kv_cache_dtype, additional_config), TorchLibrary()
    sizes = []
    for format in (recipe.key_format, recipe.value_format):
        sizes.append(library.page_bytes(format, layer.head_size))
        if not sizes[-1] or not library.can_seal(format) or format.startswith(NEED_CONSTANTS):
            raise NotImplementedError(f"kvant has no format {format} without calibrated constants for heads of "
                                      f"{layer.head_size} channels (recipe {recipe.text})")
    layout = BlockLayout(layer.num_kv_heads, layer.head_size, *sizes, recipe.sink)
    return ModelState(recipe, layout, layer.num_heads, layer.impl.scale)


def _with_block_bytes(backend, block_bytes: int):
    return type(backend.__name__, (backend,), {"block_bytes": block_bytes})


def _refuse_unsupported(config) -> None:
    parallel, cache = config.parallel_config, config.cache_config
    refusals = {
        "drafts (speculative decoding)": config.speculative_config is not None,
        "KV connectors": config.kv_transfer_config is not None,
        "data parallelism": parallel.data_parallel_size > 1,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "decode context parallelism": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        "sleep mode": config.model_config.enable_sleep_mode,
        "--kv-cache-dtype-skip-layers": bool(cache.kv_cache_dtype_skip_layers),
        "prefix hits within a page (prefix_match_unit)": getattr(cache, "prefix_match_unit", None) not in (None, PAGE),
        "a disabled hybrid KV cache manager": config.scheduler_config.disable_hybrid_kv_cache_manager is True,
        "vLLM's first model runner, which this model or configuration asks for (VLLM_USE_V2_MODEL_RUNNER=1 may help)":
            not config.use_v2_model_runner}
    for what, is_asked in refusals.items():
        if is_asked:
            raise NotImplementedError(f"kvant does not support {what} yet")
