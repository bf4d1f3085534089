#!/usr/bin/env python3
"""Tests the operators of `kvant.torch.ops` on a GPU. Operators are compared with the library's own calls, bit for bit
if sums have only one order, and attention with PyTorch's on the dequantized rows. A step runs directly, by
torch.compile, and as a CUDA graph that is replayed while sequences grow. The script prints a line of JSON for each pair
of formats; the exit status is 1 if any result differs."""

import json
import sys

import torch

from kvant import PAGE
from kvant.torch import BF16, Layer, Lengths, Shape, ops, page_pool

PAIRS = (("ch4g128", "tok4g128"), ("tcq4", "tcq4"), ("tcq2", "tcq2"), ("fp8", "fp8"))
N_SEQS, N_KV_HEADS, N_HEADS, N_PAGES = 3, 2, 8, 2
# COUNTS are the sequences' numbers of sealed pages; N_TAIL are their numbers of tokens after the pages.
COUNTS, N_TAIL = (2, 1, 0), (5, 1, 120)
N_STEPS = 6
# A result may differ by TOLERANCE times the root mean square of the expected result, because most results are BF16.
TOLERANCE = 0.01


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32, device="cuda")


def difference(x, reference):
    x, reference = x.float(), reference.float()
    return ((x - reference).square().mean() / reference.square().mean()).sqrt().item()


class Cache:
    """Holds sequences that operators fill, or the library's calls alone."""

    def __init__(self, formats, d, by_operators=True):
        rng = torch.Generator().manual_seed(1)
        self.formats, self.d = formats, d
        self.table = torch.randperm(N_SEQS * N_KV_HEADS * N_PAGES, generator=rng).int().view(N_SEQS, N_KV_HEADS, N_PAGES).cuda()
        self.tail_table = torch.randperm(N_SEQS * N_KV_HEADS, generator=rng).int().view(N_SEQS, N_KV_HEADS, 1).cuda()
        self.sealed, self.sealed_pages = page_pool(self.table, *(ops.library().page_bytes(name, d) for name in formats))
        self.tail, self.tail_pages = page_pool(self.tail_table, *2 * [PAGE * d * 2])
        self.counts, self.n_tail = int32(*COUNTS), int32(*N_TAIL)
        self.q = torch.randn(N_SEQS, N_HEADS, d, generator=rng).bfloat16().cuda()
        self.rows = torch.randn(2, N_SEQS, (N_PAGES + 1) * PAGE, N_KV_HEADS, d, generator=rng).bfloat16().cuda()
        append, seal = (self.append, self.seal) if by_operators else (self.append_by_library, self.seal_by_library)
        token = torch.arange(PAGE, dtype=torch.int32, device="cuda")
        for page in range(N_PAGES + 1):
            for seq in range(N_SEQS):
                append(torch.full_like(token, seq), token, *self.rows[:, seq, page * PAGE:(page + 1) * PAGE])
            if page < N_PAGES:
                seal(page)

    def append(self, seq, token, keys, values):
        ops.append(self.tail, self.tail_table, seq, token, keys, values, True, False)

    def seal(self, page):
        ops.seal(self.sealed, self.table, self.tail, self.tail_table, int32(0, 0, 0), int32(*3 * [page]), *self.formats, self.d)

    def attend(self, q, n_later=0):
        return ops.decode_attention(q, self.sealed, self.table, self.counts, self.tail, self.tail_table, self.n_tail - n_later,
                                    *self.formats, self.d ** -0.5)

    def dequantize(self):
        return ops.dequantize(self.sealed, self.table, self.counts, *self.formats, self.d, 0, N_PAGES)

    @property
    def shape(self):
        return Shape(n_seqs=N_SEQS, n_kv_heads=N_KV_HEADS, group=N_HEADS // N_KV_HEADS, head_dim=self.d,
                     softmax_scale=self.d ** -0.5, key_format=self.formats[0].encode(), value_format=self.formats[1].encode())

    def append_by_library(self, seq, token, keys, values):
        ops.library().append(self.shape, Layer(tail=self.tail_pages), seq, token, keys, values, True, False)

    def seal_by_library(self, page):
        ops.library().seal_pages(self.shape, Layer(sealed=self.sealed_pages, tail=self.tail_pages), int32(0, 0, 0),
                                 int32(*3 * [page]), 1)

    def attend_by_library(self, q):
        library, out = ops.library(), torch.empty_like(q)
        lengths, workspace = Lengths(sealed_pages=self.counts, tail_tokens=self.n_tail), library.new_workspace(self.shape)
        library.decode_schedule(self.shape, lengths, workspace)
        library.decode_attention(self.shape, lengths, Layer(
            sealed=self.sealed_pages, tail=self.tail_pages, q=q, q_seq_stride=q.stride(0), q_head_stride=q.stride(1), out=out,
            out_type=BF16, out_seq_stride=out.stride(0), out_head_stride=out.stride(1), settled=1), workspace)
        return out

    def attend_by_pytorch(self, q):
        """Attends with PyTorch. Stored keys are rotated, and so is q."""
        keys, values = self.dequantize()
        out = []
        for seq in range(N_SEQS):
            n, own = COUNTS[seq] * PAGE, slice(N_PAGES * PAGE, N_PAGES * PAGE + int(self.n_tail[seq]))
            own_keys, own_values = self.rows[:, seq, own]
            k, v = (torch.cat([sealed[seq, :n], plain]).float().repeat_interleave(N_HEADS // N_KV_HEADS, 1).transpose(0, 1)
                    for sealed, plain in ((keys, ops.rotate(own_keys)), (values, own_values)))
            out.append(torch.nn.functional.scaled_dot_product_attention(q[seq].float()[:, None], k, v)[:, 0])
        return torch.stack(out)


def step(cache, seq, keys, values, q):
    """Adds a new token to each sequence and attends."""
    cache.n_tail.add_(1)
    cache.append(seq, cache.n_tail - 1, keys, values)
    return cache.attend(ops.rotate(q)) * 2


def walk(cache, run):
    """Returns the outputs of several steps."""
    rng, outputs = torch.Generator("cuda").manual_seed(2), []
    for _ in range(N_STEPS):
        rows = torch.randn(2, N_SEQS, N_KV_HEADS, cache.d, generator=rng, device="cuda").bfloat16()
        q = torch.randn(N_SEQS, N_HEADS, cache.d, generator=rng, device="cuda").bfloat16()
        outputs.append(run(cache, torch.arange(N_SEQS, dtype=torch.int32, device="cuda"), *rows, q).clone())
    return torch.stack(outputs)


class Replayed:
    """Captures a step at the first call and replays it from then on."""

    def __init__(self):
        self.graph, self.inputs, self.output = None, None, None

    def __call__(self, cache, *inputs):
        if self.graph is None:
            self.inputs, self.graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
            tail, n_tail = cache.tail.clone(), cache.n_tail.clone()
            # A first step runs whatever must run outside a capture.
            step(cache, *self.inputs)
            cache.tail.copy_(tail), cache.n_tail.copy_(n_tail)
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph):
                self.output = step(cache, *self.inputs)
        for mine, new in zip(self.inputs, inputs):
            mine.copy_(new)
        self.graph.replay()
        return self.output


def check(formats, d):
    cache, other = Cache(formats, d), Cache(formats, d, by_operators=False)
    q = ops.rotate(cache.q)
    in_place = cache.q.clone()
    ops.library().rotate(in_place)
    (a, b), (lse_a, lse_b) = torch.randn(2, 5, N_HEADS, d, device="cuda"), torch.randn(2, 5, N_HEADS, device="cuda")
    merged, total = a.clone(), torch.logaddexp(lse_a, lse_b)
    ops.merge(merged, lse_a_merged := lse_a.clone(), b, lse_b)
    wanted = a * (lse_a - total).exp()[..., None] + b * (lse_b - total).exp()[..., None]
    # The queries are the last two tokens of each sequence. The second sequence has one token in its tail.
    several = torch.stack([q, cache.q], 1)
    alone = torch.stack([cache.attend(q, n_later=1), cache.attend(cache.q)], 1)
    plain = walk(Cache(formats, d), step)
    compiled_cache, graph_cache, plain_cache = (Cache(formats, d) for _ in range(3))
    compiled = walk(compiled_cache, torch.compile(step, fullgraph=True))
    replayed = walk(graph_cache, Replayed())
    walk(plain_cache, step)
    # Sealed pages may differ if two codes have equal errors, but equal tails on one GPU give equal codes.
    equal = {"rotate": torch.equal(q, in_place), "append": torch.equal(cache.tail, other.tail),
             "seal": torch.equal(cache.sealed, other.sealed),
             "compiled tail": torch.equal(compiled_cache.tail, plain_cache.tail),
             "replayed tail": torch.equal(graph_cache.tail, plain_cache.tail)}
    errors = {"merge": difference(merged, wanted), "merged lse": difference(lse_a_merged, total),
              "attention, library": difference(cache.attend(q), other.attend_by_library(q)),
              "attention, PyTorch": difference(cache.attend(q), cache.attend_by_pytorch(q)),
              "two tokens": difference(cache.attend(several)[::2], alone[::2]),
              "compiled": difference(compiled, plain), "replayed": difference(replayed, plain)}
    is_right = all(equal.values()) and all(error < TOLERANCE for error in errors.values())
    print("RESULT", json.dumps({"formats": "+".join(formats), "head": d, "right": is_right, "equal": equal,
                                "differ by": {name: float(f"{error:.3g}") for name, error in errors.items()}}), flush=True)
    return is_right


def main():
    if not all([check(formats, d) for d in (64, 128) for formats in PAIRS]):
        sys.exit(1)


if __name__ == "__main__":
    main()
