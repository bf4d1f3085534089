"""Decides what a step must do, from the lengths of its requests alone. In this file, n is the number of tokens computed
before the step, and q the number of new tokens.

A token sees earlier pages quantized, except for the sink, and its own page unquantized, however a prompt is cut into
steps. Requests with one new token are decoded: the token's K and V go into the tail before the token attends. If the
token fills a page, the page is sealed before the next step. Requests with more new tokens are prefilled: their full
pages are sealed first, and the new tokens after these pages attend to the sealed pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvant import PAGE


def filled_pages(seq_lens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sequences whose one new token fills a page, and the number of that page."""
    seqs = np.flatnonzero((seq_lens > 0) & (seq_lens % PAGE == 0))
    return seqs, seq_lens[seqs] // PAGE - 1


def bounds(counts: np.ndarray) -> np.ndarray:
    """Returns int32 [n + 1], the first index of each of n ranges, and the end."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


@dataclass(frozen=True)
class Prefix:
    """Describes the part of a request that was sealed before the step, and the new tokens that see this part."""

    # Gives the number of the request among the prefilled requests.
    request: int
    # Gives the index of the request's first row among the step's prefilled rows.
    first_row: int
    end_row: int
    n_pages: int


@dataclass(frozen=True)
class PrefillPlan:
    """Describes the new tokens of all prefilled requests, cut at page borders. A piece is the part of a request's new
    tokens in one page. Arrays are int32 with one number per piece, unless their comment says otherwise. Each piece has
    a scratch page with the piece's number."""

    computed: np.ndarray  # [requests]: n
    query_lens: np.ndarray  # [requests]: q
    request: np.ndarray
    # Holds the number of the page in its request.
    page: np.ndarray
    n_rows: np.ndarray
    # Counts the tokens of the page after the step.
    n_tokens: np.ndarray
    row_piece: np.ndarray  # [n_rows], the piece of each row
    row_token: np.ndarray  # [n_rows], the place of each row in its page
    # Lists pieces that fill their page.
    full: np.ndarray
    # Lists pieces of `full` that later tokens of the step see sealed.
    seen: np.ndarray
    # Lists pieces of `full` that fill the first page of their request.
    first: np.ndarray
    # Holds the index in `seen` of each piece of `first`, or -1 if no later token of the step sees the piece.
    first_seen: np.ndarray
    # Lists pieces whose page already has tokens in the tail.
    entering: np.ndarray
    # Lists pieces whose page stays unquantized and goes to the tail.
    leaving: np.ndarray
    # Counts the tokens in the pages to which a piece attends, including its own page.
    n_visible_tokens: np.ndarray
    prefixes: tuple[Prefix, ...]

    @property
    def n_pieces(self) -> int:
        return len(self.page)

    @cached_property
    def visible(self) -> np.ndarray:
        """Returns [n_pieces, most], the pages to which a piece attends: pages of `seen` by their index, then the
        piece's own page as n_seen + piece."""
        first_page = self.computed // PAGE
        place = np.full(self.n_pieces, -1)
        place[self.seen] = np.arange(len(self.seen))
        # Counts the earlier pieces of the request.
        earlier = self.page - first_page[self.request]
        visible = np.zeros((self.n_pieces, int(earlier.max(initial=-1)) + 1), np.int32)
        for piece, n in enumerate(earlier):
            visible[piece, :n] = place[piece - n:piece]
            visible[piece, n] = len(self.seen) + piece
        return visible

    @property
    def first_rows(self) -> np.ndarray:
        """Returns [n_pieces + 1], the first row of each piece, and the end."""
        return bounds(self.n_rows)

    @property
    def first_pieces(self) -> np.ndarray:
        """Returns [requests + 1], the first piece of each request, and the end."""
        return bounds(np.bincount(self.request, minlength=len(self.computed)))

    @property
    def seen_pages(self) -> np.ndarray:
        """Returns [requests], the number of pages that a request's last token sees sealed."""
        return (self.computed + self.query_lens - 1) // PAGE


def plan_prefill(computed: np.ndarray, query_lens: np.ndarray) -> PrefillPlan:
    """Plans the prefill of requests with n computed tokens and q >= 1 new tokens each. Rows are in the requests' order.
    """
    computed, query_lens = np.asarray(computed, np.int64), np.asarray(query_lens, np.int64)
    ends = computed + query_lens
    first_page, last_page = computed // PAGE, (ends - 1) // PAGE
    n_pieces = last_page - first_page + 1
    request = np.repeat(np.arange(len(computed)), n_pieces)
    first_piece = np.cumsum(n_pieces) - n_pieces
    # Numbers the pieces of each request from 0.
    within = np.arange(len(request)) - first_piece[request]
    page = first_page[request] + within
    begin = np.maximum(computed[request], page * PAGE)
    end = np.minimum(ends[request], (page + 1) * PAGE)
    n_rows, n_tokens = end - begin, end - page * PAGE
    row_piece = np.repeat(np.arange(len(page)), n_rows)
    first_row = np.cumsum(n_rows) - n_rows
    row_token = np.arange(len(row_piece)) - first_row[row_piece] + (begin - page * PAGE)[row_piece]

    is_full = n_tokens == PAGE
    is_last = page == last_page[request]
    seen = np.flatnonzero(is_full & ~is_last)
    place = np.full(len(page), -1)
    place[seen] = np.arange(len(seen))
    first = np.flatnonzero(is_full & (page == 0))
    row_ends = np.cumsum(query_lens)
    prefixes = tuple(Prefix(int(i), int(row_ends[i] - query_lens[i]), int(row_ends[i]), int(first_page[i]))
                     for i in np.flatnonzero(first_page > 0))
    return PrefillPlan(*(x.astype(np.int32) for x in (
        computed, query_lens, request, page, n_rows, n_tokens, row_piece, row_token, np.flatnonzero(is_full), seen, first, place[first],
        np.flatnonzero(begin > page * PAGE), np.flatnonzero(~is_full), within * PAGE + n_tokens)), prefixes)


@dataclass(frozen=True)
class PromptCall:
    """Describes one call of attention: new tokens of requests [first_request, end_request) and the sealed pages from
    `first_page` to `end_page` to which they attend. If `end_page` is None, the tokens attend to all later pages and to
    the unquantized rows after them."""

    first_request: int
    end_request: int
    first_page: int = 0
    end_page: int | None = None


def prompt_calls(plan: PrefillPlan, most_pages: int) -> list[PromptCall]:
    """Divides a step into calls with at most most_pages sealed pages of earlier steps. A request with more pages takes
    several calls, one after another."""
    calls, first, n_pages = [], 0, 0
    seen, before = plan.seen_pages, plan.computed // PAGE

    def close(end):
        if end > first:
            calls.append(PromptCall(first, end))

    for i, n in enumerate(map(int, seen)):
        if n > most_pages and before[i] > 0:
            close(i)
            starts = [*range(0, min(n - most_pages, int(before[i])), most_pages)]
            ends = [min(start + most_pages, int(before[i])) for start in starts]
            calls += [PromptCall(i, i + 1, *stretch) for stretch in zip(starts, ends)]
            calls.append(PromptCall(i, i + 1, ends[-1]))
            first, n_pages = i + 1, 0
        elif n_pages + n > most_pages and i > first:
            close(i)
            first, n_pages = i, n
        else:
            n_pages += n
    close(len(seen))
    return calls
