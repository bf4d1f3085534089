"""All that the cache knows of a model by calibration, and reads while it runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant.paged.codebooks import Codebooks
from kvant.paged.key_metrics import KeyMetrics
from kvant.paged.key_scales import KeyScales


@dataclass(frozen=True)
class ModelConstants:
    """Of as many layers each; None: the recipe has no use for it."""

    metrics: KeyMetrics | None = None  # what errors of keys cost, in trellis formats
    codebooks: Codebooks | None = None  # of vector formats
    key_scales: KeyScales | None = None  # of smoothed keys

    @property
    def n_layers(self) -> int:
        return next(x.n_layers for x in (self.metrics, self.codebooks, self.key_scales) if x is not None)

    def to(self, device: torch.device) -> ModelConstants:
        return ModelConstants(*(x if x is None else x.to(device) for x in (self.metrics, self.codebooks, self.key_scales)))

    def of_heads(self, heads: slice) -> ModelConstants:
        """Those of some KV heads: a rank's of tensor parallelism."""
        return ModelConstants(*(x if x is None else x.of_heads(heads) for x in (self.metrics, self.codebooks, self.key_scales)))
