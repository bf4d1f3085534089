"""Holds everything that calibration tells the cache about a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvant.paged.codebooks import Codebooks
from kvant.paged.key_metrics import KeyMetrics
from kvant.paged.key_scales import KeyScales


@dataclass(frozen=True)
class ModelConstants:
    """Holds the constants of all layers. A member is None if the recipe does not use it."""

    # Trellis formats need the costs of errors of keys.
    metrics: KeyMetrics | None = None
    # Vector formats need codebooks.
    codebooks: Codebooks | None = None
    # Smoothed keys need scales.
    key_scales: KeyScales | None = None

    @property
    def n_layers(self) -> int:
        return next(x.n_layers for x in (self.metrics, self.codebooks, self.key_scales) if x is not None)

    def to(self, device: torch.device) -> ModelConstants:
        return ModelConstants(*(x if x is None else x.to(device) for x in (self.metrics, self.codebooks, self.key_scales)))

    def of_heads(self, heads: slice) -> ModelConstants:
        """Returns the constants of the KV heads of one rank of tensor parallelism."""
        return ModelConstants(*(x if x is None else x.of_heads(heads) for x in (self.metrics, self.codebooks, self.key_scales)))

    def of_stage(self, layers: slice) -> ModelConstants:
        """Returns the constants of the layers of one stage of pipeline parallelism."""
        return ModelConstants(*(x if x is None else x.of_stage(layers) for x in (self.metrics, self.codebooks, self.key_scales)))
