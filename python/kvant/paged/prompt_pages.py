"""Attends with prompts by the library (kvant_prompt_attention). The library reads sealed pages and new rows in place:
in scratch pages, or where the model left them. Each row sees what the visibility rule says, whatever else is in the
call. Products are in half precision or, with prompt=flashq in the recipe, in 8-bit integers. The scales of the integers
depend on the tokens that a call reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvant import PAGE
from kvant.torch import Layer, Prompt, PromptPages, PromptShape, type_of
from kvant.paged import step_rules
from kvant.paged.block_layout import SIDES, BlockLayout
from kvant.paged.device_arrays import DeviceArrays
from kvant.paged.model_cache import ModelCache
from kvant.paged.scratch_pages import ModelRows, PrefillStep, ScratchPages

# A call reads at most MOST_PAGES pages of earlier steps. The library unpacks the pages into tiles as large as BF16
# rows, or half as large for integers.
MOST_PAGES = 512
# The workspace needs WORKSPACE_BYTES in addition to tiles.
WORKSPACE_BYTES = 32 << 20


@dataclass(frozen=True)
class Call:
    """Holds what all layers share in one call. Arrays are int32 and on the device."""

    # `rows` selects the call's rows among the step's prefilled rows.
    rows: slice
    shape: PromptShape
    table: torch.Tensor  # [n_seqs, pages], blocks of the sealed pages
    scratch: torch.Tensor  # [n_seqs, pieces], numbers of scratch pages
    query_begins: torch.Tensor  # [n_seqs + 1]
    token_begins: torch.Tensor
    sealed_begins: torch.Tensor
    # Holds the number of sealed pages that each row sees, [rows]; None means all.
    query_pages: torch.Tensor | None
    # Holds the first unquantized tokens, [n_seqs]; None means that there are no unquantized rows.
    first_tokens: torch.Tensor | None
    sink_ids: torch.Tensor | None  # [n_seqs, 2 * n_kv_heads]
    # Several calls with consecutive pages serve the same rows; is_first and is_last mark the ends of the chain.
    is_first: bool
    is_last: bool


def prepare(cache: ModelCache, step: PrefillStep) -> tuple[Call, ...]:
    plan, arrays = step.plan, {}
    in_integers = cache.recipe.has_integer_prompts
    planned = step_rules.prompt_calls(plan, 2 * MOST_PAGES if in_integers else MOST_PAGES)
    for i, call in enumerate(planned):
        arrays |= {f"{i} {name}": x for name, x in _host_arrays(plan, call).items()}
    on_device = DeviceArrays(arrays, cache.device)
    first_rows, calls = step_rules.bounds(plan.query_lens), []
    for i, call in enumerate(planned):
        requests, rows = slice(call.first_request, call.end_request), slice(first_rows[call.first_request],
                                                                            first_rows[call.end_request])
        is_last, n_pages = call.end_page is None, int(arrays[f"{i} sealed_begins"][-1])
        has_sink = n_pages > 0 and call.first_page == 0
        mine = {name: on_device[f"{i} {name}"] for name in ("scratch", "query_begins", "token_begins", "sealed_begins")}
        calls.append(Call(
            rows, PromptShape(n_seqs=call.end_request - call.first_request, n_heads=cache.n_heads,
                              n_kv_heads=cache.layout.n_kv_heads, head_dim=cache.layout.head_dim,
                              n_queries=int(rows.stop - rows.start), n_tokens=int(arrays[f"{i} token_begins"][-1]),
                              softmax_scale=cache.softmax_scale, causal=is_last, n_sealed_pages=n_pages,
                              half_products=not in_integers, score_softcap=cache.softcap, sas=cache.recipe.has_sas),
            step.block_table[requests, call.first_page:], **mine,
            query_pages=on_device[f"{i} query_pages"] if is_last and n_pages else None,
            first_tokens=on_device[f"{i} first_tokens"] if is_last else None,
            sink_ids=cache.sink_ids(step.sink_blocks[requests]) if has_sink else None,
            is_first=call.first_page == 0, is_last=is_last))
    return tuple(calls)


def _host_arrays(plan: step_rules.PrefillPlan, call: step_rules.PromptCall) -> dict[str, np.ndarray]:
    requests = slice(call.first_request, call.end_request)
    computed, query_lens, pieces = plan.computed[requests], plan.query_lens[requests], plan.first_pieces
    rows = step_rules.bounds(plan.query_lens)[[call.first_request, call.end_request]]
    if call.end_page is None:
        n_pages, n_tokens = plan.seen_pages[requests] - call.first_page, computed % PAGE + query_lens
    else:
        n_pages, n_tokens = np.array([call.end_page - call.first_page]), np.array([0])
    first = pieces[call.first_request:call.end_request, None]
    n_pieces = np.diff(pieces[call.first_request:call.end_request + 1])
    return dict(query_begins=step_rules.bounds(query_lens), token_begins=step_rules.bounds(n_tokens),
                sealed_begins=step_rules.bounds(n_pages), first_tokens=(computed // PAGE - call.first_page) * PAGE,
                query_pages=plan.page[plan.row_piece[slice(*rows)]] - call.first_page,
                scratch=np.minimum(first + np.arange(n_pieces.max()), first + n_pieces[:, None] - 1))


def scratch_bytes(layout: BlockLayout, n_heads: int, n_rows: int) -> int:
    """Returns roughly the most memory, in bytes, that attention with n_rows rows takes, including scratch pages but not
    its arguments. The estimate assumes half precision, which takes at least as much as integers."""
    row = SIDES * layout.n_kv_heads * layout.head_dim * 2
    queries = n_rows * n_heads * layout.head_dim
    return row * (3 * (n_rows + 2 * PAGE) + MOST_PAGES * PAGE) + queries * (2 + 4 + 4) + WORKSPACE_BYTES


def attend(cache: ModelCache, step: PrefillStep, rows: ScratchPages | ModelRows, blocks: torch.Tensor, q: torch.Tensor,
           out: torch.Tensor, sink_logits: torch.Tensor | None = None) -> None:
    """Attends with the rows of a step. q, out: BF16 or F16 [n_rows, n_heads, head_dim]. model_state.attend explains
    sink_logits, which only half precision supports."""
    if step.attention is None:
        step.attention = prepare(cache, step)
    in_integers = cache.recipe.has_integer_prompts
    # Integer attention takes and returns BF16.
    if in_integers:
        q = q.bfloat16()
    # The kernel can rotate queries but not scale them.
    if cache.has_key_scales:
        q = cache.queries(q, blocks)
    part_type, given = (torch.bfloat16, torch.bfloat16) if in_integers else (torch.float32, out.dtype)
    for call in step.attention:
        mine = out[call.rows]
        if call.is_first and call.is_last and out.dtype == given:
            _attend(cache, call, rows, blocks, q, mine, sink_logits=sink_logits)
            continue
        part = torch.empty(mine.shape, dtype=part_type, device=out.device)
        lse = torch.empty(mine.shape[:2], dtype=torch.float32, device=out.device)
        # Sink logits count only once.
        _attend(cache, call, rows, blocks, q, part, lse, sink_logits if call.is_first else None)
        if call.is_first:
            total, total_lse = part.float(), lse
        else:
            cache.library.merge(total, total_lse, part, lse)
        if call.is_last:
            mine.copy_(total)


def _attend(cache: ModelCache, call: Call, rows: ScratchPages | ModelRows, blocks: torch.Tensor, q: torch.Tensor,
            out: torch.Tensor, lse: torch.Tensor | None = None, sink_logits: torch.Tensor | None = None) -> None:
    """Runs one call. out: [rows of the call, n_heads, head_dim] in q's type or F32. lse: F32 [rows, n_heads]."""
    q, sealed = q[call.rows], {}
    if call.shape.n_sealed_pages:
        sealed = dict(sealed_begins=call.sealed_begins, query_sealed_pages=call.query_pages)
    of_layer, of_rows = cache.sinks(call.sink_ids, blocks), {}
    if isinstance(rows, ModelRows):
        k, v = rows.keys[call.rows], rows.values[call.rows]
        of_rows = dict(k=k, k_token_stride=k.stride(0), k_head_stride=k.stride(1), v=v, v_token_stride=v.stride(0),
                       v_head_stride=v.stride(1))
    else:
        of_layer["tail"] = rows.pages(call.scratch)
    layer = Layer(sealed=cache.sealed_pages(call.table, blocks), **cache.of_sealed(blocks), **of_layer)
    of_lse = {} if lse is None else dict(lse=lse, lse_token_stride=lse.stride(0), lse_head_stride=lse.stride(1))
    pages = PromptPages(shape=cache.shape(call.shape.n_seqs, blocks=blocks), layer=layer, first_row_tokens=call.first_tokens, **sealed)
    cache.library.prompt_attention(call.shape, Prompt(
        query_begins=call.query_begins, token_begins=call.token_begins, q=q, q_token_stride=q.stride(0),
        q_head_stride=q.stride(1), out=out, out_token_stride=out.stride(0), out_head_stride=out.stride(1), pages=pages,
        q_type=type_of(q), out_type=type_of(out), sink_logits=sink_logits,
        q_hadamard=cache.recipe.key_hadamard and not cache.has_key_scales, out_hadamard=cache.recipe.value_hadamard, **of_rows, **of_lse), cache.device)
