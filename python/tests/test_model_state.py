"""Tests steps of several requests through the plug-in's own code on libkvant_cpu. The expected attention is computed
token by token from the visibility rule alone."""

import functools
import itertools
import unittest
import unittest.mock
from dataclasses import replace
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import cpu_library
from paged_server import (CODEBOOKS, D, LONG_SINK, N_HEADS, N_KV_HEADS, N_LAYERS, PLAIN, ROTATED, SINK, SMOOTH_CODEBOOKS, Request, Server,
                          constants_of)

import numpy as np
import torch

from kvant.paged import prompt_pages, prompt_rows
from kvant.paged.key_metrics import RANK, KeyMetrics, hadamard_matrix
from kvant.paged.model_constants import ModelConstants


class RowServer(Server):
    """Serves prompts whose attention takes rows (varlen_attention) instead of pages."""

    attention = staticmethod(cpu_library.varlen_attention)


class Steps(unittest.TestCase):
    def check(self, recipe, *requests, constants=None):
        for request in requests:
            for layer in range(N_LAYERS):
                n = request.computed
                error = (request.out[layer, :n].float().numpy() - request.expected(layer, recipe, constants)[:n])
                self.assertLess(np.abs(error).max(), 0.03)

    def test_prompts_cut_anyhow_and_decoding(self):
        for kind, recipe in itertools.product((Server, RowServer), (PLAIN, ROTATED, SINK, LONG_SINK)):
            rng = np.random.default_rng(1)
            server, a, b, c = kind(recipe), *(Request(n, rng) for n in (400, 300, 140))
            server.step([(a, 200)])
            server.step([(a, 1), (b, 100), (c, 126)])
            server.step([(a, 130), (b, 1), (c, 1)])
            for _ in range(4):
                server.step([(a, 1), (b, 1), (c, 1)])
            server.step([(b, 150), (a, 1), (c, 1)])
            server.step([(a, 40), (c, 5)])
            self.check(recipe, a, b, c)

    def test_prompts_in_integers_cut_anyhow_and_beside_decoding(self):
        for kind, recipe, dtype in itertools.product((Server, RowServer), (PLAIN, ROTATED, SINK), (torch.bfloat16, torch.float16)):
            rng = np.random.default_rng(9)
            server, a, b = kind(replace(recipe, prompt="flashq")), *(Request(n, rng, dtype) for n in (400, 300))
            # Two of these steps attend in integers.
            with unittest.mock.patch.object(prompt_pages, "MOST_PAGES", 1):
                for work in ([(a, 200)], [(a, 1), (b, 100)], [(a, 140), (b, 1)], [(a, 59), (b, 199)]):
                    server.step(work)
            # Some prompts take several calls.
            self.assertGreater(server.state.cache.library.prompts_in_bytes, N_LAYERS * 4)
            for request in (a, b):
                for layer in range(N_LAYERS):
                    wanted = request.expected(layer, recipe)
                    error = request.out[layer].float().numpy() - wanted
                    self.assertLess(np.linalg.norm(error) / np.linalg.norm(wanted), 0.02)

    def test_activations_in_f16(self):
        for kind, recipe in itertools.product((Server, RowServer), (PLAIN, ROTATED, LONG_SINK)):
            rng = np.random.default_rng(3)
            server, a, b = kind(recipe), *(Request(n, rng, torch.float16) for n in (300, 140))
            server.step([(a, 200)])
            server.step([(a, 60), (b, 126)])
            for _ in range(4):
                server.step([(a, 1), (b, 1)])
            self.check(recipe, a, b)

    def test_rows_that_are_stored_as_they_are_stay_where_they_are(self):
        # The last step begins within a page.
        work = ([("a", 256)], [("a", 128), ("b", 130)], [("b", 128)])
        for kind, recipe, dtype, n_prompts in ((Server, PLAIN, torch.bfloat16, 2), (Server, LONG_SINK, torch.bfloat16, 2),
                                               (Server, ROTATED, torch.bfloat16, 0), (Server, PLAIN, torch.float16, 0),
                                               (RowServer, PLAIN, torch.bfloat16, 0)):
            library, rng = cpu_library.CpuLibrary(), np.random.default_rng(5)
            server, requests = kind(recipe, library), {name: Request(n, rng, dtype) for name, n in (("a", 384), ("b", 258))}
            calls = []
            for step in work:
                with unittest.mock.patch.object(library, "call", side_effect=library.call) as call:
                    server.step([(requests[name], n) for name, n in step])
                calls.append([arguments.args[0] for arguments in call.call_args_list])
            self.assertEqual(library.prompts_of_rows, n_prompts * N_LAYERS)
            if n_prompts:
                self.assertEqual(calls[0], N_LAYERS * ["seal_pages", "prompt_attention"])
                # Two tokens go to a tail.
                self.assertEqual(calls[1], N_LAYERS * ["seal_pages", "append", "prompt_attention"])
            self.check(recipe, *requests.values())

    def test_decoding_takes_two_launches_a_layer(self):
        for recipe in (PLAIN, ROTATED, SINK):
            library = cpu_library.CpuLibrary()
            server, a = Server(recipe, library), Request(140, np.random.default_rng(4))
            server.step([(a, 130)])
            with unittest.mock.patch.object(library, "call", side_effect=library.call) as call:
                server.step([(a, 1)])
            names = [arguments.args[0] for arguments in call.call_args_list]
            self.assertEqual(names, ["plan_step", "decode_schedule"] + N_LAYERS * ["append", "decode_attention"])

    def test_a_page_filled_by_decoding_is_sealed_before_the_next_step(self):
        for recipe in (PLAIN, SINK, LONG_SINK):
            server, a, b = Server(recipe), *(Request(n, np.random.default_rng(2)) for n in (262, 10))
            server.step([(a, 126)])
            for _ in range(4):
                server.step([(a, 1)], padding=2)
            server.step([(a, 125)])
            # The step with (a, 1) fills a page of request a.
            server.step([(a, 1)])
            # The step with (b, 10) seals the page of request a, although request a waits.
            server.step([(b, 10)])
            server.step([(a, 4)])
            self.check(recipe, a, b)

    def test_pages_filled_by_decoding_are_sealed_in_all_layers_wherever_they_lie(self):
        for order in (1, -1):
            server, a, b = Server(SINK), *(Request(n, np.random.default_rng(6)) for n in (133, 133))
            server.state.layers.sort(key=lambda layer: order * layer.kv_cache.data_ptr())
            server.step([(a, 127), (b, 127)])
            for _ in range(6):
                server.step([(a, 1), (b, 1)])
            self.check(SINK, a, b)

    def test_pages_are_sealed_by_the_metrics_of_their_layer_and_place(self):
        # The number identifies a layer and a head.
        number = 10 * torch.arange(N_LAYERS)[:, None] + torch.arange(N_KV_HEADS)
        directions = number[..., None, None].expand(-1, -1, D, RANK).float().contiguous()
        for max_drafts, recipe in ((0, PLAIN), (0, SINK), (2, SINK)):
            metrics = KeyMetrics(directions, torch.zeros(N_LAYERS, D, 2), hadamard_matrix(D) if recipe.key_hadamard else None)
            server = Server(recipe, max_drafts=max_drafts, constants=ModelConstants(metrics))
            a, b = (Request(n, np.random.default_rng(8)) for n in (400, 262))
            # The prompt of request a fills two pages.
            server.step([(a, 380), (b, 120)])
            # Decoding fills two pages.
            for _ in range(8):
                server.step([(a, 1), (b, 1)])
            # A later part of a prompt fills one page.
            server.step([(b, 134)])
            server.step([(a, 1)])
            layout, seen = server.layout, server.state.cache.library.metrics_seen
            for request, n_pages in ((a, 3), (b, 2)):
                for page, block in enumerate(request.blocks[:n_pages]):
                    for layer, head in itertools.product(range(N_LAYERS), range(N_KV_HEADS)):
                        at = (server.state.layers[layer].kv_cache.data_ptr() + int(block) * layout.block_bytes +
                              layout.sink.bytes + head * layout.head_bytes)
                        self.assertEqual(seen[at], (10 * layer + head, page))

    def test_codebooks_and_scales_of_keys_are_those_of_the_layer_and_head(self):
        for kind, recipe, dtype in ((Server, SMOOTH_CODEBOOKS, torch.bfloat16), (Server, SMOOTH_CODEBOOKS, torch.float16),
                                    (RowServer, SMOOTH_CODEBOOKS, torch.bfloat16), (Server, CODEBOOKS, torch.bfloat16)):
            rng, constants = np.random.default_rng(12), constants_of(recipe)
            server, a, b = kind(recipe, constants=constants), *(Request(n, rng, dtype) for n in (400, 300))
            with unittest.mock.patch.object(prompt_pages, "MOST_PAGES", 1), unittest.mock.patch.object(prompt_rows, "STRETCH", 1):
                server.step([(a, 256)])
                server.step([(a, 1), (b, 126)])
                # Decoding fills a page.
                for _ in range(4):
                    server.step([(a, 1), (b, 1)])
                server.step([(a, 139), (b, 1)])
                server.step([(b, 169)])
            self.check(recipe, a, b, constants=constants)

    def test_soft_caps_and_attention_sinks(self):
        logits = torch.linspace(-2, 3, N_HEADS)
        for recipe, softcap, sink_logits in ((SINK, 0.7, None), (PLAIN, 0.0, logits), (SMOOTH_CODEBOOKS, 1.5, logits)):
            rng, constants = np.random.default_rng(14), constants_of(recipe) if recipe.needs_constants else None
            server = Server(recipe, constants=constants, softcap=softcap, sink_logits=sink_logits)
            a, b = Request(400, rng), Request(300, rng)
            # Prompts take several calls, one of which reads the sinks.
            with unittest.mock.patch.object(prompt_pages, "MOST_PAGES", 1):
                for work in ([(a, 256)], [(a, 1), (b, 127)], [(a, 1), (b, 1)], [(a, 140), (b, 1)], [(b, 130)]):
                    server.step(work)
            known = dict(constants=constants, softcap=softcap, sink_logits=None if sink_logits is None else sink_logits.numpy())
            for request in (a, b):
                for layer in range(N_LAYERS):
                    n = request.computed
                    error = request.out[layer, :n].float().numpy() - request.expected(layer, recipe, **known)[:n]
                    self.assertLess(np.abs(error).max(), 0.03)
                    without = request.expected(layer, recipe, constants)[:n] - request.expected(layer, recipe, **known)[:n]
                    self.assertGreater(np.abs(without).max(), 0.1)

    def test_codebooks_of_prompts_in_integers(self):
        recipe, rng = replace(SMOOTH_CODEBOOKS, prompt="flashq"), np.random.default_rng(13)
        constants, a = constants_of(recipe), Request(300, rng)
        server = Server(recipe, constants=constants)
        server.step([(a, 140)])
        server.step([(a, 160)])
        self.assertEqual(server.state.cache.library.prompts_in_bytes, 2 * N_LAYERS)
        for layer in range(N_LAYERS):
            wanted = a.expected(layer, recipe, constants)
            error = a.out[layer].float().numpy() - wanted
            self.assertLess(np.linalg.norm(error) / np.linalg.norm(wanted), 0.03)

    def test_pages_with_codebooks_are_sealed_by_one_call(self):
        library = cpu_library.CpuLibrary()
        server, a = Server(CODEBOOKS, library, constants=constants_of(CODEBOOKS)), Request(140, np.random.default_rng(4))
        server.step([(a, 127)])
        server.step([(a, 1)])
        with unittest.mock.patch.object(library, "call", side_effect=library.call) as call:
            server.step([(a, 1)])
        names = [arguments.args[0] for arguments in call.call_args_list]
        self.assertEqual([name for name in names if name.startswith("seal")], ["seal_layers"])

    def test_decoding_skips_values_as_the_recipe_says_and_prompts_do_not(self):
        found = {}
        for skip in (0.0, 1e-9, 0.6):
            server, a = Server(replace(PLAIN, skip=skip)), Request(400, np.random.default_rng(6))
            server.step([(a, 390)])
            for _ in range(4):
                server.step([(a, 1)])
            self.assertEqual(server.state.cache.kernel.endswith("skipping values"), skip > 0)
            found[skip] = a.out.float()
        torch.testing.assert_close(found[1e-9], found[0.0], equal_nan=True)
        torch.testing.assert_close(found[0.6][:, :390], found[0.0][:, :390])
        self.assertGreater((found[0.6] - found[0.0])[:, 390:394].abs().max(), 0.01)

    def test_prompts_and_decoding_have_the_exponential_of_the_recipe(self):
        """SAS is 0 for scores more than 6 below the largest, and off by at most a few parts in a thousand for others."""
        found = {}
        for recipe in (SINK, replace(SINK, has_sas=True), replace(SINK, prompt="flashq"), replace(SINK, prompt="flashq", has_sas=True)):
            for n_prompt in (300, 100):
                server, a = Server(recipe), Request(306, np.random.default_rng(7))
                for n in (n_prompt, *(306 - n_prompt) * [1]):
                    server.step([(a, n)])
                found[recipe.has_sas, recipe.prompt, n_prompt] = a.out.float()
        for prompt, n_prompt in itertools.product(("exact", "flashq"), (300, 100)):
            exact, sas = (found[has_sas, prompt, n_prompt] for has_sas in (False, True))
            for rows in (slice(150, 290), slice(300, 306)):
                difference = (sas - exact)[:, rows].square().mean().sqrt() / exact[:, rows].square().mean().sqrt()
                self.assertTrue(1e-4 < difference < 0.03, (prompt, n_prompt, rows, difference))

    def test_blocks_that_vllm_has_padded_are_refused_before_anything_is_written(self):
        rng = np.random.default_rng(8)
        server, a, b = Server(PLAIN, n_blocks=24), Request(140, rng), Request(140, rng)
        n_bytes = server.layout.block_bytes
        for padded, message in ((torch.zeros(24, 3 * n_bytes, dtype=torch.uint8)[:, :n_bytes], f"{3 * n_bytes} bytes apart"),
                                (torch.zeros(24, 2 * n_bytes, dtype=torch.uint8), f"blocks of {2 * n_bytes} bytes")):
            server.state.layers[1].kv_cache = padded
            with self.assertRaisesRegex(RuntimeError, f"the cache of layer 1 .*{message}"):
                server.step([(a, 130), (b, 130)])
            self.assertFalse(padded.any())

    def test_blocks_are_checked_again_when_they_are_laid_out_anew(self):
        server, a = Server(PLAIN), Request(140, np.random.default_rng(8))
        server.step([(a, 10)])
        server.state.start(server.state.cache.library, 8, 1024, server.device)
        server.state.layers[0].kv_cache = torch.zeros(64, 2 * server.layout.block_bytes, dtype=torch.uint8)
        with self.assertRaisesRegex(RuntimeError, "the cache of layer 0"):
            server.step([(a, 1)])

    def test_constants_of_another_number_of_layers_are_refused(self):
        constants = constants_of(CODEBOOKS)
        fewer = replace(constants, codebooks=replace(constants.codebooks, keys=constants.codebooks.keys[:1]))
        with self.assertRaisesRegex(ValueError, "the constants are of 1 layers, and the model has 2"):
            Server(CODEBOOKS, constants=fewer)

    def test_metrics_of_another_type_are_refused(self):
        with self.assertRaisesRegex(TypeError, "metrics of keys are float32, not torch.bfloat16"):
            KeyMetrics(torch.zeros(N_LAYERS, N_KV_HEADS, D, RANK), torch.zeros(N_LAYERS, D, 2), hadamard_matrix(D).bfloat16())

    def test_a_hit_in_the_same_step_sees_what_the_step_seals(self):
        for kind, recipe in itertools.product((Server, RowServer, functools.partial(Server, has_arenas=True)), (PLAIN, SINK, LONG_SINK)):
            self.check_a_hit_in_the_same_step(kind, recipe)

    def check_a_hit_in_the_same_step(self, kind, recipe):
        rng = np.random.default_rng(4)
        server, a, b, c = kind(recipe), *(Request(300, rng) for _ in range(3))
        for name in "qkv":
            for other in (b, c):
                getattr(other, name)[:, :256] = getattr(a, name)[:, :256]
        a.blocks = server.take(3)
        for other in (b, c):
            server.share(a, other, 2)
        server.step([(a, 300), (b, 1), (c, 40)])
        for other, rows in ((b, slice(256, 257)), (c, slice(256, 296))):
            error = other.out[0, rows].float().numpy() - other.expected(0, recipe)[rows]
            self.assertLess(np.abs(error).max(), 0.03)

    def test_long_prefixes_are_attended_to_in_stretches(self):
        for kind, part, limit in ((Server, prompt_pages, "MOST_PAGES"), (RowServer, prompt_rows, "STRETCH")):
            with unittest.mock.patch.object(part, limit, 2):
                rng = np.random.default_rng(5)
                server, a, b, c = kind(SINK), Request(700, rng), Request(500, rng), Request(260, rng)
                server.step([(a, 650), (c, 130)])
                server.step([(a, 50), (b, 300), (c, 2)])
                server.step([(b, 200), (c, 128)])
                self.check(SINK, a, b, c)


if __name__ == "__main__":
    unittest.main()
