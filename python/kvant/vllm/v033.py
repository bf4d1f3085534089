"""Connects the plug-in to vLLM 0.33. Cache types are registered. A specification states the bytes of a block as the
bytes of one state of 128 tokens. Tails use vLLM's ring buffer, which is never shared and has no slots for single
tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.kv_cache_interface import CircularBufferSpec, FullAttentionSpec, KVQuantMode
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvant import PAGE
from kvant.vllm.attach import Release, wrap_attention
from kvant.vllm.managers import KvantSealedManager, KvantTailManager
from kvant.vllm.recipes import CACHE_TYPES
from kvant.vllm.refusals import OFFLOAD


def register() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "kvant.vllm.backend.KvantBackend")
    _add_cache_types()
    add_specs()
    wrap_attention(RELEASE)
    use_own_connector()


def use_own_connector() -> None:
    """Makes vLLM take kvant's connector for CPU offload in place of its own."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    KVConnectorFactory._registry.pop(OFFLOAD, None)
    KVConnectorFactory.register_connector(OFFLOAD, "kvant.vllm.offload", "KvantOffloadingConnector")


def _add_cache_types() -> None:
    from vllm.config.cache import register_kv_cache_dtype

    for cache_type in CACHE_TYPES:
        register_kv_cache_dtype(cache_type)(type("KvantCacheType", (_CacheType,), {"name": cache_type}))


class _CacheType:
    """Describes a cache type to vLLM."""

    name = ""

    def torch_dtype(self):
        return torch.uint8

    def quant_mode(self):
        return KVQuantMode.CUSTOM


@dataclass(frozen=True, kw_only=True)
class KvantSealedSpec(FullAttentionSpec):
    """Specifies blocks of one sealed page, or of several pages for a hybrid model."""

    max_drafts: int = 0

    @classmethod
    def merge(cls, specs):
        # vLLM calls merge() to find out whether specifications can be merged, and expects an AssertionError if they
        # cannot.
        if any(spec != specs[0] for spec in specs):
            raise AssertionError("kvant: all layers must have the same KV heads, head size and recipe")
        return specs[0]


@dataclass(frozen=True, kw_only=True)
class KvantTailSpec(CircularBufferSpec):
    """Specifies a fixed number of own blocks per request."""

    blocks_per_request: int = 0
    max_drafts: int = 0
    # The flag is true if the first block of a request has its sinks.
    has_sink_block: bool = False

    @property
    def prefix_cacheable(self) -> bool:
        return self.has_sink_block

    def max_memory_usage_bytes(self, vllm_config) -> int:
        return self.blocks_per_request * self.page_size_bytes

    def max_num_blocks_per_req(self, vllm_config, max_len: int) -> int:
        return self.blocks_per_request


def _common(n_kv_heads: int, head_size: int, block_bytes: int, n_pages: int) -> dict:
    # vLLM's worker divides blocks of several pages into pages if the distance of blocks is a multiple of a page.
    divided = dict(block_stride_alignment=MultipleOf(PAGE)) if n_pages > 1 else {}
    return dict(block_size=n_pages * PAGE, num_kv_heads=n_kv_heads, head_size=head_size, dtype=torch.uint8, num_head_slots=1,
                tokens_per_state=PAGE, state_content_bytes=block_bytes, **divided)


def sealed_spec(n_kv_heads: int, head_size: int, block_bytes: int, max_drafts: int = 0, n_pages: int = 1) -> KvantSealedSpec:
    return KvantSealedSpec(**_common(n_kv_heads, head_size, block_bytes, n_pages), max_drafts=max_drafts)


def tail_spec(n_kv_heads: int, head_size: int, block_bytes: int, blocks_per_request: int, n_pages: int = 1, max_drafts: int = 0,
              has_sink_block: bool = False) -> KvantTailSpec:
    return KvantTailSpec(**_common(n_kv_heads, head_size, block_bytes, n_pages), blocks_per_request=blocks_per_request,
                         max_drafts=max_drafts, has_sink_block=has_sink_block)


RELEASE = Release(sealed_spec, tail_spec)


def add_specs() -> None:
    # vLLM registers its own specifications only into an empty list, so they must be registered first.
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(KvantSealedSpec, KvantSealedManager, uniform_type_base_spec=FullAttentionSpec)
    KVCacheSpecRegistry.register(KvantTailSpec, KvantTailManager, uniform_type_base_spec=KvantTailSpec)
