#!/usr/bin/env python3
"""Measures the time to the first token of a whole model. The model has Llama-3.1-8B's shape and random BF16 weights,
and reads a prompt in one step.

Attention is either cuDNN's on BF16 rows, which a cache then keeps, or kvant's on sealed pages. kvant runs the steps of
the vLLM plug-in (kvant.paged). kvant attends in half precision and in 8-bit integers (prompt=flashq). Everything else
is the same: linear layers run in cuBLAS, and torch.compile fuses what lies between them. Variants take turns in one
process.
"""

import argparse
import pathlib
import statistics
import sys
import time
import types

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python")]
from json_rows import RowWriter  # noqa: E402
from kvant import PAGE  # noqa: E402
from kvant.paged import model_state  # noqa: E402
from kvant.paged.block_layout import BlockLayout  # noqa: E402
from kvant.paged.recipes import parse_recipe  # noqa: E402
from kvant.torch import TorchLibrary  # noqa: E402
from llama_shape import HEADS, KV_HEADS, LAYERS, VOCABULARY, D, Network, rotation_of  # noqa: E402

BF16 = "bf16"
LONG = 65536  # tokens
WARM_UP_LAYERS = 2
VARIANTS = [BF16, "kvant-fast4", "kvant-fast4,prompt=flashq", "uniform-4bit", "uniform-4bit,prompt=flashq"]


class Bf16Cache:
    def __init__(self, n_tokens):
        self._rows = torch.empty(2, LAYERS, n_tokens, KV_HEADS, D, device="cuda", dtype=torch.bfloat16)

    def begin_step(self):
        pass

    def attend(self, layer, q, k, v):
        for rows, new in zip(self._rows, (k, v)):
            rows[layer] = new
        q, k, v = (x.transpose(0, 1)[None] for x in (q, *self._rows[:, layer]))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(-1, HEADS * D)


class PagedCache:
    """Runs one sequence in the blocks of the vLLM plug-in."""

    def __init__(self, library, recipe, n_tokens):
        sizes = [library.page_bytes(name, D) for name in (recipe.key_format, recipe.value_format)]
        layout = BlockLayout(KV_HEADS, D, *sizes, recipe.sink)
        n_pages, device = -(-n_tokens // PAGE), torch.device("cuda")
        blocks = torch.empty(LAYERS, n_pages + layout.tail_blocks, layout.block_bytes, dtype=torch.uint8, device=device)
        self._state = model_state.ModelState(recipe, layout, HEADS, D ** -0.5)
        self._state.layers = [types.SimpleNamespace(kv_cache=x) for x in blocks]
        self._state.start(library, 1, n_tokens, device)
        numbers = torch.arange(n_pages + layout.tail_blocks, dtype=torch.int32, device=device)[None]
        self._tables = dict(sealed=numbers[:, layout.tail_blocks:].contiguous(), tail=numbers[:, :layout.tail_blocks].contiguous())
        lengths = torch.tensor([n_tokens], dtype=torch.int32)
        self._step, self._about = None, dict(
            num_reqs=1, num_actual_tokens=n_tokens, query_start_loc_cpu=torch.tensor([0, n_tokens]), seq_lens=lengths.to(device),
            seq_lens_cpu_upper_bound=lengths)

    def begin_step(self):
        for kind, table in self._tables.items():
            self._step = self._state.add(kind, types.SimpleNamespace(block_table_tensor=table, **self._about))

    def attend(self, layer, q, k, v):
        out = torch.empty(len(q), HEADS, D, device="cuda", dtype=torch.bfloat16)
        model_state.attend(self._step, self._state.layers[layer].kv_cache, q, k, v, out, None)
        return out.view(len(q), HEADS * D)


class NoAttention:
    """Attends to nothing, which gives the time of everything but attention."""

    def begin_step(self):
        pass

    def attend(self, layer, q, k, v):
        return q.reshape(len(q), HEADS * D)


def seconds_of(run):
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="libkvant_cuda.so")
    parser.add_argument("--prompts", type=int, nargs="+", default=[32768, 131072], help="tokens")
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="bf16, and recipes")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--long-runs", type=int, default=3, help=f"of prompts of more than {LONG} tokens")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--json", help="a file that rows are added to")
    args = parser.parse_args()
    torch.manual_seed(1)
    library, writer = TorchLibrary(args.library), RowWriter(args.json)
    network = Network() if args.eager else Network(torch.compile)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
    for n_tokens in args.prompts:
        tokens = torch.randint(VOCABULARY, (n_tokens,), device="cuda")
        rotation = rotation_of(torch.arange(n_tokens, device="cuda"))
        caches = {"no attention": NoAttention()}
        for name in args.variants:
            caches[name] = Bf16Cache(n_tokens) if name == BF16 else PagedCache(library, parse_recipe(name), n_tokens)
        times = {name: [] for name in caches}
        for cache in caches.values():
            network.forward(tokens, cache, rotation, WARM_UP_LAYERS)
        for _ in range(args.runs if n_tokens <= LONG else args.long_runs):
            for name, cache in caches.items():
                times[name].append(seconds_of(lambda: network.forward(tokens, cache, rotation)))
        medians = {name: statistics.median(of_runs) for name, of_runs in times.items()}
        for name, median in medians.items():
            ratio = f"{medians[BF16] / median:.3f}x" if BF16 in medians else ""
            print(f"{n_tokens:7} tokens  {name:28} {median:8.4f} s  {ratio}  ({min(times[name]):.4f} to {max(times[name]):.4f})",
                  flush=True)
            writer.write(what=name, context=n_tokens, ms=median * 1e3, least_ms=min(times[name]) * 1e3, max_ms=max(times[name]) * 1e3)
        del caches
        torch.cuda.empty_cache()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
