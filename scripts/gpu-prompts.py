#!/usr/bin/env python3
"""Measures causal attention of whole prompts on a GPU, with 32 query heads, 8 KV heads and Gaussian values.

kvant attends in 8-bit integers, with the exact exponential and with SAS. cuDNN attends in BF16, and FlashAttention 3 in
BF16 and FP8 (--fa3 names _vllm_fa3_C.abi3.so from vLLM's wheel). In VQuant (--vquant), a query reads the prompt's
sealed pages that end at least 128 tokens before the query, and unquantized rows after these pages. K has 4 bits, V has
2 bits, and one token in twenty is unquantized. VQuant runs in integers and in half precision. VQuant's time excludes
sealing.

kvant's time includes the pass that rounds keys and values to 8 bits. FlashAttention's FP8 time begins with FP8 numbers.
The engines take turns in rounds, and a time is the median over rounds of the median replay of a CUDA graph. kvant with
the exact exponential has two turns, after cuDNN and after SAS, because the power that the previous engine drew matters.
Errors compare sampled rows with double precision on the original values."""

import argparse
import ctypes
import pathlib
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from graph_timing import captured, median_replay_ms  # noqa: E402
from json_rows import RowWriter  # noqa: E402
from kvant import PAGE, c_api  # noqa: E402
from kvant.torch import TorchLibrary  # noqa: E402
from prefill_attention import SealedPrefix  # noqa: E402

SHAPES = [(4, 2048), (2, 8192), (1, 32768), (1, 131072)]
HEADS, KV_HEADS = 32, 8
REPLAYS = {2048: 20, 8192: 15, 32768: 7, 131072: 3}
# The samples are rows of the last sequence from several heads.
SAMPLES = 48
VQUANT_FORMATS, VQUANT_WINDOW, VQUANT_SHARE = ("ch4g128", "tok2g128"), 128, 0.05


def rows(n, heads, dim):
    return torch.randn((n, heads, dim), device="cuda", dtype=torch.bfloat16)


class Kvant:
    def __init__(self, library, sas, turn=""):
        self.library, self.sas, self.what = library, sas, "kvant INT8" + (", SAS" if sas else "") + turn

    def prepared(self, batch, n, q, k, v):
        return self.call(batch, n, q, k, v)

    def call(self, batch, n, q, k, v, pages=None, **of_pages):
        """Attends once. `of_pages` holds the fields of the shape that describe the prompt's pages."""
        dim, total = q.shape[-1], batch * n
        begins = torch.arange(0, total + 1, n, device="cuda", dtype=torch.int32)
        shape = c_api.PromptShape(n_seqs=batch, n_heads=HEADS, n_kv_heads=KV_HEADS, head_dim=dim, n_queries=total,
                                  n_tokens=total, softmax_scale=dim**-0.5, causal=1, sas=self.sas, **of_pages)
        size = self.library.prompt_workspace_bytes(shape)
        workspace = torch.empty(size, device="cuda", dtype=torch.uint8)
        out = torch.empty_like(q)
        prompt = c_api.Prompt(
            query_begins=begins, token_begins=begins, q=q, q_token_stride=HEADS * dim, q_head_stride=dim, k=k,
            k_token_stride=KV_HEADS * dim, k_head_stride=dim, v=v, v_token_stride=KV_HEADS * dim, v_head_stride=dim, out=out,
            out_token_stride=HEADS * dim, out_head_stride=dim, pages=pages)

        def run():
            self.library.launch("prompt_attention", torch.cuda.current_stream().cuda_stream, shape, prompt,
                                ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(size))
            return out

        return run


class VQuant(Kvant):
    """Protects random tokens, separately for each head."""

    def __init__(self, library, half):
        super().__init__(library, 0)
        self.half, self.what = half, "kvant VQuant, " + ("half precision" if half else "INT8")

    def prepared(self, batch, n, q, k, v):
        # All sequences form one prefix.
        prefix = SealedPrefix(self.library, VQUANT_FORMATS, k, v, HEADS // KV_HEADS)
        n_pages, device = n // PAGE, dict(device="cuda", dtype=torch.int32)
        prefix.layer.sealed.seq_stride = n_pages
        protected = torch.rand((KV_HEADS, batch, n), device="cuda") < VQUANT_SHARE
        bits = protected.view(KV_HEADS, -1, 32).long() << torch.arange(32, device="cuda")
        pool, table = self.protected_pages(protected, k, v)
        layer = c_api.Layer(
            sealed=prefix.layer.sealed, masks=bits.sum(-1).int(), mask_seq_stride=n_pages, mask_head_stride=batch * n_pages,
            protected_pages=c_api.Pages(
                table=table, seq_stride=table.stride(1), head_stride=table.stride(0), pool=pool, page_stride=pool[0].nbytes,
                side_offset=pool[0, 0].nbytes))
        seen = (torch.arange(n, **device) - VQUANT_WINDOW).clamp(min=0) // PAGE
        pages = c_api.PromptPages(
            shape=prefix.shape, layer=layer, sealed_begins=torch.arange(0, batch * n_pages + 1, n_pages, **device),
            query_sealed_pages=seen.repeat(batch), first_row_tokens=torch.zeros(batch, **device))
        run = self.call(batch, n, q, k, v, pages, n_sealed_pages=batch * n_pages, half_products=self.half,
                        n_kept_tokens=0 if self.half else int(protected.sum((1, 2)).max()))
        run.keeps = prefix
        return run

    @staticmethod
    def protected_pages(protected, k, v):
        """Returns pages [heads * sequences * pages][2][tokens][d], and their table [heads][sequences][pages]."""
        n_heads, batch, n = protected.shape
        n_pages = -(-int(protected.sum(-1).max()) // PAGE)
        pool = torch.zeros((n_heads, batch, 2, n_pages * PAGE, k.shape[-1]), device="cuda", dtype=torch.bfloat16)
        for head in range(n_heads):
            for seq in range(batch):
                at = seq * n + protected[head, seq].nonzero()[:, 0]
                for side, rows in enumerate((k, v)):
                    pool[head, seq, side, :len(at)] = rows[at, head]
        pool = pool.unflatten(3, (n_pages, PAGE)).transpose(2, 3).reshape(-1, 2, PAGE, k.shape[-1])
        return pool, torch.arange(len(pool), device="cuda", dtype=torch.int32).view(n_heads, batch, n_pages)


class Cudnn:
    what = "cuDNN, BF16"

    def prepared(self, batch, n, q, k, v):
        q, k, v = (x.view(batch, n, -1, x.shape[-1]).transpose(1, 2) for x in (q, k, v))

        def run():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).reshape(batch * n, HEADS, -1) if self.keep else out

        # Keep the rows to compute errors.
        self.keep = True
        return run


class Fa3:
    def __init__(self, fp8):
        self.fp8, self.what = fp8, "FlashAttention 3, " + ("FP8" if fp8 else "BF16")

    def prepared(self, batch, n, q, k, v):
        begins = torch.arange(0, batch * n + 1, n, device="cuda", dtype=torch.int32)
        scale = torch.ones((batch, KV_HEADS), device="cuda")
        if self.fp8:
            q, k, v = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
        out = torch.empty(q.shape, device="cuda", dtype=torch.bfloat16)
        scales = (scale, scale, scale) if self.fp8 else (None, None, None)

        def run():
            return torch.ops._vllm_fa3_C.fwd(
                q, k, v, None, None, None, out, begins, begins, None, None, None, n, n, None, None, None, None, None, None,
                *scales, q.shape[-1]**-0.5, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None)[0]

        return run


def relative_error(out, batch, n, q, k, v):
    """Returns the relative error of evenly spaced rows of the last sequence, each from another head."""
    first = (batch - 1) * n
    wrong = right = 0.0
    for i in range(SAMPLES):
        row, head = (i + 1) * n // SAMPLES - 1, i * 7 % HEADS
        keys, values = (x[first:first + row + 1, head * KV_HEADS // HEADS].double() for x in (k, v))
        weights = torch.softmax(keys @ q[first + row, head].double() * q.shape[-1]**-0.5, 0)
        exact = weights @ values
        wrong += (out[first + row, head].double() - exact).square().sum().item()
        right += exact.square().sum().item()
    return (wrong / right)**0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="libkvant_cuda.so")
    parser.add_argument("--fa3", help="_vllm_fa3_C.abi3.so")
    parser.add_argument("--vquant", action="store_true", help="also with protected tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="a file that rows are added to")
    args = parser.parse_args()
    library = c_api.Library(args.library)
    engines = [Cudnn(), Kvant(library, 0), Kvant(library, 1), Kvant(library, 0, " again")]
    if args.vquant:
        engines += [VQuant(TorchLibrary(args.library), half) for half in (0, 1)]
    if args.fa3:
        torch.ops.load_library(args.fa3)
        engines += [Fa3(False), Fa3(True)]
    writer = RowWriter(args.json)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version())
    print("| d | prompts | what | ms | TFLOP/s | times cuDNN | relative error |")
    print("|---|---|---|---|---|---|---|")
    for dim in (128, 64):
        for batch, n in SHAPES:
            q, k, v = rows(batch * n, HEADS, dim), rows(batch * n, KV_HEADS, dim), rows(batch * n, KV_HEADS, dim)
            runs = [engine.prepared(batch, n, q, k, v) for engine in engines]
            errors = [relative_error(run(), batch, n, q, k, v) for run in runs]
            engines[0].keep = False
            graphs = [captured(run) for run in runs]
            times = [[] for _ in runs]
            # Each round starts with another engine, because power limits slow down whatever runs later.
            for i in range(args.rounds * len(runs)):
                of_round = (i + i // len(runs)) % len(runs)
                times[of_round].append(median_replay_ms(graphs[of_round], REPLAYS[n]))
            baseline = statistics.median(times[0])
            for engine, medians, error in zip(engines, times, errors):
                ms = statistics.median(medians)
                tflops = 2 * dim * HEADS * batch * n * n / ms / 1e9
                print(f"| {dim} | {batch} x {n // 1024}k | {engine.what} | {ms:.3f} | {tflops:.0f} | {baseline / ms:.2f} | "
                      f"{100 * error:.2f} % |", flush=True)
                writer.write(what=engine.what, head_dim=dim, seqs=batch, context=n, us=ms * 1e3, least_us=min(medians) * 1e3,
                             max_us=max(medians) * 1e3, tflops=tflops, error=error * 100)


if __name__ == "__main__":
    main()
