#!/usr/bin/env python3
"""Times a layer of a decoding step in CUDA graphs, as vLLM runs them: decode_kernels.py [RECIPE ...], with names of the
plug-in's cache types.

The layer has Llama-3.1-8B's shape and runs the plug-in's own steps. New keys and values go into tails, queries are
rotated, and attention runs. Pages are sealed if there are drafts. The script prints a line of JSON for each recipe and
batch (requests x tokens). The line has the microseconds with one new token per request, and with 1, 3 and 7 drafts
after that token. The line also has the times with every token as a separate sequence of the library."""

import json
import sys
import types
import unittest.mock

import torch

from kvant import PAGE
from kvant.paged import model_cache
from kvant.paged.block_layout import BlockLayout
from kvant.paged.model_state import ModelState, attend
from kvant.paged.recipes import parse_recipe
from kvant.torch import TorchLibrary

N_HEADS, N_KV_HEADS, D = 32, 8, 128
BATCHES = ((1, 131072), (24, 32768), (128, 4096))
# A graph has LAYERS layers; a time is the median of RUNS replays.
LAYERS, RUNS = 8, 20


def layer_us(recipe, n_requests, n_tokens, drafts):
    library, rows = TorchLibrary(), 1 + drafts
    sizes = [library.page_bytes(format, D) for format in (recipe.key_format, recipe.value_format)]
    layout = BlockLayout(N_KV_HEADS, D, *sizes, recipe.sink, tail_pages=2 if drafts else 1)
    n_pages = -(-(n_tokens + rows) // PAGE)
    blocks = torch.zeros(1 + n_requests * (n_pages + layout.tail_blocks), layout.block_bytes, dtype=torch.uint8, device="cuda")
    state = ModelState(recipe, layout, N_HEADS, D ** -0.5, drafts)
    state.layers = [types.SimpleNamespace(kv_cache=blocks)]
    state.start(library, n_requests, n_tokens + PAGE, torch.device("cuda"))
    ids = 1 + torch.arange(n_requests * (n_pages + layout.tail_blocks), dtype=torch.int32, device="cuda")
    tables = {"sealed": ids[:n_requests * n_pages].view(n_requests, -1), "tail": ids[n_requests * n_pages:].view(n_requests, -1)}
    begins = torch.arange(n_requests + 1, dtype=torch.int32) * rows
    # Tails are half full.
    lens = torch.full((n_requests,), n_tokens - PAGE // 2, dtype=torch.int32)
    common = dict(num_reqs=n_requests, num_actual_tokens=n_requests * rows, query_start_loc_cpu=begins,
                  query_start_loc=begins.cuda(), seq_lens=lens.cuda(), seq_lens_cpu_upper_bound=lens)
    for kind, table in tables.items():
        step = state.add(kind, types.SimpleNamespace(block_table_tensor=table, **common))
    q, out = torch.randn(2, n_requests * rows, N_HEADS, D, device="cuda").bfloat16()
    keys, values = torch.randn(2, n_requests * rows, N_KV_HEADS, D, device="cuda").bfloat16()
    attend(step, blocks, q, keys, values, out, None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            attend(step, blocks, q, keys, values, out, None)
    times = []
    for _ in range(RUNS + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / LAYERS)
    return round(sorted(times[2:])[RUNS // 2], 1)


def main():
    for name in sys.argv[1:] or ["uniform-4bit", "k=ch4g128,v=tok4g128,sink=1", "uniform-2bit"]:
        for batch in BATCHES:
            result = {"recipe": name, "batch": "{}x{}".format(*batch), "us": layer_us(parse_recipe(name), *batch, 0)}
            for drafts in (1, 3, 7):
                result[f"{drafts} drafts"] = layer_us(parse_recipe(name), *batch, drafts)
                with unittest.mock.patch.object(model_cache, "MAX_QUERIES", 1):
                    result[f"{drafts} drafts, alone"] = layer_us(parse_recipe(name), *batch, drafts)
            print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
