"""Lets vLLM's own CPU offload (`--kv-offloading-size`) keep sealed pages in the machine's memory.

vLLM stores and loads whole blocks. A block of sealed pages has the pages of all layers, and the sink if the block is a
sequence's first. Tails are never stored (`CircularBufferSpec.prefix_cacheable`): after a load, the request computes the
tokens of its open page again."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from kvant import PAGE
from kvant.vllm.attach import state_of
from kvant.vllm.recipes import CACHE_TYPES


class KvantOffloadingConnector(OffloadingConnector):
    """Extends vLLM's connector by what sealed pages need. With other cache types, nothing differs."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config) -> str | None:
        """Returns None for kvant's cache, so the cache keeps the layout that it would have without offload."""
        return None if _is_served(vllm_config) else super().get_required_kvcache_layout(vllm_config)

    def _max_loadable_tokens(self, request, num_computed_tokens: int) -> int | None:
        """Returns how many tokens after the first num_computed_tokens may be loaded. vLLM would also load the page of the
        last token, and compute this token again. Its page would then be sealed, and its tail would be empty."""
        most = super()._max_loadable_tokens(request, num_computed_tokens)
        if not _is_served(self._vllm_config):
            return most
        own = max(0, (request.num_tokens - 1) // PAGE * PAGE - num_computed_tokens)
        return own if most is None else min(own, most)

    def wait_for_save(self) -> None:
        """Seals the pages that the step has filled with decoded tokens. vLLM calls this method after a step, and then
        begins to store pages, even if the next step has no tokens. vLLM also begins to load pages into blocks that a
        request has given back."""
        state = state_of(self._vllm_config)
        if state is not None:
            state.seal_filled()
        super().wait_for_save()


def _is_served(vllm_config) -> bool:
    return vllm_config.cache_config.cache_dtype in CACHE_TYPES
