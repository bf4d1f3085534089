#!/usr/bin/env python3
"""Checks that prompts and decoding agree. Random requests run through the plug-in's own steps, without vLLM, on the GPU
library, in several ways:

- in large steps, by the library on pages, and on rows into which pages are dequantized, with an attention in PyTorch;
- in steps of 100 tokens, with two pages in each call;
- token by token, with the decode kernel, which reads sinks from their blocks;
- with drafts after each token, some of which are rejected. Drafts need tails of two pages and several queries per
  sequence. Steps with drafts run directly, and as CUDA graphs that are larger than the batch.

The script also checks that a rank of tensor parallelism equals its heads on one GPU, in outputs and in the bytes of
sealed pages. With prompt=flashq, prompts attend in 8-bit integers, whole and in parts.

The script prints a line of JSON for each recipe that is named after the command, or for all recipes. The exit status is
1 if outputs differ by more than BF16 explains, or in integers by more than 8 bits explain. Recipes with codebooks have
random codebooks. The name `scores` selects soft caps and attention sinks. The name `arenas` selects blocks that hold all
layers, as vLLM 0.33 has them, with equal formats and with formats by layer and head."""

import dataclasses
import itertools
import json
import pathlib
import sys
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import cpu_library
import numpy as np
import paged_server as harness
import torch

from kvant import PAGE
from kvant.torch import TorchLibrary
from kvant.paged import prompt_pages, quality_guard
from kvant.paged.constants import heads_of_rank
from kvant.paged.recipes import OTHER_NAMES, Recipe, parse_recipe

N_TOKENS = (300, 430)
DRAFTS = 3
# MANY_DRAFTS rows are more queries than a sequence can have.
MANY_DRAFTS = 12
# All ranks together have RANK_HEADS query heads and RANK_KV_HEADS KV heads.
RANK_HEADS, RANK_KV_HEADS = 32, 8
# Steps take RANK_STEPS tokens in turn, so decoding and prompts fill pages.
RANK_STEPS = (127, 1, 1, 100)
# The tolerance is relative to the outputs' root mean square.
TOLERANCE = 0.01
# Rounding to 8 bits, with one large key in a tile, causes at least the first and at most the second difference.
OF_INTEGERS = 0.002, 0.05
# "scores" takes the place of a recipe's name on the command line.
OTHER_SCORES = "scores"
ARENAS = "arenas"
# The first token's keys are LOUD times larger than other keys, which makes a sink useful.
LOUD = 6


def constants_of(recipe, rank=0, n_ranks=1):
    """Returns the constants for the harness's KV heads, which belong to one rank, or None if the recipe needs none."""
    if not recipe.needs_constants:
        return None
    n_kv_heads = n_ranks * harness.N_KV_HEADS
    return harness.constants_of(recipe, n_kv_heads).of_heads(heads_of_rank(n_kv_heads, rank, n_ranks))


class RowServer(harness.Server):
    attention = staticmethod(cpu_library.varlen_attention)


class GuardedServer(harness.Server):
    """Runs a server with a quality guard. The class keeps the guard's last report."""

    report = None

    def __init__(self, recipe, library, device, max_drafts=0, constants=None):
        super().__init__(recipe, library, device, max_drafts=max_drafts, constants=constants)
        self.state.watcher = lambda report: setattr(GuardedServer, "report", report)
        self.state.start(library, 8, 1024, self.device)


class GraphServer(harness.Server):
    """Captures steps with DRAFTS drafts per request into a CUDA graph for each layer, and replays the
    graphs. A graph has room for one request more than the test sends."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n, rows = len(N_TOKENS) + 1, (len(N_TOKENS) + 1) * (1 + DRAFTS)
        self.tables = {kind: torch.zeros(self.n, 8, dtype=torch.int32, device="cuda") for kind in ("sealed", "tail")}
        self.lens, self.begins = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (self.n, self.n + 1))
        self.rows = [torch.zeros(rows, n_heads, harness.D, dtype=torch.bfloat16, device="cuda")
                     for n_heads in (harness.N_HEADS, harness.N_KV_HEADS, harness.N_KV_HEADS, harness.N_HEADS)]
        self.graphs, self.is_uniform = {}, False

    def describe(self, kind, **metadata):
        counts = metadata["query_start_loc_cpu"].diff()
        self.is_uniform = bool((counts == 1 + DRAFTS).all())
        if self.is_uniform:
            n, table = len(counts), metadata["block_table_tensor"]
            self.tables[kind].zero_()[:n, :table.shape[1]] = table
            self.lens.zero_()[:n] = metadata["seq_lens"]
            self.begins.fill_(metadata["num_actual_tokens"])[:n + 1] = metadata["query_start_loc"]
            # The graph was captured with a full batch, so the metadata on the host must describe a full batch.
            begins = torch.arange(self.n + 1, dtype=torch.int32) * (1 + DRAFTS)
            metadata = dict(num_reqs=self.n, num_actual_tokens=int(begins[-1]), query_start_loc_cpu=begins,
                            query_start_loc=self.begins, seq_lens=self.lens, block_table_tensor=self.tables[kind],
                            seq_lens_cpu_upper_bound=torch.zeros(self.n, dtype=torch.int32))
        return super().describe(kind, **metadata)

    def attend(self, step, layer, *rows):
        if not self.is_uniform:
            return super().attend(step, layer, *rows)
        for mine, new in zip(self.rows, rows):
            mine[:len(new)] = new
        key = layer.kv_cache.data_ptr()
        if key not in self.graphs:
            # The first call computes this step's output and makes CUDA load the kernels before the capture. A capture
            # fills no tensor, so step._decode of another layer's capture has no values until that layer's replay.
            step._decode = None
            super().attend(step, layer, *self.rows)
            step._decode, graph = None, torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                super().attend(step, layer, *self.rows)
            self.graphs[key] = graph, step
        else:
            self.graphs[key][0].replay()
        rows[-1].copy_(self.rows[-1][:len(rows[-1])])


def outputs(recipe, library, steps, drafts=0, kind=harness.Server, dtype=torch.bfloat16, **scores):
    """Returns the outputs of all requests, float [tokens, values]. `steps` gives how many tokens a step takes, drafts
    included. `scores` are arguments of Server."""
    rng = np.random.default_rng(1)
    server = kind(recipe, library, "cuda", max_drafts=drafts, constants=constants_of(recipe), **scores)
    requests = [harness.Request(n, rng, dtype) for n in N_TOKENS]
    for request in requests:
        request.k[:, 0] *= LOUD
    while any(request.computed < n for request, n in zip(requests, N_TOKENS)):
        work = [(request, min(steps, n - request.computed)) for request, n in zip(requests, N_TOKENS)]
        work = [(request, n) for request, n in work if n]
        server.step(work, rejected={request: int(rng.integers(n)) for request, n in work} if drafts else {})
    return torch.cat([request.out.float().transpose(0, 1).flatten(1) for request in requests])


def unquantized(softcap=0.0, sink_logits=None):
    """Returns the outputs of attention without quantization, float [tokens, values]."""
    rng, out = np.random.default_rng(1), []
    for n in N_TOKENS:
        request = harness.Request(n, rng)
        request.k[:, 0] *= LOUD
        keys, values = (x.float().repeat_interleave(harness.N_HEADS // harness.N_KV_HEADS, 2) for x in (request.k, request.v))
        q, keys, values = (x.float().transpose(1, 2) for x in (request.q, keys, values))
        weights = harness.SCALE * q @ keys.transpose(2, 3)
        weights = softcap * (weights / softcap).tanh() if softcap else weights
        weights = weights.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        if sink_logits is not None:
            weights = torch.cat([weights, sink_logits[None, :, None, None].expand(*weights.shape[:3], 1)], 3)
        attended = weights.softmax(-1)[..., :n] @ values
        out.append(attended.permute(2, 0, 1, 3).flatten(1))
    return torch.cat(out)


def in_integers(recipe, library):
    """Returns how much outputs of prompts in 8-bit integers differ from attention in PyTorch to equal pages as rows.
    The prompts run whole, with two pages of earlier steps in a call, and with F16 activations, whose pages have other
    codes."""
    flashq = dataclasses.replace(recipe, prompt="flashq")
    whole, on_rows = outputs(flashq, library, 1000), outputs(recipe, library, 1000, kind=RowServer)
    with unittest.mock.patch.object(prompt_pages, "MOST_PAGES", 1):
        in_parts = outputs(flashq, library, 100)
    of_f16, on_f16_rows = (outputs(flashq, library, 100, dtype=torch.float16),
                           outputs(recipe, library, 1000, kind=RowServer, dtype=torch.float16))
    return difference(whole, on_rows), difference(in_parts, on_rows), difference(of_f16, on_f16_rows)


def of_rank(recipe, library, requests, rank, n_ranks):
    """Returns a rank's outputs, float [layers, tokens, heads, head_dim], and sealed pages, uint8 [layers, pages, KV
    heads, bytes]."""
    harness.N_HEADS, harness.N_KV_HEADS = RANK_HEADS // n_ranks, RANK_KV_HEADS // n_ranks
    server = harness.Server(recipe, library, "cuda", constants=constants_of(recipe, rank, n_ranks))
    mine = [harness.RankRequest(request, rank, n_ranks) for request in requests]
    for n in itertools.cycle(RANK_STEPS):
        work = [(request, min(n, length - request.computed)) for request, length in zip(mine, N_TOKENS) if request.computed < length]
        if not work:
            break
        server.step(work)
    layout = server.layout
    heads = layout.sink.bytes + np.arange(layout.n_kv_heads)[:, None] * layout.head_bytes + np.arange(layout.head_bytes)
    blocks = [block for request, n in zip(mine, N_TOKENS) for block in request.blocks[:(n - 1) // PAGE]]
    pages = torch.stack([layer.kv_cache[blocks].cpu()[:, heads] for layer in server.state.layers])
    return torch.cat([request.out for request in mine], 1).float(), pages


def ranks_differ_by(recipe, library, n_ranks=2):
    """Returns how much outputs of ranks differ from outputs of one GPU, and how many bytes of their sealed pages
    differ."""
    harness.N_HEADS, harness.N_KV_HEADS = RANK_HEADS, RANK_KV_HEADS
    rng = np.random.default_rng(1)
    requests = [harness.Request(n, rng) for n in N_TOKENS]
    out, pages = of_rank(recipe, library, requests, 0, 1)
    of_ranks = [of_rank(recipe, library, requests, rank, n_ranks) for rank in range(n_ranks)]
    together, of_pages = torch.cat([x for x, _ in of_ranks], 2), torch.cat([x for _, x in of_ranks], 2)
    return difference(together, out), int((of_pages != pages).sum()), pages.numel()


def difference(x, reference):
    return ((x - reference).square().mean() / reference.square().mean()).sqrt().item()


def of_other_scores(library):
    """Checks capped scores and attention sinks. Decoding, drafts and parts of prompts must agree with prompts. All of
    them must be nearer to unquantized attention with these scores than plain attention is."""
    is_right = True
    for recipe, d in itertools.product(("uniform-4bit", "kvant-fast4"), (64, 128, 256)):
        recipe, harness.D, harness.SCALE = parse_recipe(recipe), d, d ** -0.5
        logits = torch.linspace(-2, 4, harness.N_HEADS)
        for name, scores in (("soft cap", dict(softcap=1.5)), ("attention sinks", dict(sink_logits=logits))):
            prompt, decoded = (outputs(recipe, library, steps, **scores) for steps in (1000, 1))
            drafted = outputs(recipe, library, 1 + DRAFTS, DRAFTS, **scores)
            with unittest.mock.patch.object(prompt_pages, "MOST_PAGES", 2):
                in_parts = outputs(recipe, library, 100, **scores)
            wanted = unquantized(**scores)
            differences = [difference(x, prompt) for x in (decoded, drafted, in_parts)]
            loss, without = difference(decoded, wanted), difference(unquantized(), wanted)
            is_right &= max(differences) < TOLERANCE and loss < without / 2
            print("RESULT", json.dumps({"scores": name, "text": recipe.text, "head": d,
                                        "decoding, drafts, parts from prompt by": [round(x, 6) for x in differences],
                                        "from unquantized by": round(loss, 4), "plain attention by": round(without, 4)}), flush=True)
    return is_right


def of_arenas(library):
    """Checks blocks that hold all layers. With equal formats, outputs must equal outputs from blocks of one layer."""
    is_right = True
    by_head = Recipe("by head", "tcq4", "tcq4", True, True, sink=4,
                     by_head=((("tcq4", "tcq3"), ("tcq5", "tcq4")), (("tcq3", "tcq6"), ("tcq4", "tcq4"))))
    uniform = [parse_recipe(name) for name in ("uniform-4bit", "uniform-4bit,sink=1", "kvant-fast4", "kvant-turboquant-3bit")]
    for recipe, d in itertools.product((*uniform, by_head), (64, 128, 256)):
        harness.D, harness.SCALE = d, d ** -0.5
        ways = dict(prompt=(1000,), parts=(100,), decoded=(1,), drafted=(1 + DRAFTS, DRAFTS), replayed=(1 + DRAFTS, DRAFTS, GraphServer))
        found = {name: outputs(recipe, library, *way, has_arenas=True) for name, way in ways.items()}
        differences = {f"{name} from prompt by": difference(found[name], found["prompt"]) for name in ways}
        if not recipe.by_head:
            differences |= {f"{name} from blocks of one layer by": difference(found[name], outputs(recipe, library, *way))
                            for name, way in ways.items()}
        loss = difference(found["decoded"], unquantized())
        is_right &= max(differences.values()) < TOLERANCE and loss < 0.3
        print("RESULT", json.dumps({"arenas": recipe.name, "head": d, "from unquantized by": round(loss, 4)} |
                                   {name: round(x, 6) for name, x in differences.items()}), flush=True)
    return is_right


def main():
    library, is_right = TorchLibrary(), True
    kvants = [parse_recipe(name) for name in ("uniform-4bit", "uniform-3bit", "uniform-2bit", "kvant-fast4")]
    others = [parse_recipe(name) for name in OTHER_NAMES if name != "kvant-fast4"]
    plain = [Recipe(f"{recipe.name} without sink", recipe.key_format, recipe.value_format, recipe.key_hadamard,
                    recipe.value_hadamard) for recipe in kvants]
    more = [Recipe("sink of 1", "tcq4", "tcq4", True, True, sink=1), Recipe("sink of 2", "ch4g128", "tok4g128", sink=2)]
    # The arguments name recipes; without arguments, all recipes run.
    wanted = set(sys.argv[1:])
    for recipe in (*kvants, *plain, *more, *others):
        if wanted and recipe.name not in wanted:
            continue
        recipe, is_other = dataclasses.replace(recipe, prompt="exact"), recipe in others
        for d in (128,) if is_other else (64, 128):
            harness.D, harness.SCALE = d, d ** -0.5
            prompt, decoded = (outputs(recipe, library, steps) for steps in (1000, 1))
            on_rows = outputs(recipe, library, 1000, kind=RowServer)
            with unittest.mock.patch.object(prompt_pages, "MOST_PAGES", 2):
                in_parts = outputs(recipe, library, 100)
            with unittest.mock.patch.object(quality_guard, "REPORT_SECONDS", 0):
                guarded = outputs(recipe, library, 140, kind=GuardedServer)
            drafted, replayed = (outputs(recipe, library, 1 + DRAFTS, DRAFTS, kind) for kind in (harness.Server, GraphServer))
            many_drafted = outputs(recipe, library, 1 + MANY_DRAFTS, MANY_DRAFTS)
            error, of_drafts, of_graphs = difference(decoded, prompt), difference(drafted, decoded), difference(replayed, drafted)
            of_many = difference(many_drafted, decoded)
            of_integers = in_integers(recipe, library)
            of_rows, of_parts, of_guarded = (difference(x, prompt) for x in (on_rows, in_parts, guarded))
            watched = GuardedServer.report.error
            loss = difference(decoded, unquantized())
            plain_heads = harness.N_HEADS, harness.N_KV_HEADS
            of_ranks, other_bytes, n_bytes = ranks_differ_by(recipe, library)
            harness.N_HEADS, harness.N_KV_HEADS = plain_heads
            is_right &= max(error, of_rows, of_parts, of_guarded, of_drafts, of_many, of_graphs, of_ranks) < TOLERANCE
            is_right &= other_bytes == 0
            is_right &= OF_INTEGERS[0] < min(of_integers) and max(of_integers) < OF_INTEGERS[1]
            # Random codebooks are coarse.
            is_right &= 0 < watched < (2 if recipe.needs_constants else 1)
            print("RESULT", json.dumps({"recipe": recipe.name, "text": recipe.text, "head": d,
                                        "decoding differs from prompt by": round(error, 6),
                                        "on rows from prompt by": round(of_rows, 6), "in parts by": round(of_parts, 6),
                                        "with drafts from decoding by": round(of_drafts, 6),
                                        "with many by": round(of_many, 6),
                                        "in graphs from these by": round(of_graphs, 6),
                                        "from unquantized by": round(loss, 4), "as the guard says": round(watched, 4),
                                        "guarded from prompt by": round(of_guarded, 6),
                                        "in integers, in parts, in F16 from rows by": [round(x, 4) for x in of_integers],
                                        "two ranks from one by": round(of_ranks, 6),
                                        "bytes of their pages": f"{other_bytes} of {n_bytes} differ"}), flush=True)
    if not wanted or OTHER_SCORES in wanted:
        is_right &= of_other_scores(library)
    if not wanted or ARENAS in wanted:
        is_right &= of_arenas(library)
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
