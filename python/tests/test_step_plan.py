"""Tests steps that the device plans, against the step rules and, as whole steps, against the visibility rule.
libkvant_cpu stands for the device."""

import unittest
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import cpu_library
import numpy as np
import paged_server as harness
import torch

from kvant import PAGE
from kvant.paged import step_rules
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.model_cache import ModelCache
from kvant.paged.recipes import Recipe
from kvant.paged.sink_layout import UNIT_BYTES
from kvant.torch import BF16, Layer, StepPlan, step_table

N_KV_HEADS, N_HEADS, D, MAX_PAGES = 2, 4, 64, 12
RECIPE = Recipe("sink", "tcq4", "tcq4", sink=2)


class Plans(unittest.TestCase):
    device = torch.device("cpu")

    def setUp(self):
        self.library, self.rng = self.new_library(), np.random.default_rng(7)

    def new_library(self):
        return cpu_library.CpuLibrary()

    def cache(self, n_requests, max_rows=1):
        sizes = [self.library.page_bytes(format, D) for format in (RECIPE.key_format, RECIPE.value_format)]
        layout = BlockLayout(N_KV_HEADS, D, *sizes, RECIPE.sink, tail_pages=min(max_rows, 2), has_rows=self.library.has_rows)
        return ModelCache(self.library, RECIPE, layout, N_HEADS, 1.0, n_requests, self.device, max_rows)

    def int32(self, x):
        return torch.as_tensor(np.asarray(x), dtype=torch.int32).to(self.device)

    def tables(self, cache, plan, blocks, tail_blocks):
        """Returns a step's tables of tails, sinks and sealed pages. Tails and sinks have places within blocks."""
        layout = cache.layout
        pages = [(head, side) for head in range(N_KV_HEADS) for side in range(SIDES)]
        tail_places = self.int32([[layout.tail_place(*page, turn) for page in pages] for turn in range(layout.tail_pages)])
        sink_places = self.int32([[(0, layout.sink.place(*page) // UNIT_BYTES) for page in pages]])

        def table(n_entries, n_pages):
            return torch.full((plan.n_seqs, n_entries, n_pages), -1, dtype=torch.int32, device=self.device)

        self.tail, self.sinks, self.sealed = table(len(pages), layout.tail_pages), table(len(pages), 1), table(1, MAX_PAGES)
        return dict(tail=step_table(self.tail, tail_blocks, tail_places, layout.block_bytes // layout.unit_bytes),
                    protected_pages=step_table(self.sinks, blocks, sink_places, layout.block_bytes // UNIT_BYTES),
                    sealed=step_table(self.sealed, blocks))

    def blocks(self, n, width):
        return self.int32(self.rng.permutation(n * width).reshape(n, width))

    def test_of_requests_with_one_new_token(self):
        lens = np.array([1, 127, 128, 129, 0, 255, 256, 257, 700, 1, 0, 1281])
        n = len(lens)
        cache, plan = self.cache(n), StepPlan(n, sink=RECIPE.sink, device=self.device)
        blocks, tail_blocks, seq_lens = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks), self.int32(lens)
        self.library.plan_step(plan.step(seq_lens, **self.tables(cache, plan, blocks, tail_blocks)))
        there = torch.from_numpy(lens > 0).to(self.device)
        sealed = np.maximum(lens - 1, 0) // PAGE
        self.assertEqual(plan.sealed_pages.tolist(), sealed.tolist())
        self.assertEqual(plan.tail_tokens.tolist(), (lens - PAGE * sealed).tolist())
        self.assertEqual(plan.row_tail_token.tolist(), (lens - PAGE * sealed - 1).tolist())
        self.assertEqual(plan.row_seq[there].tolist(), np.flatnonzero(lens).tolist())
        self.assertEqual(plan.protected_tokens.tolist(), (RECIPE.sink * np.minimum(sealed, 1)).tolist())
        self.assertEqual(self.tail[there][:, :, 0].tolist(), cache.tail_ids(tail_blocks)[there].tolist())
        self.assertEqual(self.sinks[there][:, :, 0].tolist(), cache.sink_ids(blocks[:, 0])[there].tolist())
        for seq in range(n):
            n_sealed = int(plan.sealed_pages[seq])
            self.assertEqual(self.sealed[seq, 0, :n_sealed].tolist(), blocks[seq, :n_sealed].tolist())
        seqs, pages = step_rules.filled_pages(lens)
        due = np.flatnonzero(plan.due_tail_page.cpu().numpy() >= 0)
        self.assertEqual(due.tolist(), seqs.tolist())
        self.assertEqual(plan.due_sealed_page.cpu().numpy()[due].tolist(), pages.tolist())
        self.assertEqual(plan.n_due_pages.cpu().numpy()[due].tolist(), [1] * len(due))

    def test_of_drafts_show_every_row_what_its_place_says(self):
        for most, max_queries in ((4, 4), (4, 2), (8, 3), (20, 8), (3, 1)):
            n = 9
            query_lens = self.rng.integers(0, most + 1, n)
            computed = self.rng.integers(0, 3, n) * PAGE + self.rng.integers(-5, 6, n).clip(-1) % PAGE
            lens = np.where(query_lens > 0, computed + query_lens, 0)
            cache, plan = self.cache(n, most), StepPlan(n, most, max_queries, sink=RECIPE.sink, device=self.device)
            blocks, tail_blocks = self.blocks(n, MAX_PAGES), self.blocks(n, cache.layout.tail_blocks)
            begins = step_rules.bounds(query_lens)
            self.library.plan_step(plan.step(self.int32(lens), self.int32(begins), **self.tables(cache, plan, blocks, tail_blocks)))
            part_begins, sinks = plan.part_begins.tolist(), cache.sink_ids(blocks[:, 0])
            self.assertEqual(part_begins[-1], begins[-1])
            self.assertTrue((plan.row_tail_token[begins[-1]:] == -1).all())
            self.assertLessEqual(np.diff(part_begins).max(), max_queries)
            for request in range(n):
                for row in range(begins[request], begins[request + 1]):
                    page, place = divmod(int(computed[request] + row - begins[request]), PAGE)
                    seq = int(plan.row_seq[row])
                    self.assertEqual(seq // plan.n_parts, request)
                    self.assertTrue(part_begins[seq] <= row < part_begins[seq + 1])
                    # Each query sees one token less than the next query.
                    self.assertEqual(int(plan.sealed_pages[seq]), page)
                    self.assertEqual(int(plan.tail_tokens[seq]) - (part_begins[seq + 1] - 1 - row), place + 1)
                    self.assertEqual(int(plan.row_tail_token[row]), place)
                    tail_ids = cache.tail_ids(tail_blocks[request:request + 1], self.int32([page]))
                    self.assertEqual(self.tail[seq, :, 0].tolist(), tail_ids[0].tolist())
                    self.assertEqual(self.sinks[seq, :, 0].tolist(), sinks[request].tolist())
                    self.assertEqual(self.sealed[seq, 0, :page].tolist(), blocks[request, :page].tolist())
            is_due = lens // PAGE > computed // PAGE
            self.assertEqual((plan.due_tail_page.cpu().numpy() >= 0).tolist(), is_due.tolist())
            self.assertEqual(plan.due_tail_page.cpu().numpy()[is_due].tolist(), [0] * is_due.sum())
            self.assertEqual(plan.due_sealed_page.cpu().numpy()[is_due].tolist(), (computed // PAGE)[is_due].tolist())

    def test_all_layers_are_sealed_at_once_as_they_are_one_by_one(self):
        lens, n_layers = np.array([PAGE, 5, 2 * PAGE, 0, 3 * PAGE, PAGE]), 3
        n = len(lens)
        cache, plan = self.cache(n), StepPlan(n, sink=RECIPE.sink, device=self.device)
        layout = cache.layout
        # Block 0 belongs to no request.
        numbers = self.int32(1 + self.rng.permutation(n * (MAX_PAGES + layout.tail_blocks)))
        blocks, tail_blocks = numbers[:n * MAX_PAGES].view(n, -1), numbers[n * MAX_PAGES:].view(n, -1)
        self.library.plan_step(plan.step(self.int32(lens), **self.tables(cache, plan, blocks, tail_blocks)))
        random = torch.from_numpy(self.rng.standard_normal((n_layers, len(numbers) + 1, layout.block_bytes // 2)))
        together = random.bfloat16().to(self.device).view(torch.uint8)
        alone = together.clone()

        def layer(pool):
            return Layer(sealed=cache.sealed_pages(blocks, pool), tail=cache.tail_pages(self.tail[:, :, 0], pool),
                         protected_pages=cache.sink_pages(self.sinks[:, :, 0], pool), sink=RECIPE.sink)

        offsets = torch.arange(n_layers, dtype=torch.int64, device=self.device) * together[0].numel()
        self.library.seal_due_pages(cache.shape(n), layer(together[0]), plan, offsets)
        is_first = (plan.due_tail_page >= 0) & (plan.due_sealed_page == 0)
        seq, head = (x.flatten() for x in torch.meshgrid(is_first.nonzero()[:, 0].int(), self.int32(range(layout.n_kv_heads)),
                                                         indexing="ij"))
        zeros = torch.zeros_like(seq)
        for pool in alone:
            self.library.seal_pages(cache.shape(n), layer(pool), plan.due_tail_page, plan.due_sealed_page, 1)
            for token in range(RECIPE.sink):
                self.library.protect(cache.shape(n), layer(pool), seq, head, zeros + token, zeros + token)
        self.assertEqual(int(is_first.sum()), 2)
        self.assertTrue(torch.equal(together[:, 1:], alone[:, 1:]))
        self.assertFalse(torch.equal(together[:, 1:], random.bfloat16().to(self.device).view(torch.uint8)[:, 1:]))

    def test_whole_steps_show_tokens_what_the_rule_says(self):
        """Requests grow over page ends, rest, are cut back within a page, and are replaced. The plan's arrays keep
        their place."""
        n, n_steps = 3, 330
        server = harness.Server(harness.SINK, self.library, self.device, max_seqs=n)
        steps = PlannedSteps(server, n, MAX_PAGES)
        requests, slots = [harness.Request(300, self.rng) for _ in range(n + 1)], list(range(n))
        for step in range(n_steps):
            if step == 165:
                # Another request takes the place and the tail of the request in slot 1.
                slots[1] = n
                steps.lens[1] = 0
            if step in (100, 135, 270):
                steps.lens[0] -= 3
            steps.run([requests[r] if step % (5 + i) and steps.lens[i] < 300 else None for i, r in enumerate(slots)])
        for i in (0, 1, 2, n):
            request, computed = requests[i], steps.computed[id(requests[i])]
            self.assertGreater(computed, PAGE)
            for layer in range(harness.N_LAYERS):
                error = request.out[layer, :computed].float().numpy() - request.expected(layer, server.state.recipe)[:computed]
                self.assertLess(np.abs(error).max(), 0.03)


class PlannedSteps:
    """Runs steps of requests with one token each: a plan, a call per layer, and one call that seals what is due in all
    layers."""

    def __init__(self, server, n, max_pages):
        self.cache, self.library, device = server.state.cache, server.state.cache.library, server.device
        layout = self.cache.layout
        self.plan = StepPlan(n, sink=layout.sink_tokens, device=device)
        self.lens, self.computed = [0] * n, {}
        numbers = np.arange(1, 1 + n * (max_pages + layout.tail_blocks)).reshape(n, -1)
        self.blocks = torch.as_tensor(numbers[:, :max_pages].copy(), dtype=torch.int32).to(device)
        self.tail_blocks = torch.as_tensor(numbers[:, max_pages:].copy(), dtype=torch.int32).to(device)
        self.pool = torch.zeros(harness.N_LAYERS, numbers.size + 1, layout.block_bytes, dtype=torch.uint8, device=device)
        self.offsets = torch.arange(harness.N_LAYERS, dtype=torch.int64, device=device) * self.pool[0].numel()
        self.seq_lens = torch.zeros(n, dtype=torch.int32, device=device)
        pages = [(head, side) for head in range(layout.n_kv_heads) for side in range(SIDES)]
        self.tail, self.sinks = (torch.zeros(n, len(pages), 1, dtype=torch.int32, device=device) for _ in range(2))
        places = [[(0, layout.sink.place(*page) // UNIT_BYTES) for page in pages]], [[layout.tail_place(*page) for page in pages]]
        sink_places, tail_places = (torch.tensor(x, dtype=torch.int32, device=device) for x in places)
        self.step = self.plan.step(
            self.seq_lens, tail=step_table(self.tail, self.tail_blocks, tail_places, layout.block_bytes // layout.unit_bytes),
            protected_pages=step_table(self.sinks, self.blocks, sink_places, layout.block_bytes // UNIT_BYTES))

    def run(self, requests):
        """Runs a step. An entry None in `requests` stands for no request."""
        cache, library, plan = self.cache, self.library, self.plan
        self.lens = [n + (request is not None) for n, request in zip(self.lens, requests)]
        self.seq_lens.copy_(torch.tensor([n if request else 0 for n, request in zip(self.lens, requests)], dtype=torch.int32))
        shape, lengths = cache.shape(len(requests)), plan.lengths()
        library.plan_step(self.step)
        library.decode_schedule(shape, lengths, cache.workspace)
        for layer in range(harness.N_LAYERS):
            q, k, v = (self.rows(name, layer, requests) for name in "qkv")
            out = torch.zeros_like(q)
            library.append(shape, self.at(layer), plan.row_seq, plan.row_tail_token, k, v, cache.recipe.key_hadamard,
                           cache.recipe.value_hadamard)
            q = cache.queries(q, self.pool[layer])
            library.decode_attention(shape, lengths, self.at(
                layer, q=q, q_seq_stride=q.stride(0), q_head_stride=q.stride(1), out=out, out_type=BF16,
                out_seq_stride=out.stride(0), out_head_stride=out.stride(1)), cache.workspace)
            cache.rotate_back(out)
            for i, request in enumerate(requests):
                if request:
                    request.out[layer, self.lens[i] - 1] = out[i].cpu()
        library.seal_due_pages(shape, self.at(0), plan, self.offsets)
        for n, request in zip(self.lens, requests):
            if request:
                self.computed[id(request)] = n

    def rows(self, name, layer, requests):
        """Returns rows of the newest tokens: BF16 [n, heads, d], with zeros for places without a request."""
        n_heads = harness.N_HEADS if name == "q" else harness.N_KV_HEADS
        rows = torch.zeros(len(requests), n_heads, harness.D, dtype=torch.bfloat16)
        for i, request in enumerate(requests):
            if request:
                rows[i] = getattr(request, name)[layer, self.lens[i] - 1]
        return rows.to(self.pool.device)

    def at(self, layer, **members):
        cache, pool = self.cache, self.pool[layer]
        return Layer(sealed=cache.sealed_pages(self.blocks, pool), tail=cache.tail_pages(self.tail[:, :, 0], pool),
                     protected_pages=cache.sink_pages(self.sinks[:, :, 0], pool), sink=cache.layout.sink_tokens, **members)


if __name__ == "__main__":
    unittest.main()
