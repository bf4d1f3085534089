"""Tests requests that arrive, wait, share prefixes, are preempted and start again, in chunks of any size, with and
without drafts. Every token's output must follow the visibility rule.

A small scheduler does what vLLM's scheduler does. The small scheduler finds prefixes when a request is admitted, among
pages that were published when steps were scheduled. When blocks run out, the request that came last gives up its
blocks, and later computes everything again that no prefix provides. vLLM has no other preemption, because it swaps
nothing out."""

import collections
import unittest
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

from paged_server import N_LAYERS, PLAIN, SINK, Request, Server

import numpy as np

from kvant import PAGE

# All requests for one document begin with SHARED equal tokens.
SHARED = 300


class Scheduler:
    def __init__(self, server, chunk, max_drafts, late, rng):
        self.server, self.chunk, self.max_drafts, self.late, self.rng = server, chunk, max_drafts, late, rng
        self.waiting, self.running, self.events = collections.deque(), [], collections.Counter()
        # Counts the holders of each block.
        self.holders = collections.Counter()
        # Maps contents to blocks, and blocks to contents.
        self.published, self.name_of = {}, {}

    def submit(self, document, n_prompt, n_tokens, number):
        request = Request(n_tokens, self.rng)
        for name in "qkv":
            getattr(request, name)[:, :SHARED] = getattr(document, name)[:, :SHARED]
        request.document, request.number, request.known, request.length = id(document), number, n_prompt, n_tokens
        # From token `begin` on, the request computes tokens itself.
        request.begin = n_tokens
        self.waiting.append(request)
        return request

    def page_name(self, request, page):
        return (request.document, page) if (page + 1) * PAGE <= SHARED else (request.number, page, "own")

    def take(self, n):
        """Takes the n free blocks that were freed first. Whatever was published in them is lost."""
        blocks = [self.server.free.pop(0) for _ in range(n)]
        for block in blocks:
            self.published.pop(self.name_of.pop(block, None), None)
            self.holders[block] = 1
        return blocks

    def give_back(self, request):
        for block in reversed(request.blocks + request.tail):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.server.free.append(block)
        request.blocks, request.tail, request.computed = [], [], 0

    def find_prefix(self, request):
        for page in range((request.known - 1) // PAGE):
            block = self.published.get(self.page_name(request, page))
            if block is None:
                break
            if self.holders[block] == 0:
                self.server.free.remove(block)
            self.holders[block] += 1
            request.blocks.append(block)
            self.events["pages found"] += 1
            self.events["pages found in the step that seals them"] += self.in_step[block]
        request.computed = PAGE * len(request.blocks)
        request.begin = min(request.begin, request.computed)

    def n_missing(self, request, n):
        tail = 0 if request.tail else self.server.layout.own_blocks
        return max(0, -(-(request.computed + n) // PAGE) - len(request.blocks)), tail

    def has_room(self, request, n):
        return sum(self.n_missing(request, n)) <= len(self.server.free)

    def make_room(self, request, n):
        """Makes room for a request. Later requests may lose their blocks, or the request may lose its own."""
        while not self.has_room(request, n):
            victim = self.running[-1]
            if victim in self.scheduled:
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def allocate(self, request, n):
        blocks, tail = self.n_missing(request, n)
        request.blocks += self.take(blocks)
        request.tail += self.take(tail)

    def preempt(self, request):
        self.events["preempted"] += 1
        self.running.remove(request)
        self.give_back(request)
        self.waiting.appendleft(request)

    def schedule(self, request, n):
        self.allocate(request, n)
        self.scheduled[request] = n
        is_prompt = n > 1 + self.max_drafts
        for page in range((request.computed + (n if is_prompt else 0)) // PAGE):
            block = request.blocks[page]
            if block not in self.name_of and self.page_name(request, page) not in self.published:
                self.published[self.page_name(request, page)], self.name_of[block] = block, self.page_name(request, page)
                self.in_step[block] = 1

    def step(self):
        self.scheduled, self.in_step = {}, collections.Counter()
        budget, n_preempted = self.chunk, self.events["preempted"]
        for request in list(self.running):
            if request not in self.running or budget == 0:
                continue
            left = request.known - request.computed
            n = min(left, budget) if left > 1 else min(1 + self.max_drafts, request.length - request.computed, budget)
            if self.make_room(request, n):
                self.schedule(request, n)
                budget -= n
        while self.waiting and budget > 0 and self.events["preempted"] == n_preempted:
            request = self.waiting[0]
            self.find_prefix(request)
            n = min(request.known - request.computed, budget)
            if not self.has_room(request, n):
                self.give_back(request)
                break
            self.running.append(self.waiting.popleft())
            self.schedule(request, n)
            budget -= n
        self.run()

    def run(self):
        rejected = {}
        for request, n in self.scheduled.items():
            # All tokens after the newest one are drafts.
            if request.known - request.computed == 1:
                rejected[request] = int(self.rng.integers(0, n))
        self.server.step(list(self.scheduled.items()), rejected=rejected, late=self.late)
        for request in self.scheduled:
            request.known = max(request.known, min(request.computed + 1, request.length))
            if request.computed == request.length:
                self.running.remove(request)
                computed = request.computed
                self.give_back(request)
                request.computed = computed


class Scheduling(unittest.TestCase):
    has_arenas = False
    recipe = SINK

    def check(self, recipe, chunk, max_drafts, n_blocks, late=0, n_requests=5):
        rng = np.random.default_rng(chunk + max_drafts)
        server = Server(recipe, n_blocks=n_blocks, max_drafts=max_drafts, has_arenas=self.has_arenas, has_sink_block=False)
        scheduler = Scheduler(server, chunk, max_drafts, late, rng)
        documents, requests = [Request(SHARED, rng) for _ in range(2)], []
        for number in range(n_requests):
            n_prompt = int(rng.integers(SHARED, 420))
            requests.append(scheduler.submit(documents[number % 2], n_prompt, n_prompt + int(rng.integers(15, 45)), number))
        n_steps = 0
        while scheduler.waiting or scheduler.running:
            scheduler.step()
            n_steps += 1
            self.assertLess(n_steps, 2000)
        for request in requests:
            self.assertEqual(request.computed, request.length)
            for layer in range(N_LAYERS if self.has_arenas else 1):
                error = request.out[layer].float().numpy() - request.expected(layer, recipe)
                self.assertLess(np.abs(error[request.begin:]).max(), 0.03)
        self.assertEqual(len(server.free), n_blocks - 1)
        return scheduler.events

    def test_chunks_of_any_size_with_room_for_all(self):
        for chunk in (128, 512, 2048):
            events = self.check(self.recipe, chunk, 0, 100)
            self.assertEqual(events["preempted"], 0)
            self.assertGreater(events["pages found"], 0)
        self.assertGreater(events["pages found in the step that seals them"], 0)

    def test_preempted_requests_begin_anew(self):
        for recipe, chunk, n_blocks in ((self.recipe, 128, 16), (PLAIN, 512, 14), (self.recipe, 2048, 16)):
            self.assertGreater(self.check(recipe, chunk, 0, n_blocks)["preempted"], 0)

    def test_with_drafts_whose_acceptance_the_host_learns_late_or_in_time(self):
        self.assertGreater(self.check(self.recipe, 128, 3, 100)["pages found"], 0)
        self.assertGreater(self.check(self.recipe, 512, 3, 22, late=3)["preempted"], 0)
        self.assertGreater(self.check(self.recipe, 2048, 3, 33)["pages found in the step that seals them"], 0)


if __name__ == "__main__":
    unittest.main()
