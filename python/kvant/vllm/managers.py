"""Extends the block managers of vLLM's scheduler for sealed blocks and tail blocks. The managers read
`blocks_per_request` or `max_drafts` from their specification (v033)."""

from __future__ import annotations

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager


class KvantSealedManager(FullAttentionManager):
    """Publishes a full page of decoded tokens one step after the page is full. The page is sealed before the next step
    (FilledPages), or with drafts while layers attend (draft_rows). No other request of the step that fills the page may
    therefore share the page. Pages that a prompt fills are published at once, because each layer seals them before it
    attends."""

    supports_fine_grained_hash_lookup = False

    def cache_blocks(self, request, num_tokens, *args, **kwargs) -> None:
        """num_tokens counts the tokens after the step, without drafts."""
        computed = request.num_computed_tokens
        if num_tokens <= computed + 1 + self.kv_cache_spec.max_drafts:
            num_tokens = min(num_tokens, computed)
        super().cache_blocks(request, num_tokens, *args, **kwargs)


class KvantTailManager(SingleTypeKVCacheManager):
    """Gives a request its tail blocks in its first step. No request shares them. A prefix hit is a whole number of
    pages and therefore needs no tail block."""

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

    def allocate_external_computed_blocks(self, request_id, *args, **kwargs) -> None:
        """Gives the request its tail blocks before its sealed pages are loaded, so the request can go on after the
        load."""
        self.allocate_new_blocks(request_id, 0, 0)

    def cache_blocks(self, *args, **kwargs) -> None:
        pass

    def remove_skipped_blocks(self, *args, **kwargs) -> None:
        pass

    def get_num_common_prefix_blocks(self, running_request_id) -> int:
        return 0

    @classmethod
    def find_longest_cache_hit(cls, block_hashes, max_length, kv_cache_group_ids, *args, alignment_tokens, **kwargs):
        return tuple([] for _ in kv_cache_group_ids), max_length // alignment_tokens * alignment_tokens
