#!/usr/bin/env python3
"""Times other engines' decode attention at the shapes of decode_bench, as CUDA graphs of several calls with separate
pages.

FlashAttention 3 runs on an FP8 cache (--fa3 names _vllm_fa3_C.abi3.so from vLLM's wheel). FlashInfer's XQA runs on an
FP8 cache (--xqa names its module for pages of 64 tokens, heads of 128 and groups of 4; needs apache-tvm-ffi). cuDNN
runs through its front end (--cudnn; needs nvidia-cudnn-frontend), in BF16 with its fastest plan and in FP8. Each
sequence has one query token, 8 KV heads of 128 channels, and 4 query heads per KV head.
"""

import argparse
import ctypes
import math
import pathlib
import statistics
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from graph_timing import captured, median_replay_ms  # noqa: E402
from json_rows import RowWriter  # noqa: E402

SHAPES = [(1, 32768), (1, 131072), (1, 196608), (8, 32768), (8, 131072), (64, 4096), (64, 32768)]
HEADS, KV_HEADS, D, PAGE = 32, 8, 128, 64
COLD_BYTES = 600 << 20
MOST_BYTES = 40 << 30
FP8 = torch.float8_e4m3fn
# The relative error from FP8 queries and weights may not exceed WORST_ERROR.
WORST_ERROR = 0.06


def calls_of_graph(size):
    return max(2, min(max(8, -(-COLD_BYTES // size)), MOST_BYTES // size))


class PagedCache:
    """Holds FP8 pages [page][token][head][channel] of several calls, in random places."""

    def __init__(self, batch, context, calls):
        pages = batch * context // PAGE
        shape = (calls * pages, PAGE, KV_HEADS, D)
        self.keys, self.values = (torch.empty(shape, device="cuda", dtype=FP8) for _ in range(2))
        for pool in (self.keys, self.values):
            for part in pool.split(1 << 14):
                part.copy_(torch.randn(part.shape, device="cuda", dtype=torch.bfloat16))
        table = torch.randperm(calls * pages, device="cuda", dtype=torch.int32)
        self.tables = table.view(calls, batch, context // PAGE)
        self.lengths = torch.full((batch,), context, device="cuda", dtype=torch.int32)

    def exact(self, call, q):
        """Computes the attention of the first sequence in F32."""
        ids = self.tables[call, 0].long()
        keys, values = (pool[ids].float().flatten(0, 1) for pool in (self.keys, self.values))
        scores = torch.einsum("hgd,nhd->hgn", q[0].float().view(KV_HEADS, -1, D), keys) / math.sqrt(D)
        return torch.einsum("hgn,nhd->hgd", scores.softmax(-1), values).flatten(0, 1)


class Fa3:
    name = "vLLM FA3, FP8 (queries too)"

    def __init__(self, path):
        torch.ops.load_library(path)
        self.ops = torch.ops._vllm_fa3_C

    def prepare(self, cache, q):
        batch, context = q.shape[0], int(cache.lengths[0])
        self.cache, self.q = cache, q.to(FP8)
        self.starts = torch.arange(batch + 1, device="cuda", dtype=torch.int32)
        self.context = context
        self.schedule = self.ops.get_scheduler_metadata(
            batch, 1, context, HEADS, KV_HEADS, D, D, FP8, cache.lengths, self.starts, None, None, None, None, PAGE, 0,
            False, -1, -1, False, 0, None, 0)
        self.scale = torch.ones(batch, KV_HEADS, device="cuda")

    def call(self, i):
        cache, s = self.cache, self.scale
        return self.ops.fwd(
            self.q, cache.keys, cache.values, None, None, None, None, self.starts, None, None, None, cache.lengths, 1,
            self.context, cache.tables[i], None, None, None, None, None, s, s, s, 1 / math.sqrt(D), False, -1, -1, 0.0,
            True, self.schedule, 0, None, 0, None, 1, 0, None)[0]


class Xqa:
    name = "FlashInfer XQA, FP8"

    def __init__(self, path):
        import tvm_ffi
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
        self.run = tvm_ffi.load_module(path).xqa_wrapper
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.scratch = torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
        self.semaphores = torch.zeros(8 << 20, device="cuda", dtype=torch.int32).view(torch.uint32)

    def prepare(self, cache, q):
        self.cache, self.q = cache, q.unsqueeze(1)
        self.lengths = cache.lengths.view(torch.uint32).unsqueeze(1)

    def call(self, i):
        cache, q = self.cache, self.q
        out = torch.empty_like(q)
        self.run(True, self.sms, KV_HEADS, 0, 1.0, None, out, 1.0, q, None, cache.keys, cache.values, None, None,
                 cache.tables[i], cache.tables.shape[2] * PAGE, self.lengths, q.shape[0], 1.0, None, 1, None, None,
                 self.semaphores, self.scratch, False)
        return out.squeeze(1)


def time_calls(call, calls, rounds, runs):
    graph = captured(lambda: [call(i) for i in range(calls)])
    return [median_replay_ms(graph, runs) * 1e3 / calls for _ in range(rounds)]


def report(rows, name, batch, context, times, size, error, bits):
    us = statistics.median(times)
    print(f"{name:34} ({batch:2}, {context // 1024:4}k) {us:9.1f} us ({min(times):.1f} to {max(times):.1f})  "
          f"{size / us / 1e3:5.0f} GB/s  error {error:.4f}", flush=True)
    rows.write(what=name, options="", head_dim=D, group=HEADS // KV_HEADS, kv_heads=KV_HEADS, seqs=batch,
               context=context, us=us, least_us=min(times), max_us=max(times), bytes=size, bits=bits)


def run_paged(engines, rows, args):
    for batch, context in SHAPES:
        size = batch * context * KV_HEADS * D * 2
        calls = calls_of_graph(size)
        cache = PagedCache(batch, context, calls)
        q = torch.randn(batch, HEADS, D, device="cuda", dtype=torch.bfloat16)
        exact = cache.exact(calls - 1, q)
        for engine in engines:
            engine.prepare(cache, q)
            error = ((engine.call(calls - 1)[0].float() - exact).norm() / exact.norm()).item()
            if not error < WORST_ERROR:
                print(f"{engine.name}: relative error {error:.3f}; not timed", file=sys.stderr)
                continue
            report(rows, engine.name, batch, context, time_calls(engine.call, calls, args.rounds, args.runs), size,
                   error, 8)
        del cache


class CudnnGraph:
    """Runs a decode step of cuDNN's fused attention on contiguous rows [batch][head][token][channel]."""

    def __init__(self, batch, context, dtype):
        import cudnn
        self.cudnn = cudnn
        self.handle = cudnn.create_handle()
        kinds = {torch.bfloat16: cudnn.data_type.BFLOAT16, FP8: cudnn.data_type.FP8_E4M3}
        f32 = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(io_data_type=kinds[dtype], intermediate_data_type=f32, compute_data_type=f32,
                              handle=self.handle)

        def tensor(name, heads, tokens):
            shape = (batch, heads, tokens, D)
            return graph.tensor(name=name, dim=shape, data_type=kinds[dtype],
                                stride=(heads * tokens * D, tokens * D, D, 1))

        self.q, self.k, self.v = tensor("q", HEADS, 1), tensor("k", KV_HEADS, context), tensor("v", KV_HEADS, context)
        self.scales = {}
        common = dict(q=self.q, k=self.k, v=self.v, attn_scale=1 / math.sqrt(D), use_causal_mask=False)
        extra = []
        if dtype == FP8:
            names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
            for name in names:
                self.scales[name] = graph.tensor(name=name, dim=(1, 1, 1, 1), stride=(1, 1, 1, 1), data_type=f32)
            self.o, _, *extra = graph.sdpa_fp8(**common, **self.scales, is_inference=True)
        else:
            self.o, _ = graph.sdpa(**common, is_inference=True)
        self.o.set_output(True).set_dim((batch, HEADS, 1, D)).set_stride((HEADS * D, D, D, 1)).set_data_type(
            cudnn.data_type.BFLOAT16)
        self.extra = {}
        for amax in extra:
            amax.set_output(True).set_dim((1, 1, 1, 1)).set_stride((1, 1, 1, 1)).set_data_type(f32)
            self.extra[amax] = torch.zeros(1, 1, 1, 1, device="cuda")
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans(cudnn.build_plan_policy.ALL)
        self.graph, self.plans = graph, graph.get_execution_plan_count()
        self.workspace = torch.empty(max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8)
        self.one = torch.ones(1, 1, 1, 1, device="cuda")

    def run(self, plan, q, k, v):
        out = torch.empty(q.shape, device="cuda", dtype=torch.bfloat16)
        tensors = {self.q: q, self.k: k, self.v: v, self.o: out, **self.extra,
                   **{scale: self.one for scale in self.scales.values()}}
        self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.graph.execute_plan_at_index(tensors, self.workspace, plan, handle=self.handle)
        return out


def run_cudnn(rows, args):
    for dtype, name, bits in ((torch.bfloat16, "cuDNN front end, BF16", 16), (FP8, "cuDNN front end, FP8", 8)):
        for batch, context in SHAPES:
            size = batch * context * KV_HEADS * D * 2 * bits // 8
            try:
                graph = CudnnGraph(batch, context, dtype)
            # The front end raises its own kinds of errors.
            except Exception as error:
                print(f"{name} ({batch}, {context // 1024}k): {str(error)[:300]}", flush=True)
                break
            calls = calls_of_graph(size)
            cache = [[torch.empty(batch, KV_HEADS, context, D, device="cuda", dtype=dtype) for _ in range(2)]
                     for _ in range(calls)]
            for k, v in cache:
                for x in (k, v):
                    x.copy_(torch.randn(x.shape, device="cuda", dtype=torch.bfloat16))
            q = torch.randn(batch, HEADS, 1, D, device="cuda", dtype=torch.bfloat16).to(dtype)
            exact = torch.nn.functional.scaled_dot_product_attention(
                q[:1].float(), cache[0][0][:1].float(), cache[0][1][:1].float(), enable_gqa=True)
            best = None
            for plan in range(graph.plans):
                try:
                    error = ((graph.run(plan, q, *cache[0])[:1].float() - exact).norm() / exact.norm()).item()
                    times = time_calls(lambda i: graph.run(plan, q, *cache[i]), calls, args.rounds, args.runs)
                except Exception as failure:
                    print(f"{name}, plan {plan}: {str(failure)[:200]}", flush=True)
                    continue
                if error < WORST_ERROR and (best is None or statistics.median(times) < statistics.median(best[0])):
                    best = (times, error)
            if best is not None:
                report(rows, f"{name}, best of {graph.plans}", batch, context, best[0], size, best[1], bits)
            del cache


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fa3", help="_vllm_fa3_C.abi3.so")
    parser.add_argument("--xqa", help="the module of FlashInfer's XQA")
    parser.add_argument("--cudnn", action="store_true")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file that rows are added to")
    args = parser.parse_args()
    rows = RowWriter(args.json)
    engines = [kind(path) for kind, path in ((Fa3, args.fa3), (Xqa, args.xqa)) if path]
    if engines:
        run_paged(engines, rows, args)
    if args.cudnn:
        run_cudnn(rows, args)


if __name__ == "__main__":
    main()
