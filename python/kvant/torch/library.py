"""Wraps the library's operations with tensors as arguments."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence

import torch

from kvant.c_api import (BF16, F16, F32, Dequantization, Layer, Lengths, Library, NewRows, PageMetrics, Partial, Prompt,
                         PromptShape, ProtectedRows, SealRange, Shape, Step, Transformation)
from kvant.torch.step_plan import StepPlan


def type_of(x: torch.Tensor) -> int:
    """Returns the kvant_type of a tensor."""
    if x.dtype == torch.bfloat16:
        return BF16
    if x.dtype == torch.float32:
        return F32
    if x.dtype == torch.float16:
        return F16
    raise TypeError(f"kvant takes bfloat16, float16 and float32, not {x.dtype}")


def _memory(x: torch.Tensor) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """Returns a uint8 tensor's address and size."""
    return ctypes.c_void_p(x.data_ptr()), ctypes.c_size_t(x.numel())


def _addresses(structs: Sequence[ctypes.Structure]) -> ctypes.Array:
    """Returns pointers to structures, which must not outlive the structures."""
    return (ctypes.c_void_p * len(structs))(*map(ctypes.addressof, structs))


def _partial(out: torch.Tensor, lse: torch.Tensor) -> Partial:
    """Describes out [n_tokens, n_heads, head_dim] and lse [n_tokens, n_heads] to the library."""
    return Partial(out=out, out_type=type_of(out), token_stride=out.stride(0), head_stride=out.stride(1), lse=lse,
                   lse_token_stride=lse.stride(0), lse_head_stride=lse.stride(1))


def new_rows(keys: torch.Tensor, values: torch.Tensor, key_hadamard: bool = False, value_hadamard: bool = False,
             **members) -> NewRows:
    """Describes keys and values [n_rows, n_kv_heads, channels] of one type, contiguous in the last dimension. There may
    be fewer channels than head_dim; missing channels count as zeros. key_hadamard and value_hadamard say whether the
    library must rotate the rows."""
    if keys.dtype != values.dtype:
        raise TypeError(f"keys are {keys.dtype} and values {values.dtype}: kvant takes rows of one type")
    return NewRows(n_rows=keys.shape[0], keys=keys, key_row_stride=keys.stride(0), key_head_stride=keys.stride(1), values=values,
                   value_row_stride=values.stride(0), value_head_stride=values.stride(1), key_hadamard=key_hadamard,
                   value_hadamard=value_hadamard, type=type_of(keys), key_channels=keys.shape[2], value_channels=values.shape[2],
                   **members)


def current(device: torch.device) -> contextlib.AbstractContextManager:
    """Makes the device of the tensors the current one, because the library is called on its current stream."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class TorchLibrary(Library):
    def call(self, name: str, *arguments) -> None:
        """Calls kvant_`name` on the current stream; on a CPU the call has ended when this returns."""
        self.launch(name, torch.cuda.current_stream().cuda_stream if self.device_type == "cuda" else 0, *arguments)

    def serves(self, device: torch.device) -> bool:
        """Returns whether tensors on the device can be arguments."""
        return device.type == self.device_type

    def append(self, shape: Shape, layer: Layer, seq: torch.Tensor, tail_token: torch.Tensor, keys: torch.Tensor,
               values: torch.Tensor, key_hadamard: bool = False, value_hadamard: bool = False,
               queries: torch.Tensor | None = None, key_factors: torch.Tensor | None = None,
               query_factors: torch.Tensor | None = None) -> None:
        """Writes rows into the layer's tail pages. seq, tail_token: int32 [n_rows]; a row with a negative tail_token is
        left out. new_rows() explains keys and values. queries: [n_rows, n_heads, head_dim], in the keys' type; they are
        transformed in place like stored keys. key_factors, query_factors: F32 [n_kv_heads, head_dim], factors of
        channels before rotation, or None."""
        if tail_token.shape[0] == 0:
            return
        of_queries = {}
        if queries is not None:
            if queries.dtype != keys.dtype:
                raise TypeError(f"keys are {keys.dtype} and queries {queries.dtype}: kvant takes rows of one type")
            of_queries = dict(queries=queries, query_row_stride=queries.stride(0), query_head_stride=queries.stride(1),
                              query_factors=query_factors)
        self.call("append", shape, layer, new_rows(keys, values, key_hadamard, value_hadamard, seq=seq, tail_token=tail_token,
                                                   key_factors=key_factors, **of_queries))

    def seal_pages(self, shape: Shape, layer: Layer, tail_page: torch.Tensor | None, sealed_page: torch.Tensor, max_pages: int,
                   n_pages: torch.Tensor | None = None, metrics: PageMetrics | None = None,
                   layer_offsets: torch.Tensor | None = None, keep_sink: bool = False, rows: NewRows | None = None,
                   first_rows: torch.Tensor | None = None, n_layers: int = 1) -> None:
        """Encodes full tail pages. tail_page, sealed_page, n_pages: int32 [n_seqs], the first page of the tail
        (negative: none is due), its destination, and the number of pages (None: max_pages).

        `metrics` holds the costs of errors of keys, for trellis formats. layer_offsets: int64 [n_layers], if one call
        seals the pages of several layers: their distances in bytes (multiples of 16) from the layer's memory. Without
        layer_offsets, n_layers layers have the distances that `layer` gives. keep_sink copies the layer's sink from
        each first page into the layer's protected pages. Formats for which can_seal_rows is true can be sealed from
        `rows`. first_rows: int32 [n_seqs], where the first page of each sequence begins in `rows`; a negative number
        means that the pages are in the tail."""
        n_layers = n_layers if layer_offsets is None else len(layer_offsets)
        self.call("seal_pages", shape, layer,
                  SealRange(tail_page=tail_page, sealed_page=sealed_page, n_pages=n_pages, max_pages=max_pages,
                            page_metrics=metrics, n_layers=n_layers, keep_sink=keep_sink, layer_offsets=layer_offsets, rows=rows,
                            first_rows=first_rows))

    def seal_layers(self, shapes: Sequence[Shape], layers: Sequence[Layer], tail_page: torch.Tensor, sealed_page: torch.Tensor,
                    max_pages: int, n_pages: torch.Tensor | None = None, metrics: PageMetrics | None = None,
                    keep_sink: bool = False) -> None:
        """Does the work of seal_pages for layers that may differ in formats, places and codebooks. On a GPU, the pages of
        all layers are sealed at the same time. `metrics` has the distances between the layers' metrics."""
        self.call("seal_layers", len(layers), _addresses(shapes), _addresses(layers),
                  SealRange(tail_page=tail_page, sealed_page=sealed_page, n_pages=n_pages, max_pages=max_pages, page_metrics=metrics,
                            keep_sink=keep_sink))

    def plan_step(self, step: Step) -> None:
        """Computes lengths, tables, places and due pages from lengths on the device; kvant.torch.StepPlan explains
        them."""
        self.call("plan_step", step)

    def seal_due_pages(self, shape: Shape, layer: Layer, plan: StepPlan, layer_offsets: torch.Tensor) -> None:
        """Encodes the pages that a plan declares due, for all layers at once, and copies sinks."""
        self.seal_pages(shape, layer, plan.due_tail_page, plan.due_sealed_page, 1, plan.n_due_pages, layer_offsets=layer_offsets,
                        keep_sink=True)

    def protect(self, shape: Shape, layer: Layer, seq: torch.Tensor, head: torch.Tensor, tail_token: torch.Tensor,
                protected_token: torch.Tensor) -> None:
        """Copies rows of both sides from the layer's tail into its protected pages. seq, head, tail_token,
        protected_token: int32 [n_rows], the sequence, KV head, token of the tail and destination of each row."""
        self.call("protect", shape, layer, ProtectedRows(n_rows=len(seq), seq=seq, head=head, tail_token=tail_token,
                                                         protected_token=protected_token))

    def new_workspace(self, shape: Shape, device: torch.device | str = "cuda") -> torch.Tensor:
        """Returns a workspace for the shape, uint8 [bytes]."""
        return torch.empty(self.workspace_bytes(shape), dtype=torch.uint8, device=device)

    def decode_schedule(self, shape: Shape, lengths: Lengths, workspace: torch.Tensor) -> None:
        """Divides a step's work. Must be called once per step, before the layers."""
        self.call("decode_schedule", shape, lengths, *_memory(workspace))

    def decode_attention(self, shape: Shape, lengths: Lengths, layer: Layer, workspace: torch.Tensor) -> None:
        """Attends with one query token of each sequence, or several (`max_queries`). Reads the layer's `q` and writes
        the layer's `out`."""
        self.call("decode_attention", shape, lengths, layer, *_memory(workspace))

    def prompt_attention(self, shape: PromptShape, prompt: Prompt, device: torch.device | str = "cuda") -> None:
        """Attends with the tokens of prompts, whole or in parts. The method allocates the workspace itself."""
        workspace = torch.empty(self.prompt_workspace_bytes(shape), dtype=torch.uint8, device=device)
        self.call("prompt_attention", shape, prompt, *_memory(workspace))

    def dequantize(self, shape: Shape, lengths: Lengths, layer: Layer, first_page: int, n_pages: int, keys: torch.Tensor,
                   values: torch.Tensor, seqs: torch.Tensor | None = None) -> None:
        """Dequantizes n_pages pages from first_page on of each sequence in seqs (int32; None: all) into rows. keys,
        values: BF16 or F16 [sequences, n_pages * 128, n_kv_heads, head_dim]. Rows after a sequence's last token are
        left unchanged."""
        self.call("dequantize", shape, lengths, layer,
                  Dequantization(n_seqs=keys.shape[0], seqs=seqs, first_page=first_page, n_pages=n_pages,
                                 n_heads=keys.shape[2], keys=keys, values=values, seq_stride=keys.stride(0),
                                 token_stride=keys.stride(1), head_stride=keys.stride(2), type=type_of(keys)))

    def dequantize_ranges(self, shape: Shape, lengths: Lengths, layer: Layer, first_pages: torch.Tensor,
                          page_counts: torch.Tensor, max_pages: int, row_begins: torch.Tensor, keys: torch.Tensor,
                          values: torch.Tensor, seqs: torch.Tensor | None = None, key_hadamard: bool = False,
                          value_hadamard: bool = False) -> None:
        """Dequantizes page_counts[i] pages, at most max_pages, from first_pages[i] on. The pages belong to sequence i,
        or to seqs[i], and go into rows from row_begins[i] on. keys, values: BF16 or F16 [n_rows, n_kv_heads, channels],
        with only the first channels of heads. key_hadamard and value_hadamard undo the rotation of appended rows. The
        other arrays are int32 [sequences]."""
        self.call("dequantize", shape, lengths, layer,
                  Dequantization(n_seqs=len(first_pages), seqs=seqs, n_pages=max_pages, first_pages=first_pages,
                                 page_counts=page_counts, row_begins=row_begins, n_heads=keys.shape[1], keys=keys, values=values,
                                 token_stride=keys.stride(0), head_stride=keys.stride(1), type=type_of(keys),
                                 channels=keys.shape[2], key_hadamard=key_hadamard, value_hadamard=value_hadamard))

    def merge(self, into: torch.Tensor, into_lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> None:
        """Merges attention to other tokens into `into` [n_tokens, n_heads, head_dim]. Log-sum-exps are F32 [n_tokens,
        n_heads], with -infinity for no tokens. Any strides are allowed."""
        n_tokens, n_heads, head_dim = into.shape
        self.call("merge", 1, n_tokens, n_heads, head_dim, _partial(into, into_lse), _partial(other, other_lse))

    def rotate(self, rows: torch.Tensor, source: torch.Tensor | None = None) -> None:
        """Multiplies rows by the orthonormal Walsh-Hadamard matrix, which is its own inverse. Reads `source`, or `rows`
        if it is None, and writes rows [n_rows, n_heads, head_dim] of that type."""
        self.transform(rows, source)

    def transform(self, rows: torch.Tensor, source: torch.Tensor | None = None, hadamard: bool = True,
                  factors: torch.Tensor | None = None, factors_after: torch.Tensor | None = None) -> None:
        """Multiplies channels by `factors`, then with `hadamard` by the Walsh-Hadamard matrix, then by `factors_after`.
        Factors are F32 [n_kv_heads, head_dim]; each row of factors serves equally many neighbouring heads. None means
        factors of 1."""
        n_rows, n_heads, head_dim = rows.shape
        if source is None:
            source = rows
        # The library needs contiguous channels.
        elif source.stride(-1) != 1:
            source = source.contiguous()
        if source.shape != rows.shape or source.dtype != rows.dtype:
            raise ValueError(f"rows {tuple(rows.shape)} of {rows.dtype} can't be those of a source {tuple(source.shape)} of "
                             f"{source.dtype}")
        self.call("transform", Transformation(
            n_rows=n_rows, n_heads=n_heads, head_dim=head_dim, rows=rows, type=type_of(rows), row_stride=rows.stride(0),
            head_stride=rows.stride(1), hadamard=hadamard, source=source, source_row_stride=source.stride(0),
            source_head_stride=source.stride(1), factors=factors, factors_after=factors_after,
            heads_of_factors=n_heads // next((len(x) for x in (factors, factors_after) if x is not None), n_heads)))
