"""What errors of K cost, by calibration, as the library takes it where pages are sealed (kvant_page_metrics)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvant.torch import PageMetrics

RANK = 8  # directions of a head


@dataclass(frozen=True)
class KeyMetrics:
    """Of all layers, in their order. Float32, all on one device."""

    directions: torch.Tensor  # [n_layers, n_kv_heads, head_dim, RANK]
    turns: torch.Tensor  # [n_layers, head_dim, 2]: of each channel its partner, and how far RoPE turns it a token
    basis: torch.Tensor | None  # [head_dim, head_dim]: by which queries are multiplied as stored keys want it; None: they aren't

    def __post_init__(self):
        """The library reads them where they lie, as float32."""
        for x in (self.directions, self.turns, self.basis):
            if x is not None and x.dtype != torch.float32:
                raise TypeError(f"kvant: metrics of keys are float32, not {x.dtype}")

    @property
    def n_layers(self) -> int:
        return self.directions.shape[0]

    def to(self, device: torch.device) -> KeyMetrics:
        return KeyMetrics(self.directions.to(device), self.turns.to(device), None if self.basis is None else self.basis.to(device))

    def of_heads(self, heads: slice) -> KeyMetrics:
        """Those of some KV heads: a rank's of tensor parallelism."""
        return KeyMetrics(self.directions[:, heads].contiguous(), self.turns, self.basis)

    def in_order(self, orders: Sequence[torch.Tensor]) -> KeyMetrics:
        """Those of the same model with its channels in another order: see channel_orders."""
        turns = torch.stack([torch.cat([_places(order)[x[order, :1].long()].float(), x[order, 1:]], 1)
                             for x, order in zip(self.turns, orders)])
        return KeyMetrics(torch.stack([x[:, order] for x, order in zip(self.directions, orders)]), turns, self.basis)

    def of_layer(self, layer: int, first_pages: torch.Tensor | None = None) -> PageMetrics:
        """first_pages: int32 [n_seqs], which pages of their sequences are sealed; None: those that the call says."""
        return PageMetrics(directions=self.directions[layer], turns=self.turns[layer], basis=self.basis, first_pages=first_pages)

    def of_layers(self, first_pages: torch.Tensor) -> PageMetrics:
        """Of all of them, for one call."""
        return PageMetrics(directions=self.directions, turns=self.turns, basis=self.basis, first_pages=first_pages,
                           direction_layer_stride=self.directions.stride(0), turn_layer_stride=self.turns.stride(0))


def channel_orders(metrics: KeyMetrics, neighbours: bool) -> list[torch.Tensor]:
    """Of each layer, int64 [head_dim]: of each channel the one that it is in the metrics. In the wanted order RoPE turns neighbours
    together, as GGUF files of Llama's kind have it, or a channel with the one that is half of all turned channels behind it, as checkpoints
    have it. ValueError: a layer's channels turn in another way."""
    return [_order(turns[:, 0].round().long(), neighbours) for turns in metrics.turns]


def _order(partners: torch.Tensor, neighbours: bool) -> torch.Tensor:
    """partners: int64 [head_dim], the channel that each turns with, or itself."""
    channels = torch.arange(len(partners))
    n = int((partners != channels).sum())  # that are turned: the first ones
    half = torch.where(channels < n // 2, channels + n // 2, channels - n // 2)
    in_halves, in_pairs = (torch.equal(partners[:n], x[:n]) for x in (half, channels ^ 1))
    if not torch.equal(partners[n:], channels[n:]) or not (in_halves or in_pairs):
        raise ValueError("kvant: the constants are of a model whose RoPE turns channels in an order that kvant doesn't know")
    order = channels.clone()
    if n == 0 or (in_pairs if neighbours else in_halves):
        return order
    pairs = channels[:n].view(2, -1).t().flatten() if in_halves else channels[:n].view(-1, 2).t().flatten()
    order[:n] = pairs
    return order


def _places(order: torch.Tensor) -> torch.Tensor:
    """Where each of the present channels goes."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places


def hadamard_matrix(head_dim: int) -> torch.Tensor:
    """The orthonormal Walsh-Hadamard matrix, F32 [head_dim, head_dim], a power of two, in host memory, whatever PyTorch's defaults:
    vLLM sets them to its model's type and device while it makes layers."""
    h = torch.ones(1, 1, dtype=torch.float32, device="cpu")
    while len(h) < head_dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h * head_dim ** -0.5
