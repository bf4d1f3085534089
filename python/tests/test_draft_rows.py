"""Tests every pattern of accepted and rejected drafts. Outputs must equal the outputs of decoding the tokens one by
one, and the outputs of the visibility rule."""

import itertools
import unittest
import unittest.mock
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

from paged_server import LONG_SINK, PLAIN, SINK, SMOOTH_CODEBOOKS, Request, Server, constants_of

import numpy as np
import torch

from kvant import PAGE
from kvant.paged import decode

MAX_DRAFTS = 3


class DraftRows(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(5)

    def copies(self, request, n):
        """Makes n requests with the tokens of `request`."""
        same = [Request(1, self.rng) for _ in range(n)]
        for other in same:
            other.q, other.k, other.v, other.out = request.q, request.k, request.v, torch.full_like(request.out, float("nan"))
        return same

    def one_by_one(self, recipe, request, n_prompt, n_tokens, constants=None):
        """Returns the request's outputs without drafts."""
        server = Server(recipe, constants=constants)
        if n_prompt:
            server.step([(request, n_prompt)])
        while request.computed < n_tokens:
            server.step([(request, 1)])
        return request.out[:, n_prompt:n_tokens]

    def check_rule(self, recipe, request, rows, constants=None):
        for layer in range(2):
            error = request.out[layer, rows].float().numpy() - request.expected(layer, recipe, constants)[rows]
            self.assertLess(np.abs(error).max(), 0.03)

    def check_patterns(self, recipe, n_prompt, n_steps, late=0, constants=None):
        """Runs n_steps steps with three drafts each, for all possible numbers of accepted drafts. Then a step accepts
        all drafts, and a single token follows."""
        whole = Request(n_prompt + 4 * (n_steps + 1) + 1, self.rng)
        patterns = list(itertools.product(range(MAX_DRAFTS + 1), repeat=n_steps))
        requests = self.copies(whole, len(patterns))
        reference = self.one_by_one(recipe, whole, n_prompt, whole.out.shape[1], constants)
        self.check_rule(recipe, whole, slice(n_prompt, whole.computed), constants)
        server = Server(recipe, n_blocks=16 * len(patterns), max_drafts=MAX_DRAFTS, max_seqs=len(patterns), constants=constants)
        server.step([(request, n_prompt) for request in requests])
        for rejected in zip(*patterns):
            server.step([(request, 1 + MAX_DRAFTS) for request in requests], rejected=dict(zip(requests, rejected)), late=late)
        server.step([(request, 1 + MAX_DRAFTS) for request in requests], late=late)
        server.step([(request, 1) for request in requests], late=late)
        for request, pattern in zip(requests, patterns):
            self.assertEqual(request.computed, n_prompt + 4 * (n_steps + 1) + 1 - sum(pattern))
            n = request.computed - n_prompt
            self.assertTrue(torch.equal(request.out[:, n_prompt:request.computed], reference[:, :n]), pattern)

    def test_all_patterns_around_the_first_pages_end(self):
        for recipe, n_prompt in ((SINK, 123), (PLAIN, 124), (SINK, 125), (LONG_SINK, 126), (SINK, 127)):
            self.check_patterns(recipe, n_prompt, 2)

    def test_all_patterns_around_the_second_pages_end_with_lengths_that_the_host_learns_late(self):
        self.check_patterns(SINK, 253, 2, late=MAX_DRAFTS)

    def test_all_patterns_with_codebooks(self):
        self.check_patterns(SMOOTH_CODEBOOKS, 126, 1, constants=constants_of(SMOOTH_CODEBOOKS))

    def test_a_page_filled_again_and_again_by_rejected_drafts(self):
        request = Request(140, self.rng)
        copy, = self.copies(request, 1)
        reference = self.one_by_one(SINK, request, 120, 140)
        server = Server(SINK, max_drafts=12)
        server.step([(copy, 120)])
        while copy.computed < 127:
            server.step([(copy, 13)], rejected={copy: 12})
        server.step([(copy, 13)])
        self.assertTrue(torch.equal(copy.out[:, 120:140], reference))

    def test_a_prompt_shorter_than_its_drafts(self):
        request = Request(300, self.rng)
        copy, = self.copies(request, 1)
        reference = self.one_by_one(LONG_SINK, request, 0, 300)
        server, rng = Server(LONG_SINK, max_drafts=63), np.random.default_rng(2)
        while copy.computed < 300:
            n = int(min(300 - copy.computed, rng.integers(1, 65)))
            server.step([(copy, n)], rejected={copy: int(rng.integers(0, n))})
        self.assertTrue(torch.equal(copy.out, reference))

    def test_among_prompts_and_requests_without_drafts(self):
        server, a, b, c = Server(SINK, max_drafts=MAX_DRAFTS), *(Request(n, self.rng) for n in (300, 420, 135))
        server.step([(a, 125)])
        server.step([(a, 4), (b, 200)], rejected={a: 2})
        server.step([(b, 130), (c, 126), (a, 3)])
        server.step([(c, 4), (a, 1), (b, 80)], rejected={c: 1})
        server.step([(c, 4), (a, 4), (b, 3)], rejected={a: 3, b: 3 - 1})
        while b.computed < 418:
            server.step([(b, 2), (a, 4)], rejected={b: b.computed % 2, a: 2})
        for request in (a, b, c):
            self.check_rule(SINK, request, slice(0, request.computed))

    def test_a_page_filled_by_accepted_drafts_can_be_shared_from_the_next_step_on(self):
        server, a, b, c = Server(SINK, max_drafts=MAX_DRAFTS), *(Request(300, self.rng) for _ in range(3))
        for name in "qkv":
            for other in (b, c):
                getattr(other, name)[:, :PAGE] = getattr(a, name)[:, :PAGE]
        server.step([(a, 126)])
        server.step([(a, 4)], rejected={a: 3})
        server.step([(a, 4)], rejected={a: 2})
        for other in (b, c):
            server.share(a, other, 1)
        server.step([(a, 4), (b, 2), (c, 50)], rejected={b: 1})
        server.step([(a, 4), (b, 4), (c, 4)])
        for other in (b, c):
            self.check_rule(SINK, other, slice(PAGE, other.computed))
        self.check_rule(SINK, a, slice(0, a.computed))

    def test_preempted_between_a_pages_end_and_its_acceptance(self):
        server, a, b = Server(SINK, n_blocks=24, max_drafts=MAX_DRAFTS), *(Request(300, self.rng) for _ in range(2))
        server.step([(a, 126)])
        server.step([(a, 4)], rejected={a: 3})
        n = a.computed
        server.preempt(a)
        # Request b uses blocks that belonged to a.
        server.step([(b, 126)])
        server.step([(b, 4), (a, n)], rejected={b: 1})
        for _ in range(3):
            server.step([(b, 4), (a, 4)], rejected={a: 1, b: 2})
        for request in (a, b):
            self.check_rule(SINK, request, slice(0, request.computed))

    def test_padding_behind_the_rows_goes_nowhere(self):
        cache, tables = Server(SINK, max_drafts=MAX_DRAFTS).state.cache, torch.ones(3, 8, dtype=torch.int32)
        seq_lens, begins = (torch.tensor(x, dtype=torch.int32) for x in ([130, 7, 0], [0, 4, 6, 6]))
        plan = decode.prepare(cache, seq_lens, tables, tables, begins).plan
        self.assertEqual(plan.row_tail_token.tolist(), [126, 127, 0, 1, 5, 6] + 6 * [-1])
        self.assertEqual(plan.row_seq[:6].tolist(), [0, 0, 1, 1, 2, 2])

    def test_longer_steps_before_drafts_are_refused(self):
        server, a, b = Server(PLAIN, max_drafts=MAX_DRAFTS), *(Request(300, self.rng) for _ in range(2))
        server.step([(a, 10), (b, 10)])
        with self.assertRaisesRegex(RuntimeError, "must come before"), unittest.mock.patch("builtins.sorted", lambda x, **_: x):
            server.step([(a, 40), (b, 3)])


if __name__ == "__main__":
    unittest.main()
