"""vLLM 0.26's own planner and block managers on kvant's specifications: how many tokens fit, who shares what when."""

import hashlib
import os
import pathlib
import subprocess
import sys
import types
import unittest

import vllm_stub

ALONE = "KVANT_TEST_VLLM_ALONE"  # mocks would be in the way of other tests: this one runs in a process of its own
BLOCK = 128
MEMORY = 100 << 30
LAYERS, KV_HEADS, D = 32, 8, 128
PAGE_BYTES = {4: 8704, 2: 4608}  # ch4g128 or tok4g128, ch2g128 or tok2g128, of 128 channels

if not vllm_stub.ROOT.exists():
    raise unittest.SkipTest(f"{vllm_stub.ROOT} is not there: scripts/fetch-vllm")

if ALONE not in os.environ:
    class InAProcessOfItsOwn(unittest.TestCase):
        def test_vllm_026(self):
            tests = pathlib.Path(__file__).resolve().parent
            run = subprocess.run([sys.executable, "-m", "unittest", "-v", "test_vllm_026"], cwd=tests, capture_output=True,
                                 text=True, env={**os.environ, ALONE: "1", "PYTHONPATH": str(tests.parent)})
            self.assertEqual(run.returncode, 0, run.stderr)
else:
    vllm_stub.install()
    import torch
    import vllm.v1.core.kv_cache_utils as kv_cache_utils  # not `from`: that would find a mock
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    from kvant.vllm import v026
    from kvant.paged.block_layout import BlockLayout

    v026._add_specs()
    kv_cache_utils.NONE_HASH = b"0"

    def config():
        simple = types.SimpleNamespace
        return simple(
            scheduler_config=simple(disable_hybrid_kv_cache_manager=False), kv_transfer_config=None,
            model_config=simple(max_model_len=131072, original_max_model_len=131072), max_in_flight_tokens=16384,
            parallel_config=simple(decode_context_parallel_size=1),
            cache_config=simple(num_gpu_blocks_override=None, block_size=BLOCK, enable_prefix_caching=True,
                                prefix_match_unit=None))

    def plan(specs):
        """vLLM's configuration, and the tokens that fit in requests of the greatest length."""
        of_worker = kv_cache_utils.get_kv_cache_configs(config(), [specs], [MEMORY])[0]
        return of_worker, kv_cache_utils.get_kv_cache_capacity(config(), of_worker)[0]

    def layers(bits):
        layout = BlockLayout(KV_HEADS, D, PAGE_BYTES[bits], PAGE_BYTES[bits], sink_tokens=1)
        common = dict(block_size=BLOCK, num_kv_heads=KV_HEADS, head_size=D, dtype=torch.uint8,
                      block_bytes=layout.block_bytes)
        specs = {f"model.layers.{i}.attn": v026.KvantSealedSpec(**common) for i in range(LAYERS)}
        specs |= {name + v026.TAIL_SUFFIX: v026.KvantTailSpec(**common, blocks_per_request=layout.tail_blocks)
                  for name in list(specs)}
        return layout, specs

    class Planner(unittest.TestCase):
        def test_tokens_that_fit(self):
            bf16 = FullAttentionSpec(block_size=16, num_kv_heads=KV_HEADS, head_size=D, dtype=torch.bfloat16)
            _, unquantized = plan({f"model.layers.{i}.attn": bf16 for i in range(LAYERS)})
            self.assertEqual(unquantized, MEMORY // (LAYERS * KV_HEADS * D * 4))
            for bits, ratio in ((4, 3.4), (2, 5.9)):
                layout, specs = layers(bits)
                planned, tokens = plan(specs)
                self.assertEqual(sorted(len(group.layer_names) for group in planned.kv_cache_groups), [LAYERS, LAYERS])
                self.assertEqual(planned.num_blocks, MEMORY // (LAYERS * layout.block_bytes))
                self.assertAlmostEqual(tokens / layout.tokens_that_fit(planned.num_blocks, 131072), 1, delta=1e-3)
                self.assertGreater(tokens / unquantized, ratio)

    class Request(types.SimpleNamespace):
        """What managers read of a request."""

        def __init__(self, name, tokens):
            hashes, before = [], b""
            for first in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
                before = hashlib.sha256(before + repr(tokens[first:first + BLOCK]).encode()).digest()
                hashes.append(before)
            super().__init__(
                request_id=name, all_token_ids=tokens, num_tokens=len(tokens), num_prompt_tokens=len(tokens),
                num_computed_tokens=0, block_hashes=hashes, num_in_flight_tokens=0, status="RUNNING", num_preemptions=0,
                skip_reading_prefix_cache=False, shared_prefix_boundary=0, sampling_params=None, pooling_params=None,
                lora_request=None, mm_features=[], cache_salt=None, has_encoder_inputs=False,
                get_skip_reading_prefix_cache=lambda: False)

    class Managers(unittest.TestCase):
        def setUp(self):
            self.layout, specs = layers(4)
            planned, _ = plan(specs)
            planned.num_blocks = 200
            self.manager = KVCacheManager(kv_cache_config=planned, max_model_len=131072, scheduler_block_size=BLOCK,
                                          hash_block_size=BLOCK, enable_caching=True, max_in_flight_tokens=16384)
            kinds = [type(group.kv_cache_spec) for group in planned.kv_cache_groups]
            self.sealed, self.tail = kinds.index(v026.KvantSealedSpec), kinds.index(v026.KvantTailSpec)

        def step(self, request, n):
            """Schedules n tokens; new blocks of each kind. A request without blocks first looks for a prefix."""
            blocks, hit = None, 0
            if request.num_computed_tokens == 0:
                blocks, hit, *_ = self.manager.get_computed_blocks(request)
                n -= hit
            new = self.manager.allocate_slots(request, n, hit, blocks)
            request.num_computed_tokens += hit + n
            return hit, len(new.blocks[self.sealed]), len(new.blocks[self.tail])

        def held(self, request):
            return [[block.block_id for block in blocks] for blocks in self.manager.coordinator.get_blocks(request.request_id)]

        def test_tails_are_a_requests_own_and_constant(self):
            a, b = Request("a", list(range(1000))), Request("b", list(range(1000)))
            tail_blocks = self.layout.tail_blocks
            self.assertEqual(self.step(a, 512), (0, 4, tail_blocks))
            self.assertEqual(self.step(b, 1000)[2], tail_blocks)
            self.assertEqual(self.step(a, 488), (0, 4, 0))
            self.assertFalse(set(self.held(a)[self.tail]) & set(self.held(b)[self.tail]))

        def test_a_prompts_pages_are_shared_in_the_same_step(self):
            a, b = Request("a", list(range(1000))), Request("b", list(range(1000)))
            self.step(a, 512)
            self.assertEqual(self.step(b, 1000)[0], 512)
            self.assertEqual(self.held(a)[self.sealed][:4], self.held(b)[self.sealed][:4])

        def test_a_page_filled_by_a_decoded_token_is_shared_from_the_next_step_on(self):
            tokens = list(range(300))
            a = Request("a", tokens)
            self.step(a, 255)
            self.step(a, 1)
            self.assertEqual(self.step(Request("b", tokens), 300)[0], 128)
            self.step(a, 1)
            self.assertEqual(self.step(Request("c", tokens), 300)[0], 256)

        def test_all_blocks_come_back(self):
            free = self.manager.block_pool.get_num_free_blocks()
            a, b = Request("a", list(range(1000))), Request("b", list(range(1000)))
            for request in (a, b):
                self.step(request, 1000)
            for request in (a, b):
                self.manager.free(request)
            self.assertEqual(self.manager.block_pool.get_num_free_blocks(), free)
            self.assertEqual(self.step(Request("c", list(range(1000))), 1000)[0], 896)

    class Refusals(unittest.TestCase):
        def configuration(self, **changed):
            """What `_refuse_unsupported` reads, all of it supported, but for the members that are changed."""
            values = dict(
                speculative_config=None, kv_transfer_config=None, use_v2_model_runner=True,
                parallel_config=dict(data_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1,
                                     prefill_context_parallel_size=1),
                model_config=dict(enable_sleep_mode=False),
                cache_config=dict(kv_cache_dtype_skip_layers=[], prefix_match_unit=None),
                scheduler_config=dict(disable_hybrid_kv_cache_manager=False))
            for name, value in changed.items():
                part = next((x for x in values.values() if isinstance(x, dict) and name in x), values)
                part[name] = value
            return types.SimpleNamespace(**{name: types.SimpleNamespace(**x) if isinstance(x, dict) else x
                                            for name, x in values.items()})

        def test_what_is_supported_is_let_through(self):
            v026._refuse_unsupported(self.configuration())

        def test_every_unsupported_feature_is_named(self):
            for changed, sentence in (
                    (dict(speculative_config=object()), "drafts"), (dict(kv_transfer_config=object()), "KV connectors"),
                    (dict(data_parallel_size=2), "data parallelism"), (dict(enable_sleep_mode=True), "sleep mode"),
                    (dict(pipeline_parallel_size=2), "pipeline parallelism"),
                    (dict(decode_context_parallel_size=2), "decode context parallelism"),
                    (dict(prefill_context_parallel_size=2), "prefill context parallelism"),
                    (dict(kv_cache_dtype_skip_layers=["0"]), "--kv-cache-dtype-skip-layers"),
                    (dict(prefix_match_unit=16), "prefix hits within a page"),
                    (dict(disable_hybrid_kv_cache_manager=True), "hybrid KV cache manager"),
                    (dict(use_v2_model_runner=False), "VLLM_USE_V2_MODEL_RUNNER=1")):
                with self.assertRaisesRegex(NotImplementedError, sentence):
                    v026._refuse_unsupported(self.configuration(**changed))


if __name__ == "__main__":
    unittest.main()
