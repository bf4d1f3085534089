"""Checks hybrid models with vLLM 0.33: its choice of block sizes, planner, block managers, and division of blocks into
pages, and the plug-in's steps on libkvant_cpu next to recurrent states in the same pool. `test_vllm` runs this file."""

import hashlib
import types
import unittest
from unittest import mock

import vllm_stub

vllm_stub.OWN += ["vllm.platforms.interface", "vllm.v1.worker.block_table", "vllm.v1.worker.utils"]
vllm_stub.install(with_torch=True)
import cpu_library
import numpy as np
import torch
import vllm.model_executor.models as models
import vllm.platforms.interface as platforms
import vllm.v1.core.kv_cache_config_builder as config_builder
import vllm.v1.core.kv_cache_planning as planning
import vllm.v1.core.kv_cache_utils as kv_cache_utils
import vllm.v1.kv_cache_interface as interface
import vllm.v1.worker.gpu.model_states.mamba_hybrid as mamba_hybrid
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import AttentionGroup, prepare_kernel_block_sizes

from kvant import PAGE
from kvant.vllm import attach, backend, hybrids, v033
from paged_server import D, N_HEADS, N_KV_HEADS, N_LAYERS, SINK, Request, Server
from vllm_model import layer, planner_config, simple, supported, use

kv_cache_utils.NONE_HASH = b"0"
v033.add_specs()


class MovedStates:
    """Stands in for vLLM's part of a worker that moves recurrent states before a step."""

    def __init__(self, vllm_config):
        self.vllm_config, self.move = vllm_config, lambda: None

    def preprocess_state(self):
        self.move()


mamba_hybrid.MambaHybridModelState = MovedStates
attach.wrap_attention(v033.RELEASE)


class StateLayer:
    """Stands in for a layer with a recurrent state of n_bytes bytes."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes

    def get_state_shape(self):
        return (self.n_bytes // 2,), (self.n_bytes // 8,)

    def get_state_dtype(self):
        return torch.uint8, torch.float32

    def get_kv_cache_spec(self, vllm_config):
        cache = vllm_config.cache_config
        return interface.MambaSpec(shapes=self.get_state_shape(), dtypes=self.get_state_dtype(), block_size=cache.mamba_block_size,
                                   page_size_padded=cache.mamba_page_size_padded, mamba_cache_mode=cache.mamba_cache_mode)


def configuration(test, library, layout, heads, d, **changed):
    """Returns a hybrid model's configuration. `layout` is the name of vLLM's layout."""
    patch = mock.patch.object(attach.vllm.envs, "VLLM_KV_CACHE_LAYOUT", layout)
    patch.start()
    test.addCleanup(patch.stop)
    vllm_config = use(test, supported(is_hybrid=True, cache_dtype="kvant", **changed), library)
    vllm_config.additional_config = {"kvant": {"recipe": SINK.text}}
    model, cache = vllm_config.model_config, vllm_config.cache_config
    model.use_mla, model.architecture = False, "Hybrid"
    model.get_num_kv_heads, model.get_head_size = lambda _: heads, lambda: d
    cache.mamba_cache_mode, cache.mamba_page_size_padded, cache.mamba_block_size = "align", None, None
    vllm_config.scheduler_config.max_num_seqs = 8
    return vllm_config


def choose_block_size(vllm_config):
    """Lets vLLM choose the block size, as its executor does once the model exists."""
    context = vllm_config.compilation_config.static_forward_context
    states = [x for x in context.values() if isinstance(x, StateLayer)]
    model = types.SimpleNamespace(get_mamba_state_shape_from_config=lambda _: states[0].get_state_shape(),
                                  get_mamba_state_dtype_from_config=lambda _: states[0].get_state_dtype())
    backends = [x.get_attn_backend() for x in context.values() if not isinstance(x, StateLayer)]
    with mock.patch.object(models.ModelRegistry, "resolve_model_cls", lambda *args, **kwargs: (model, None)), \
            mock.patch.object(platforms.Platform, "_find_non_ssm_backends", lambda _: backends), \
            mock.patch("vllm.model_executor.layers.mamba.abstract.get_mamba_prefill_checkpoint_alignment", lambda _: None):
        platforms.Platform._align_hybrid_block_size(vllm_config, backends[0])


def plan(vllm_config, layout, memory, max_model_len=131072):
    """Returns the planner's configuration, the specifications of all layers, and the tokens that fit."""
    context = vllm_config.compilation_config.static_forward_context
    specs = {name: x.get_kv_cache_spec(vllm_config) for name, x in context.items()}
    config = planner_config(KVCacheLayout[layout], vllm_config.cache_config.block_size, max_model_len)
    config.cache_config.mamba_cache_mode = "align"
    config_builder.resolve_obj_by_qualname = lambda name: planning.DefaultKVCacheConfigBuilder
    groups = planning.get_kv_cache_groups(config, specs)
    planned = planning.get_kv_cache_config_from_groups(config, groups, memory)
    return planned, specs, kv_cache_utils.get_kv_cache_capacity(config, planned)[0]


class BigLibrary:
    """Stands in for the library with formats of 4 bits, without a GPU."""

    has_rows = False

    def page_bytes(self, format, head_dim):
        return head_dim * 68

    def can_seal(self, format):
        return True


class Blocks(unittest.TestCase):
    def planned(self, layout, n_layers, n_states, state_bytes, heads=4, d=256):
        vllm_config = configuration(self, BigLibrary, layout, heads, d)
        for i in range(n_layers):
            layer(vllm_config, i, heads=heads, d=d)
        context = vllm_config.compilation_config.static_forward_context
        context.update({f"model.layers.{n_layers + i}.state": StateLayer(state_bytes) for i in range(n_states)})
        choose_block_size(vllm_config)
        return vllm_config, *plan(vllm_config, layout, 100 << 30)

    def test_more_tokens_fit_than_in_bf16(self):
        # The numbers are those of Qwen3.5-27B and Qwen3.5-35B-A3B.
        for n_layers, n_states, state_bytes, heads in ((16, 48, 3_208_192, 4), (10, 30, 2_149_376, 2)):
            bf16 = (100 << 30) // (n_layers * heads * 256 * 4)
            for layout in ("BLHNC", "LBNHC"):
                vllm_config, planned, specs, tokens = self.planned(layout, n_layers, n_states, state_bytes, heads)
                sealed = next(x for x in specs.values() if isinstance(x, v033.KvantSealedSpec))
                with self.subTest(layout=layout, layers=n_layers, block=sealed.block_size, tokens=tokens):
                    self.assertGreater(tokens / bf16, 2.5)
                    self.assertLessEqual(len(planned.kv_cache_groups), hybrids.MAX_STATE_TABLES + 2)
                    self.assertEqual({x.block_size for x in specs.values()}, {vllm_config.cache_config.block_size})

    def test_states_fit_into_blocks_of_whole_pages(self):
        for layout, state_bytes in (("BLHNC", 100), ("BLHNC", 1_000_000), ("LBNHC", 1_000_000)):
            vllm_config, planned, specs, _ = self.planned(layout, 4, 12, state_bytes // 8 * 8)
            n_pages = vllm_config.cache_config.block_size // PAGE
            page_bytes = vllm_config.compilation_config.static_forward_context["model.layers.0.attn"].kvant.layout.block_bytes
            with self.subTest(layout=layout, pages=n_pages):
                for spec in specs.values():
                    if isinstance(spec, interface.MambaSpec):
                        self.assertGreaterEqual(spec.page_size_bytes, state_bytes // 8 * 8)
                    else:
                        self.assertEqual(spec.page_size_bytes, n_pages * page_bytes)
                for tensor in planned.kv_cache_tensors:
                    self.assertEqual(tensor.block_stride % page_bytes, 0)

    def test_block_sizes_of_broken_pages_are_refused(self):
        vllm_config = configuration(self, BigLibrary, "BLHNC", 4, 256)
        layer(vllm_config, 0, d=256, heads=4)
        vllm_config.cache_config.block_size = 1040
        with self.assertRaisesRegex(NotImplementedError, "vLLM has chosen blocks of 1040 tokens"):
            plan(vllm_config, "BLHNC", 1 << 30)

    def test_hybrid_models_with_windows_are_refused(self):
        vllm_config = configuration(self, BigLibrary, "BLHNC", 4, 256)
        with self.assertRaisesRegex(NotImplementedError, "hybrid models with a sliding window"):
            layer(vllm_config, 0, window=512, d=256, heads=4)


class Asked(types.SimpleNamespace):
    """Holds the members of a request that block managers read."""

    def __init__(self, name, tokens, of_block):
        hashes, before = [], b""
        for first in range(0, len(tokens) // of_block * of_block, of_block):
            before = hashlib.sha256(before + repr(tokens[first:first + of_block]).encode()).digest()
            hashes.append(before)
        super().__init__(
            request_id=name, all_token_ids=tokens, num_tokens=len(tokens), num_prompt_tokens=len(tokens), num_computed_tokens=0,
            block_hashes=hashes, num_in_flight_tokens=0, status="RUNNING", num_preemptions=0, skip_reading_prefix_cache=False,
            shared_prefix_boundary=0, sampling_params=None, pooling_params=None, lora_request=None, mm_features=[], cache_salt=None,
            has_encoder_inputs=False, get_skip_reading_prefix_cache=lambda: False)


class Managers(unittest.TestCase):
    def setUp(self):
        vllm_config = configuration(self, BigLibrary, "BLHNC", 4, 256)
        layers = [layer(vllm_config, i, heads=4, d=256) for i in range(4)]
        context = vllm_config.compilation_config.static_forward_context
        context.update({f"model.layers.{4 + i}.state": StateLayer(1_000_000) for i in range(12)})
        choose_block_size(vllm_config)
        planned, self.specs, _ = plan(vllm_config, "BLHNC", 1 << 34)
        planned = kv_cache_utils.generate_scheduler_kv_cache_config([planned])
        planned.num_blocks, self.block = 400, vllm_config.cache_config.block_size
        self.manager = KVCacheManager(kv_cache_config=planned, max_model_len=131072, scheduler_block_size=self.block,
                                      hash_block_size=self.block, enable_caching=True, max_in_flight_tokens=16384)
        self.kinds = [group.kv_cache_spec for group in planned.kv_cache_groups]
        self.tail_blocks = -(-layers[0].kvant.layout.tail_blocks // (self.block // PAGE))

    def step(self, request, n):
        """Schedules n tokens in a step of their own, and returns the tokens that were found."""
        self.manager.new_step_starts()
        blocks, hit = None, 0
        if request.num_computed_tokens == 0:
            blocks, hit, *_ = self.manager.get_computed_blocks(request)
            n = min(n, request.num_tokens - hit)
        self.assertIsNotNone(self.manager.allocate_slots(request, n, hit, blocks))
        request.num_computed_tokens += hit + n
        return hit

    def held(self, request, kind):
        groups = self.manager.coordinator.get_blocks(request.request_id)
        return [len([x for x in blocks if not x.is_null]) for blocks, spec in zip(groups, self.kinds) if isinstance(spec, kind)]

    def test_hits_end_with_blocks_whose_pages_and_states_are_published(self):
        free = self.manager.block_pool.get_num_free_blocks()
        tokens = list(range(3 * self.block + 50))
        a, b, c = (Asked(name, tokens, self.block) for name in "abc")
        # vLLM ends chunks at blocks.
        for n in (self.block, self.block, self.block, 50):
            self.step(a, n)
        self.assertEqual(self.held(a, v033.KvantTailSpec), [self.tail_blocks])
        self.assertEqual(self.held(a, v033.KvantSealedSpec), [4])
        self.assertEqual(self.step(b, 50), 3 * self.block)
        self.manager.free(a)
        self.manager.free(b)
        self.assertEqual(self.manager.block_pool.get_num_free_blocks(), free)
        self.assertEqual(self.step(c, 50), 3 * self.block)

    def test_a_block_that_a_decoded_token_fills_is_found_one_step_later(self):
        tokens = list(range(2 * self.block + 9))
        a = Asked("a", tokens, self.block)
        self.step(a, self.block)
        self.step(a, self.block - 1)
        self.step(a, 1)
        self.assertEqual(self.manager.get_computed_blocks(Asked("b", tokens, self.block))[1], self.block)
        self.step(a, 1)
        self.assertEqual(self.manager.get_computed_blocks(Asked("c", tokens, self.block))[1], 2 * self.block)


class HybridServer(Server):
    """Sends steps through vLLM's division of blocks, builders and layers, with recurrent states in the same pool."""

    def __init__(self, test, layout, n_blocks=40, n_states=3, state_bytes=120_000):
        super().__init__(SINK)
        for name, value in (("TorchLibrary", cpu_library.CpuLibrary), ("_flash_attention", cpu_library.varlen_attention)):
            patch = mock.patch.object(backend, name, value)
            patch.start()
            test.addCleanup(patch.stop)
        vllm_config = configuration(test, cpu_library.CpuLibrary, layout, N_KV_HEADS, D, max_model_len=4096)
        layers = [layer(vllm_config, i, heads=N_KV_HEADS, d=D, group=N_HEADS // N_KV_HEADS) for i in range(N_LAYERS)]
        context = vllm_config.compilation_config.static_forward_context
        context.update({f"model.layers.{N_LAYERS + i}.state": StateLayer(state_bytes) for i in range(n_states)})
        choose_block_size(vllm_config)
        self.block_tokens = vllm_config.cache_config.block_size
        planned, specs, _ = plan(vllm_config, layout, n_blocks << 24, 4096)
        planned.num_blocks = n_blocks
        pool = torch.randint(-128, 127, (planned.kv_cache_tensors[0].size,), dtype=torch.int8)
        self.groups, of_states = {}, []
        attn_groups = []
        for number, group in enumerate(planned.kv_cache_groups):
            name = group.layer_names[0]
            attn_groups.append([] if isinstance(context[name], StateLayer) else
                               [AttentionGroup(context[name].get_attn_backend(), group.layer_names, specs[name], number)])
            of_states += [group.layer_names] * isinstance(context[name], StateLayer)
        sizes = prepare_kernel_block_sizes(planned, attn_groups)
        of_group = {name: number for number, group in enumerate(planned.kv_cache_groups) for name in group.layer_names}
        views = {}
        for tensor in planned.kv_cache_tensors:
            of_layers = interface.create_kv_cache_views(pool, specs[tensor.layers[0]], planned.num_blocks_of(tensor), KVCacheLayout[layout],
                                                        tensor, kernel_block_size=sizes[of_group[tensor.layers[0]]])
            views.update(zip(tensor.layers, of_layers))
        for number, groups in enumerate(attn_groups):
            for group in groups:
                group.create_metadata_builders(vllm_config, self.device, sizes[number])
                kind = "tail" if group.layer_names[0].endswith(attach.TAIL_SUFFIX) else "sealed"
                self.groups[kind] = group
        for name, view in views.items():
            group = next((g for groups in attn_groups for g in groups if name in g.layer_names), None)
            if group is not None:
                context[name].kv_cache = view if group.kernel_block_size is None else group.map_kv_cache_to_kernel_blocks(view)
        # Holds the memory of the states of each group's layers.
        self.states = [[views[name] for name in names] for names in of_states]
        self.state, self.vllm_config = layers[0].kvant, vllm_config
        self.state.layers = layers[:]
        self.layout = self.state.layout
        self.tail_blocks = -(-self.layout.tail_blocks // (self.block_tokens // PAGE))
        self.free = list(self.rng.permutation(np.arange(1, n_blocks)))

    def describe(self, kind, **metadata):
        starts, lens = metadata["query_start_loc_cpu"], metadata["seq_lens"]
        common = CommonAttentionMetadata(max_query_len=int((starts[1:] - starts[:-1]).max()), max_seq_len=int(lens.max()),
                                         slot_mapping=torch.zeros(0), **metadata)
        return self.groups[kind].build_metadata(common)

    def attend(self, step, of_layer, q, k, v, out):
        of_layer.impl.forward(of_layer, q, k, v, of_layer.kv_cache, step, out)

    def put_states(self, block, group=0):
        """Writes states of a group's layers into a block. Returns a function that tells whether the states are intact."""
        made = [torch.randint(-128, 127, view[block].shape, dtype=torch.int8) for view in self.states[group]]
        for view, state in zip(self.states[group], made):
            view[block] = state
        return lambda: all(torch.equal(view[block], state) for view, state in zip(self.states[group], made))


class Steps(unittest.TestCase):
    layout = "BLHNC"

    def check(self, *requests):
        for request in requests:
            for i in range(N_LAYERS):
                error = request.out[i].float().numpy() - request.expected(i, SINK)
                self.assertLess(np.abs(error[:request.computed]).max(), 0.03)

    def test_two_requests_next_to_states(self):
        rng = np.random.default_rng(1)
        server, a, b = HybridServer(self, self.layout), Request(700, rng), Request(420, rng)
        self.assertGreater(server.block_tokens, 2 * PAGE)
        are_intact = [server.put_states(block, group % len(server.states)) for group, block in enumerate(server.take(4))]
        server.step([(a, 126)])
        for _ in range(4):
            server.step([(a, 1)], padding=2)
        server.step([(a, 1), (b, 150)])
        server.step([(b, 1), (a, 253)])
        for _ in range(3):
            server.step([(a, 1), (b, 1)])
        server.step([(a, 310), (b, 266)])
        self.check(a, b)
        self.assertTrue(all(is_intact() for is_intact in are_intact))

    def test_a_state_in_the_place_of_a_page_that_was_just_filled_stays(self):
        rng = np.random.default_rng(2)
        server, a, b = HybridServer(self, self.layout), Request(300, rng), Request(300, rng)
        server.step([(a, 255)])
        server.step([(a, 1)])
        # Request a ends, and its only block becomes the place of another request's states.
        server.free += a.tail
        checks, mover = [], MovedStates(server.vllm_config)
        mover.move = lambda: checks.append(server.put_states(a.blocks[0]))
        mover.preprocess_state()
        server.step([(b, 200)])
        self.check(b)
        self.assertTrue(checks[0]())


class StepsApart(Steps):
    """Repeats the tests with blocks of one layer."""

    layout = "LBNHC"


if __name__ == "__main__":
    unittest.main()
