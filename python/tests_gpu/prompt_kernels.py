#!/usr/bin/env python3
"""Shows where the time of a prompt's attention goes: prompt_kernels.py [RECIPE ...], with cache types of the plug-in or
k=FORMAT,v=FORMAT

The script runs one layer of Llama-3.1-8B's shape and a step of two prompts of 4096 tokens through the plug-in's own
steps. Attention runs in three ways: by the library on pages in half precision, in 8-bit integers (prompt=flashq), and
by vLLM's FlashAttention 3 on dequantized rows. A line of JSON for each recipe has microseconds: of the layer's
attention in each way (the median of several runs), of FlashAttention 3 on unquantized rows, and of each kernel. The
line also says how much outputs in integers differ from outputs in half precision."""

import collections
import dataclasses
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
import paged_server as harness
import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func

from kvant.paged.model_state import attend
from kvant.paged.recipes import parse_recipe
from kvant.torch import TorchLibrary

N_PROMPTS, N_TOKENS, RUNS = 2, 4096, 7
harness.N_KV_HEADS, harness.N_HEADS, harness.D, harness.SCALE = 8, 32, 128, 128 ** -0.5


def attention(*args, **kwargs):
    return flash_attn_varlen_func(*args, fa_version=3, **kwargs)


class Server(harness.Server):
    def attend(self, step, layer, *rows):
        self.again = lambda: attend(step, layer.kv_cache, *rows, self.attention)
        self.again()


class RowServer(Server):
    attention = staticmethod(attention)


def median_us(run):
    times = []
    for _ in range(RUNS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return round(float(np.median(times[2:])))


def kernels_us(run):
    """Returns the microseconds of one run by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    times = collections.Counter()
    for event in profile.events():
        times[event.name.partition("(")[0].rpartition("::")[2][:60]] += event.device_time
    return {name: round(us) for name, us in times.most_common(14)}


def unquantized_us(requests):
    q, k, v = (torch.cat([getattr(r, name)[0] for r in requests]).cuda() for name in "qkv")
    bounds = torch.arange(N_PROMPTS + 1, dtype=torch.int32, device="cuda") * N_TOKENS
    out = torch.empty_like(q)
    return median_us(lambda: attention(q, k, v, out=out, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=N_TOKENS,
                                       max_seqlen_k=N_TOKENS, softmax_scale=harness.SCALE, causal=True))


def main():
    rng = np.random.default_rng(1)
    requests = [harness.Request(N_TOKENS, rng) for _ in range(N_PROMPTS)]
    bf16 = unquantized_us(requests)
    for name in sys.argv[1:] or ["uniform-4bit", "uniform-2bit", "k=ch4g128,v=tok4g128,sink=1"]:
        times, outputs = {}, {}
        recipe = parse_recipe(name)
        for way, kind, asked in (("", Server, recipe), (" in integers", Server, dataclasses.replace(recipe, prompt="flashq")),
                                 (" on rows", RowServer, recipe)):
            server = kind(asked, TorchLibrary(), "cuda", n_blocks=128)
            for request in requests:
                request.computed, request.blocks, request.tail = 0, [], []
            server.step([(request, N_TOKENS) for request in requests])
            outputs[way] = torch.cat([request.out[0].float() for request in requests])
            times |= {"us" + way: median_us(server.again), "kernels" + way: kernels_us(server.again)}
        by = (outputs[" in integers"] - outputs[""]).norm() / outputs[""].norm()
        print("RESULT", json.dumps({"recipe": name, "unquantized us": bf16, "integers from half precision by": round(by.item(), 4),
                                    **times}), flush=True)


if __name__ == "__main__":
    main()
