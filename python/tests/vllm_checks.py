"""Checks the plug-in with vLLM's files. The checks use vLLM's planner and block managers with kvant's specifications, its
attention layers as the plug-in changes them, and refused configurations. The planner decides how many tokens fit, and
the managers decide which requests share which blocks. `test_vllm` runs this file."""

import contextlib
import hashlib
import sys
import types
import unittest
from unittest import mock

import vllm_stub

vllm_stub.install()
import torch
# A `from` import would find a mock.
import vllm.config.cache as cache_config
import vllm.v1.core.kv_cache_config_builder as config_builder
import vllm.v1.core.kv_cache_planning as kv_cache_planning
import vllm.v1.core.kv_cache_utils as kv_cache_utils
import vllm.v1.kv_cache_layout as kv_cache_layout
from vllm.distributed.utils import get_pp_indices
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, SlidingWindowSpec

from kvant.paged.arena_layout import ArenaLayout
from kvant.paged.block_layout import BlockLayout
from kvant.vllm import attach, backend, recipes, refusals
from kvant.vllm import v033 as release
from vllm_model import attention, layer, of_model, planner_config, simple, supported, use

BLOCK = 128
MEMORY = 100 << 30
LAYERS, KV_HEADS, D = 32, 8, 128
# A page of 128 channels has 8704 bytes in ch4g128 or tok4g128 (4 bits), and 4608 bytes in ch2g128 or tok2g128 (2 bits).
PAGE_BYTES = {4: 8704, 2: 4608}

release.add_specs()
kv_cache_utils.NONE_HASH = b"0"


# A block may hold all layers, or the blocks of a layer follow one another.
ARENAS, APART = "BLHNC", "LBNHC"
resolved = ARENAS


def has_arenas():
    return resolved == ARENAS


def config():
    return planner_config(kv_cache_layout.KVCacheLayout[resolved])


def plan(specs):
    """Returns vLLM's configuration, and how many tokens fit in requests of the greatest length."""
    config_builder.resolve_obj_by_qualname = lambda name: kv_cache_planning.DefaultKVCacheConfigBuilder
    groups = kv_cache_planning.get_kv_cache_groups(config(), specs)
    of_worker = kv_cache_planning.get_kv_cache_configs(config(), [specs], [MEMORY], groups)[0]
    return of_worker, kv_cache_utils.get_kv_cache_capacity(config(), of_worker)[0]


def plan_stages(specs_of_stages):
    """Returns vLLM's configuration of each stage of pipeline parallelism."""
    config_builder.resolve_obj_by_qualname = lambda name: kv_cache_planning.DefaultKVCacheConfigBuilder
    groups = kv_cache_planning.get_global_kv_cache_groups(config(), specs_of_stages)
    return kv_cache_planning.get_kv_cache_configs(config(), specs_of_stages, len(specs_of_stages) * [MEMORY], groups)


def kinds(planned):
    """Returns the type of each group's specification."""
    return [type(group.kv_cache_spec) for group in planned.kv_cache_groups]


def layout_of(bits, n_layers, has_sink_block=True, **more):
    if not has_arenas():
        return BlockLayout(KV_HEADS, D, PAGE_BYTES[bits], PAGE_BYTES[bits], **more)
    return ArenaLayout(KV_HEADS, D, n_layers * (2 * KV_HEADS * PAGE_BYTES[bits],), has_sink_block=has_sink_block, **more)


def offloading(kv_connector="OffloadingConnector", kv_connector_module_path=None, **options):
    """Returns vLLM's configuration of a connector. `options` is for the connector itself."""
    return types.SimpleNamespace(kv_connector=kv_connector, kv_connector_module_path=kv_connector_module_path,
                                 kv_connector_extra_config=options)


def layers(bits, n_layers=LAYERS, drafts=0):
    layout = layout_of(bits, n_layers, sink_tokens=1, tail_pages=2 if drafts else 1)
    specs = {}
    for i in range(n_layers):
        specs[f"model.layers.{i}.attn"] = release.sealed_spec(KV_HEADS, D, layout.block_bytes, drafts)
        specs[f"model.layers.{i}.attn{attach.TAIL_SUFFIX}"] = release.tail_spec(KV_HEADS, D, layout.block_bytes,
                                                                                layout.own_blocks, 1, drafts, layout.has_sink_block)
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
    """Holds the members of a request that block managers read."""

    def __init__(self, name, tokens, hash_block=BLOCK):
        hashes, before = [], b""
        for first in range(0, len(tokens) // hash_block * hash_block, hash_block):
            before = hashlib.sha256(before + repr(tokens[first:first + hash_block]).encode()).digest()
            hashes.append(before)
        super().__init__(
            request_id=name, all_token_ids=tokens, num_tokens=len(tokens), num_prompt_tokens=len(tokens),
            num_computed_tokens=0, block_hashes=hashes, num_in_flight_tokens=0, status="RUNNING", num_preemptions=0,
            skip_reading_prefix_cache=False, shared_prefix_boundary=0, sampling_params=None, pooling_params=None,
            lora_request=None, mm_features=[], cache_salt=None, has_encoder_inputs=False,
            get_skip_reading_prefix_cache=lambda: False)

class Managers(unittest.TestCase):
    def setUp(self):
        self.start(drafts=0)

    def start(self, drafts):
        self.layout, specs = layers(4, drafts=drafts)
        planned, _ = plan(specs)
        planned.num_blocks = 200
        self.manager = KVCacheManager(kv_cache_config=planned, max_model_len=131072, scheduler_block_size=BLOCK,
                                      hash_block_size=BLOCK, enable_caching=True, max_in_flight_tokens=16384)
        self.sealed, self.tail = map(kinds(planned).index, (release.KvantSealedSpec, release.KvantTailSpec))

    def step(self, request, n):
        """Schedules n tokens and returns the new blocks of each kind. A request without blocks first looks for a
        prefix."""
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
        own_blocks, n_shared = self.layout.own_blocks, int(self.layout.has_sink_block)
        self.assertEqual(self.step(a, 512), (0, 4, own_blocks))
        self.assertEqual(self.step(b, 1000)[2], own_blocks - n_shared)
        self.assertEqual(self.step(a, 488), (0, 4, 0))
        self.assertEqual(len(set(self.held(a)[self.tail]) & set(self.held(b)[self.tail])), n_shared)

    def test_requests_with_the_same_first_page_share_the_sink(self):
        if not self.layout.has_sink_block:
            self.skipTest("the sink lies in the first page's block")
        a, b, other = Request("a", list(range(300))), Request("b", [*range(128), *range(500, 700)]), Request("c", list(range(1, 301)))
        for request in (a, b, other):
            self.step(request, request.num_tokens)
        sinks = [self.held(request)[self.tail][0] for request in (a, b, other)]
        self.assertEqual(sinks[0], sinks[1])
        self.assertNotEqual(sinks[0], sinks[2])
        self.assertEqual(len({block for request in (a, b, other) for block in self.held(request)[self.tail][1:]}),
                         3 * self.layout.tail_blocks)

    def test_the_sink_does_not_limit_the_tokens_that_vllm_reports_as_cached(self):
        a = Request("a", list(range(1000)))
        self.step(a, 1000)
        self.assertEqual(self.manager.estimate_cached_tokens(a), 896)

    def test_without_the_sink_no_page_is_found(self):
        if not self.layout.has_sink_block:
            self.skipTest("the sink lies in the first page's block")
        tokens = list(range(300))
        a = Request("a", tokens)
        self.step(a, 300)
        sink = self.manager.coordinator.get_blocks("a")[self.tail][0]
        self.manager.free(a)
        self.assertEqual(self.hit(tokens), 256)
        self.manager.block_pool._maybe_evict_cached_block(sink)
        self.assertEqual(self.hit(tokens), 0)

    def test_a_full_pool_takes_the_shared_sink_into_account(self):
        tokens = list(range(640))
        a, pool = Request("a", tokens), self.manager.block_pool
        self.step(a, 640)
        self.manager.free(a)
        # The found blocks are free blocks, too, so the request needs as many free blocks as without a hit.
        need = 5 + self.layout.own_blocks
        taken = pool.get_new_blocks(pool.get_num_free_blocks() - need)
        blocks, hit, *_ = self.manager.get_computed_blocks(b := Request("b", tokens))
        self.assertEqual(hit, 512)
        self.assertIsNotNone(self.manager.allocate_slots(b, 128, hit, blocks))
        self.assertEqual(pool.get_num_free_blocks(), 0)
        self.manager.free(b)
        pool.get_new_blocks(1)
        blocks, hit, *_ = self.manager.get_computed_blocks(c := Request("c", tokens))
        self.assertIsNone(self.manager.allocate_slots(c, 128, hit, blocks))
        pool.free_blocks(taken)

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

    def test_a_page_filled_by_as_few_tokens_as_drafts_is_shared_from_the_next_step_on(self):
        # A prompt's last chunk of four tokens looks like a decoded token and its drafts.
        self.start(drafts=3)
        a = Request("a", list(range(300)))
        self.step(a, 252)
        self.step(a, 4)
        self.assertEqual(self.hit(list(range(300))), 128)
        self.step(a, 4)
        self.assertEqual(self.hit(list(range(300))), 256)

    def test_tails_are_claimed_before_pages_are_loaded(self):
        request, tail = Request("a", list(range(300))), self.manager.coordinator.single_type_managers[self.tail]
        tail.allocate_external_computed_blocks("b", 0, 256, record_for_zeroing=False)
        self.assertEqual(len(tail.req_to_blocks["b"]), self.layout.own_blocks)
        loading = self.manager.allocate_slots(request, 0, num_external_computed_tokens=256, delay_cache_blocks=True)
        self.assertIsNotNone(loading)
        self.assertEqual([len(x) for x in (self.held(request)[self.sealed], self.held(request)[self.tail])], [2, self.layout.own_blocks])
        request.num_computed_tokens = 256
        self.assertEqual(len(self.manager.allocate_slots(request, 44).blocks[self.tail]), 0)

    def test_all_blocks_come_back(self):
        free = self.manager.block_pool.get_num_free_blocks()
        a, b = Request("a", list(range(1000))), Request("b", list(range(1000)))
        for request in (a, b):
            self.step(request, 1000)
        for request in (a, b):
            self.manager.free(request)
        self.assertEqual(self.manager.block_pool.get_num_free_blocks(), free)
        self.assertEqual(self.step(Request("c", list(range(1000))), 1000)[0], 896)

    def verify(self, request, n_drafts, n_accepted, late=False):
        """Runs a step with drafts. With `late`, its result is known only after the next step has been scheduled."""
        known = request.num_tokens
        request.num_tokens = min(request.num_computed_tokens + 1, known)
        self.manager.allocate_slots(request, 1 + n_drafts)
        request.num_tokens = known
        request.num_computed_tokens += 1 + (n_drafts if late else n_accepted)

    def hit(self, tokens):
        return self.manager.get_computed_blocks(Request(f"asks {id(tokens)}", tokens))[1]

    def test_a_page_filled_by_drafts_is_shared_when_all_of_it_was_accepted_before_the_step(self):
        self.start(drafts=3)
        tokens = list(range(300))
        a = Request("a", tokens)
        self.step(a, 126)
        # Tokens 126 to 129 run, and 126 is accepted.
        self.verify(a, 3, 0)
        self.assertEqual((a.num_computed_tokens, self.hit(tokens)), (127, 0))
        # Tokens 127 to 130 run, and 127 to 129 are accepted.
        self.verify(a, 3, 2)
        self.assertEqual((a.num_computed_tokens, self.hit(tokens)), (130, 0))
        self.verify(a, 3, 0)
        self.assertEqual(self.hit(tokens), 128)

    def test_tokens_whose_drafts_are_not_decided_yet_are_not_shared(self):
        self.start(drafts=3)
        tokens = list(range(300))
        a = Request("a", tokens)
        self.step(a, 126)
        self.verify(a, 3, 3, late=True)
        # Only the first token of the step is known, because it was the prompt's last token.
        a.num_tokens = 127
        self.manager.allocate_slots(a, 4)
        self.assertEqual(self.hit(tokens), 0)
        a.num_tokens, a.num_computed_tokens = 131, 134
        self.manager.allocate_slots(a, 4)
        self.assertEqual(self.hit(tokens), 128)

    def test_what_a_late_result_settles_is_shared(self):
        tokens = list(range(300))
        for n_rejected, n_shared in ((0, 128), (2, 128), (3, 0)):
            self.start(drafts=3)
            a = Request("a", tokens)
            self.step(a, 126)
            # Only the first 127 tokens are known until the first result arrives.
            a.num_tokens = 127
            # Tokens 126 to 129 run.
            self.verify(a, 3, 3, late=True)
            # Whatever tokens follow run.
            self.verify(a, 3, 3, late=True)
            self.assertEqual(self.hit(tokens), 0)
            a.num_computed_tokens -= n_rejected
            # vLLM's scheduler calls cache_blocks() when a result arrives.
            self.manager.cache_blocks(a, a.num_computed_tokens - 4)
            self.assertEqual(self.hit(tokens), n_shared)

    def test_a_preempted_request_finds_what_it_had_published_and_nothing_else(self):
        for drafts in (0, 3):
            self.setUp() if not drafts else self.start(drafts)
            free = self.manager.block_pool.get_num_free_blocks()
            tokens = list(range(500))
            a = Request("a", tokens)
            self.step(a, 255)
            # The second page is filled, but not yet published.
            for _ in range(2):
                self.verify(a, drafts, 0) if drafts else self.step(a, 1)
                if a.num_computed_tokens == 256:
                    break
            self.manager.free(a)
            self.assertEqual(self.manager.block_pool.get_num_free_blocks(), free)
            a.num_computed_tokens, a.status, a.num_preemptions = 0, "PREEMPTED", 1
            self.assertEqual(self.hit(tokens), 128)
            self.assertEqual(self.step(a, 256)[0], 128)
            self.assertEqual([len(blocks) for blocks in self.held(a)][self.tail], self.layout.own_blocks)

    def test_prompts_in_chunks_share_their_pages_whatever_the_chunks(self):
        for chunk in (128, 512, 2048):
            self.setUp()
            tokens = list(range(2000))
            a, b = Request("a", tokens), Request("b", tokens)
            while a.num_computed_tokens < 2000:
                n = min(chunk, 2000 - a.num_computed_tokens)
                self.step(a, n)
                self.assertEqual(self.hit(tokens), min(a.num_computed_tokens, 1999) // 128 * 128)
            self.assertEqual(self.step(b, 2000)[0], 1920)


class Library:
    """Stands in for the library with formats of 2 and 4 bits, without a GPU."""

    has_rows = False

    def page_bytes(self, format, head_dim):
        return head_dim * PAGE_BYTES[2 if "2" in format else 4] // D

    def can_seal(self, format):
        return True


class Layers(unittest.TestCase):
    """Tests vLLM's attention layers after the plug-in has changed them."""

    @classmethod
    def setUpClass(cls):
        attach.wrap_attention(release.RELEASE)

    def use(self, vllm_config):
        return use(self, vllm_config, Library)

    def layers_of(self, vllm_config):
        return vllm_config.compilation_config.static_forward_context.values()

    def specs(self, vllm_config):
        context = vllm_config.compilation_config.static_forward_context
        return {name: layer.get_kv_cache_spec(vllm_config) for name, layer in context.items()}

    def model(self, n_layers, is_full, heads=KV_HEADS, d=D, window=1024, **changed):
        """Returns the specifications by layer of a model in which some layers have a window."""
        vllm_config = self.use(supported(**changed))
        for i in range(n_layers):
            layer(vllm_config, i, None if is_full(i) else window, heads, d)
        return self.specs(vllm_config)

    def test_every_layer_gets_a_second_one_for_tails(self):
        specs = self.model(4, lambda i: True)
        self.assertEqual([type(spec).__name__ for spec in specs.values()], 4 * ["KvantSealedSpec", "KvantTailSpec"])
        layout = layout_of(4, 4, sink_tokens=4)
        self.assertEqual({spec.page_size_bytes for spec in specs.values()}, {layout.block_bytes})
        self.assertEqual({spec.blocks_per_request for spec in list(specs.values())[1::2]}, {layout.own_blocks})

    def test_layers_with_a_window_stay_unquantized_on_a_backend_of_vllms(self):
        # One model is like Gemma 3 (five layers with a window, then one without), the other like gpt-oss (every other
        # layer).
        for n_layers, is_full, heads, d in ((48, lambda i: i % 6 == 5, 8, 256), (24, lambda i: i % 2 == 1, 8, 64)):
            specs = self.model(n_layers, is_full, heads, d, window=1024)
            windowed = [spec for spec in specs.values() if isinstance(spec, SlidingWindowSpec)]
            self.assertEqual(len(windowed), sum(not is_full(i) for i in range(n_layers)))
            self.assertEqual(len(specs), n_layers + n_layers - len(windowed))
            block_bytes = next(iter(x for x in specs.values() if isinstance(x, release.KvantSealedSpec))).page_size_bytes
            n_tokens = 32 if has_arenas() else block_bytes // (4 * heads * d) // 16 * 16
            for spec in windowed:
                self.assertEqual((spec.dtype.name, spec.block_size), ("bfloat16", n_tokens))
                self.assertEqual(spec.page_size_bytes, n_tokens * 4 * heads * d if has_arenas() else block_bytes)
            planned, tokens = plan(specs)
            self.assertEqual({type(specs[group.layer_names[0]]) for group in planned.kv_cache_groups},
                             {release.KvantSealedSpec, release.KvantTailSpec, SlidingWindowSpec})
            for group in planned.kv_cache_groups:
                self.assertEqual(len({isinstance(specs[name], SlidingWindowSpec) for name in group.layer_names}), 1)
            self.assertGreater(tokens, 0)
            self.check_sharing(planned)

    def test_layers_with_a_window_are_in_fp8_on_request(self):
        vllm_config = self.use(supported())
        vllm_config.additional_config = {"kvant": {"windows": "fp8"}}
        windowed, full = layer(vllm_config, 0, window=1024), layer(vllm_config, 1)
        self.assertEqual((windowed.kv_cache_dtype, full.kv_cache_dtype), ("fp8", "kvant_uniform_4bit"))
        specs = self.specs(vllm_config)
        self.assertEqual((specs["model.layers.0.attn"].dtype.itemsize, full.kvant.others),
                         (1, "layers with a sliding window stay in FP8"))
        vllm_config.additional_config = {"kvant": {"windows": "int8"}}
        with self.assertRaisesRegex(ValueError, '"windows" is "fp8", not "int8"; without it, layers with a sliding window are unquantized'):
            layer(vllm_config, 2, window=1024)

    def test_layers_with_a_window_are_refused_with_offload(self):
        vllm_config = self.use(supported(kv_transfer_config=offloading()))
        layer(vllm_config, 0)
        with self.assertRaisesRegex(NotImplementedError, r"CPU offload \(--kv-offloading-size\) of models with a sliding window"):
            layer(vllm_config, 1, window=1024)

    def stage(self, rank, n_stages, layer_types, named=True, **changed):
        """Makes the layers of a stage. layer_types holds the kinds of all layers of the model; `named` says whether the
        configuration has the kinds. Returns the configuration of the stage."""
        model = simple(num_hidden_layers=len(layer_types), **{"layer_types": layer_types} if named else {})
        vllm_config = self.use(supported(rank=rank, pipeline_parallel_size=n_stages, hf_text_config=model, **changed))
        for i in range(*get_pp_indices(len(layer_types), rank, n_stages)):
            layer(vllm_config, i, None if layer_types[i] == "full_attention" else 1024)
        return vllm_config

    def test_stages_have_equal_blocks_and_one_block_table(self):
        full, windowed = "full_attention", "sliding_attention"
        models = ((28 * [full], 2, (14, 14)), (7 * [full], 3, (2, 3, 2)), ((5 * [windowed] + [full]) * 8, 2, (4, 4)),
                  ((2 * [windowed] + [full]) * 5, 2, (2, 3)))
        for layer_types, n_stages, n_cached in models:
            stages = [self.stage(rank, n_stages, layer_types) for rank in range(n_stages)]
            states = [next(x.kvant for x in self.layers_of(stage) if isinstance(x, attach.TailLayer)) for stage in stages]
            self.assertEqual(tuple(len(state.layers) for state in states), n_cached)
            self.assertEqual([state.layers_before for state in states], [sum(n_cached[:i]) for i in range(n_stages)])
            self.assertEqual(states[1].of_stage, f" of stage 2 of {n_stages}")
            specs = [self.specs(stage) for stage in stages]
            planned = plan_stages(specs)
            self.assertEqual(len({of_stage.num_blocks for of_stage in planned}), 1)
            for of_stage, state, own in zip(planned, states, specs):
                for kind in (release.KvantSealedSpec, release.KvantTailSpec):
                    of_kind = [group for group in of_stage.kv_cache_groups if isinstance(own[group.layer_names[0]], kind)]
                    self.assertEqual([len(group.layer_names) for group in of_kind], [len(state.layers)])
                    self.assertEqual({own[name].page_size_bytes for name in of_kind[0].layer_names}, {state.layout.block_bytes})
                # A cell holds the layers of a stage by itself too.
                alone = attach.replace(state.layout, least_block_bytes=0) if has_arenas() else state.layout
                self.assertLessEqual(alone.block_bytes, state.layout.block_bytes)
            self.assertEqual(len({state.layout.block_bytes for state in states}), 1)
            self.assertEqual(len({state.layout.tail_blocks for state in states}), 1)

    def test_stages_that_cannot_agree_on_blocks_are_refused(self):
        full, windowed = "full_attention", "sliding_attention"
        with self.assertRaisesRegex(NotImplementedError, "a layer without a sliding window in each stage .* stage 2 has none"):
            self.stage(0, 2, [full, windowed, windowed, windowed])
        with self.assertRaisesRegex(NotImplementedError, "whose configuration does not list layer_types"):
            self.stage(0, 2, [windowed, full, windowed, full], named=False)
        vllm_config = self.stage(1, 2, 4 * [full])
        layer(vllm_config, 4)
        with self.assertRaisesRegex(NotImplementedError, "stage 2 has 3 layers with kvant's cache, and the model's configuration says 2"):
            self.specs(vllm_config)

    def check_sharing(self, planned):
        planned = kv_cache_utils.generate_scheduler_kv_cache_config([planned])
        planned.num_blocks = 400
        block_sizes = kv_cache_utils.resolve_kv_cache_block_sizes(planned, config())
        manager = KVCacheManager(kv_cache_config=planned, max_model_len=131072, scheduler_block_size=block_sizes[0],
                                 hash_block_size=block_sizes[1], enable_caching=True, max_in_flight_tokens=16384)
        free = manager.block_pool.get_num_free_blocks()
        a, b = (Request(name, list(range(1000)), block_sizes[1]) for name in "ab")
        blocks, hit, *_ = manager.get_computed_blocks(a)
        manager.allocate_slots(a, 1000, hit, blocks)
        a.num_computed_tokens = 1000
        self.assertEqual(hit, 0)
        blocks, hit, *_ = manager.get_computed_blocks(b)
        self.assertEqual(hit, 999 // block_sizes[0] * block_sizes[0])
        manager.allocate_slots(b, 1000 - hit, hit, blocks)
        for request in (a, b):
            manager.free(request)
        self.assertEqual(manager.block_pool.get_num_free_blocks(), free)

    def test_layers_of_several_block_tables_are_refused(self):
        # A block that holds all layers has one table for kvant's layers.
        for n_windowed, n_groups in ((4, 1 if has_arenas() else 7), (14, 1)):
            vllm_config = self.use(supported())
            for i in range(32 - n_windowed // 14 * 4):
                layer(vllm_config, i, 1024 if i < n_windowed else None)
            specs = self.specs(vllm_config)
            planned, _ = plan(specs)
            sealed = [group for group in planned.kv_cache_groups if isinstance(specs[group.layer_names[0]], release.KvantSealedSpec)]
            self.assertEqual(len(sealed), n_groups)

            def build():
                backend.TailBuilder(None, [name + attach.TAIL_SUFFIX for name in sealed[0].layer_names], vllm_config, None)

            if n_groups > 1:
                with self.assertRaisesRegex(NotImplementedError, "fewer other layers, such as those with a sliding window, than layers with kvant's cache"):
                    build()
            else:
                build()

    def test_drafts_double_the_tails(self):
        specs = self.model(2, lambda i: True, speculative_config=simple(method="ngram", num_speculative_tokens=4))
        self.assertEqual([spec.max_drafts for spec in specs.values()], [4, 4, 4, 4])
        # The tail has 32 pages of 32 KiB. If a block holds all layers, the sink has a block of its own.
        pages, blocks = (4, 1 + 8) if has_arenas() else (5, 7)
        self.assertEqual(list(specs.values())[1].page_size_bytes // 32768, pages)
        self.assertEqual(list(specs.values())[1].blocks_per_request, blocks)

    def test_sinks_have_blocks_where_sealed_blocks_become_smaller(self):
        if not has_arenas():
            self.skipTest("blocks of one layer have sinks of their own")
        for heads, bits, sink, more, expected in ((8, 4, 4, {}, True), (8, 4, 1, {}, True), (8, 4, 0, {}, False), (8, 2, 4, {}, True),
                                                  (2, 2, 4, {}, False), (8, 4, 4, dict(kv_transfer_config=offloading()), False)):
            vllm_config = self.use(supported(cache_dtype="kvant", **more))
            vllm_config.additional_config = {"kvant": {"recipe": f"k=hadamard:tcq{bits},v=hadamard:tcq{bits},sink={sink}"}}
            layout = layer(vllm_config, 0, heads=heads).kvant.layout
            self.assertEqual(layout.has_sink_block, expected, (heads, bits, sink))
            for spec in self.specs(vllm_config).values():
                self.assertEqual(getattr(spec, "has_sink_block", expected), expected)

    def test_blocks_lie_as_the_layout_says(self):
        planned, _ = plan(self.model(4, lambda i: True))
        page = planned.kv_cache_groups[0].kv_cache_spec.page_size_bytes
        self.assertEqual({tensor.block_stride for tensor in planned.kv_cache_tensors}, {4 * page if has_arenas() else page})
        vllm_config = self.use(supported())
        for kind in (layer(vllm_config, 0).get_attn_backend(), *(x.get_attn_backend() for x in self.layers_of(vllm_config))):
            layouts = kind.supported_kv_cache_layouts()
            self.assertEqual({layout.is_block_outermost for layout in layouts}, {has_arenas()})
            self.assertEqual(layouts[0].name, resolved)

    def test_what_differs_among_layers_is_refused(self):
        for first, second, sentence in (
                (dict(), dict(heads=4), "the same heads"), (dict(), dict(d=64), "the same heads"),
                (dict(), dict(logits_soft_cap=30.0), "and soft cap")):
            vllm_config = self.use(supported())
            layer(vllm_config, 0, **first)
            with self.assertRaisesRegex(NotImplementedError, sentence):
                layer(vllm_config, 1, **second)

    def test_windows_that_do_not_fit_are_refused(self):
        vllm_config = self.use(supported())
        layer(vllm_config, 0, heads=1, d=64)
        layer(vllm_config, 1, window=128, heads=16, d=256)
        if has_arenas():
            self.assertEqual(len(self.specs(vllm_config)), 3)
            return
        with self.assertRaisesRegex(NotImplementedError, "too small for the model's other layers"):
            self.specs(vllm_config)

    def test_models_with_windows_alone_are_refused(self):
        vllm_config = self.use(supported(sliding_window=4096))
        layer(vllm_config, 0)
        with self.assertRaisesRegex(NotImplementedError, "this model has no others"):
            self.specs(vllm_config)

    def test_layers_of_other_kinds_are_refused(self):
        class Chunked(attention.Attention):
            def get_kv_cache_spec(self, vllm_config):
                return None

        vllm_config = self.use(supported())
        with self.assertRaisesRegex(NotImplementedError, "layers of the kind Chunked"):
            layer(vllm_config, 0, kind=Chunked)
        with self.assertRaisesRegex(NotImplementedError, "values whose head size differs"):
            layer(vllm_config, 1, head_size_v=64)

    def test_recipes_that_need_constants_are_refused_without_them(self):
        for cache_type, own in (("kvant_vecinfer_4bit", {}), ("kvant", {"kvant": {"recipe": "k=smooth+hadamard:vq-d4b12,v=vq-d4b12"}})):
            vllm_config = self.use(supported(cache_dtype=cache_type))
            vllm_config.additional_config = own
            with self.assertRaisesRegex(ValueError, "needs constants of the model, which kvant.hf.calibrate makes: "
                                        "--additional-config '{\"kvant\": {\"constants\": \"FILE\"}}'"):
                layer(vllm_config, 0)

    def test_integers_and_sas_with_capped_scores_or_attention_sinks_are_refused(self):
        for changed in (dict(logits_soft_cap=30.0), dict(sinks=object())):
            vllm_config = self.use(supported(cache_dtype="kvant"))
            vllm_config.additional_config = {"kvant": {"recipe": "uniform-4bit,prompt=flashq"}}
            with self.assertRaisesRegex(NotImplementedError, "soft-capped scores and attention sinks: use prompt=exact"):
                layer(vllm_config, 0, **changed)
            vllm_config.additional_config = {"kvant": {"recipe": "uniform-4bit,softmax=sas"}}
            with self.assertRaisesRegex(NotImplementedError, "soft-capped scores and attention sinks: use softmax=exact"):
                layer(vllm_config, 2, **changed)
            vllm_config.additional_config = {"kvant": {"recipe": "uniform-4bit"}}
            self.assertEqual(layer(vllm_config, 1, **changed).kvant.softcap, changed.get("logits_soft_cap", 0))

    def test_the_log_says_once_which_recipe_serves(self):
        for cache_type, lines in (("kvant_uniform_4bit", []), ("kvant_4bit", ["kvant: uniform-4bit is used in place of kvant-4bit"]),
                                  ("kvant_kivi_2bit", ["kvant: the recipe kvant_kivi_2bit is kivi-2bit,window=0"])):
            with mock.patch.object(backend.logger, "info") as info:
                vllm_config = self.use(supported(cache_dtype=cache_type, hf_text_config=simple(layer_types=["mamba"])))
                for i in range(3):
                    layer(vllm_config, i)
            self.assertEqual([call.args[1].partition(", ")[0] for call in info.call_args_list], [line.partition(", ")[0] for line in lines])

    def test_the_backend_is_asked_for_by_name(self):
        for backend in (None, "FLASH_ATTN"):
            vllm_config = self.use(supported(backend=backend))
            with self.assertRaisesRegex(ValueError, "--kv-cache-dtype kvant_uniform_4bit needs --attention-backend CUSTOM"):
                layer(vllm_config, 0)

    def test_other_cache_types_are_left_alone(self):
        vllm_config = self.use(supported(cache_dtype="auto", backend=None))
        layer(vllm_config, 0, window=1024)
        self.assertEqual(vllm_config.attention_config.backend_per_kind, {})


class LayersApart(Layers):
    """Tests layers whose blocks follow one another, which VLLM_KV_CACHE_LAYOUT asks for."""

    @classmethod
    def setUpClass(cls):
        pass

    def setUp(self):
        for where, name, value in ((attach.vllm.envs, "VLLM_KV_CACHE_LAYOUT", APART), (sys.modules[__name__], "resolved", APART)):
            patch = mock.patch.object(where, name, value)
            patch.start()
            self.addCleanup(patch.stop)


class CacheTypes(unittest.TestCase):
    def test_are_known_after_registration(self):
        release._add_cache_types()
        for cache_type in recipes.CACHE_TYPES:
            self.assertIn(cache_type, cache_config.KV_CACHE_DTYPES)
            handler = cache_config.get_kv_cache_dtype_handler(cache_type)
            self.assertEqual((handler.name, handler.torch_dtype().name, handler.quant_mode()),
                             (cache_type, "uint8", KVQuantMode.CUSTOM))


class Refusals(unittest.TestCase):
    def test_what_is_supported_is_let_through(self):
        refusals.refuse_unsupported(supported(), has_arenas=True)
        ngram = supported(speculative_config=simple(method="ngram", num_speculative_tokens=4))
        refusals.refuse_unsupported(ngram, has_arenas=False)
        for method in ("draft_model", "eagle", "eagle3", "mtp"):
            refusals.refuse_unsupported(supported(speculative_config=of_model(method, kv_cache_dtype="fp8")), has_arenas=True)
        self.assertEqual(self.reasons(), [])
        for changed in (dict(pipeline_parallel_size=2), dict(data_parallel_size=2), dict(enable_sleep_mode=True), dict(is_hybrid=True)):
            refusals.refuse_unsupported(supported(**changed), has_arenas=True)

    def test_every_unsupported_feature_is_named(self):
        drafts = of_model("dflash")
        for changed, sentence in (
                (dict(speculative_config=drafts), "drafts"),
                (dict(use_ubatching=True), "microbatches"),
                (dict(decode_context_parallel_size=2), "decode context parallelism"),
                (dict(prefill_context_parallel_size=2), "prefill context parallelism"),
                (dict(kv_cache_dtype_skip_layers=["0"]), "--kv-cache-dtype-skip-layers"),
                (dict(prefix_match_unit=16), "prefix hits within a page"),
                (dict(disable_hybrid_kv_cache_manager=True), "hybrid KV cache manager"),
                (dict(use_v2_model_runner=False), "VLLM_USE_V2_MODEL_RUNNER=1")):
            with self.assertRaisesRegex(NotImplementedError, sentence):
                refusals.refuse_unsupported(supported(**changed), has_arenas=True)
        refusals.refuse_unsupported(supported(kv_transfer_config=offloading()), has_arenas=True)
        for transfer, sentence in (
                (offloading(kv_connector="NixlConnector"), "NixlConnector yet: use .*--kv-offloading-size"),
                (offloading(kv_connector="SimpleCPUOffloadConnector"), "SimpleCPUOffloadConnector yet: use"),
                (offloading(kv_connector_module_path="own.connectors"), "OffloadingConnector yet: use"),
                (offloading(spec_name="TieringOffloadingSpec"), "other than CPU memory"),
                (offloading(canonical_layout=True), "other than CPU memory")):
            with self.assertRaisesRegex(NotImplementedError, sentence):
                refusals.refuse_unsupported(supported(kv_transfer_config=transfer), has_arenas=True)
        for n_layers, are_alike in ((32, True), (3, False)):
            stages = supported(pipeline_parallel_size=2, kv_transfer_config=offloading(), hf_text_config=simple(num_hidden_layers=n_layers))
            with contextlib.nullcontext() if are_alike else self.assertRaisesRegex(NotImplementedError, "offload .* of stages with different"):
                refusals.refuse_unsupported(stages, has_arenas=True)
        with self.assertRaisesRegex(NotImplementedError, "CPU offload .* of hybrid models"):
            refusals.refuse_unsupported(supported(is_hybrid=True, kv_transfer_config=offloading()), has_arenas=True)
        with self.assertRaisesRegex(NotImplementedError, "by dflash yet: use one of ngram, ngram_gpu, draft_model, eagle, eagle3, mtp$"):
            refusals.refuse_unsupported(supported(speculative_config=drafts), has_arenas=True)
        for how, changed, sentence in (
                (of_model(), dict(pipeline_parallel_size=2), "by eagle3 with pipeline parallelism"),
                (of_model("mtp", n_modules=2), {}, "MTP with several modules"),
                (of_model(kv_cache_dtype="kvant_uniform_4bit"), {}, "a drafter with kvant's cache"),
                (of_model("eagle"), dict(kv_transfer_config=offloading()), "CPU offload .* with drafts by eagle"),
                (of_model("draft_model"), dict(is_hybrid=True), "drafts .* of hybrid models")):
            with self.assertRaisesRegex(NotImplementedError, sentence):
                refusals.refuse_unsupported(supported(speculative_config=how, **changed), has_arenas=True)
        with self.assertRaisesRegex(NotImplementedError, "by eagle with blocks of one layer yet: unset VLLM_KV_CACHE_LAYOUT"):
            refusals.refuse_unsupported(supported(speculative_config=of_model("eagle")), has_arenas=False)
        ngram = simple(method="ngram", num_speculative_tokens=4)
        for changed, sentence in ((dict(speculative_config=ngram), "drafts .* of hybrid models"),
                                  (dict(pipeline_parallel_size=2), "pipeline parallelism of hybrid models")):
            with self.assertRaisesRegex(NotImplementedError, sentence):
                refusals.refuse_unsupported(supported(is_hybrid=True, **changed), has_arenas=True)
        with self.assertRaisesRegex(NotImplementedError, "128 or more drafts"):
            many = simple(method="ngram", num_speculative_tokens=128)
            refusals.refuse_unsupported(supported(speculative_config=many), has_arenas=True)

    def reasons(self, **changed):
        """Returns the reasons against a supported layer with the given changes."""
        values = dict(head_size=D, dtype=torch.bfloat16, kv_cache_dtype="kvant_uniform_4bit", block_size=None, use_mla=False,
                      has_sink=False, use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False,
                      device_capability=simple(major=9), attn_type=backend.AttentionType.DECODER)
        return backend.KvantBackend.validate_configuration(**values | changed)

    def test_every_unsupported_layer_is_refused_with_its_reason(self):
        kinds_of_attention = [(dict(attn_type=kind), f"{kind} not supported") for kind in (
            backend.AttentionType.ENCODER, backend.AttentionType.ENCODER_ONLY, backend.AttentionType.ENCODER_DECODER)]
        for changed, sentence in [
                (dict(dtype=torch.float32), "takes bfloat16 and float16.*--dtype bfloat16"),
                (dict(head_size=80), "64, 128, 256 channels, not 80"), (dict(head_size=512), "not 512"),
                (dict(kv_cache_dtype="fp8"), "kvant_uniform_4bit.*, not fp8"), (dict(kv_cache_dtype="auto"), "not auto"),
                (dict(block_size=16), "--block-size 128, not 16"), (dict(block_size=256), "--block-size 128"),
                (dict(device_capability=simple(major=7)), "8.0"),
                (dict(use_mla=True), "MLA"), (dict(use_sparse=True), "sparse"),
                (dict(use_mm_prefix=True), "multimodal"), (dict(use_per_head_quant_scales=True), "per-head quant"),
                (dict(has_sliding_window=True), "sliding window"), (dict(use_non_causal=True), "non-causal"),
                (dict(use_batch_invariant=True), "batch invariance"),
                (dict(use_pcp=True), "PCP"), (dict(use_dcp=True), "DCP"), (dict(use_rswa=True), "R-SWA"),
                (dict(use_adaptive_verification=True), "adaptive verification")] + kinds_of_attention:
            self.assertRegex(" ".join(self.reasons(**changed)), sentence, changed)
            self.assertEqual(len(self.reasons(**changed)), 1, changed)

    def test_every_unsupported_argument_of_a_layer_is_refused(self):
        common = dict(num_heads=32, head_size=D, scale=0.1, num_kv_heads=8)
        backend.KvantImpl(**common)
        for changed, sentence in (
                (dict(alibi_slopes=[1.0]), "ALiBi"), (dict(sliding_window=128), "sliding window"),
                (dict(attn_type=backend.AttentionType.ENCODER), "type"),
                (dict(kv_sharing_target_layer_name="x"), "share another layer's cache"),
                (dict(num_heads=136), "more than 16 query heads per KV head"), (dict(num_kv_heads=65, num_heads=65), "64 KV heads"),
                (dict(chunk_lookback=1), "chunk_lookback")):
            with self.assertRaisesRegex(NotImplementedError, sentence):
                backend.KvantImpl(**common | changed)

    def test_quantized_outputs_are_refused(self):
        impl = backend.KvantImpl(num_heads=32, head_size=D, scale=0.1, num_kv_heads=8)
        with self.assertRaisesRegex(NotImplementedError, "quantized attention outputs"):
            impl.forward(*[None] * 7, output_scale=object())


if __name__ == "__main__":
    unittest.main()
