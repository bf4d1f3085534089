"""Smooths keys (VecInfer, section 3.2): it divides channels of keys by the square root of their largest value, which
calibration found, and multiplies those of queries by it. Scores stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

SMALLEST_SHARE = 1e-3  # of a head's largest scale; otherwise a dead channel would be blown up. The engine does the same.


@dataclass(frozen=True)
class KeyScales:
    """Scales of all layers in order, F32 [n_layers, n_kv_heads, head_dim]. Keys are multiplied by the first, queries by
    the second, before they are rotated."""

    of_keys: torch.Tensor
    of_queries: torch.Tensor

    @property
    def n_layers(self) -> int:
        return len(self.of_keys)

    def to(self, device: torch.device) -> KeyScales:
        return KeyScales(self.of_keys.to(device), self.of_queries.to(device))

    def of_heads(self, heads: slice) -> KeyScales:
        """Returns the scales of some KV heads, for a rank of tensor parallelism."""
        return KeyScales(self.of_keys[:, heads].contiguous(), self.of_queries[:, heads].contiguous())


def smoothing(roots: Sequence[Sequence[npt.NDArray[np.float32]]]) -> KeyScales:
    """roots: [n_layers][n_kv_heads] of [head_dim], calibration's `smooth`. A head of only zeros stays as it is."""
    scales = torch.from_numpy(np.array(roots, np.float32))
    largest = scales.amax(-1, keepdim=True)
    scales = torch.where(largest > 0, torch.maximum(scales, SMALLEST_SHARE * largest), torch.ones_like(scales))
    return KeyScales(1 / scales, scales)
