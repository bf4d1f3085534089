"""Checks CPU offload: vLLM's own schedulers, connector and CPU manager say which blocks are stored and loaded, and a
stand-in for the copies between GPU and CPU copies them between the memory of libkvant_cpu and further memory. If
PyTorch is installed, `test_vllm` runs this file."""

import copy
import unittest
from unittest import mock

import vllm_stub

PACKAGE = "vllm.distributed.kv_transfer.kv_connector"
vllm_stub.OWN += [f"{PACKAGE}.{name}" for name in """factory base utils v1.base v1.metrics v1.offloading_connector v1.offloading.common
v1.offloading.config v1.offloading.events v1.offloading.metrics v1.offloading.scheduler v1.offloading.worker
v1.offloading.canonical_mapping""".split()]
vllm_stub.OWN += """vllm.v1.kv_offload.base vllm.v1.kv_offload.config vllm.v1.kv_offload.factory vllm.v1.kv_offload.cpu.spec
vllm.v1.kv_offload.cpu.manager vllm.v1.kv_offload.cpu.common vllm.v1.kv_offload.cpu.policies.base
vllm.v1.kv_offload.cpu.policies.factory vllm.v1.kv_offload.cpu.policies.lru vllm.v1.metrics.cache_hit_source vllm.v1.outputs
vllm.v1.worker.gpu.kv_connector""".split()
import vllm_scheduler_checks as checks
import numpy as np
import torch

base, connectors = (checks.importlib.import_module(f"{PACKAGE}.v1{name}") for name in (".base", ""))
for name in ("KVConnectorBase_V1", "KVConnectorRole", "SupportsHMA", "supports_hma"):
    setattr(connectors, name, getattr(base, name))
import vllm.distributed.kv_transfer.kv_connector.factory as factory
import vllm.v1.worker.gpu.kv_connector as worker_connector
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from kvant import PAGE
from kvant.vllm import attach
from kvant.vllm import v033 as release
from paged_server import BY_HEAD
from vllm_scheduler_checks import D, N_KV_HEADS, N_LAYERS, SHARED, SINK, Engine, Off, Request, Server

release.use_own_connector()
setattr(checks.scheduler, "KVConnectorFactory", factory.KVConnectorFactory)
setattr(checks.scheduler, "KVConnectorRole", base.KVConnectorRole)
setattr(checks.scheduler, "SupportsHMA", base.SupportsHMA)
CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT = 1
# With CPU offload, sinks stay in the blocks of first pages (attach).
checks.Stage.has_sink_block = False
# This many chunks fit into the CPU's memory.
N_CHUNKS = 64


class Copies(OffloadingWorker):
    """Stands in for copies between GPU and CPU. A copy takes place when vLLM submits it, and is reported later."""

    def __init__(self, spec, caches):
        self.of_chunk, self.blocks = spec.blocks_per_chunk, [x.tensor for x in caches.tensors]
        self.chunks = [torch.zeros(N_CHUNKS, self.of_chunk, x.shape[1], dtype=torch.int8) for x in self.blocks]
        self.n_stored = self.n_loaded = 0
        self.done = []

    def submit_store(self, job_id, src_spec, dst_spec):
        self.n_stored += len(src_spec.block_ids)
        for blocks, block, chunks, place in self.places(src_spec, dst_spec):
            chunks[place] = blocks[block]
        return self.report(job_id)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        self.n_loaded += len(dst_spec.block_ids)
        for blocks, block, chunks, place in self.places(dst_spec, src_spec):
            blocks[block] = chunks[place]
        return self.report(job_id)

    def places(self, gpu_spec, cpu_spec):
        """Yields each block and its place in a chunk. The first block may lie within a chunk."""
        for i, block in enumerate(gpu_spec.block_ids, gpu_spec.block_indices[0] % self.of_chunk):
            for blocks, chunks in zip(self.blocks, self.chunks):
                yield blocks, block, chunks, (cpu_spec.block_ids[i // self.of_chunk], i % self.of_chunk)

    def report(self, job_id):
        self.done.append(TransferResult(job_id, True))
        return True

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        pass


class OffloadingEngine(Engine):
    """Is an engine whose sealed pages go to CPU memory. Requests may be submitted again."""

    def __init__(self, chunk, n_blocks, rng, is_async=False, max_drafts=0, keeps_prefixes=True, **options):
        """keeps_prefixes says whether the GPU keeps prefixes of requests that have ended. `options` goes to vLLM's connector
        (kv_connector_extra_config)."""
        chunk_bytes = checks.Stage(2, max_drafts).server.layout.block_bytes * N_LAYERS
        self.transfer = Off(kv_connector="OffloadingConnector", engine_id="0", kv_load_failure_policy="fail", is_kv_consumer=True,
                            kv_connector_extra_config={"cpu_bytes_to_use": N_CHUNKS * chunk_bytes} | options)
        self.context = {}
        configuration = checks.configuration

        def configured(*args):
            config = configuration(*args)
            config.kv_transfer_config = self.transfer
            config.cache_config.cache_dtype = "kvant_uniform_4bit"
            config.cache_config.enable_prefix_caching = keeps_prefixes
            config.compilation_config = Off(static_forward_context=self.context)
            parallel, model = config.parallel_config, config.model_config
            parallel.rank, parallel.world_size, parallel.tensor_parallel_size = 0, 1, 1
            model.model, model.get_total_num_kv_heads = "", lambda: N_KV_HEADS
            self.config = config
            return config

        with mock.patch.object(checks, "configuration", configured):
            super().__init__(chunk, n_blocks, max_drafts, is_async, rng)
        server = self.stages[0].server
        caches = {}
        for i, layer in enumerate(server.state.layers):
            name = f"model.layers.{i}.attn"
            cells = layer.kv_cache.view(len(layer.kv_cache), 1, 1, -1)
            caches |= {name: cells, name + attach.TAIL_SUFFIX: cells}
            self.context[name + attach.TAIL_SUFFIX] = attach.TailLayer(server.state, None, None)
        config = self.scheduler.kv_cache_config
        config.num_blocks = n_blocks
        connector = factory.KVConnectorFactory.create_connector(self.config, base.KVConnectorRole.WORKER, config)
        with mock.patch.object(CPUOffloadingSpec, "get_worker", lambda spec, caches: Copies(spec, caches)), \
                mock.patch.object(worker_connector, "get_kv_transfer_group", lambda: connector):
            self.connector = worker_connector.ActiveKVConnector(self.config, caches)
        self.copies = connector.connector_worker.worker
        describe = server.describe

        def described(kind, **metadata):
            step = describe(kind, **metadata)
            if kind == "tail":
                self.connector.pre_forward(self.output, input_batch=mock.MagicMock())
            return step

        server.describe = described

    def step(self, output):
        if output.total_num_scheduled_tokens == 0:
            return self.connector.no_forward(output)
        self.output = output
        result = super().step(output)
        result.kv_connector_output = self.connector.post_forward(output.finished_req_ids)
        return result

    def run(self):
        in_flight = checks.collections.deque()
        for _ in range(1500):
            output = self.scheduler.schedule()
            in_flight.append((output, self.step(output)))
            while in_flight and (len(in_flight) == self.depth or output.total_num_scheduled_tokens == 0):
                self.process(*in_flight.popleft())
            if not in_flight and not self.scheduler.has_requests():
                return
        raise AssertionError("does not end")

    def repeat(self, name, of, n_prompt, n_tokens):
        """Submits a request with the tokens of request `of`."""
        request = copy.copy(self.stages[0].requests[of])
        request.out, request.blocks, request.tail, request.computed = torch.full_like(request.out, float("nan")), [], [], 0
        request.length = request.begin = n_tokens
        request.known = n_prompt
        self.stages[0].requests[name] = request
        self.scheduler.add_request(checks.vllm_request.Request(
            name, request.tokens[:n_prompt], Off(max_tokens=n_tokens - n_prompt, min_tokens=0, eos_token_id=-1), None,
            block_hasher=checks.block_hashes))
        return request

    def evict(self):
        """Makes the GPU forget all prefixes, and destroys what its blocks held."""
        assert self.scheduler.kv_cache_manager.reset_prefix_cache()
        self.stages[0].server.pool.random_(0, 255)


class Offload(unittest.TestCase):
    def start(self, chunk=512, n_blocks=24, **options):
        rng = np.random.default_rng(5)
        engine = OffloadingEngine(chunk, n_blocks, rng, **options)
        return engine, self.document(rng)

    def document(self, rng):
        document = Request(SHARED, rng)
        document.tokens = rng.integers(0, 1 << 30, SHARED).tolist()
        return document

    def check(self, request):
        self.assertGreaterEqual(request.computed, request.length - 1)
        rows = slice(request.begin, request.computed)
        for layer in range(N_LAYERS):
            error = request.out[layer].float().numpy()[rows] - request.expected(layer, SINK)[rows]
            self.assertLess(np.abs(error).max(), 0.03)

    def ask_twice(self, n_prompt, n_tokens, n_again, **options):
        """Asks a request of n_prompt tokens that ends with n_tokens. The GPU then forgets its pages, and another
        request begins with the first n_again of these tokens. Returns the engine and the other request."""
        engine, document = self.start(**options)
        engine.submit("a", document, n_prompt, n_tokens)
        engine.run()
        engine.evict()
        again = engine.repeat("b", "a", n_again, n_again + 20)
        engine.run()
        self.check(again)
        self.assertEqual(engine.copies.n_loaded, again.begin // PAGE)
        return engine, again

    def test_blocks_come_back_with_all_their_bytes(self):
        # A block of the pool has the pages of all layers, and the sink.
        engine, document = self.start()
        engine.submit("a", document, 386, 387)
        engine.run()
        pool, first = engine.stages[0].server.pool, engine.stages[0].requests["a"].blocks[:3]
        stored = pool[first].clone()
        engine.evict()
        again = engine.repeat("b", "a", 386, 390)
        engine.run()
        self.assertTrue(torch.equal(pool[again.blocks[:3]], stored))
        self.assertEqual([x.shape[1] for x in engine.copies.blocks], [pool.shape[1]])

    def test_blocks_of_one_layer(self):
        # With VLLM_KV_CACHE_LAYOUT=LBNHC, each layer has a region of its own.
        with mock.patch.object(checks, "Server", lambda *args, **more: Server(*args, **more | dict(has_arenas=False))):
            engine, again = self.ask_twice(384, 385, 386)
        self.assertEqual((again.begin, len(engine.copies.blocks)), (384, N_LAYERS))

    def test_bits_by_layer_and_head(self):
        with mock.patch.object(checks, "SINK", BY_HEAD), mock.patch.dict(globals(), SINK=BY_HEAD):
            for options in ({}, dict(is_async=True, max_drafts=3)):
                engine, again = self.ask_twice(384, 400, 386, **options)
                self.assertEqual((again.begin, engine.stages[0].server.state.recipe), (384, BY_HEAD))

    def test_the_cache_keeps_its_layout(self):
        engine, _ = self.start()
        kind = factory.KVConnectorFactory.get_connector_class(engine.transfer)
        engine.config.attention_config = Off()
        self.assertIsNone(kind.get_required_kvcache_layout(engine.config))
        engine.config.cache_config.cache_dtype = "auto"
        self.assertEqual(kind.get_required_kvcache_layout(engine.config), "LBHNC")

    def test_other_caches_are_as_without_kvant(self):
        engine, document = self.start()
        engine.submit("a", document, 384, 385)
        connector, request = engine.scheduler.connector, engine.scheduler.requests["a"]
        self.assertEqual(connector._max_loadable_tokens(request, 128), 128)
        engine.config.cache_config.cache_dtype = "auto"
        self.assertIsNone(connector._max_loadable_tokens(request, 128))

    def test_hits_end_before_the_page_of_the_last_token(self):
        for options in ({}, dict(is_async=True), dict(sync_load_budget_bytes=1 << 30)):
            for n_prompt in (384, 385, 511):
                _, again = self.ask_twice(n_prompt, n_prompt + 1, n_prompt, **options)
                self.assertEqual(again.begin, (n_prompt - 1) // PAGE * PAGE)
        _, again = self.ask_twice(512, 513, 512, blocks_per_chunk=2)
        self.assertEqual(again.begin, 384)

    def test_pages_are_sealed_before_they_are_stored(self):
        # The last chunk of this prompt has one token, so the token is a decoded one for kvant. The next step is empty.
        for options in ({}, dict(is_async=True)):
            engine, again = self.ask_twice(384, 385, 386, chunk=383, **options)
            self.assertEqual((again.begin, engine.copies.n_stored), (384, 3))

    def test_pages_of_answers(self):
        for is_async in (False, True):
            engine, again = self.ask_twice(370, 400, 390, is_async=is_async)
            self.assertEqual((again.begin, engine.copies.n_stored), (256, 3))
            _, again = self.ask_twice(370, 400, 390, is_async=is_async, offload_prompt_only=False)
            self.assertEqual(again.begin, 384)
            # The answer's last computed token fills the page.
            _, again = self.ask_twice(370, 385, 390, is_async=is_async, offload_prompt_only=False)
            self.assertEqual(again.begin, 384)

    def test_a_page_of_a_request_that_ended_is_not_sealed_into_a_loaded_block(self):
        # The last token of `x` fills a page. The next step is empty, and begins to load `b` into the blocks of `x`.
        for is_async in (False, True):
            engine, document = self.start(chunk=1024, n_blocks=11, is_async=is_async)
            engine.submit("a", document, 642, 643)
            engine.run()
            engine.evict()
            engine.submit("x", self.document(np.random.default_rng(6)), 370, 385)
            again = engine.repeat("b", "a", 642, 660)
            engine.run()
            self.assertEqual((again.begin, engine.copies.n_loaded), (640, 5))
            self.check(again)

    def test_without_prefixes_on_the_gpu(self):
        # --no-enable-prefix-caching
        for is_async in (False, True):
            _, again = self.ask_twice(385, 400, 385, is_async=is_async, keeps_prefixes=False)
            self.assertEqual(again.begin, 384)

    def test_many_requests_in_a_small_cache(self):
        for chunk, max_drafts, is_async, prompt_only in ((128, 0, False, True), (512, 0, True, False), (512, 3, False, True),
                                                         (2048, 3, True, False), (127, 0, True, False), (127, 3, True, False)):
            engine, document = self.start(chunk=chunk, is_async=is_async, max_drafts=max_drafts, offload_prompt_only=prompt_only,
                                          n_blocks=26)
            lengths = [(n, n + 30) for n in (384, 385, 300, 511, 360, 420)]
            for i, (n_prompt, n_tokens) in enumerate(lengths):
                engine.submit(str(i), document, n_prompt, n_tokens)
            engine.run()
            for i in range(len(lengths)):
                self.check(engine.stages[0].requests[str(i)])
            for rounds in range(2):
                others = [engine.repeat(f"{i} again {rounds}", str(i), n_prompt + 10 * rounds, n_tokens)
                          for i, (n_prompt, n_tokens) in enumerate(lengths)]
                engine.run()
                for other in others:
                    self.check(other)
            self.assertGreater(engine.copies.n_loaded, 0)


if __name__ == "__main__":
    unittest.main()
