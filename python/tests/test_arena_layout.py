"""Tests blocks that hold all layers (kvant.paged.arena_layout): places that do not overlap, and steps on libkvant_cpu in
small pools, where a wrong distance would reach into another request's block."""

import itertools
import unittest
import unittest.mock
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import cpu_library
import numpy as np
import torch
from paged_server import BY_HEAD, D, LONG_SINK, N_LAYERS, PLAIN, SINK, Request, Server, arena_of
from test_block_layout import plain_order
from test_scheduling import Scheduling

from kvant import PAGE
from kvant.c_api import KEY, VALUE
from kvant.paged.arena_layout import ArenaLayout, ArenaSinks


class Places(unittest.TestCase):
    def test_sinks_of_all_layers_and_heads_lie_apart(self):
        for layers, heads, d, tokens in ((28, 2, 128, 4), (28, 2, 128, 1), (9, 3, 64, 2), (5, 1, 256, 3)):
            self.check(ArenaSinks(layers, heads, d, tokens), plain_order(d))
            self.check(ArenaSinks(layers, heads, d, tokens, has_rows=True), 2 * [np.arange(PAGE * d).reshape(PAGE, d)])

    def check(self, sinks, order):
        taken = set()
        for layer, head, side in itertools.product(range(sinks.n_layers), range(sinks.n_kv_heads), (KEY, VALUE)):
            place = sinks.place(layer, side) + head * sinks.head_distance
            self.assertEqual(place % 16, 0)
            numbers = {place // 2 + int(i) for i in order[side][:sinks.n_tokens].reshape(-1)}
            self.assertEqual(len(numbers), sinks.n_tokens * sinks.head_dim)
            self.assertFalse(taken & numbers)
            self.assertLess(max(numbers), sinks.bytes // 2)
            taken |= numbers

    def test_sealed_pages_follow_one_another_and_tails_stay_in_their_cells(self):
        for layer_bytes, sink, has_sink_block in itertools.product(((40960, 20480, 70656), (1024, 2048), 3 * (65536,)), (0, 1, 4), (False, True)):
            layout = ArenaLayout(2, 128, layer_bytes, sink, has_sink_block=has_sink_block)
            pool, cells = arena_of(layout, 5)
            memories = layout.memory_of(cells)
            stride = pool.stride(0)
            self.assertEqual({(x.block_stride, x.tail_stride) for x in memories}, {(stride, stride)})
            begins = [x.sealed - pool.data_ptr() for x in memories]
            self.assertEqual(begins, [(0 if has_sink_block else layout.sinks.bytes) + sum(layer_bytes[:i])
                                      for i in range(len(layer_bytes))])
            self.assertLessEqual(layout.sinks.bytes, len(layer_bytes) * layout.block_bytes)
            self.assertLessEqual(begins[-1] + layer_bytes[-1], len(layer_bytes) * layout.block_bytes)
            self.assertEqual([x.tail - pool.data_ptr() for x in memories], [i * layout.block_bytes for i in range(len(layer_bytes))])
            for page in itertools.product(range(2), range(2)):
                block, unit = layout.tail_place(*page)
                self.assertIn(block, range(has_sink_block, layout.own_blocks))
                self.assertLessEqual(unit * layout.unit_bytes + layout.tail_page_bytes, layout.block_bytes)

    def test_the_sum_of_layers_is_rounded_and_not_each_layer(self):
        sizes = (100 * 1024, 300 * 1024 + 16, 200 * 1024)
        self.assertEqual(ArenaLayout(8, 128, sizes).block_bytes, 200 * 1024 + 512)
        self.assertEqual(ArenaLayout(8, 128, sizes, least_block_bytes=1 << 20).block_bytes, 1 << 20)
        self.assertEqual(ArenaLayout(1, 128, (1024, 2048)).block_bytes, PAGE * 128 * 2)

    def test_other_distances_are_refused_before_anything_is_written(self):
        for wrong in range(4):
            server, a, b = Server(BY_HEAD, n_blocks=24, has_arenas=True), *(Request(140, np.random.default_rng(8)) for _ in range(2))
            layers, n_bytes = server.state.layers, server.layout.block_bytes
            pool = torch.zeros(24, 4 * n_bytes, dtype=torch.uint8)
            first, second = ((pool[:, :n_bytes], pool[:, 2 * n_bytes:3 * n_bytes]), (pool[:, :n_bytes], pool[:, n_bytes - 16:2 * n_bytes - 16]),
                             (pool[:, :n_bytes], pool[::2, n_bytes:2 * n_bytes]), (pool[:, :2 * n_bytes], pool[:, 2 * n_bytes:]))[wrong]
            layers[0].kv_cache, layers[1].kv_cache = first, second
            with self.assertRaisesRegex(RuntimeError, f"hold 2 cells of {n_bytes} bytes one after another"):
                server.step([(a, 130), (b, 130)])
            self.assertFalse(pool.any())


class Steps(unittest.TestCase):
    def test_two_requests_at_once_in_a_small_pool(self):
        for recipe, max_drafts in itertools.product((PLAIN, SINK, LONG_SINK, BY_HEAD), (0, 3)):
            rng = np.random.default_rng(1)
            server = Server(recipe, n_blocks=32 if max_drafts else 17, max_drafts=max_drafts, has_arenas=True)
            a, b = Request(300, rng), Request(260, rng)
            gap = server.pool[:, N_LAYERS * server.layout.block_bytes:].clone()
            server.step([(a, 126)])
            for _ in range(4):
                server.step([(a, 1)], padding=2)
            server.step([(a, 1), (b, 150)])
            server.step([(b, 1), (a, 140)])
            for _ in range(3):
                server.step([(b, 1), (a, 1)])
            for request, layer in itertools.product((a, b), range(N_LAYERS)):
                error = request.out[layer].float().numpy() - request.expected(layer, recipe)
                self.assertLess(np.abs(error[:request.computed]).max(), 0.02, (recipe.name, max_drafts))
            self.assertTrue(torch.equal(server.pool[:, N_LAYERS * server.layout.block_bytes:], gap))

    def test_one_call_seals_the_pages_of_all_layers(self):
        for recipe, first, call_of_all in ((PLAIN, 127, "seal_pages"), (SINK, 127, "seal_layers"), (SINK, 255, "seal_pages"),
                                           (BY_HEAD, 127, "seal_layers"), (BY_HEAD, 255, "seal_layers")):
            library = cpu_library.CpuLibrary()
            server, a = Server(recipe, library, has_arenas=True), Request(first + 3, np.random.default_rng(4))
            for n in (first, 1):
                server.step([(a, n)])
            with unittest.mock.patch.object(library, "call", side_effect=library.call) as call:
                server.step([(a, 1)])
            names = [arguments.args[0] for arguments in call.call_args_list]
            self.assertEqual([name for name in names if name.startswith("seal")], [call_of_all], (recipe.name, first))
            for layer in range(N_LAYERS):
                error = a.out[layer].float().numpy() - a.expected(layer, recipe)
                self.assertLess(np.abs(error[:a.computed]).max(), 0.02)

    def test_first_pages_that_are_filled_in_different_steps_keep_their_own_sinks(self):
        rng = np.random.default_rng(6)
        server, requests = Server(SINK, has_arenas=True), [Request(140, rng) for _ in range(3)]
        server.step([(requests[0], 127)])
        server.step([(requests[0], 1), (requests[1], 126), (requests[2], 126)])
        for _ in range(3):
            server.step([(request, 1) for request in requests])
        for request, layer in itertools.product(requests, range(N_LAYERS)):
            error = request.out[layer].float().numpy() - request.expected(layer, SINK)
            self.assertLess(np.abs(error[:request.computed]).max(), 0.02)

    def test_pages_of_each_head_are_in_its_formats(self):
        library = cpu_library.CpuLibrary()
        server, a = Server(BY_HEAD, library, has_arenas=True), Request(140, np.random.default_rng(5))
        server.step([(a, 140)])
        self.assertEqual(library.formats_sealed, {(pair[side], "KV"[side]) for layer in BY_HEAD.by_head for pair in layer for side in range(2)})
        self.assertEqual(sum(server.layout.layer_bytes), sum(library.page_bytes(format, D) for layer in BY_HEAD.by_head for pair in layer
                                                             for format in pair))


class ArenaScheduling(Scheduling):
    """Runs prefix hits, preemption, chunks and drafts in blocks that hold all layers. First pages have their sinks in
    their blocks, as with CPU offload. vllm_scheduler_checks has sinks with blocks of their own."""

    has_arenas = True
    recipe = BY_HEAD


del Scheduling

if __name__ == "__main__":
    unittest.main()
