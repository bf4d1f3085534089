"""Checks drafts that a model makes, with vLLM's files: the drafter's layers, the blocks that vLLM's planner gives them next
to kvant's pages, and the hits that vLLM's managers find. `test_vllm` runs this file."""

import unittest

import vllm_checks as checks  # first, because it loads vLLM's files
import torch
import vllm.v1.core.kv_cache_utils as kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from kvant.vllm import attach
from kvant.vllm import v033 as release
from vllm_model import drafter_layer, layer, of_model, supported, use

attach.wrap_attention(release.RELEASE)


class Drafters(unittest.TestCase):
    def use(self, vllm_config):
        return use(self, vllm_config, checks.Library)

    def layers_of(self, vllm_config):
        return list(vllm_config.compilation_config.static_forward_context.values())

    def served_with_drafter(self, n_layers, n_draft_layers, tag="eagle_head", speculative=None, heads=checks.KV_HEADS, **of_drafter):
        """Returns the configuration of a model with n_layers layers and a drafter."""
        vllm_config = self.use(supported(speculative_config=speculative or of_model()))
        for i in range(n_layers):
            layer(vllm_config, i, heads=heads)
        for i in range(n_draft_layers):
            drafter_layer(vllm_config, n_layers + i, tag, heads=heads, **of_drafter)
        return vllm_config

    def specs(self, vllm_config):
        """Returns the specifications by layer, marked as vLLM's worker marks them."""
        specs = {}
        for name, of_layer in vllm_config.compilation_config.static_forward_context.items():
            spec = of_layer.get_kv_cache_spec(vllm_config)
            specs[name] = attach.replace(spec, is_draft=True) if of_layer.is_draft_layer else spec
        return specs

    def test_layers_of_drafters_share_the_blocks_of_sealed_pages(self):
        for n_layers, n_draft_layers, tag in ((32, 1, "eagle_head"), (32, 5, "draft_model"), (4, 4, "draft_model"), (4, 1, "eagle_head")):
            vllm_config = self.served_with_drafter(n_layers, n_draft_layers, tag)
            specs = self.specs(vllm_config)
            of_drafter = [name for name, spec in specs.items() if spec.is_draft]
            self.assertEqual({(type(specs[name]), specs[name].dtype.name, specs[name].block_size) for name in of_drafter},
                             {(FullAttentionSpec, "bfloat16", 128)})
            self.assertEqual(len(of_drafter), n_draft_layers)
            planned, tokens = checks.plan(specs)
            sealed, tails = planned.kv_cache_groups
            # The layers of the model come first, and choose the manager.
            self.assertIsInstance(sealed.kv_cache_spec.first_spec, release.KvantSealedSpec)
            # The drafter's layers write by slots. Tails have no slots.
            self.assertEqual((sealed.kv_cache_spec.uses_slot_mapping, tails.kv_cache_spec.uses_slot_mapping), (True, False))
            self.assertEqual((len(sealed.layer_names), len(tails.layer_names)), (n_layers + n_draft_layers, n_layers))
            self.assertEqual([type(group.kv_cache_spec) for group in kv_cache_utils.generate_scheduler_kv_cache_config([planned]).kv_cache_groups],
                             [release.KvantSealedSpec, release.KvantTailSpec])
            page = specs["model.layers.0.attn"].page_size_bytes
            of_block = n_layers * page + n_draft_layers * 128 * checks.KV_HEADS * checks.D * 4
            self.assertEqual(planned.num_blocks, checks.MEMORY // of_block)
            self.assertEqual({tensor.block_stride for tensor in planned.kv_cache_tensors}, {of_block})
            places = {name: tensor.offset + i * tensor.layer_stride for tensor in planned.kv_cache_tensors
                      for i, name in enumerate(tensor.layers)}
            self.assertEqual(sorted(places[name] for name in sealed.layer_names if name not in of_drafter),
                             [i * page for i in range(n_layers)])
            self.assertEqual(min(places[name] for name in of_drafter), n_layers * page)
            # A tail takes few of the request's blocks.
            self.assertGreater(tokens, .97 * 128 * planned.num_blocks)

    def test_choices_for_drafters_hold(self):
        speculative = of_model(attention_backend="TRITON_ATTN")
        vllm_config = self.served_with_drafter(1, 1, speculative=speculative)
        served, _, drafter = self.layers_of(vllm_config)
        self.assertEqual([x.get_attn_backend().get_name() for x in (served, drafter)], ["CUSTOM", "TRITON_ATTN"])
        # The served model's layers still get kvant's backend, for example when vLLM makes another model of them.
        self.assertEqual(vllm_config.attention_config.backend_per_kind, {})
        fp8 = self.served_with_drafter(1, 0)
        # vLLM puts users' choice into the configuration of the drafter.
        fp8.cache_config.cache_dtype = "fp8"
        drafter = drafter_layer(fp8, 1)
        self.assertEqual((drafter.kv_cache_dtype, drafter.get_attn_backend().get_name()), ("fp8", "FLASH_ATTN"))
        half = self.use(supported(dtype=torch.float16, speculative_config=of_model()))
        layer(half, 0)
        self.assertEqual(drafter_layer(half, 1).kv_cache_dtype, "float16")

    def test_builders_of_other_layers_know_their_cache_type(self):
        vllm_config = self.use(supported(speculative_config=of_model()))
        windowed, served, drafter = layer(vllm_config, 0, window=512), layer(vllm_config, 1), drafter_layer(vllm_config, 2)
        for of_layer in (windowed, drafter):
            backend = of_layer.get_attn_backend()
            builder = backend.get_builder_cls()(None, [of_layer.layer_name], vllm_config, None, block_table_width=3)
            self.assertEqual((builder.cache_type, builder.width, backend.__name__), ("bfloat16", 3, "FLASH_ATTN"))
            # vLLM finds the other layers by the configuration.
            self.assertIs(builder.vllm_config.compilation_config, vllm_config.compilation_config)
        # Layers of one kind have one builder.
        self.assertIs(windowed.get_attn_backend().get_builder_cls(), drafter.get_attn_backend().get_builder_cls())
        self.assertEqual((vllm_config.cache_config.cache_dtype, served.get_attn_backend().get_builder_cls().kind),
                         ("kvant_uniform_4bit", "sealed"))
        vllm_config.additional_config = {"kvant": {"windows": "fp8"}}
        builder = layer(vllm_config, 3, window=512).get_attn_backend().get_builder_cls()(None, [], vllm_config, None)
        self.assertEqual(builder.cache_type, "fp8")

    def test_windows_of_drafters_stay_with_vllm_too(self):
        vllm_config = self.served_with_drafter(4, 2, window=512)
        specs = list(self.specs(vllm_config).values())
        self.assertEqual({(type(spec), spec.block_size, spec.dtype.name) for spec in specs[8:]}, {(SlidingWindowSpec, 32, "bfloat16")})

    def test_the_start_up_line_tells_of_drafters(self):
        vllm_config = self.served_with_drafter(2, 1)
        state = self.layers_of(vllm_config)[0].kvant
        for _ in range(2):
            self.specs(vllm_config)
            self.assertEqual((state.is_all, state.others), (False, "the drafter's layers stay as vLLM keeps them"))
        vllm_config = self.use(supported(speculative_config=of_model()))
        layer(vllm_config, 0, window=1024), layer(vllm_config, 1), drafter_layer(vllm_config, 2)
        self.assertEqual(vllm_config.attention_config.backend_per_kind, {"sliding_window": None})
        self.specs(vllm_config)
        self.assertEqual(self.layers_of(vllm_config)[1].kvant.others,
                         "layers with a sliding window stay unquantized, the drafter's layers stay as vLLM keeps them")

    def test_drafters_that_are_not_supported_are_refused(self):
        vllm_config = self.served_with_drafter(1, 0)
        with self.assertRaisesRegex(NotImplementedError, "drafters that read the served model's cache, such as MTP of Gemma 4"):
            drafter_layer(vllm_config, 1, kv_sharing_target_layer_name="model.layers.0.attn")
        vllm_config.speculative_config.attention_backend = "FLASHINFER"
        with self.assertRaisesRegex(NotImplementedError, 'pages of 128 tokens, and FLASHINFER does not: set "attention_backend": "FLASH_ATTN"'):
            drafter_layer(vllm_config, 1)
        # Layers with a window have smaller pages.
        drafter_layer(vllm_config, 2, window=512)
        # Only the drafter has one of kvant's types.
        vllm_config = self.use(supported(cache_dtype="auto", backend=None, speculative_config=of_model(kv_cache_dtype="kvant_uniform_4bit")))
        layer(vllm_config, 0)
        vllm_config.cache_config.cache_dtype = "kvant_uniform_4bit"
        with self.assertRaisesRegex(NotImplementedError, "a drafter with kvant's cache yet: leave kv_cache_dtype out of --speculative-config"):
            drafter_layer(vllm_config, 1)
        # No layer of the served model is kvant's.
        vllm_config = self.use(supported(speculative_config=of_model()))
        layer(vllm_config, 0, window=1024), drafter_layer(vllm_config, 1)
        with self.assertRaisesRegex(NotImplementedError, "this model has no others"):
            self.specs(vllm_config)

    def test_drafters_of_other_cache_types_are_left_alone(self):
        # kvant would refuse the stages.
        vllm_config = self.use(supported(cache_dtype="auto", backend=None, speculative_config=of_model(), pipeline_parallel_size=2))
        served, drafter = layer(vllm_config, 0), drafter_layer(vllm_config, 1)
        self.assertEqual(drafter.kv_cache_dtype, "auto")
        self.assertIs(drafter.get_attn_backend(), served.get_attn_backend())


class Hits(unittest.TestCase):
    """Tests prefix hits. What EAGLE and MTP store for a token depends on the next token too."""

    def manager(self, window=None, **how):
        of_drafter = dict(num_kv_heads=checks.KV_HEADS, head_size=checks.D, dtype=torch.bfloat16, is_draft=True)
        of_drafter = (FullAttentionSpec(block_size=128, **of_drafter) if window is None else
                      SlidingWindowSpec(block_size=32, sliding_window=window, **of_drafter))
        _, specs = checks.layers(4, drafts=3)
        planned, _ = checks.plan(specs | {"model.layers.32.attn": of_drafter})
        planned = kv_cache_utils.generate_scheduler_kv_cache_config([planned])
        planned.num_blocks = 200
        for group in planned.kv_cache_groups:
            group.is_eagle_group = "model.layers.32.attn" in group.layer_names
        return KVCacheManager(kv_cache_config=planned, max_model_len=131072, scheduler_block_size=128, hash_block_size=of_drafter.block_size,
                              enable_caching=True, max_in_flight_tokens=16384, num_prefill_lookahead=1, **how)

    def found(self, manager, n_prompt, n_asked, hash_block=128):
        """Returns how many of n_asked equal tokens a request finds after another one with n_prompt tokens."""
        request = checks.Request("a", list(range(n_prompt)), hash_block)
        blocks, hit, *_ = manager.get_computed_blocks(request)
        # The drafter writes three tokens ahead.
        manager.allocate_slots(request, n_prompt, hit, blocks, num_lookahead_tokens=3)
        return manager.get_computed_blocks(checks.Request("b", list(range(n_asked)), hash_block))[1]

    def test_end_a_block_earlier_where_hashes_do_not_cover_the_next_token(self):
        for n_prompt, n_asked, n_found in ((1000, 1000, 768), (1000, 300, 128), (200, 200, 0)):
            self.assertEqual(self.found(self.manager(use_eagle=True), n_prompt, n_asked), n_found)

    def test_are_whole_where_drafters_do_not_need_the_next_token(self):
        for n_prompt, n_asked, n_found in ((1000, 1000, 896), (1000, 300, 256), (200, 200, 128)):
            self.assertEqual(self.found(self.manager(), n_prompt, n_asked), n_found)

    def test_are_whole_pages_if_a_drafter_has_smaller_blocks(self):
        for n_prompt, n_asked, n_found in ((1000, 1000, 896), (1000, 300, 128), (416, 420, 256)):
            self.assertEqual(self.found(self.manager(window=512, use_eagle=True), n_prompt, n_asked, 32), n_found)
        self.assertEqual(self.found(self.manager(window=512), 416, 420, 32), 384)

    def test_a_page_whose_hash_waits_for_the_next_token_is_not_published(self):
        for n_prompt, n_found in ((127, 0), (128, 0), (129, 128)):
            manager = self.manager(window=512, num_hash_lookahead_tokens=1)
            request = checks.Request("a", list(range(n_prompt)), 32)
            # The hash of a block covers the next token too.
            request.block_hashes = request.block_hashes[:(n_prompt - 1) // 32]
            blocks, hit, *_ = manager.get_computed_blocks(request)
            manager.allocate_slots(request, n_prompt, hit, blocks, num_lookahead_tokens=3)
            self.assertEqual(manager.get_computed_blocks(checks.Request("b", list(range(200)), 32))[1], n_found)

    def test_all_blocks_come_back(self):
        manager = self.manager(use_eagle=True)
        free = manager.block_pool.get_num_free_blocks()
        request = checks.Request("a", list(range(1000)))
        blocks, hit, *_ = manager.get_computed_blocks(request)
        manager.allocate_slots(request, 1000, hit, blocks, num_lookahead_tokens=3)
        self.assertLess(manager.block_pool.get_num_free_blocks(), free)
        manager.free(request)
        self.assertEqual(manager.block_pool.get_num_free_blocks(), free)


if __name__ == "__main__":
    unittest.main()
