"""Serves requests with several new tokens. The rows of these tokens go into pages (scratch_pages). Then the rows attend
to the pages. The library reads pages and rows in place (prompt_pages), or another kernel reads rows (prompt_rows)."""

from __future__ import annotations

import torch

from kvant.paged import prompt_pages, prompt_rows
from kvant.paged.block_layout import BlockLayout
from kvant.paged.model_cache import ModelCache
from kvant.paged.prompt_rows import VarlenAttention
from kvant.paged.quality_guard import Check
from kvant.paged.scratch_pages import PrefillStep, append_and_seal, prepare

__all__ = ["PrefillStep", "VarlenAttention", "append_and_seal", "attend", "prepare", "scratch_bytes"]


def scratch_bytes(layout: BlockLayout, n_heads: int, n_rows: int) -> int:
    """Returns roughly the most memory, in bytes, that `attend` takes for n_rows rows in addition to its arguments."""
    return max(part.scratch_bytes(layout, n_heads, n_rows) for part in (prompt_pages, prompt_rows))


def attend(cache: ModelCache, step: PrefillStep, blocks: torch.Tensor, q: torch.Tensor, keys: torch.Tensor,
           values: torch.Tensor, out: torch.Tensor, attention: VarlenAttention | None, check: Check | None = None,
           sink_logits: torch.Tensor | None = None) -> None:
    """Attends with the rows of prompts. q, out: BF16 or F16 [n_rows, n_heads, head_dim]. keys, values: BF16 or F16
    [n_rows, n_kv_heads, head_dim]. `blocks` belong to the layer. `attention` attends on rows, unless the recipe has
    integer prompts or SAS; None selects the library's attention on pages. `check` is the quality guard's check, or None if the
    guard does not check the layer. model_state.attend explains sink_logits."""
    on_pages = attention is None or cache.recipe.has_integer_prompts or cache.recipe.has_sas
    rows = append_and_seal(cache, step, blocks, keys, values, in_pages=check is not None or not on_pages)
    if check is not None:
        check.measure(rows, blocks, q, sink_logits)
    if on_pages:
        prompt_pages.attend(cache, step, rows, blocks, q, out, sink_logits)
    else:
        prompt_rows.attend(cache, step, rows, blocks, q, out, attention)
