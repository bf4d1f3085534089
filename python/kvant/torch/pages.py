"""Makes pools of pages."""

from __future__ import annotations

import torch

from kvant.c_api import Pages


def page_pool(table: torch.Tensor, key_bytes: int, value_bytes: int) -> tuple[torch.Tensor, Pages]:
    """Makes zeroed pages for all entries of an int32 table [seq, head, page], with a key page and its value page side
    by side. Returns the uint8 pool and the structure that describes both sides."""
    stride = key_bytes + value_bytes
    pool = torch.zeros(table.numel() * stride, dtype=torch.uint8, device=table.device)
    return pool, Pages(table=table, seq_stride=table.stride(0), head_stride=table.stride(1), pool=pool,
                       page_stride=stride, side_offset=key_bytes)
