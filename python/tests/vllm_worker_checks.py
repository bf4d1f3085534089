"""Checks the plug-in on the side of a GPU: attention layers, metadata builders and forward passes by vLLM's own
classes, on libkvant_cpu. If PyTorch is installed, `test_vllm` runs this file."""

import fcntl
import importlib
import pathlib
import sys
import tempfile
import unittest
from dataclasses import replace
from unittest import mock

import vllm_stub

vllm_stub.install(with_torch=True)
import cpu_library
import numpy as np
import torch
from vllm.distributed.utils import get_pp_indices
from vllm.v1.attention.backend import CommonAttentionMetadata

import kvant.vllm.constants
from kvant.paged.codebooks import Codebooks
from kvant.paged.constants import Constants
from kvant.paged.key_metrics import RANK, KeyMetrics, hadamard_matrix
from kvant.paged.key_scales import KeyScales
from kvant.paged.model_constants import ModelConstants
from kvant.paged.recipes import calibrated
from kvant.vllm import attach, backend
from kvant.vllm import v033 as release
from paged_server import D, N_HEADS, N_KV_HEADS, N_LAYERS, SINK, SMOOTH_CODEBOOKS, Request, Server, constants_of
from vllm_model import drafter_layer, layer, making_layers, of_model, planner_config, simple, supported, use

attach.wrap_attention(release.RELEASE)


def has_arenas():
    return attach.uses_arenas()


def cells_of(specs, n_blocks):
    """Returns the memory of each layer as vLLM's planner and worker lay it out, in a pool of n_blocks blocks of random
    bytes. The dimensions are blocks, heads, states of a block, and bytes."""
    import vllm.v1.core.kv_cache_planning as planning
    import vllm.v1.kv_cache_interface as interface
    from vllm.v1.kv_cache_layout import KVCacheLayout

    layout = KVCacheLayout["BLHNC" if has_arenas() else "LBNHC"]
    config = planner_config(layout)
    groups = planning.get_kv_cache_groups(config, specs)
    of_block = sum(specs[name].page_size_bytes for name in groups[0].layer_names)
    planned = planning.get_kv_cache_config_from_groups(config, groups, n_blocks * of_block)
    pool, cells = torch.randint(-128, 127, (planned.kv_cache_tensors[0].size,), dtype=torch.int8), {}
    for of_layers in planned.kv_cache_tensors:
        views = interface.create_kv_cache_views(pool, specs[of_layers.layers[0]], planned.num_blocks, layout, of_layers)
        cells.update(zip(of_layers.layers, views))
    return cells


class VllmServer(Server):
    """Sends the server's steps through vLLM's builders and layers."""

    def __init__(self, test, max_drafts=0, n_blocks=64, recipe=SINK, of_layers=None, stage=None, n_layers=N_LAYERS, n_draft_layers=0):
        """`of_layers` holds further arguments of vLLM's layers. `stage` is one of two stages of a model with n_layers
        layers. A drafter has n_draft_layers layers."""
        super().__init__(recipe, max_drafts=max_drafts, n_blocks=n_blocks, has_arenas=has_arenas())
        for name, value in (("TorchLibrary", cpu_library.CpuLibrary), ("_flash_attention", cpu_library.varlen_attention)):
            patch = mock.patch.object(backend, name, value)
            patch.start()
            test.addCleanup(patch.stop)
        drafts = of_model("eagle3" if n_draft_layers else "ngram", max_drafts) if max_drafts else None
        vllm_config = use(test, supported(cache_dtype="kvant", max_model_len=2048, speculative_config=drafts,
                                          rank=stage or 0, pipeline_parallel_size=1 if stage is None else 2,
                                          hf_text_config=simple(num_hidden_layers=n_layers)),
                          cpu_library.CpuLibrary)
        vllm_config.additional_config = {"kvant": {"recipe": recipe.text}}
        numbers = range(n_layers) if stage is None else range(*get_pp_indices(n_layers, stage, 2))
        vllm_config.scheduler_config.max_num_seqs = 8
        layers = [layer(vllm_config, i, heads=N_KV_HEADS, d=D, group=N_HEADS // N_KV_HEADS, **of_layers or {})
                  for i in numbers]
        self.draft_layers = [drafter_layer(vllm_config, n_layers + i, heads=N_KV_HEADS, d=D) for i in range(n_draft_layers)]
        if stage is not None:
            self.layout = layers[0].kvant.layout
        specs = {name: of_layer.get_kv_cache_spec(vllm_config)
                 for name, of_layer in vllm_config.compilation_config.static_forward_context.items()}
        test.assertEqual({specs[x.layer_name].page_size_bytes for x in layers}, {self.layout.block_bytes})
        for name, cells in cells_of(specs, n_blocks).items():
            vllm_config.compilation_config.static_forward_context[name].kv_cache = cells
        self.state = layers[0].kvant
        self.state.layers = layers[:]
        test.assertEqual((self.state.layout, self.state.recipe.text), (self.layout, recipe.text))
        context = vllm_config.compilation_config.static_forward_context
        names = {"sealed": [x.layer_name for x in layers],
                 "tail": [name for name in context if name.endswith(attach.TAIL_SUFFIX)]}
        self.builders = {}
        for kind, of_kind in names.items():
            builder = context[of_kind[0]].get_attn_backend().get_builder_cls()
            spec = context[of_kind[0]].get_kv_cache_spec(vllm_config)
            self.builders[kind] = builder(spec, of_kind, vllm_config, self.device)

    def describe(self, kind, **metadata):
        starts, lens = metadata["query_start_loc_cpu"], metadata["seq_lens"]
        common = CommonAttentionMetadata(max_query_len=int((starts[1:] - starts[:-1]).max()), max_seq_len=int(lens.max()),
                                         slot_mapping=torch.zeros(0), **metadata)
        return self.builders[kind].build(common_prefix_len=0, common_attn_metadata=common)

    def attend(self, step, of_layer, q, k, v, out):
        of_layer.impl.forward(of_layer, q, k, v, of_layer.kv_cache, step, out)


class Worker(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def check(self, *requests):
        for request in requests:
            for i in range(N_LAYERS):
                error = request.out[i].float().numpy() - request.expected(i, SINK)
                self.assertLess(np.abs(error[:request.computed]).max(), 0.03)

    def test_prompts_in_chunks_and_decoding(self):
        rng = np.random.default_rng(1)
        server, a, b = VllmServer(self), Request(300, rng), Request(200, rng)
        server.step([(a, 126)])
        for _ in range(4):
            server.step([(a, 1)], padding=2)
        server.step([(a, 1), (b, 150)])
        server.step([(b, 1), (a, 140)])
        self.check(a, b)

    def test_stages_of_unequal_numbers_of_layers(self):
        # The first stage has two layers, the second has one.
        layouts = []
        for stage, names in enumerate(("all 2 layers of stage 1 of 2", "all 1 layers of stage 2 of 2")):
            rng = np.random.default_rng(6)
            server, a, b = VllmServer(self, stage=stage, n_layers=3), Request(300, rng), Request(200, rng)
            self.assertEqual((len(server.state.layers), server.state.layers_before), (2 - stage, 2 * stage))
            with mock.patch.object(backend, "logger") as log:
                server.step([(a, 126)])
            self.assertRegex(log.info.call_args[0][1], names)
            for _ in range(4):
                server.step([(a, 1)], padding=2)
            server.step([(a, 1), (b, 150)])
            server.step([(b, 1), (a, 140)])
            for request in (a, b):
                for i in (1, 0)[:len(server.state.layers)]:
                    error = request.out[i].float().numpy() - request.expected(i, SINK)
                    self.assertLess(np.abs(error[:request.computed]).max(), 0.03)
            layouts.append(server.layout)
        self.assertEqual(len({(layout.block_bytes, layout.tail_blocks) for layout in layouts}), 1)

    def test_steps_of_other_engines_change_nothing(self):
        # An engine of data parallelism without requests runs steps on block 0. It may have requests again in any step.
        rng = np.random.default_rng(8)
        server, a, b = VllmServer(self), Request(300, rng), Request(200, rng)

        def idle(*lens):
            work = []
            for n in lens:
                request = Request(n, rng)
                request.blocks, request.tail = [0] * 8, [0] * server.layout.own_blocks
                work.append((request, n))
            server.step(work)

        idle(1, 1)
        server.step([(a, 127)])
        idle(128, 400)
        # The token fills a page, which the next step seals.
        server.step([(a, 1)])
        idle(1)
        server.step([(a, 1), (b, 128)])
        idle(256)
        server.step([(b, 1), (a, 140)])
        self.check(a, b)

    def test_what_the_cache_held_before_sleep_is_not_read_after_it(self):
        rng = np.random.default_rng(9)
        server, asleep = VllmServer(self, n_blocks=24), Request(300, rng)
        server.step([(asleep, 127)])
        # The page that this token fills is still unsealed when the server goes to sleep.
        server.step([(asleep, 1)])
        server.preempt(asleep)
        pool = torch.tensor([], dtype=torch.uint8).set_(server.state.layers[0].kv_cache.untyped_storage())
        pool.copy_(torch.randint(0, 256, pool.shape, dtype=torch.uint8))
        a, b = Request(300, rng), Request(200, rng)
        # These requests get the blocks of the other request.
        server.step([(a, 126)])
        for _ in range(4):
            server.step([(a, 1)])
        server.step([(a, 1), (b, 150)])
        server.step([(b, 1), (a, 140)])
        self.check(a, b)

    def test_prompts_in_integers_where_the_recipe_says_so(self):
        rng = np.random.default_rng(3)
        server, a = VllmServer(self, recipe=replace(SINK, prompt="flashq")), Request(300, rng)
        with mock.patch.object(backend, "logger") as log:
            server.step([(a, 140)])
        self.assertRegex(log.info.call_args[0][1], "prompt=flashq.*prompts in 8-bit integers")
        server.step([(a, 150)])
        library = server.state.cache.library
        self.assertEqual(library.prompts_in_bytes, 2 * N_LAYERS)
        for _ in range(4):
            server.step([(a, 1)])
        self.assertEqual(library.prompts_in_bytes, 2 * N_LAYERS)
        for i in range(N_LAYERS):
            wanted = a.expected(i, SINK)[:294]
            error = a.out[i, :294].float().numpy() - wanted
            self.assertTrue(0.001 < np.linalg.norm(error) / np.linalg.norm(wanted) < 0.02)
            self.assertLess(np.abs(error[290:]).max(), 0.03)

    def test_drafts(self):
        rng = np.random.default_rng(2)
        server, a, b = VllmServer(self, max_drafts=3), Request(300, rng), Request(300, rng)
        server.step([(a, 125)])
        server.step([(a, 4), (b, 253)], rejected={a: 2}, late=3)
        server.step([(a, 4), (b, 4)], rejected={a: 1, b: 3}, late=3)
        server.step([(a, 4), (b, 4)], late=3)
        server.step([(b, 1), (a, 100)])
        self.check(a, b)

    def test_drafts_of_a_drafter_whose_layers_lie_in_the_same_blocks(self):
        rng = np.random.default_rng(10)
        server, a, b = VllmServer(self, max_drafts=3, n_draft_layers=2), Request(300, rng), Request(300, rng)
        self.assertFalse(server.state.is_all)

        def step(*work, **how):
            # A drafter fills its pages between the steps of the model.
            for of_layer in server.draft_layers:
                of_layer.kv_cache.copy_(torch.randn(of_layer.kv_cache.shape))
            held = [of_layer.kv_cache.clone() for of_layer in server.draft_layers]
            server.step(list(work), **how)
            for of_layer, before in zip(server.draft_layers, held):
                self.assertTrue(torch.equal(of_layer.kv_cache, before))

        step((a, 125))
        step((a, 4), (b, 253), rejected={a: 2}, late=3)
        step((a, 4), (b, 4), rejected={a: 1, b: 3}, late=3)
        # A step without drafts, as vLLM schedules one where no request can use drafts.
        step((a, 1), (b, 1))
        step((a, 4), (b, 4), padding=2, late=3)
        step((b, 1), (a, 100))
        self.check(a, b)

    def served_with_constants(self, recipe, rank=0, n_ranks=1, found="12-34", n_layers=N_LAYERS, is_of_gguf=False,
                              n_stages=1):
        """Returns the state of layers whose model has constants. A rank has four KV heads. Each number of the constants is
        the number of its KV head and a hundred times the number of its layer."""
        vllm_config = use(self, supported(cache_dtype="kvant", max_model_len=2048, rank=rank, tensor_parallel_size=n_ranks,
                                          pipeline_parallel_size=n_stages,
                                          hf_text_config=simple(num_hidden_layers=N_LAYERS, num_attention_heads=8 * n_ranks,
                                                                max_position_embeddings=1024, vocab_size=9),
                                          get_total_num_kv_heads=lambda: 4 * n_ranks, get_head_size=lambda: D, model="/"),
                          cpu_library.CpuLibrary)
        vllm_config.additional_config = {"kvant": {"recipe": recipe, "constants": "FILE"}}
        numbers = torch.arange(4 * n_ranks).float() + 100 * torch.arange(n_layers).float()[:, None]
        heads = numbers[:, :, None, None].expand(-1, -1, D, RANK)
        turns = torch.arange(n_layers).float()[:, None, None].expand(-1, D, 2)

        def read(path, recipe, shape, serves_by_head, ranks):
            self.assertEqual((serves_by_head, ranks), (has_arenas(), n_ranks))
            self.assertEqual((path, shape.n_kv_heads, shape.n_heads, shape.n_layers), ("FILE", 4 * n_ranks, 8 * n_ranks, N_LAYERS))
            recipe = calibrated(recipe)
            metrics = KeyMetrics(heads, turns, hadamard_matrix(D) if recipe.key_hadamard else None) if recipe.is_shaped else None
            books = heads[..., 0].repeat(1, 1, 512 // D).half() if recipe.key_format.startswith("vq") else None
            scales = KeyScales(heads[..., 0], heads[..., 0] + 1) if recipe.key_smooth else None
            return Constants(recipe, "12-34", "Other", ModelConstants(metrics, books if books is None else Codebooks(books, books), scales),
                             is_of_gguf)

        with mock.patch.object(kvant.vllm.constants, "read_constants", read), \
                mock.patch.object(kvant.paged.checkpoint, "of_files", lambda folder, config: found), making_layers():
            stage = rank // n_ranks
            return [layer(vllm_config, i, heads=4, d=D, group=2) for i in range(*get_pp_indices(N_LAYERS, stage, n_stages))][0].kvant

    def test_constants_are_those_of_a_stage_s_layers_and_a_rank_s_heads(self):
        for rank in range(4):
            stage, of_rank = rank // 2, [100 * (rank // 2) + 4 * (rank % 2) + head for head in range(4)]
            metrics = self.served_with_constants("k=hadamard:tcq4,v=tok4g64,sink=1", rank, 2, n_stages=2).constants.metrics
            self.assertEqual((metrics.directions[:, :, 0, 0].tolist(), metrics.turns[:, 0, 0].tolist()), ([of_rank], [stage]))
            constants = self.served_with_constants("vecinfer-4bit,window=0", rank, 2, n_stages=2).constants
            self.assertEqual(constants.codebooks.keys[:, :, 511].tolist(), [of_rank])
            self.assertEqual(constants.key_scales.of_queries[:, :, 3].tolist(), [[x + 1 for x in of_rank]])

    def test_constants_are_those_of_a_ranks_heads(self):
        for rank in range(2):
            state = self.served_with_constants("k=hadamard:tcq4,v=tok4g64,sink=1", rank, 2)
            self.assertEqual(state.recipe.text, "k=hadamard:tcq4,v=tok4g64,sink=1,encode=shaped")
            metrics = state.constants.metrics
            self.assertEqual(metrics.directions.shape, (N_LAYERS, 4, D, RANK))
            self.assertEqual(metrics.directions[0, :, 0, 0].tolist(), [4 * rank + head for head in range(4)])
            self.assertEqual(metrics.basis.dtype, torch.float32)
            np.testing.assert_allclose(metrics.basis.numpy(), cpu_library.hadamard(D), atol=1e-7)

    def test_the_log_says_that_constants_of_a_gguf_file_are_not_compared_with_the_checkpoint(self):
        for is_of_gguf in (False, True):
            with mock.patch.object(backend.logger, "warning") as warning:
                self.served_with_constants("k=hadamard:tcq4,v=tok4g64,sink=1", found="12-34" if not is_of_gguf else "56-78", is_of_gguf=is_of_gguf)
            self.assertEqual(warning.call_count, is_of_gguf)
        self.assertIn("the constants 'FILE' were made from a GGUF file (Other)", warning.call_args[0][1])

    def test_codebooks_and_scales_are_those_of_a_ranks_heads(self):
        for rank in range(2):
            state = self.served_with_constants("vecinfer-4bit,window=0", rank, 2)
            self.assertEqual(state.recipe.text, "k=smooth+hadamard:vq-d2b8,v=vq-d2b8,sink=4")
            of_rank = [4 * rank + head for head in range(4)]
            self.assertEqual(state.constants.codebooks.values[1, :, 511].tolist(), [100 + x for x in of_rank])
            self.assertEqual(state.constants.key_scales.of_keys[0, :, 3].tolist(), of_rank)
            self.assertIsNone(state.constants.metrics)

    def test_steps_with_codebooks(self):
        rng, constants = np.random.default_rng(4), constants_of(SMOOTH_CODEBOOKS)
        with mock.patch.object(attach, "_add_constants", lambda state, *others: setattr(state, "constants", constants)):
            server, a, b = VllmServer(self, recipe=SMOOTH_CODEBOOKS), Request(300, rng), Request(200, rng)
        server.step([(a, 126)])
        for _ in range(4):
            server.step([(a, 1)], padding=2)
        server.step([(a, 1), (b, 150)])
        server.step([(b, 1), (a, 140)])
        for request in (a, b):
            for i in range(N_LAYERS):
                error = request.out[i].float().numpy() - request.expected(i, SMOOTH_CODEBOOKS, constants)
                self.assertLess(np.abs(error[:request.computed]).max(), 0.03)

    def test_constants_of_something_else_are_refused(self):
        with self.assertRaisesRegex(ValueError, "of another checkpoint \\(Other, fingerprint 12-34, not 12-56\\)"):
            self.served_with_constants("k=tcq4,v=tok4g64", found="12-56")
        with self.assertRaisesRegex(ValueError, "takes no constants"):
            self.served_with_constants("k=tok4g64,v=tok4g64")
        state = self.served_with_constants("k=tcq4,v=tok4g64", n_layers=3)
        with self.assertRaisesRegex(ValueError, "the constants are of 3 layers, and the model has 2"):
            state.start(cpu_library.CpuLibrary(), 8, 1024, torch.device("cpu"))

    def calibrated_config(self, rank=0, n_ranks=1, calibrate=None, n_stages=1, **more):
        """Returns a configuration of a rank with two KV heads, which asks for kvant-4bit."""
        values = dict(num_hidden_layers=N_LAYERS, num_attention_heads=4 * n_ranks, max_position_embeddings=1024, vocab_size=9)
        vllm_config = use(self, supported(
            cache_dtype="kvant_4bit", max_model_len=2048, rank=rank, tensor_parallel_size=n_ranks, pipeline_parallel_size=n_stages,
            hf_text_config=simple(**values, **more), get_total_num_kv_heads=lambda: N_KV_HEADS * n_ranks, get_head_size=lambda: D, model="/"),
            cpu_library.CpuLibrary)
        vllm_config.additional_config = {} if calibrate is None else {"kvant": {"calibrate": calibrate}}
        return vllm_config

    def served_calibrated(self, vllm_config, exists, made=None):
        """Returns the state of layers, the paths that were calibrated, and the lines of the log. `exists` says whether the
        cache folder has the file; `made` is the error that making the file ends with."""
        parallel, calibrated, lines = vllm_config.parallel_config, [], []
        n_ranks, n_stages = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        # The second rank's formats are larger, and with several stages the second layer's.
        first = (("tcq3", "tcq2"), ("tcq6", "tcq3")) + (("tcq6", "tcq6"), ("tcq5", "tcq6")) * (n_ranks - 1)
        by_head = (first, first if n_stages == 1 else (("tcq6", "tcq6"),) * len(first))
        heads = torch.arange(N_KV_HEADS * n_ranks).float()[None, :, None, None].expand(N_LAYERS, -1, D, RANK)
        turns = torch.zeros(N_LAYERS, D, 2)
        path = pathlib.Path(self.folder.name) / "kvant-4bit of 12-34"
        path.unlink(missing_ok=True)
        if exists:
            path.touch()

        def read(found, recipe, shape, serves_by_head=False, n_ranks=1):
            self.assertTrue(pathlib.Path(found).exists())
            self.assertTrue(serves_by_head)
            metrics = KeyMetrics(heads, turns, hadamard_matrix(D))
            return Constants(replace(recipe, name="kvant-4bit", by_head=by_head, is_shaped=True), "12-34", "Other", ModelConstants(metrics))

        def calibrate(folder, recipe, to):
            calibrated.append((folder, recipe, to))
            with open(f"{to}.lock") as lock, self.assertRaises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if made is not None:
                raise made
            to.touch()

        engine = simple(calibration_path=lambda recipe, shape, fingerprint, text: f"{path.parent}/{recipe} of {fingerprint}{text}",
                        Error=KeyError, Geometry=mock.Mock())
        where = kvant.vllm.constants
        with mock.patch.dict(sys.modules, {"kvant.engine": simple(_engine=engine)}), mock.patch.object(where, "read_constants", read), \
                mock.patch.object(where, "calibrate", calibrate), \
                mock.patch.object(kvant.paged.checkpoint, "of_files", lambda folder, config: "12-34"), \
                mock.patch.object(backend.logger, "info", lambda *args: lines.append(args[-1])), making_layers():
            state = [layer(vllm_config, i, heads=N_KV_HEADS, d=D, group=2)
                     for i in range(*get_pp_indices(N_LAYERS, parallel.rank // n_ranks, n_stages))][0].kvant
        return state, calibrated, lines

    def test_calibrated_bits_are_found_by_the_checkpoint_s_fingerprint(self):
        state, calibrated, lines = self.served_calibrated(self.calibrated_config(), exists=True)
        self.assertEqual(calibrated, [])
        if not has_arenas():
            self.assertEqual((state.recipe.name, state.constants), ("uniform-4bit", None))
            self.assertRegex(lines[0], "uniform-4bit is used in place of kvant-4bit, whose bits by layer and head are not supported here")
            return
        self.assertEqual((state.recipe.name, lines), ("kvant-4bit", []))
        self.assertEqual(state.constants.n_layers, N_LAYERS)
        pages = [cpu_library.CpuLibrary().page_bytes(format, D) for format in ("tcq3", "tcq2", "tcq6", "tcq3")]
        self.assertEqual(state.layout.layer_bytes, N_LAYERS * (sum(pages),))

    def test_all_ranks_have_equal_cells_and_the_first_rank_decides(self):
        path = str(pathlib.Path(self.folder.name) / "kvant-4bit of 12-34")
        for exists in (True, False):
            states = []
            for rank in range(2):
                group = mock.MagicMock()
                group.broadcast_object = lambda found, src, rank=rank: found if rank == src else (path, "")
                with mock.patch.object(importlib.import_module("vllm.distributed.parallel_state"), "get_tp_group", lambda group=group: group):
                    state, calibrated, _ = self.served_calibrated(self.calibrated_config(rank, 2), exists or rank == 1)
                self.assertEqual(len(calibrated), rank == 0 and not exists)
                states.append(state)
            self.assertEqual(len({state.layout.block_bytes for state in states}), 1)
            self.assertLess(states[0].layout.layer_bytes[0], states[1].layout.layer_bytes[0])
            self.assertEqual([state.recipe.by_head[0][0] for state in states], [("tcq3", "tcq2"), ("tcq6", "tcq6")])
            self.assertEqual([state.constants.metrics.directions[0, 0, 0, 0].item() for state in states], [0, N_KV_HEADS])

    def test_all_stages_have_equal_cells_and_the_first_rank_decides(self):
        path = str(pathlib.Path(self.folder.name) / "kvant-4bit of 12-34")
        for n_ranks in (1, 2):
            states, asked = [], []
            for rank in range(2 * n_ranks):
                def group_of(kind, rank=rank):
                    def broadcast(found, src):
                        asked.append((kind, rank))
                        return found if rank == 0 else (path, "")

                    return lambda: simple(broadcast_object=broadcast)

                groups = importlib.import_module("vllm.distributed.parallel_state")
                with mock.patch.object(groups, "get_tp_group", group_of("ranks")), \
                        mock.patch.object(groups, "get_pp_group", group_of("stages")):
                    state, calibrated, _ = self.served_calibrated(self.calibrated_config(rank, n_ranks, n_stages=2), exists=rank > 0)
                self.assertEqual(len(calibrated), rank == 0)
                states.append(state)
            # The first rank of each stage speaks to the other stages, then all ranks of a stage speak to each other.
            self.assertEqual(asked, [("stages", 0), ("stages", 1)] if n_ranks == 1 else
                             [("stages", 0), ("ranks", 0), ("ranks", 1), ("stages", 2), ("ranks", 2), ("ranks", 3)])
            self.assertEqual(len({(state.layout.block_bytes, state.layout.tail_blocks) for state in states}), 1)
            self.assertLess(states[0].layout.layer_bytes[0], states[-1].layout.layer_bytes[0])
            self.assertEqual({len(state.recipe.by_head) for state in states}, {1})
            self.assertEqual([state.recipe.by_head[0][0] for state in states[::n_ranks]], [("tcq3", "tcq2"), ("tcq6", "tcq6")])

    def test_a_first_start_calibrates_unless_that_is_off_or_fails(self):
        state, calibrated, lines = self.served_calibrated(self.calibrated_config(), exists=False)
        self.assertEqual((state.recipe.name, calibrated), ("kvant-4bit", [("/", "kvant-4bit", pathlib.Path(self.folder.name) / "kvant-4bit of 12-34")]))
        self.assertRegex(lines[0], "kvant-4bit is being calibrated for /, which takes some minutes at the first start .*\"calibrate\": false")
        for changed, made, why in (
                (dict(calibrate=False), None, "because this model has no constants in kvant's cache folder, and "
                 "--additional-config turns calibration off"),
                ({}, RuntimeError("calibration failed (out of memory)"), "because calibration failed \\(out of memory\\)"),
                (dict(layer_types=["full_attention", "sliding_attention"]), None, "because the model has layers of the kinds "
                 "full_attention, sliding_attention")):
            state, calibrated, lines = self.served_calibrated(self.calibrated_config(**changed), exists=False, made=made)
            self.assertEqual((state.recipe.name, state.constants, len(calibrated)), ("uniform-4bit", None, made is not None))
            self.assertRegex(lines[-1], "uniform-4bit is used in place of kvant-4bit, " + why)

    def test_soft_caps_and_sinks_that_are_loaded_later(self):
        rng, sinks = np.random.default_rng(5), torch.nn.Parameter(torch.zeros(N_HEADS, dtype=torch.bfloat16), requires_grad=False)
        server, a = VllmServer(self, of_layers=dict(logits_soft_cap=1.5, sinks=sinks)), Request(300, rng)
        sinks.copy_(torch.linspace(-2, 3, N_HEADS))
        for of_layer in server.state.layers:
            of_layer.impl.process_weights_after_loading(torch.bfloat16)
        server.step([(a, 270)])
        for _ in range(3):
            server.step([(a, 1)])
        for i in range(N_LAYERS):
            error = a.out[i].float().numpy() - a.expected(i, SINK, softcap=1.5, sink_logits=sinks.float().numpy())
            self.assertLess(np.abs(error[:a.computed]).max(), 0.03)

    def test_rehearsing_a_step_fills_the_output(self):
        server = VllmServer(self)
        of_layer, out = server.state.layers[0], torch.full((7, N_HEADS, D), 3.0)
        of_layer.impl.forward(of_layer, None, None, None, None, None, out)
        self.assertFalse(out.any())

    def test_graphs_are_claimed_for_decoded_requests_with_as_many_tokens_each(self):
        for builder in VllmServer(self).builders.values():
            self.assertEqual(builder._cudagraph_support.name, "UNIFORM_BATCH")


if __name__ == "__main__":
    unittest.main()
