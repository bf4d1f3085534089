"""Tells the builders of vLLM's backends the cache type of their own layers. Builders read the cache type from the
server's configuration, which names one of kvant's. FLASH_ATTN would take the type for FP8, and its kernel would get a
schedule for other tiles than it has."""

from __future__ import annotations

import copy
import functools


@functools.cache
def with_own_type(backend, cache_type: str):
    """Returns the backend with builders that know the cache type of the layers."""

    @functools.cache
    def get_builder_cls():
        original = backend.get_builder_cls()

        def __init__(self, kv_cache_spec, layer_names, vllm_config, device, **more):
            own = copy.copy(vllm_config)
            own.cache_config = copy.copy(vllm_config.cache_config)
            own.cache_config.cache_dtype = cache_type
            original.__init__(self, kv_cache_spec, layer_names, own, device, **more)

        return type(original.__name__, (original,), {"__init__": __init__})

    return type(backend.__name__, (backend,), {"get_builder_cls": staticmethod(get_builder_cls)})
