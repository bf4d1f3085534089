#!/usr/bin/env python3
"""Steps that the library plans on the device, against the rules as PyTorch computes them for the plug-in; and how long either takes,
as a line of JSON. The exit status is 1 if any differ."""

import json
import unittest

import numpy as np
import torch

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

    def cache(self, n_requests, max_rows=1):
        sizes = [self.library.page_bytes(format, D) for format in (RECIPE.key_format, RECIPE.value_format)]
        layout = BlockLayout(N_KV_HEADS, D, *sizes, RECIPE.sink, tail_pages=min(max_rows, 2))
        return ModelCache(self.library, RECIPE, layout, N_HEADS, 1.0, n_requests, torch.device("cuda"), max_rows)

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
        cache, plan = self.cache(n), StepPlan(n, sink=RECIPE.sink)
        blocks, tail_blocks, seq_lens = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks), self.int32(lens)
        self.library.plan_step(plan.step(seq_lens, **self.tables(cache, plan, blocks, tail_blocks)))
        expected = decode.prepare(cache, seq_lens, blocks, tail_blocks)
        there = torch.from_numpy(lens > 0).cuda()
        sealed = step_rules.sealed_pages(seq_lens)
        self.assertEqual(plan.sealed_pages.tolist(), sealed.tolist())
        self.assertEqual(plan.tail_tokens.tolist(), step_rules.tail_tokens(seq_lens).tolist())
        self.assertEqual(plan.row_tail_token.tolist(), expected.row_token.tolist())
        self.assertEqual(plan.row_seq.tolist(), expected.row_seq.tolist())
        self.assertEqual(plan.protected_tokens.tolist(), (RECIPE.sink * sealed.clip(max=1)).tolist())
        self.assertEqual(self.tail[there][:, :, 0].tolist(), expected.tail_ids[there].tolist())
        self.assertEqual(self.sinks[there][:, :, 0].tolist(), expected.sink_ids[there].tolist())
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
            cache, plan = self.cache(n, most), StepPlan(n, most, most, sink=RECIPE.sink)
            blocks, tail_blocks = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks)
            seq_lens, begins = self.int32(lens), self.int32(step_rules.bounds(query_lens))
            n_rows = int(query_lens.sum())
            self.library.plan_step(plan.step(seq_lens, begins, **self.tables(cache, plan, blocks, tail_blocks)))
            expected = draft_rows.prepare(cache, seq_lens, begins, n * most, blocks, tail_blocks)
            parts = draft_rows.divide(seq_lens, begins, cache.numbers[:cache.parts], cache.max_queries)
            sealed, tail_tokens = parts.sealed_pages.flatten().tolist(), parts.tail_tokens.flatten().tolist()
            ends, part_begins, rows = parts.begins[1:].tolist(), plan.part_begins.tolist(), expected.rows
            self.assertEqual(part_begins[-1], n_rows)
            self.assertTrue((plan.row_tail_token[n_rows:] == -1).all())
            for row in range(n_rows):
                seq, other = int(plan.row_seq[row]), int(rows.row_seq[row])
                self.assertTrue(part_begins[seq] <= row < part_begins[seq + 1])
                behind, behind_other = part_begins[seq + 1] - row, ends[other] - row
                self.assertEqual(int(plan.sealed_pages[seq]), sealed[other])  # each query sees a token less than the one behind
                self.assertEqual(int(plan.tail_tokens[seq]) - behind, tail_tokens[other] - behind_other)
                self.assertEqual(int(plan.row_tail_token[row]), int(rows.row_token[row]))
                self.assertEqual(self.tail[seq, :, 0].tolist(), rows.tail_ids[other].tolist())
                self.assertEqual(self.sinks[seq, :, 0].tolist(), rows.sink_ids[other].tolist())
            there = torch.from_numpy(query_lens > 0).cuda()
            self.assertEqual(plan.due_tail_page[there].tolist(), expected.tail_page[there].tolist())
            is_due = there & (expected.tail_page >= 0)
            self.assertEqual(plan.due_sealed_page[is_due].tolist(), expected.page[is_due].tolist())

    def test_takes_less_time(self):
        n, most = 64, 4
        times = {}
        for name, max_rows in (("one token", 1), ("drafts", most)):
            cache, plan = self.cache(n, max_rows), StepPlan(n, max_rows, max_rows, sink=RECIPE.sink)
            blocks, tail_blocks = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks)
            seq_lens, begins = self.int32(np.full(n, 5 * PAGE + 3)), self.int32(max_rows * np.arange(n + 1))
            tables = self.tables(cache, plan, blocks, tail_blocks)
            step = plan.step(seq_lens, begins if max_rows > 1 else None, **tables)
            shape, lengths = cache.shape(plan.n_seqs, cache.max_queries), plan.lengths()

            def by_library():
                self.library.plan_step(step)
                self.library.decode_schedule(shape, lengths, cache.workspace)

            def by_torch():
                if max_rows == 1:
                    return decode.prepare(cache, seq_lens, blocks, tail_blocks)
                return draft_rows.prepare(cache, seq_lens, begins, n * max_rows, blocks, tail_blocks)

            times[name] = {"library": self.us(by_library), "torch": self.us(by_torch)}
        print(json.dumps({"plan and schedule of 64 requests, us in a CUDA graph": times}))
        for of in times.values():
            self.assertLess(of["library"], of["torch"])

    def us(self, launch):
        """Microseconds of a replay."""
        launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = launch()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(100):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        del kept
        return round(10 * begin.elapsed_time(end), 1)


if __name__ == "__main__":
    unittest.main()
