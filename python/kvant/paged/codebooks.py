"""Codebooks of vector formats (vq...), which calibration has learned, as the library reads them wherever pages are sealed or read
(kvant_decode_layer.key_codebooks)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ALIGNMENT = 128  # numbers that a head's codebook begins at a multiple of
LARGEST = 65504.0  # of half precision


@dataclass(frozen=True)
class Codebooks:
    """Of all layers, in their order: centroids, F16 [n_layers, n_kv_heads, numbers of a codebook], those of keys and of values, which
    need not have as many; None: the side's format has none."""

    keys: torch.Tensor | None
    values: torch.Tensor | None

    @property
    def n_layers(self) -> int:
        return next(len(x) for x in (self.keys, self.values) if x is not None)

    def to(self, device: torch.device) -> Codebooks:
        return Codebooks(*(x if x is None else x.to(device) for x in (self.keys, self.values)))

    def of_heads(self, heads: slice) -> Codebooks:
        """Those of some KV heads: a rank's of tensor parallelism."""
        return Codebooks(*(x if x is None else x[:, heads].contiguous() for x in (self.keys, self.values)))

    def of_layer(self, layer: int) -> dict[str, Any]:
        """Members of the library's Layer."""
        members: dict[str, Any] = {}
        for side, books in (("key", self.keys), ("value", self.values)):
            if books is not None:
                members |= {f"{side}_codebooks": books[layer], f"{side}_codebook_stride": books.stride(1)}
        return members


def stacked(books: Sequence[Sequence[npt.NDArray[np.float32]]]) -> torch.Tensor:
    """Centroids of each layer and KV head, all as many, as Codebooks has them. ValueError: some don't fit into half precision."""
    all_books = torch.from_numpy(np.array(books, np.float32))
    if not bool((all_books.abs() <= LARGEST).all()):
        raise ValueError(f"kvant: a codebook has centroids beyond {LARGEST:.0f}, and kernels read them in half precision: the model's keys "
                         "or values are too large for codebooks")
    n = all_books.shape[-1]
    return torch.nn.functional.pad(all_books.half(), (0, -n % ALIGNMENT))
