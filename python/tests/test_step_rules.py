"""Tests the step rules against a simulation that moves single tokens."""

import unittest

try:
    import numpy as np
except ImportError:
    raise unittest.SkipTest("no NumPy") from None

from kvant import PAGE
from kvant.paged import step_rules


class Simulation:
    """Simulates one request token by token: what is in the tail, what is sealed, and what each token sees. The token
    that fills a page seals the page, but still sees it unquantized."""

    def __init__(self):
        self.tail, self.sealed = [], []

    def add(self, token):
        """Returns the pages (lists of tokens) that a new token sees sealed, and the tokens that it sees unquantized."""
        self.tail.append(token)
        seen = [list(page) for page in self.sealed], list(self.tail)
        if len(self.tail) == PAGE:
            self.sealed.append(self.tail)
            self.tail = []
        return seen


def run(n_tokens):
    simulation = Simulation()
    return [simulation.add(token) for token in range(n_tokens)]


class Decoding(unittest.TestCase):
    def test_pages_are_filled_where_the_simulation_seals(self):
        simulation = Simulation()
        for token in range(2 * PAGE + 3):
            before = len(simulation.sealed)
            simulation.add(token)
            seqs, pages = step_rules.filled_pages(np.array([0, token + 1]))
            self.assertEqual((list(seqs), list(pages)), ([1], [before]) if len(simulation.sealed) > before else ([], []))


class Prefilling(unittest.TestCase):
    def check(self, computed, query_lens):
        """Checks that every row sees what the simulation shows, and that the plan seals and keeps the pages of the
        simulation."""
        plan = step_rules.plan_prefill(np.array(computed), np.array(query_lens))
        np.testing.assert_array_equal(plan.first_rows[-1], sum(query_lens))
        row = 0
        for i, (n, q) in enumerate(zip(computed, query_lens)):
            views = run(n + q)
            prefix = [p for p in plan.prefixes if p.request == i]
            self.assertEqual([(p.first_row, p.end_row, p.n_pages) for p in prefix],
                             [(row, row + q, n // PAGE)] if n >= PAGE else [])
            for position in range(n, n + q):
                sealed, tail = views[position]
                piece = plan.row_piece[row]
                self.assertEqual((plan.request[piece], plan.page[piece]), (i, position // PAGE))
                self.assertEqual(plan.row_token[row], position % PAGE)
                pages = plan.visible[piece][:-(-plan.n_visible_tokens[piece] // PAGE)]
                # The pages are in the request's order. Earlier pages come from the pages that the step sealed. The
                # row's own page is last.
                earlier = [plan.page[plan.seen[p]] for p in pages[:-1]]
                n_before = prefix[0].n_pages if prefix else 0
                self.assertEqual(list(range(n_before)) + earlier, [p[0] // PAGE for p in sealed])
                self.assertEqual(pages[-1], len(plan.seen) + piece)
                # A causal mask ends at the piece's last row, so a row sees the keys up to itself.
                n_later = plan.first_rows[piece + 1] - 1 - row
                keys_of_own_page = plan.n_visible_tokens[piece] - PAGE * len(earlier) - n_later
                self.assertEqual(keys_of_own_page, len(tail))
                row += 1
            pieces = np.flatnonzero(plan.request == i)
            newly_sealed = [p for p in plan.full if p in pieces]
            self.assertEqual([plan.page[p] for p in newly_sealed], list(range(n // PAGE, (n + q) // PAGE)))
            self.assertEqual([plan.n_tokens[p] for p in plan.leaving if p in pieces],
                             [(n + q) % PAGE] if (n + q) % PAGE else [])
            self.assertEqual([plan.page[p] for p in plan.entering if p in pieces], [n // PAGE] if n % PAGE else [])

    def test_prompts_of_all_lengths(self):
        for q in (1, 2, 127, 128, 129, 255, 256, 300):
            self.check([0], [q])

    def test_chunks_behind_prefixes_of_all_lengths(self):
        for n in (1, 127, 128, 129, 256, 300):
            for q in (2, 84, 85, 128, 256, 400):
                self.check([n], [q])

    def test_mixed_requests(self):
        rng = np.random.default_rng(1)
        for _ in range(20):
            n_requests = rng.integers(1, 6)
            self.check(rng.integers(0, 400, n_requests).tolist(), rng.integers(1, 500, n_requests).tolist())

    def test_any_cut_of_a_prompt_seals_the_same_pages(self):
        for chunk in (100, 128, 200, 512):
            sealed = []
            for n in range(0, 1000, chunk):
                q = min(chunk, 1000 - n)
                plan = step_rules.plan_prefill(np.array([n]), np.array([q]))
                sealed += plan.page[plan.full].tolist()
            self.assertEqual(sealed, list(range(1000 // PAGE)))

    def test_calls_reach_all_pages_once_and_none_has_too_many(self):
        most = 4
        for computed, query_lens in (([0, 0], [128, 129]), ([0, 300, 600, 0, 1300], [700, 90, 5, 1, 260]), ([2000], [3]), ([640], [1])):
            plan = step_rules.plan_prefill(np.array(computed), np.array(query_lens))
            calls = step_rules.prompt_calls(plan, most)
            for i, (n, q) in enumerate(zip(computed, query_lens)):
                mine = [call for call in calls if call.first_request <= i < call.end_request]
                seen = (n + q - 1) // PAGE
                ends = [seen if call.end_page is None else call.end_page for call in mine]
                # The calls of a request follow each other. Only the last call has rows, which begin after the pages
                # that all of them see sealed.
                self.assertEqual([call.first_page for call in mine], [0, *ends[:-1]])
                self.assertEqual([call.end_page is None for call in mine], [False] * (len(mine) - 1) + [True])
                self.assertLessEqual(mine[-1].first_page, n // PAGE)
                for call in mine[:-1]:
                    self.assertEqual(call.end_request - call.first_request, 1)
                    self.assertLessEqual(call.end_page - call.first_page, most)
            for call in calls:
                if call.end_page is None:
                    requests = range(call.first_request, call.end_request)
                    n_pages = sum((computed[i] + query_lens[i] - 1) // PAGE - call.first_page for i in requests)
                    of_step = max((computed[i] + query_lens[i] - 1) // PAGE - computed[i] // PAGE for i in requests)
                    self.assertLessEqual(n_pages, max(most, of_step) if len(requests) == 1 else most)


if __name__ == "__main__":
    unittest.main()
