"""Lets rows of prompts attend to pages with PyTorch's own FlashAttention, which knows sequences but no page tables. On
a CPU, matrix products replace FlashAttention. kvant.paged.prefill takes this attention as an argument.

The rows of a page attend causally to their own page, and to all earlier pages of their step. The earlier pages are
handled in turns. In turn L, pages form groups of 2^(L+1). The rows in the second half of each group attend to the first
half, without a mask. Any two pages are in opposite halves of one group in exactly one turn: the highest bit in which
their numbers differ gives this turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kvant import PAGE
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.step_rules import PrefillPlan


@dataclass(frozen=True)
class Turn:
    """Describes sequences of rows that each attend to a sequence of tokens."""

    # Holds rows of the step as int64; None means all rows.
    rows: torch.Tensor | None
    # Holds tokens as int64, counted through all pages.
    tokens: torch.Tensor
    row_bounds: torch.Tensor  # int32 [n + 1]
    token_bounds: torch.Tensor
    most_rows: int
    most_tokens: int


def flash(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, row_bounds: torch.Tensor, token_bounds: torch.Tensor,
          most_rows: int, most_tokens: int, scale: float, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attends with PyTorch's FlashAttention. q: BF16 [n_rows, n_heads, head_dim]. keys, values: BF16 [n_tokens,
    n_kv_heads, head_dim]. A causal mask is aligned to the last row and token. Returns the output, and F32 [n_heads,
    n_rows], the logarithms of the sums of exponentials."""
    if q.device.type == "cpu":
        return _by_products(q, keys, values, row_bounds.tolist(), token_bounds.tolist(), scale, causal)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(q, keys, values, row_bounds, token_bounds, most_rows, most_tokens,
                                                           0.0, causal, False, scale=scale)
    return out, lse


# The scores of ROWS_TOGETHER rows are in memory at one time.
ROWS_TOGETHER = 256


def _by_products(q, keys, values, row_bounds: list[int], token_bounds: list[int], scale: float, causal: bool):
    """Computes what `flash` does, in F32, sequence by sequence and some rows at a time."""
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q), dtype=torch.float32)
    group = q.shape[1] // keys.shape[1]
    for (first, end), (first_token, end_token) in zip(zip(row_bounds, row_bounds[1:]), zip(token_bounds, token_bounds[1:])):
        k, v = (x[first_token:end_token].float().transpose(0, 1) for x in (keys, values))  # [KV heads, tokens, d]
        n_tokens = end_token - first_token
        for begin in range(first, end, ROWS_TOGETHER):
            rows = slice(begin, min(begin + ROWS_TOGETHER, end))
            # The shape is [n_kv_heads, rows of all query heads of the group, head_dim].
            of_heads = q[rows].float().transpose(0, 1).reshape(len(k), -1, q.shape[2])
            scores = (of_heads @ k.transpose(1, 2) * scale).view(len(k), group, -1, n_tokens)
            if causal:
                last = torch.arange(rows.start, rows.stop) - end + n_tokens
                scores.masked_fill_(torch.arange(n_tokens) > last[:, None], float("-inf"))
            lse[:, rows] = scores.logsumexp(-1).flatten(0, 1)
            weighted = scores.softmax(-1).flatten(1, 2) @ v
            out[rows] = weighted.view(len(k) * group, -1, q.shape[2]).transpose(0, 1).to(q.dtype)
    return out, lse


class PieceAttention:
    """Attends with one step's plan. Instances have the signature of prefill.VarlenAttention."""

    def __init__(self, plan: PrefillPlan, device: torch.device, attention: Callable = flash):
        self._attention = attention
        self._own = _turn(_own_pages(plan), device, has_all_rows=True)
        self._turns = []
        size = 1
        while found := _earlier_pages(plan, size):
            self._turns.append(_turn(found, device))
            size *= 2

    def __call__(self, q, keys, values, *, softmax_scale, causal, out=None, cu_seqlens_q, max_seqlen_q, max_seqlen_k,
                 cu_seqlens_k=None, **others) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes keys and values as rows with cu_seqlens_k, or as the pages of the step's plan, [pages, 128, n_kv_heads,
        head_dim]."""
        if cu_seqlens_k is not None:
            return self._attention(q, keys, values, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale,
                                   causal)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        total, total_lse = self._take(self._own, q, keys, values, softmax_scale, causal=True)
        if self._turns:
            total = total.float()
        for turn in self._turns:
            part, lse = self._take(turn, q, keys, values, softmax_scale, causal=False)
            before = total_lse[:, turn.rows]
            after = torch.logaddexp(before, lse)
            kept, added = ((x - after).exp().t()[..., None] for x in (before, lse))
            total[turn.rows] = total[turn.rows] * kept + part * added
            total_lse[:, turn.rows] = after
        out.copy_(total)
        return out, total_lse

    def _take(self, turn: Turn, q, keys, values, scale: float, causal: bool):
        return self._attention(q if turn.rows is None else q[turn.rows], keys[turn.tokens], values[turn.tokens],
                               turn.row_bounds, turn.token_bounds, turn.most_rows, turn.most_tokens, scale, causal)


# Each pair holds rows of the step and tokens of the step's pages, for one sequence of a turn.
_Pairs = list[tuple[np.ndarray, np.ndarray]]


def _own_pages(plan: PrefillPlan) -> _Pairs:
    first, n_seen = plan.first_rows, len(plan.seen)
    return [(np.arange(first[piece], first[piece + 1]), (n_seen + piece) * PAGE + np.arange(plan.n_tokens[piece]))
            for piece in range(plan.n_pieces)]


def _earlier_pages(plan: PrefillPlan, size: int) -> _Pairs:
    first, pairs = plan.first_rows, []
    for request in np.unique(plan.request):
        pieces = np.flatnonzero(plan.request == request)
        for start in range(0, len(pieces) - size, 2 * size):
            rows = pieces[start + size:start + 2 * size]
            # The last piece sees all pieces before it, in their order.
            seen = plan.visible[pieces[-1], start:start + size]
            pairs.append((np.arange(first[rows[0]], first[rows[-1] + 1]),
                          (seen[:, None] * PAGE + np.arange(PAGE)).reshape(-1)))
    return pairs


def _turn(pairs: _Pairs, device: torch.device, has_all_rows: bool = False) -> Turn:
    rows, tokens = zip(*pairs)
    n_rows, n_tokens = [len(x) for x in rows], [len(x) for x in tokens]
    arrays = DeviceArrays({"rows": np.concatenate(rows), "tokens": np.concatenate(tokens),
                           "row_bounds": np.cumsum([0, *n_rows]), "token_bounds": np.cumsum([0, *n_tokens])}, device)
    return Turn(None if has_all_rows else arrays["rows"].long(), arrays["tokens"].long(), arrays["row_bounds"],
                arrays["token_bounds"], max(n_rows), max(n_tokens))
