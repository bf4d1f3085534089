"""Defines the attention function that transformers calls for attn_implementation="kvant"."""

from __future__ import annotations

import torch


def kvant_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                    attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
                    sliding_window: int | None = None, softcap: float | None = None,
                    **others) -> tuple[torch.Tensor, None]:
    """Attends for transformers. `query` is BF16 [batch, n_heads, n, head_dim]. `key` and `value` are the rows of the
    new tokens, BF16 [batch, n_kv_heads, n, head_dim], as the update() of a KvantCache returned them. Returns BF16
    [batch, n, n_heads, head_dim]."""
    layer = getattr(key, "kvant_layer", None)
    if layer is None:
        raise ValueError('attn_implementation="kvant" needs past_key_values=KvantCache(model.config) (from transformers 5.24 on: '
                         'cache=...); for a run without it, model.set_attn_implementation("sdpa")')
    for what, is_asked in {"dropout": dropout > 0, "a sliding window": sliding_window is not None,
                           "soft-capped scores": softcap is not None}.items():
        if is_asked:
            raise NotImplementedError(f"kvant's attention does not support {what}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return layer.attend(query, key, value, attention_mask, scale), None


def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register("kvant", kvant_attention)
    # With flash_attention_mask, the mask is None if there is no padding.
    AttentionMaskInterface.register("kvant", flash_attention_mask)
