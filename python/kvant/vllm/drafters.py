"""Leaves the attention layers of a drafter (a draft model, a head of EAGLE or MTP) to vLLM. The layers lie in the
same blocks as kvant's sealed pages, and are unquantized unless the user chooses otherwise."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.attention.backend import MultipleOf

from kvant import PAGE
from kvant.vllm.recipes import CACHE_TYPES

# vLLM sets one of these names while it makes the layers of a drafter.
TAGS = ("draft_model", "eagle_head")
KINDS = ("full_attention", "sliding_window")
OTHERS = "the drafter's layers stay as vLLM keeps them"


def has_cache_type(arguments: dict[str, Any]) -> bool:
    """Returns whether the arguments of an attention layer ask for one of kvant's cache types."""
    cache = arguments.get("cache_config")
    return cache is not None and cache.cache_dtype in CACHE_TYPES


def unquantized_type(model_config) -> str:
    """Returns the cache type of layers that are neither kvant's nor quantized."""
    return "float16" if model_config.dtype == torch.float16 else "bfloat16"


def is_making_drafter(vllm_config) -> bool:
    if vllm_config.speculative_config is None:
        return False
    from vllm.compilation import backends

    return backends.model_tag in TAGS


@contextlib.contextmanager
def left_to_vllm(arguments: dict[str, Any], vllm_config) -> Iterator[None]:
    """Changes the arguments of a drafter's layer, and the choice of backends while vLLM makes the layer. Where users
    have chosen a cache type or a backend for drafters (--speculative-config), that choice holds."""
    if arguments.get("kv_sharing_target_layer_name") is not None:
        raise NotImplementedError("kvant does not support drafters that read the served model's cache, such as MTP of Gemma 4")
    if has_cache_type(arguments):
        arguments["cache_config"] = copy.copy(arguments["cache_config"])
        arguments["cache_config"].cache_dtype = unquantized_type(vllm_config.model_config)
    by_kind = vllm_config.attention_config.backend_per_kind
    before = dict(by_kind)
    # None lets vLLM choose.
    by_kind.update(dict.fromkeys(KINDS, vllm_config.speculative_config.attention_backend))
    try:
        yield
    finally:
        by_kind.clear()
        by_kind.update(before)


def demand_pages(layer) -> None:
    """Raises NotImplementedError if a drafter's layer shares the block table of sealed pages, but its backend cannot read
    pages of PAGE tokens. vLLM would only name the sizes, after it has loaded the weights."""
    sizes = layer.attn_backend.get_supported_kernel_block_sizes()
    if layer.sliding_window is None and not any(PAGE % x.base == 0 if isinstance(x, MultipleOf) else x == PAGE for x in sizes):
        raise NotImplementedError(f"kvant needs a drafter whose backend reads pages of {PAGE} tokens, and {layer.attn_backend.get_name()} "
                                  "does not: set \"attention_backend\": \"FLASH_ATTN\" in --speculative-config")
