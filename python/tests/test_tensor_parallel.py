"""Tests tensor parallelism, in which each GPU has some of the heads and a layout for them. A rank's attention must
equal the attention of its heads on one GPU, bit for bit. GPUs differ only in the order of sums after attention, which
vLLM computes."""

import itertools
import unittest
from dataclasses import replace
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import numpy as np
import paged_server as harness
import torch

from kvant.paged.constants import heads_of_rank

N_KV_HEADS, N_HEADS = 4, 8
# The numbers are new tokens of each request in each step. Prompts come in chunks that end within pages and at their
# ends, and decoding crosses a page's end. The last request finds its first page, which the first request has filled.
STEPS = ((100, 128, 20, *[1] * 12), (250, 6, 1, 60, 1, 129), (0, 0, 0, 128, 1, 1, 127, 1))
N_FOUND = (0, 0, harness.PAGE)


class Ranks(unittest.TestCase):
    def setUp(self):
        for name in ("N_KV_HEADS", "N_HEADS"):
            self.addCleanup(setattr, harness, name, getattr(harness, name))

    def outputs(self, recipe, requests, rank, n_ranks):
        """Returns the outputs [layers, computed tokens of all requests, heads of the rank, channels]."""
        harness.N_HEADS, harness.N_KV_HEADS = N_HEADS // n_ranks, max(1, N_KV_HEADS // n_ranks)
        constants = None
        if recipe.needs_constants:
            constants = harness.constants_of(recipe, N_KV_HEADS).of_heads(heads_of_rank(N_KV_HEADS, rank, n_ranks))
        server = harness.Server(recipe, n_blocks=128, constants=constants)
        mine = [harness.RankRequest(request, rank, n_ranks, n) for request, n in zip(requests, N_FOUND)]
        for counts in itertools.zip_longest(*STEPS, fillvalue=0):
            work = [(request, n) for request, n in zip(mine, counts) if n]
            for request, _ in work:
                if request.n_found and not request.blocks:
                    request.blocks = mine[0].blocks[:request.n_found // harness.PAGE]
            server.step(work)
        return torch.cat([request.out[:, request.n_found:] for request in mine], 1)

    def check(self, recipe, n_ranks):
        harness.N_HEADS, harness.N_KV_HEADS = N_HEADS, N_KV_HEADS
        rng = np.random.default_rng(5)
        requests = [harness.Request(n + sum(steps), rng) for n, steps in zip(N_FOUND, STEPS)]
        for name in "kv":
            getattr(requests[-1], name)[:, :N_FOUND[-1]] = getattr(requests[0], name)[:, :N_FOUND[-1]]
        alone = self.outputs(recipe, requests, 0, 1)
        self.assertFalse(alone.isnan().any())
        together = torch.cat([self.outputs(recipe, requests, rank, n_ranks) for rank in range(n_ranks)], 2)
        self.assertTrue(torch.equal(together, alone))

    def test_two_ranks(self):
        in_integers = replace(harness.SINK, name="prompts in integers", prompt="flashq")
        for recipe in (harness.PLAIN, harness.ROTATED, harness.SINK, harness.LONG_SINK, in_integers,
                       harness.SMOOTH_CODEBOOKS):
            with self.subTest(recipe=recipe.name):
                self.check(recipe, 2)

    def test_a_kv_head_a_rank(self):
        self.check(harness.SINK, 4)

    def test_more_ranks_than_kv_heads(self):
        for recipe in (harness.LONG_SINK, harness.SMOOTH_CODEBOOKS):
            self.check(recipe, 8)


if __name__ == "__main__":
    unittest.main()
