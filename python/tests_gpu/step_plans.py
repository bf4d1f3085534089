"""Steps that the library plans on the device, against the rules as PyTorch computes them for the plug-in."""

import unittest
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import torch

if not torch.cuda.is_available():
    raise unittest.SkipTest("no GPU")

import numpy as np

from kvant import PAGE
from kvant.paged import decode, draft_rows, step_rules
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.model_cache import ModelCache
from kvant.paged.recipes import Recipe
from kvant.paged.sink_layout import UNIT_BYTES
from kvant.torch import StepPlan, TorchLibrary, step_table

N_KV_HEADS, N_HEADS, D, MAX_PAGES = 2, 4, 64, 12
RECIPE = Recipe("sink", "tcq4", "tcq4", sink=2)


class Plans(unittest.TestCase):
    def setUp(self):
        self.library, self.rng = TorchLibrary(), np.random.default_rng(7)

    def cache(self, n_rows, tail_pages):
        sizes = [self.library.page_bytes(format, D) for format in (RECIPE.key_format, RECIPE.value_format)]
        layout = BlockLayout(N_KV_HEADS, D, *sizes, RECIPE.sink, tail_pages=tail_pages)
        return ModelCache(self.library, RECIPE, layout, N_HEADS, 1.0, n_rows, torch.device("cuda"))

    def int32(self, x):
        return torch.as_tensor(np.asarray(x), dtype=torch.int32).cuda()

    def tables(self, cache, plan, blocks, tail_blocks):
        """Of tails and sinks, as the plug-in's blocks have them, and of sealed pages."""
        layout = cache.layout
        pages = [(head, side) for head in range(N_KV_HEADS) for side in range(SIDES)]
        tail_places = self.int32([[layout.tail_place(*page, turn) for page in pages] for turn in range(layout.tail_pages)])
        sink_places = self.int32([[(0, layout.sink.place(*page) // UNIT_BYTES) for page in pages]])

        def table(n_entries, n_pages):
            return torch.full((plan.n_seqs, n_entries, n_pages), -1, dtype=torch.int32, device="cuda")

        self.tail, self.sinks, self.sealed = table(len(pages), layout.tail_pages), table(len(pages), 1), table(1, MAX_PAGES)
        return dict(tail=step_table(self.tail, tail_blocks, tail_places, layout.block_bytes // layout.unit_bytes),
                    protected_pages=step_table(self.sinks, blocks, sink_places, layout.block_bytes // UNIT_BYTES),
                    sealed=step_table(self.sealed, blocks))

    def blocks(self, n, width):
        return self.int32(self.rng.permutation(n * width).reshape(n, width))

    def test_of_requests_with_one_new_token_are_those_of_the_plug_in(self):
        lens = np.array([1, 127, 128, 129, 0, 255, 256, 257, 700, 1, 0, 1281])
        n = len(lens)
        cache, plan = self.cache(n, 1), StepPlan(n, sink=RECIPE.sink)
        blocks, tail_blocks, seq_lens = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks), self.int32(lens)
        self.library.plan_step(plan.step(seq_lens, **self.tables(cache, plan, blocks, tail_blocks)))
        expected = decode.prepare(cache, seq_lens, blocks, tail_blocks)
        there = torch.from_numpy(lens > 0)
        torch.testing.assert_close(plan.sealed_pages, expected.sealed_pages, rtol=0, atol=0)
        torch.testing.assert_close(plan.tail_tokens, expected.tail_tokens, rtol=0, atol=0)
        torch.testing.assert_close(plan.row_tail_token, expected.tail_token, rtol=0, atol=0)
        torch.testing.assert_close(plan.protected_tokens, RECIPE.sink * expected.sealed_pages.clip(max=1), rtol=0, atol=0)
        torch.testing.assert_close(self.tail[there][:, :, 0], expected.tail_ids[there], rtol=0, atol=0)
        torch.testing.assert_close(self.sinks[there][:, :, 0], expected.sink_ids[there], rtol=0, atol=0)
        for seq in range(n):
            n_sealed = int(plan.sealed_pages[seq])
            self.assertEqual(self.sealed[seq, 0, :n_sealed].tolist(), blocks[seq, :n_sealed].tolist())
        seqs, pages = step_rules.filled_pages(lens)
        due = np.flatnonzero(plan.due_tail_page.cpu().numpy() >= 0)
        self.assertEqual(due.tolist(), seqs.tolist())
        self.assertEqual(plan.due_sealed_page.cpu().numpy()[due].tolist(), pages.tolist())
        self.assertEqual(plan.n_due_pages.cpu().numpy()[due].tolist(), [1] * len(due))

    def test_of_drafts_show_every_row_what_the_plug_in_shows_it(self):
        most = 4
        for _ in range(8):
            n = 9
            query_lens = self.rng.integers(0, most + 1, n)
            computed = self.rng.integers(0, 3, n) * PAGE + self.rng.integers(-5, 6, n).clip(-1) % PAGE
            lens = np.where(query_lens > 0, computed + query_lens, 0)
            cache, plan = self.cache(n * most, 2), StepPlan(n, most, most, sink=RECIPE.sink)
            blocks, tail_blocks = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks)
            seq_lens, begins = self.int32(lens), self.int32(step_rules.bounds(query_lens))
            self.library.plan_step(plan.step(seq_lens, begins, **self.tables(cache, plan, blocks, tail_blocks)))
            expected = draft_rows.prepare(cache, seq_lens, query_lens, blocks, tail_blocks)
            rows, part_begins, n_rows = expected.rows, plan.part_begins.tolist(), int(query_lens.sum())
            self.assertEqual(part_begins[-1], n_rows)
            self.assertTrue((plan.row_tail_token[n_rows:] == -1).all())
            for row in range(n_rows):
                seq = int(plan.row_seq[row])
                self.assertTrue(part_begins[seq] <= row < part_begins[seq + 1])
                behind = part_begins[seq + 1] - 1 - row  # each query sees a token less than the one behind it
                self.assertEqual(int(plan.sealed_pages[seq]), int(rows.sealed_pages[row]))
                self.assertEqual(int(plan.tail_tokens[seq]) - behind, int(rows.tail_tokens[row]))
                self.assertEqual(int(plan.row_tail_token[row]), int(rows.tail_token[row]))
                self.assertEqual(self.tail[seq, :, 0].tolist(), rows.tail_ids[row].tolist())
                self.assertEqual(self.sinks[seq, :, 0].tolist(), rows.sink_ids[row].tolist())
            there = torch.from_numpy(query_lens > 0).cuda()
            torch.testing.assert_close(plan.due_tail_page[there], expected.tail_page[there], rtol=0, atol=0)
            is_due = there & (expected.tail_page >= 0)
            torch.testing.assert_close(plan.due_sealed_page[is_due], expected.page[is_due], rtol=0, atol=0)


if __name__ == "__main__":
    unittest.main()
