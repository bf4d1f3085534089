"""Smoothing (VecInfer, section 3.2): channels of keys are divided by what calibration has found to be the square root of their largest
value, and those of queries multiplied by it, so that scores stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

SMALLEST_SHARE = 1e-3  # of a head's largest scale, so that a dead channel isn't blown up: as the engine has it


@dataclass(frozen=True)
class KeyScales:
    """Of all layers, in their order, F32 [n_layers, n_kv_heads, head_dim]: keys are multiplied by the first, queries by the second,
    before either is rotated."""

    of_keys: torch.Tensor
    of_queries: torch.Tensor

    @property
    def n_layers(self) -> int:
        return len(self.of_keys)

    def to(self, device: torch.device) -> KeyScales:
        return KeyScales(self.of_keys.to(device), self.of_queries.to(device))

    def of_heads(self, heads: slice) -> KeyScales:
        """Those of some KV heads: a rank's of tensor parallelism."""
        return KeyScales(self.of_keys[:, heads].contiguous(), self.of_queries[:, heads].contiguous())


def smoothing(roots: Sequence[Sequence[npt.NDArray[np.float32]]]) -> KeyScales:
    """roots: [n_layers][n_kv_heads] of [head_dim], what calibration calls `smooth`. A head of nothing but zeros is left as it is."""
    scales = torch.from_numpy(np.array(roots, np.float32))
    largest = scales.amax(-1, keepdim=True)
    scales = torch.where(largest > 0, torch.maximum(scales, SMALLEST_SHARE * largest), torch.ones_like(scales))
    return KeyScales(1 / scales, scales)
