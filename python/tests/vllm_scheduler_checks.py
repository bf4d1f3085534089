"""Checks the plug-in: vLLM's own schedulers, synchronous and asynchronous, hand out steps, and the plug-in's code
runs these steps on libkvant_cpu. With two stages of pipeline parallelism, several steps are in flight. The model knows
which tokens come next, and its drafts may be wrong. If PyTorch is installed, `test_vllm` runs this file."""

import collections
import copy
import functools
import hashlib
import importlib
import types
import unittest

import vllm_stub

vllm_stub.OWN += """vllm.v1.request vllm.v1.core.sched.scheduler vllm.v1.core.sched.async_scheduler vllm.v1.core.sched.output
vllm.v1.core.sched.request_queue vllm.v1.core.sched.utils vllm.v1.core.sched.interface vllm.v1.engine
vllm.v1.core.encoder_cache_manager""".split()
vllm_stub.install(with_torch=True)
import cpu_library  # noqa: F401, before NumPy
import numpy as np

for module, name, value in (("utils", "length_from_prompt_token_ids_or_embeds", lambda ids, embeds: len(ids)),
                            ("v1.utils", "ConstantList", lambda x: x), ("v1.core.kv_cache_utils", "NONE_HASH", b"0")):
    setattr(importlib.import_module(f"vllm.{module}"), name, value)
structured_output = importlib.import_module("vllm.v1.structured_output.request")
structured_output.StructuredOutputRequest.from_sampling_params = lambda params: None
import vllm.v1.core.sched.async_scheduler as async_scheduler
import vllm.v1.core.sched.scheduler as scheduler
import vllm.v1.request as vllm_request
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

from kvant import PAGE
from kvant.vllm import attach
from kvant.vllm import v033 as release
from paged_server import D, N_KV_HEADS, N_LAYERS, SINK, Request, Server

release.add_specs()
# Requests for one document begin with SHARED equal tokens.
SHARED = 300


class Off(types.SimpleNamespace):
    """Stands for a configuration of vLLM in which every member that is not given is off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


NO_GRAMMAR = Off(should_advance=lambda request: False, accept_tokens=lambda *what: True, validate_tokens=lambda request, ids: ids)


def configuration(chunk, n_blocks, max_drafts, is_async, n_stages, method):
    """`method` makes the drafts: "ngram", "draft_model", "eagle", or "eagle, drop", whose hits end a block earlier."""
    is_eagle, is_model = method.startswith("eagle"), method != "ngram"
    looks_ahead = int(method == "eagle")
    speculative = Off(num_speculative_tokens=max_drafts, method=method[:5] if is_eagle else method,
                      max_num_new_slots_for_drafting=int(method == "draft_model"), use_eagle=lambda: is_eagle,
                      use_eagle_block_drop=lambda: is_eagle, needs_eagle_block_drop=lambda: is_eagle) if max_drafts else None
    return Off(
        scheduler_config=Off(async_scheduling=is_async, max_num_seqs=8, max_num_scheduled_tokens=chunk, max_num_batched_tokens=chunk, policy="fcfs",
                             long_prefill_token_threshold=0, enable_chunked_prefill=True, watermark=0.0,
                             prefill_schedule_interval=1, scheduler_reserve_full_isl=False),
        model_config=Off(max_model_len=1024, runner_type="generate"), parallel_config=Off(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, pipeline_parallel_size=n_stages, data_parallel_size=1),
        cache_config=Off(num_gpu_blocks=n_blocks, enable_prefix_caching=True, block_size=PAGE), observability_config=Off(),
        ec_manager_config=Off(get_encoder_cache_manager_obj=lambda: None), max_in_flight_tokens=(n_stages + is_async) * chunk,
        num_speculative_tokens=max_drafts, num_lookahead_tokens=max_drafts if is_model else 0, num_hash_lookahead_tokens=looks_ahead,
        num_prefill_lookahead_tokens=int(is_eagle),
        speculative_config=speculative, aux_output_config=Off(), use_v2_model_runner=True, max_concurrent_batches=n_stages + is_async)


def block_hashes(request, looks_ahead=0):
    """Returns the hashes of the request's full blocks, chained as in vLLM. Hashes also cover the next looks_ahead tokens.
    """
    before = request.block_hashes[-1] if request.block_hashes else b""
    new = []
    for first in range(len(request.block_hashes) * PAGE, (request.num_tokens - looks_ahead) // PAGE * PAGE, PAGE):
        before = hashlib.sha256(before + repr(request.all_token_ids[first:first + PAGE + looks_ahead]).encode()).digest()
        new.append(before)
    return new


class Stage:
    """Runs steps in their order on the layers of one stage."""

    has_sink_block = True

    def __init__(self, n_blocks, max_drafts):
        self.server = Server(SINK, n_blocks=n_blocks, max_drafts=max_drafts, has_arenas=True,
                             has_sink_block=self.has_sink_block)
        self.requests, self.events = {}, collections.Counter()

    def receive(self, output):
        """Takes over what the scheduler says about blocks."""
        for new in output.scheduled_new_reqs:
            self.begin(self.requests[new.req_id], new.block_ids, new.num_computed_tokens, new.prefill_token_ids)
        cached = output.scheduled_cached_reqs
        for name, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            request = self.requests[name]
            if name in cached.resumed_req_ids:
                self.begin(request, blocks, computed, None)
            elif blocks is not None:
                request.blocks += blocks[0]
                request.tail += blocks[1]

    def begin(self, request, blocks, computed, tokens):
        self.events["found"] += computed > 0
        self.events["resumed"] += bool(request.blocks)
        # Another request may have computed the next pages while this request waited.
        request.skipped = [*request.skipped, range(request.computed, computed)] if request.blocks else []
        request.blocks, request.tail, request.computed = list(blocks[0]), list(blocks[1]), computed
        request.begin = min(request.begin, computed)
        request.known = len(tokens) if tokens is not None else request.known

    def run(self, output, rejected, late):
        """Runs a step whose blocks have been received. `rejected` holds the number of wrong drafts by request's name."""
        work = [(self.requests[name], n) for name, n in output.num_scheduled_tokens.items()]
        for request, n in work:
            assert PAGE * len(request.blocks) >= request.computed + n and request.tail
        self.server.step(work, rejected={self.requests[name]: n for name, n in rejected.items()}, late=late)


class Engine:
    """Runs vLLM's scheduler with a model that knows every request's tokens. The first stage runs a step when the
    scheduler hands out the step. The second stage runs the step after the first stage has run the next one."""

    def __init__(self, chunk, n_blocks, max_drafts, is_async, rng, n_stages=1, method="ngram"):
        self.stages = [Stage(n_blocks, max_drafts) for _ in range(n_stages)]
        self.max_drafts, self.is_async, self.rng = max_drafts, is_async, rng
        self.depth, self.events, self.waiting = n_stages + is_async, self.stages[0].events, collections.deque()
        layout, names = self.stages[0].server.layout, [f"model.layers.{i}.attn" for i in range(N_LAYERS)]
        groups = [KVCacheGroupSpec(names, release.sealed_spec(N_KV_HEADS, D, layout.block_bytes, max_drafts)),
                  KVCacheGroupSpec([name + attach.TAIL_SUFFIX for name in names],
                                   release.tail_spec(N_KV_HEADS, D, layout.block_bytes, layout.own_blocks, 1, max_drafts,
                                                     layout.has_sink_block))]
        groups[0].is_eagle_group = method.startswith("eagle")
        self.hash_blocks = functools.partial(block_hashes, looks_ahead=int(method == "eagle"))
        kind = async_scheduler.AsyncScheduler if is_async else scheduler.Scheduler
        self.scheduler = kind(
            vllm_config=configuration(chunk, n_blocks, max_drafts, is_async, n_stages, method), structured_output_manager=NO_GRAMMAR,
            block_size=PAGE, kv_cache_config=KVCacheConfig(num_blocks=n_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            hash_block_size=PAGE)

    def submit(self, name, document, n_prompt, n_tokens):
        # The request has more tokens than it generates, because vLLM may schedule steps whose tokens it drops.
        request = Request(n_tokens + 32, self.rng)
        for side in "qkv":
            getattr(request, side)[:, :SHARED] = getattr(document, side)[:, :SHARED]
        own = self.rng.integers(0, 1 << 30, n_tokens + 32 - SHARED).tolist()
        request.tokens, request.length, request.known = list(document.tokens) + own, n_tokens, n_prompt
        request.begin = n_tokens
        for stage in self.stages:
            stage.requests[name] = copy.copy(request)
            stage.requests[name].out = request.out.clone()
        sampling = Off(max_tokens=n_tokens - n_prompt, min_tokens=0, eos_token_id=-1)
        self.scheduler.add_request(vllm_request.Request(name, request.tokens[:n_prompt], sampling, None,
                                                        block_hasher=self.hash_blocks))

    def step(self, output):
        """Runs a step on the first stage and returns the tokens that the step samples."""
        first, rejected, sampled = self.stages[0], {}, []
        first.receive(output)
        for name, n in output.num_scheduled_tokens.items():
            request = first.requests[name]
            n_drafts = max(0, request.computed + n - request.known)
            n_right = int(self.rng.integers(0, n_drafts + 1))
            rejected[name] = n_drafts - n_right
            new = []
            if request.computed + n >= request.known:
                new = request.tokens[request.known:request.known + n_right + 1]
                request.known += n_right + 1
            self.events["drafts"] += n_drafts
            sampled.append(new)
        late = self.max_drafts if self.is_async else 0
        first.run(output, rejected, late)
        self.finish_step()
        self.waiting.append((output, rejected, late))
        return Off(sampled_token_ids=sampled, req_id_to_index={name: i for i, name in enumerate(output.num_scheduled_tokens)},
                   prompt_logprobs_dict={}, prompt_token_id_logprobs_dict={})

    def finish_step(self):
        """Runs the step that waits for the other stages, if there is one."""
        while self.waiting:
            step = self.waiting.popleft()
            for stage in self.stages[1:]:
                stage.receive(step[0])
                stage.run(*step)

    def run(self):
        """Schedules steps until all requests have ended, as vLLM's engine does (EngineCore.step_with_batch_queue)."""
        in_flight = collections.deque()
        for _ in range(1500):
            output = self.scheduler.schedule()
            is_idle = output.total_num_scheduled_tokens == 0
            if not is_idle:
                in_flight.append((output, self.step(output)))
                self.events[f"{len(in_flight)} in flight"] += 1
                if len(in_flight) < self.depth:
                    continue
            if in_flight:
                if len(in_flight) == 1:
                    self.finish_step()
                self.process(*in_flight.popleft())
            if is_idle and not in_flight and not self.scheduler.has_unfinished_requests():
                self.finish_step()
                return
        raise AssertionError("does not end")

    def process(self, output, result):
        self.scheduler.update_from_output(output, result)
        if self.max_drafts and not self.is_async:
            names = [name for name, new in zip(output.num_scheduled_tokens, result.sampled_token_ids) if new]
            self.scheduler.update_draft_token_ids(Off(req_ids=names, draft_token_ids=[[7] * self.max_drafts for _ in names]))


class Scheduling(unittest.TestCase):
    def check(self, chunk, n_blocks, max_drafts, is_async, n_requests=4, n_stages=1, method="ngram"):
        rng = np.random.default_rng(chunk + n_blocks)
        engine = Engine(chunk, n_blocks, max_drafts, is_async, rng, n_stages, method)
        documents = [Request(SHARED, rng) for _ in range(2)]
        for document in documents:
            document.tokens = rng.integers(0, 1 << 30, SHARED).tolist()
        for i in range(n_requests):
            n_prompt = int(rng.integers(SHARED, 420))
            engine.submit(str(i), documents[i % 2], n_prompt, n_prompt + int(rng.integers(15, 45)))
        engine.run()
        for stage in engine.stages:
            for request in stage.requests.values():
                self.assertGreaterEqual(request.computed, request.length - 1)
                rows = np.setdiff1d(np.arange(request.begin, request.computed), np.concatenate([[], *request.skipped]))
                error = request.out[0].float().numpy()[rows] - request.expected(0, SINK)[rows]
                self.assertLess(np.abs(error).max(), 0.03)
        return engine.events

    def test_prefixes_chunks_and_preemption(self):
        events = collections.Counter()
        for chunk, n_blocks, is_async in ((128, 16, False), (512, 16, True), (2048, 100, True)):
            events += self.check(chunk, n_blocks, 0, is_async)
        self.assertTrue(events["found"] and events["resumed"])

    def test_two_stages_with_several_steps_in_flight(self):
        events = collections.Counter()
        for chunk, n_blocks, max_drafts, is_async in ((128, 16, 0, True), (512, 16, 0, False), (512, 24, 3, True)):
            events += self.check(chunk, n_blocks, max_drafts, is_async, n_stages=2)
        for what in ("found", "resumed", "drafts", "3 in flight"):
            self.assertGreater(events[what], 0, what)

    def test_drafts(self):
        events = collections.Counter()
        for chunk, n_blocks, is_async in ((128, 100, False), (512, 24, True), (2048, 26, False), (512, 100, True)):
            events += self.check(chunk, n_blocks, 3, is_async)
        self.assertTrue(events["found"] and events["resumed"] and events["drafts"])

    def test_drafts_of_models(self):
        for method in ("draft_model", "eagle", "eagle, drop"):
            events = collections.Counter()
            for chunk, n_blocks, is_async in ((128, 100, False), (512, 24, True), (2048, 26, False), (512, 100, True)):
                events += self.check(chunk, n_blocks, 3, is_async, method=method)
            for what in ("found", "resumed", "drafts"):
                self.assertGreater(events[what], 0, (method, what))


if __name__ == "__main__":
    unittest.main()
