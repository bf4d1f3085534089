"""Extends the block managers of vLLM's scheduler for sealed blocks and tail blocks. The managers read
`blocks_per_request` or `max_drafts` from their specification (v033)."""

from __future__ import annotations

import sys

from vllm.v1.core.kv_cache_utils import resolve_block_hashes
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager


class KvantSealedManager(FullAttentionManager):
    """Publishes a full page of decoded tokens one step after the page is full. The page is sealed before the next step
    (FilledPages), or with drafts while layers attend (draft_rows). No other request of the step that fills the page may
    therefore share the page. Pages that a prompt fills are published at once, because each layer seals them before it
    attends."""

    supports_fine_grained_hash_lookup = False

    def cache_blocks(self, request, num_tokens, *args, **kwargs) -> None:
        """num_tokens counts the tokens after the step, without drafts."""
        super().cache_blocks(request, n_published(request, num_tokens, self.kv_cache_spec.max_drafts), *args, **kwargs)


def n_published(request, num_tokens: int, max_drafts: int) -> int:
    """Returns how many of the num_tokens tokens after a step other requests may share."""
    computed = request.num_computed_tokens
    return min(num_tokens, computed) if num_tokens <= computed + 1 + max_drafts else num_tokens


class KvantTailManager(SingleTypeKVCacheManager):
    """Gives a request its own blocks in its first step: the block of its sinks, if sinks have blocks, and its tail blocks.
    A prefix hit is a whole number of pages and therefore needs no tail block. Requests with the same first page share
    the block of the sinks. This block is published together with the first page, and a request hits no page without
    it."""

    def get_num_blocks_to_allocate(self, request_id, num_tokens, new_computed_blocks, *args, **kwargs) -> int:
        if self.req_to_blocks.get(request_id):
            return 0
        return (self.kv_cache_spec.blocks_per_request - len(new_computed_blocks)
                + self._get_num_evictable_blocks(new_computed_blocks))

    def allocate_new_blocks(self, request_id, num_tokens, num_tokens_main_model) -> list:
        held = self.req_to_blocks[request_id]
        n_missing = self.kv_cache_spec.blocks_per_request - len(held)
        if n_missing == 0:
            return []
        new = self.block_pool.get_new_blocks(n_missing)
        held.extend(new)
        return new

    def add_local_computed_blocks(self, request_id, new_computed_blocks, *args, **kwargs) -> None:
        """Takes the block of the sinks that find_longest_cache_hit has found, if there is one."""
        if new_computed_blocks:
            self.block_pool.touch(new_computed_blocks)
            self.req_to_blocks[request_id].extend(new_computed_blocks)
            self.num_cached_block[request_id] = len(new_computed_blocks)

    def allocate_external_computed_blocks(self, request_id, *args, **kwargs) -> None:
        """Gives the request its tail blocks before its sealed pages are loaded, so the request can go on after the
        load."""
        self.allocate_new_blocks(request_id, 0, 0)

    def cache_blocks(self, request, num_tokens, *args, **kwargs) -> None:
        """Publishes the block of the sinks when the request's first page is published."""
        if not self.kv_cache_spec.has_sink_block or self.num_cached_block.get(request.request_id, 0) > 0:
            return
        # Hashes may cover the next token too, so the newest full page may have no hash yet.
        n_hashed = len(request.block_hashes) * self.block_pool.hash_block_size
        if min(n_published(request, num_tokens, self.kv_cache_spec.max_drafts), n_hashed) < self.block_size:
            return
        blocks = self.req_to_blocks[request.request_id]
        self.block_pool.cache_full_blocks(
            request=request, blocks=blocks, num_cached_blocks=0, num_full_blocks=1, block_size=self.block_size,
            kv_cache_group_id=self.kv_cache_group_id)
        # vLLM reports the least number of cached tokens of all groups to users. This group does not limit the number.
        blocks[0]._block_hash_num_tokens = sys.maxsize
        self.num_cached_block[request.request_id] = 1

    def remove_skipped_blocks(self, *args, **kwargs) -> None:
        pass

    def get_num_common_prefix_blocks(self, running_request_id) -> int:
        return 0

    @classmethod
    def find_longest_cache_hit(cls, block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, *args,
                               alignment_tokens, **kwargs):
        """Returns the block of the sinks and max_length if a request with the same first page has published the block, and
        no hit otherwise."""
        length = max_length // alignment_tokens * alignment_tokens
        none = tuple([] for _ in kv_cache_group_ids)
        if not kv_cache_spec.has_sink_block or length == 0:
            return none, length
        hashes = resolve_block_hashes(block_hashes, block_pool.hash_block_size, kv_cache_spec.block_size)
        found = block_pool.get_cached_block(hashes[0], kv_cache_group_ids)
        return (tuple([block] for block in found), length) if found else (none, 0)
