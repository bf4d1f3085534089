"""Connects the plug-in to vLLM 0.26. This file holds everything that another release may need differently:

- cache types: `--kv-cache-dtype` is a closed list, which `register` extends;
- specifications of both KV layers: they state the bytes of a page as a property, and all layers need blocks of one
size."""

from __future__ import annotations

import typing
from dataclasses import dataclass

import torch
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvant import PAGE
from kvant.vllm.attach import Release, wrap_attention
from kvant.vllm.managers import KvantSealedManager, KvantTailManager
from kvant.vllm.recipes import CACHE_TYPES


def register() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "kvant.vllm.backend.KvantBackend")
    _add_cache_types()
    add_specs()
    wrap_attention(RELEASE)


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
    # VllmConfig embeds the schema.
    pydantic.dataclasses.rebuild_dataclass(vllm.config.vllm.VllmConfig, force=True)


@dataclass(frozen=True, kw_only=True)
class KvantSealedSpec(FullAttentionSpec):
    """Specifies blocks of 128 tokens for sealed pages."""

    block_bytes: int = 0
    max_drafts: int = 0

    @property
    def real_page_size_bytes(self) -> int:
        return self.block_bytes

    @classmethod
    def merge(cls, specs):
        # vLLM calls merge() to find out whether specifications can be merged, and expects an AssertionError if they
        # cannot.
        if any(spec != specs[0] for spec in specs):
            raise AssertionError("kvant: all layers must have the same KV heads, head size and recipe")
        return specs[0]


@dataclass(frozen=True, kw_only=True)
class KvantTailSpec(AttentionSpec):
    """Specifies a fixed number of tail blocks per request."""

    block_bytes: int = 0
    blocks_per_request: int = 0

    @property
    def real_page_size_bytes(self) -> int:
        return self.block_bytes

    def max_memory_usage_bytes(self, vllm_config) -> int:
        return self.blocks_per_request * self.page_size_bytes


def sealed_spec(n_kv_heads: int, head_size: int, block_bytes: int, max_drafts: int = 0) -> KvantSealedSpec:
    return KvantSealedSpec(block_size=PAGE, num_kv_heads=n_kv_heads, head_size=head_size, dtype=torch.uint8,
                           block_bytes=block_bytes, max_drafts=max_drafts)


def tail_spec(n_kv_heads: int, head_size: int, block_bytes: int, blocks_per_request: int) -> KvantTailSpec:
    return KvantTailSpec(block_size=PAGE, num_kv_heads=n_kv_heads, head_size=head_size, dtype=torch.uint8,
                         block_bytes=block_bytes, blocks_per_request=blocks_per_request)


# The second model runner of vLLM 0.26 has no drafts by n-grams, and other methods need a draft model.
RELEASE = Release(sealed_spec, tail_spec, drafts_of=(), has_arenas=False)


def add_specs() -> None:
    # vLLM registers its own specifications only into an empty list, so they must be registered first.
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(KvantSealedSpec, KvantSealedManager, uniform_type_base_spec=FullAttentionSpec)
    KVCacheSpecRegistry.register(KvantTailSpec, KvantTailManager, uniform_type_base_spec=KvantTailSpec)
