"""Holds the codebooks of vector formats (vq...), which calibration learns. The library reads them wherever pages are
sealed or read (kvant_decode_layer.key_codebooks)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# Each head's codebook begins at a multiple of ALIGNMENT numbers.
ALIGNMENT = 128
# Half precision has no larger number.
LARGEST = 65504.0


@dataclass(frozen=True)
class Codebooks:
    """Holds the codebooks of all layers in order: centroids, F16 [n_layers, n_kv_heads, numbers of a codebook]. Keys
    and values may have codebooks of different sizes. None means that the side's format has no codebook."""

    keys: torch.Tensor | None
    values: torch.Tensor | None

    @property
    def n_layers(self) -> int:
        return next(len(x) for x in (self.keys, self.values) if x is not None)

    def to(self, device: torch.device) -> Codebooks:
        return Codebooks(*(x if x is None else x.to(device) for x in (self.keys, self.values)))

    def of_heads(self, heads: slice) -> Codebooks:
        """Returns the codebooks of the KV heads of one rank of tensor parallelism."""
        return Codebooks(*(x if x is None else x[:, heads].contiguous() for x in (self.keys, self.values)))

    def of_stage(self, layers: slice) -> Codebooks:
        """Returns the codebooks of the layers of one stage of pipeline parallelism."""
        return Codebooks(*(x if x is None else x[layers] for x in (self.keys, self.values)))

    def of_layer(self, layer: int) -> dict[str, Any]:
        """Returns the codebooks of a layer as members of the library's Layer."""
        members: dict[str, Any] = {}
        for side, books in (("key", self.keys), ("value", self.values)):
            if books is not None:
                members |= {f"{side}_codebooks": books[layer], f"{side}_codebook_stride": books.stride(1)}
        return members


def stacked(books: Sequence[Sequence[npt.NDArray[np.float32]]]) -> torch.Tensor:
    """Packs the centroids of each layer and KV head, which must have equal sizes. Raises ValueError if a centroid does
    not fit into half precision."""
    all_books = torch.from_numpy(np.array(books, np.float32))
    if not bool((all_books.abs() <= LARGEST).all()):
        raise ValueError(f"kvant: a codebook has centroids beyond {LARGEST:.0f}, but kernels read them in half precision: the model's keys "
                         "or values are too large for codebooks")
    n = all_books.shape[-1]
    return torch.nn.functional.pad(all_books.half(), (0, -n % ALIGNMENT))
