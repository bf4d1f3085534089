"""Handles requests whose newest token is followed by draft tokens. All of these tokens are called rows. The library
treats several rows as the queries of one sequence and reads the pages once for all of them. All queries of a sequence
see the same sealed pages. A request is therefore divided into several sequences (kvant.torch.StepPlan): its rows up to
the end of a page, and the rows after the page's end.

The device knows how many drafts of the previous step were accepted, but the host does not always know. Nothing here
therefore depends on the host's lengths. A page whose end the rows reach is sealed in the step, for the rows after that
end. Some tokens of the page may be rejected later, but the seal leaves no trace. The page goes into a block that only
the request uses until all of its tokens are accepted (KvantSealedManager). The page's unquantized tokens stay in the
tail, which has separate room for rows after the page's end. After other tokens have replaced rejected ones, the page is
sealed again before any other request sees it."""

from __future__ import annotations

import torch

from kvant.torch import Layer
from kvant.paged import decode
from kvant.paged.decode import DecodeStep
from kvant.paged.model_cache import ModelCache


def append(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
           q: torch.Tensor | None = None) -> None:
    """Writes rows into the tails, and seals pages whose end the rows reach. keys, values: BF16 or F16 [n_rows,
    n_kv_heads, head_dim]. decode.append explains q."""
    decode.append(cache, step, blocks, keys, values, q)
    plan = step.plan
    # The page to seal contains the request's first row, which belongs to the request's first part.
    sink_ids = None if step.sink_ids is None else step.sink_ids[::plan.n_parts]
    cache.library.seal_pages(
        cache.shape(plan.n_requests, blocks=blocks),
        Layer(sealed=cache.sealed_pages(step.request_blocks, blocks), tail=cache.tail_pages(step.tail_ids[::plan.n_parts], blocks),
              **cache.of_sealed(blocks), **cache.sinks(sink_ids, blocks)),
        plan.due_tail_page, plan.due_sealed_page, 1, metrics=cache.metrics(blocks), keep_sink=sink_ids is not None)


def attend(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor, sink_logits: torch.Tensor | None = None) -> None:
    """Does what decode.attend does, for requests with several rows."""
    append(cache, step, blocks, keys, values, q)
    decode.read(cache, step, blocks, q, out, sink_logits)
