"""Tests the quality guard: that its measurements equal attention computed from a request's rows, its messages, and that
it does not disturb the server."""

import tempfile
import types
import unittest
import unittest.mock
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import cpu_library
import paged_server as harness
from paged_server import LONG_SINK, PLAIN, SINK, SMOOTH_CODEBOOKS, Request, Server, constants_of

import numpy as np
import torch

from kvant import PAGE
from kvant.paged import quality_guard
from kvant.paged.quality_guard import GuardReport
from kvant.vllm import guard_metrics


def expected_error(request, layer, recipe, n, constants=None, softcap=0, sink_logits=None):
    """Returns the expected error of the prompt's last token, for all heads together. The token attends to the sink, the
    newest two full pages and the remaining tokens, once unquantized and once as codes."""
    first, end, sink = max(n // PAGE - 2, 0) * PAGE, n // PAGE * PAGE, recipe.sink
    difference = square = 0
    for head in range(harness.N_HEADS):
        outputs = []
        for is_coded in (False, True):
            sides, kv_head, books, roots = [], head * harness.N_KV_HEADS // harness.N_HEADS, (None, None), 1
            # The state's first layer is the model's second layer here.
            if constants is not None:
                of_sides = constants.codebooks.keys, constants.codebooks.values
                books = [x[1 - layer, kv_head].float().numpy().reshape(-1, 2) for x in of_sides]
                roots = constants.key_scales.of_queries[1 - layer, kv_head].numpy()
            for x, is_rotated, factors, format, book in ((request.k, recipe.key_hadamard, 1 / roots, recipe.key_format, books[0]),
                                                         (request.v, recipe.value_hadamard, 1, recipe.value_format, books[1])):
                x = x[layer, :n, kv_head].float().numpy() * factors
                x = cpu_library.from_bf16(cpu_library.to_bf16(x @ cpu_library.hadamard(harness.D))) if is_rotated else x
                pages = [cpu_library.coded(x[at:at + PAGE], format, sink if at == 0 else 0, book) if is_coded else
                         x[at:at + PAGE] for at in range(first, end, PAGE)]
                watched = np.concatenate(pages)[sink if first == 0 else 0:]
                sides.append(np.concatenate([x[:sink], watched, x[end:]]))
            q = request.q[layer, n - 1, head].float().numpy() * roots
            q = q @ cpu_library.hadamard(harness.D) if recipe.key_hadamard else q
            scores = harness.SCALE * sides[0] @ q
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            weights, logit = np.exp(scores), -np.inf if sink_logits is None else float(sink_logits[head])
            outputs.append(weights @ sides[1] / (weights.sum() + np.exp(logit)))
        difference += np.square(outputs[1] - outputs[0]).sum()
        square += np.square(outputs[0]).sum()
    return np.sqrt(difference / square)


class Guard(unittest.TestCase):
    def setUp(self):
        self.reports = []
        patch = unittest.mock.patch.object(quality_guard, "REPORT_SECONDS", 0)
        patch.start()
        self.addCleanup(patch.stop)

    def server(self, recipe, **options):
        server = Server(recipe, **options)
        server.state.watcher = self.reports.append
        server.state.start(server.state.cache.library, 8, 1024, server.device)
        return server

    def test_errors_are_those_of_the_last_token_of_the_longest_new_prompt(self):
        codebooks, scores = constants_of(SMOOTH_CODEBOOKS), dict(softcap=0.8, sink_logits=torch.linspace(-2, 3, harness.N_HEADS))
        for recipe, known in ((PLAIN, {}), (SINK, {}), (LONG_SINK, {}), (SINK, scores), (SMOOTH_CODEBOOKS, dict(constants=codebooks))):
            for n in (130, 256, 300, 700):
                self.reports.clear()
                server, rng = self.server(recipe, **known), np.random.default_rng(n)
                requests = [Request(m, rng) for m in (n, 129, n)]
                # 100 tokens are too short for a check.
                server.step([(requests[1], 100)])
                # Only the first request is new.
                server.step([(requests[0], n), (requests[1], 29)])
                server.step([(requests[2], n)])
                # The guard reports in the step with the new request.
                server.step([(Request(3, rng), 3)])
                report = self.reports[-1]
                self.assertEqual((sorted(report.errors), report.checks), ([0, 1], 1))
                for checked, request in zip((0, 1), (requests[0], requests[2])):
                    # The state's first layer is the model's second layer here.
                    self.assertAlmostEqual(report.errors[checked], expected_error(request, 1 - checked, recipe, n, **known), delta=0.003)

    def test_outputs_are_the_same_with_it(self):
        rng = np.random.default_rng(3)
        request = Request(600, rng)
        outputs = []
        for server in (Server(SINK), self.server(SINK)):
            request.computed, request.blocks, request.tail = 0, [], []
            server.step([(request, 500)])
            server.step([(request, 1)])
            outputs.append(request.out.clone())
        self.assertTrue(torch.equal(outputs[0][:, :501], outputs[1][:, :501]))

    def test_what_is_not_a_number_is_left_out(self):
        server, rng = self.server(PLAIN), np.random.default_rng(5)
        broken, sound = Request(200, rng), [Request(200, rng) for _ in range(2)]
        broken.v[:] = float("nan")
        server.step([(broken, 200)])
        for request in sound:
            server.step([(request, 200)])
        server.step([(Request(3, rng), 3)])
        self.assertLess(self.reports[-1].error, 1)

    def test_steps_on_block_0_are_left_out(self):
        server, rng = self.server(PLAIN), np.random.default_rng(6)
        # vLLM gives block 0 to the steps that an engine of data parallelism runs without requests.
        idle, sound = Request(700, rng), [Request(200, rng) for _ in range(2)]
        idle.blocks, idle.tail = [0] * 6, [0] * server.layout.own_blocks
        server.step([(idle, 700)])
        for request in sound:
            server.step([(request, 200)])
        server.step([(Request(3, rng), 3)])
        self.assertLess(self.reports[-1].error, 0.5)

    def test_numbers_of_layers_and_workers_are_those_of_the_model_and_the_server(self):
        server, rng = Server(PLAIN), np.random.default_rng(7)
        server.state.watcher, server.state.layers_before = self.reports.append, 5
        server.state.start(server.state.cache.library, 8, 1024, server.device)
        for n in (200, 200, 3):
            server.step([(Request(n, rng), n)])
        self.assertEqual(sorted(self.reports[-1].errors), [5, 6])
        sizes = dict(tensor_parallel_size=2, pipeline_parallel_size=2)
        workers = [types.SimpleNamespace(rank=rank, **sizes, **of_engine) for of_engine in ({}, dict(data_parallel_index=1)) for rank in range(4)]
        self.assertEqual([guard_metrics.number_of(x) for x in workers], list(range(8)))

    def test_layers_take_turns_and_checks_become_rare(self):
        server, rng = self.server(PLAIN, n_blocks=512), np.random.default_rng(4)
        request = Request(128, rng)
        for _ in range(40):
            request.computed, request.blocks, request.tail = 0, [], []
            server.free = list(range(1, 64))
            server.step([(request, 128)])
        server.step([(Request(3, rng), 3)])
        # 4 checks of each of 2 layers come first, then those of steps 16 and 32.
        self.assertEqual(self.reports[-1].checks, (4 * 2 + 2) // 2)

    def test_warnings(self):
        sound = {i: 0.1 + 0.01 * i for i in range(5)}
        self.assertIsNone(GuardReport(sound, 3).warning)
        self.assertAlmostEqual(GuardReport({0: 0.3, 1: 0.4}, 3).nats, 2.2 * 0.125)
        broken = GuardReport(sound | {3: 0.9}, 3)
        self.assertEqual(broken.worst_layer, 3)
        self.assertRegex(broken.warning, "layer 3 has an error of 90 %, 7.5 times")
        self.assertIsNone(GuardReport(broken.errors, 2).warning)
        self.assertRegex(GuardReport(dict.fromkeys(range(4), 0.8), 3).warning, "too coarse")

    def test_workers_figures_are_among_vllms_metrics(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict("os.environ", {guard_metrics.FOLDER: folder}):
            said, collector = [], guard_metrics.Collector()
            report = guard_metrics.reporter(1, said.append, lambda line: said.append("warning: " + line))
            report(GuardReport({0: 0.1}, 0))
            # Not all layers have been checked.
            self.assertEqual(said, [])
            for _ in range(2):
                report(GuardReport({0: 0.1, 1: 0.9, 2: 0.1}, 3))
            self.assertEqual(len(said), 2)
            self.assertRegex(said[0], "error of attention 52.6 %, 90.0 % in layer 1")
            self.assertRegex(said[1], "^warning: kvant: guard: attention of layer 1 .* broken")
            if find_spec("prometheus_client") is not None:
                found = {family.name: family.samples[0] for family in collector.collect()}
                self.assertEqual(set(found), set(guard_metrics.METRICS))
                self.assertEqual(found["kvant_guard_worst_layer"].labels, {"rank": "1"})
                self.assertAlmostEqual(found["kvant_guard_worst_layer_error"].value, 0.9)


if __name__ == "__main__":
    unittest.main()
