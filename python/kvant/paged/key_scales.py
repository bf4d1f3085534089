"""Smooths keys (VecInfer, section 3.2). Each channel of the keys is divided by the square root of its largest
calibrated value. The channel of the queries is multiplied by this square root. Scores do not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

# No scale is below SMALLEST_SHARE of the head's largest scale, because a dead channel would otherwise be blown up. The
# engine has the same rule.
SMALLEST_SHARE = 1e-3


@dataclass(frozen=True)
class KeyScales:
    """Holds scales of all layers in order, F32 [n_layers, n_kv_heads, head_dim]. Before rotation, keys are multiplied
    by of_keys and queries by of_queries."""

    of_keys: torch.Tensor
    of_queries: torch.Tensor

    @property
    def n_layers(self) -> int:
        return len(self.of_keys)

    def to(self, device: torch.device) -> KeyScales:
        return KeyScales(self.of_keys.to(device), self.of_queries.to(device))

    def of_heads(self, heads: slice) -> KeyScales:
        """Returns the scales of the KV heads of one rank of tensor parallelism."""
        return KeyScales(self.of_keys[:, heads].contiguous(), self.of_queries[:, heads].contiguous())

    def of_stage(self, layers: slice) -> KeyScales:
        """Returns the scales of the layers of one stage of pipeline parallelism."""
        return KeyScales(self.of_keys[layers], self.of_queries[layers])


def smoothing(roots: Sequence[Sequence[npt.NDArray[np.float32]]]) -> KeyScales:
    """Returns scales for roots [n_layers][n_kv_heads] of [head_dim], which calibration calls `smooth`. A head of only
    zeros is left unscaled."""
    scales = torch.from_numpy(np.array(roots, np.float32))
    largest = scales.amax(-1, keepdim=True)
    scales = torch.where(largest > 0, torch.maximum(scales, SMALLEST_SHARE * largest), torch.ones_like(scales))
    return KeyScales(1 / scales, scales)
