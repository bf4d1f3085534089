#!/usr/bin/env python3
"""Times the sealing of pages that decoding has filled, in a model of 28 layers with 2 KV heads of 128 channels, as
Qwen2.5-Coder-1.5B has. Prints a line of JSON for each number of requests that fill a page at once. The line has the
milliseconds from the call to the end of the GPU's work: for one call of all layers, for a call per layer in one stream
and in eight streams, and for equal formats in all layers. The exit status is 1 if the sealed bytes depend on the way."""

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time

import torch

from kvant.paged.arena_layout import ArenaLayout
from kvant.paged.filled_pages import FilledPages
from kvant.paged.key_metrics import KeyMetrics, hadamard_matrix
from kvant.paged.model_cache import ModelCache, formats_of_layers
from kvant.paged.model_constants import ModelConstants
from kvant.paged.recipes import Recipe
from kvant.torch import Layer, TorchLibrary

N_LAYERS, N_HEADS, N_KV_HEADS, D, SINK = 28, 12, 2, 128, 4
# Heads have these bits in turn, 4.5 on average.
KEY_BITS, VALUE_BITS = (5, 4, 6, 5, 4, 6), (4, 5, 3, 4, 5, 3)


def metrics_of_keys() -> KeyMetrics:
    """Returns metrics with a few strong directions, and channels that rotate as with RoPE."""
    generator = torch.Generator().manual_seed(3)
    strengths = 1.5 * 2.0 ** -torch.arange(8.0)
    directions = strengths * torch.randn(N_LAYERS, N_KV_HEADS, D, 8, generator=generator)
    channels = torch.arange(D)
    turns = 1e6 ** (-2 * (channels % (D // 2)) / D) / (2 * torch.pi) * torch.where(channels < D // 2, 1, -1)
    frames = torch.stack([((channels + D // 2) % D).float(), turns], 1).expand(N_LAYERS, -1, -1).contiguous()
    return KeyMetrics(directions.float(), frames.float(), hadamard_matrix(D))


class Pages:
    """Holds a pool in which each of n_requests requests has a full tail page and a block to seal it."""

    def __init__(self, library: TorchLibrary, by_head: tuple, n_requests: int, device: torch.device):
        recipe = Recipe("calibrated", "tcq4", "tcq4", key_hadamard=True, value_hadamard=True, sink=SINK, is_shaped=True, by_head=by_head)
        formats = formats_of_layers(recipe, N_KV_HEADS, lambda name: library.page_bytes(name, D))
        sizes = tuple(x.block_bytes for x in formats) * (N_LAYERS // len(formats))
        layout = ArenaLayout(N_KV_HEADS, D, sizes, SINK)
        self.cache = ModelCache(library, recipe, layout, N_HEADS, D ** -0.5, n_requests, device,
                                constants=ModelConstants(metrics_of_keys()))
        n_blocks = 1 + n_requests * (1 + layout.tail_blocks)
        torch.manual_seed(1)
        self.first = torch.randn(n_blocks, N_LAYERS * layout.block_bytes // 2, device=device).bfloat16().view(torch.uint8)
        self.pool = self.first.clone()
        self.layers = [self.pool[:, i * layout.block_bytes:(i + 1) * layout.block_bytes] for i in range(N_LAYERS)]
        self.cache.place_layers(self.layers)
        numbers = torch.arange(1, n_blocks, dtype=torch.int32, device=device)
        self.blocks = numbers[:n_requests]
        self.tail_ids = self.cache.tail_ids(numbers[n_requests:].view(n_requests, -1))
        self.filled = FilledPages(self.cache)

    def seal(self, page: torch.Tensor) -> None:
        self.filled.add(self.blocks, self.tail_ids, page, bool(page[0] == 0))
        self.filled.seal(self.layers)

    def seal_one_by_one(self, page: torch.Tensor, streams: list[torch.cuda.Stream]) -> None:
        cache, place = self.cache, page.clip(max=1)
        zeros, table, sink_ids = torch.zeros_like(place), cache.either_place(self.blocks), cache.sink_ids(self.blocks)
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        for i, blocks in enumerate(self.layers):
            with torch.cuda.stream(streams[i % len(streams)]) if streams else contextlib.nullcontext():
                cache.library.seal_pages(
                    cache.shape(len(place), blocks=blocks),
                    Layer(sealed=cache.sealed_pages(table, blocks), tail=cache.tail_pages(self.tail_ids, blocks), **cache.of_sealed(blocks),
                          **cache.sinks(sink_ids, blocks)),
                    zeros, place, 1, metrics=cache.metrics(blocks, page), keep_sink=bool(page[0] == 0))
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)

    def result_of(self, seal) -> torch.Tensor:
        """Returns the pool after seal(), and restores the pool."""
        seal()
        found = self.pool.clone()
        self.pool.copy_(self.first)
        return found


def ms(seal, n_runs: int) -> float:
    times = []
    for _ in range(n_runs + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        seal()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return round(statistics.median(times[2:]), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 24, 96])
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    library, device = TorchLibrary(), torch.device("cuda")
    streams = [torch.cuda.Stream() for _ in range(8)]
    pairs = itertools.cycle(zip((f"tcq{bits}" for bits in KEY_BITS), (f"tcq{bits}" for bits in VALUE_BITS)))
    by_head = tuple(tuple(next(pairs) for _ in range(N_KV_HEADS)) for _ in range(N_LAYERS))
    are_equal = True
    for n in args.requests:
        page = torch.full((n,), 100, dtype=torch.int32, device=device)
        pages, uniform = Pages(library, by_head, n, device), Pages(library, (), n, device)
        for number in (page, torch.zeros_like(page)):
            wanted = pages.result_of(lambda: pages.seal_one_by_one(number, []))
            is_equal = all(torch.equal(pages.result_of(lambda: pages.seal(number)), wanted) for _ in range(3))
            are_equal = are_equal and is_equal and not torch.equal(wanted, pages.first)
        print(json.dumps({
            "requests": n, "are equal": are_equal,
            "one call, ms": ms(lambda: pages.seal(page), args.runs),
            "a call per layer, ms": ms(lambda: pages.seal_one_by_one(page, []), args.runs),
            "in eight streams, ms": ms(lambda: pages.seal_one_by_one(page, streams), args.runs),
            "equal formats, ms": ms(lambda: uniform.seal(page), args.runs)}), flush=True)
    sys.exit(0 if are_equal else 1)


if __name__ == "__main__":
    main()
