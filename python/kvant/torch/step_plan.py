"""Lets the device compute what the calls of a step need, from lengths on the device (kvant_plan_step). A CUDA graph
that was captured once can therefore serve any step."""

from __future__ import annotations

import torch

from kvant.c_api import Lengths, Step, StepTable


class StepPlan:
    """Holds arrays for up to n_requests requests with up to max_new_tokens new tokens each. The arrays keep their place
    from step to step.

    A request has one row; with several new tokens, `query_begins` gives the rows of each request. The library then sees
    a request as `n_parts` sequences: the rows before the end of a page and the rows after it, with at most max_queries
    rows each."""

    def __init__(self, n_requests: int, max_new_tokens: int = 1, max_queries: int = 1, window: int = 0, sliding_window: int = 0,
                 sink: int = 0, device: torch.device | str = "cuda"):
        """window, sliding_window and sink are numbers of tokens, as in kvant_step."""
        self.n_requests, self.max_new_tokens, self.max_queries = n_requests, max_new_tokens, max_queries
        self.window, self.sliding_window, self.sink = window, sliding_window, sink
        self.n_parts = 1 if max_new_tokens == 1 else -(-max_new_tokens // max_queries) + 1
        self.n_seqs, self.n_rows = n_requests * self.n_parts, n_requests * max_new_tokens

        sizes = [*4 * [self.n_seqs], self.n_seqs + 1, *2 * [self.n_rows], *3 * [n_requests]]
        (self.sealed_pages, self.tail_tokens, self.protected_tokens, self.first_tokens, self.part_begins, self.row_seq,
         self.row_tail_token, self.due_tail_page, self.due_sealed_page, self.n_due_pages) = torch.zeros(
             sum(sizes), dtype=torch.int32, device=device).split(sizes)

    def step(self, seq_lens: torch.Tensor, query_begins: torch.Tensor | None = None, slots: torch.Tensor | None = None,
             **tables: StepTable) -> Step:
        """Describes a step to TorchLibrary.plan_step. seq_lens: int32 [n_requests], including new tokens, with 0 for
        padding. query_begins: int32 [n_requests + 1]. slots: int64 [n_rows]; a negative slot marks its request as
        padding. The tables are `sealed`, `tail` and `protected_pages`."""
        return Step(n_requests=self.n_requests, max_new_tokens=self.max_new_tokens, max_queries=self.max_queries,
                    n_seqs=self.n_seqs, n_rows=self.n_rows, window=self.window, sliding_window=self.sliding_window,
                    sink=self.sink, seq_lens=seq_lens, query_begins=query_begins, slots=slots, sealed_pages=self.sealed_pages,
                    tail_tokens=self.tail_tokens, protected_tokens=self.protected_tokens, first_tokens=self.first_tokens,
                    part_begins=self.part_begins, row_seq=self.row_seq, row_tail_token=self.row_tail_token,
                    due_tail_page=self.due_tail_page, due_sealed_page=self.due_sealed_page, n_due_pages=self.n_due_pages,
                    **tables)

    def lengths(self, **maxima: int) -> Lengths:
        """Returns the lengths in the form that the schedule and attention take. `maxima` are max_tail_tokens and
        max_sealed_pages of kvant_decode_lengths. Without them, the library does not choose kernels for short sequences with
        sealed pages or for few pages."""
        optional = {}
        if self.sink:
            optional |= dict(protected_tokens=self.protected_tokens, protected_seq_stride=1)
        if self.sliding_window:
            optional["first_tokens"] = self.first_tokens
        if self.n_parts > 1:
            optional["query_begins"] = self.part_begins
        return Lengths(sealed_pages=self.sealed_pages, tail_tokens=self.tail_tokens, **optional, **maxima)


def step_table(table: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor | None = None, units: int = 1) -> StepTable:
    """Describes how a step fills a table. table: int32 [n_seqs, n_entries, n_pages], which each step writes. blocks:
    int32 [n_requests, ...]. places: int32 [ring, n_entries, 2]. For each page of the ring, the first number is an index
    among the request's blocks; the second is added to that block times `units`. With places None, page p is block p."""
    _, n_entries, n_pages = table.shape
    ring = 0 if places is None else places.shape[0]
    return StepTable(blocks=blocks, block_stride=blocks.stride(0), places=places, ring=ring, n_entries=n_entries, units=units,
                     n_pages=n_pages, table=table)
