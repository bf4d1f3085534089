"""Handles requests whose newest token is followed by draft tokens. All of these tokens are *rows*. The library takes
several rows as the queries of one sequence and reads its pages once for all of them. All queries of a sequence see the
same sealed pages, so a request is divided into several sequences (kvant.torch.StepPlan): its rows up to the end of a
page, and the rows after it.

How many drafts of the previous step were accepted is known on the device, but not always on the host, so nothing
depends on the host's lengths. A page whose end the rows reach is sealed in the step, for the rows after that end,
although some of its tokens may be rejected. That leaves no trace. The page goes into a block that only the request uses
until all of its tokens are accepted (KvantSealedManager). The page's unquantized tokens stay in the tail, where rows
after its end have room of their own. After other tokens have replaced rejected ones, the page is sealed again before
anyone sees it."""

from __future__ import annotations

import torch

from kvant.torch import Layer
from kvant.paged import decode
from kvant.paged.decode import DecodeStep
from kvant.paged.model_cache import ModelCache


def append(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
           q: torch.Tensor | None = None) -> None:
    """Writes rows into the tails, and seals pages whose end they reach. keys, values: BF16 or F16 [n_rows, n_kv_heads,
    head_dim]. q: see decode.append."""
    decode.append(cache, step, blocks, keys, values, q)
    plan = step.plan
    # The page to seal is that of a request's first row, which is in the request's first part.
    sink_ids = None if step.sink_ids is None else step.sink_ids[::plan.n_parts]
    cache.library.seal_pages(
        cache.shape(plan.n_requests, blocks=blocks),
        Layer(sealed=cache.sealed_pages(step.request_blocks, blocks), tail=cache.tail_pages(step.tail_ids[::plan.n_parts], blocks),
              **cache.of_sealed(blocks), **cache.sinks(sink_ids, blocks)),
        plan.due_tail_page, plan.due_sealed_page, 1, metrics=cache.metrics(blocks), keep_sink=sink_ids is not None)


def attend(cache: ModelCache, step: DecodeStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor, sink_logits: torch.Tensor | None = None) -> None:
    """Attends as decode.attend does, for rows."""
    append(cache, step, blocks, keys, values, q)
    decode.read(cache, step, blocks, q, out, sink_logits)
