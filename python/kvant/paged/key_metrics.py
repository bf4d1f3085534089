"""Holds the calibrated costs of K's errors, which the library uses when it seals pages (kvant_page_metrics)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvant.torch import PageMetrics

RANK = 8  # directions per head


@dataclass(frozen=True)
class KeyMetrics:
    """Holds the metrics of all layers in order. All tensors are float32 and on one device."""

    directions: torch.Tensor  # [n_layers, n_kv_heads, head_dim, RANK]
    # [n_layers, head_dim, 2] holds each channel's partner, and the angle by which RoPE rotates the channel per token.
    turns: torch.Tensor
    # The [head_dim, head_dim] matrix makes queries match stored keys; None means that there is none.
    basis: torch.Tensor | None

    def __post_init__(self):
        """Checks the types, because the library reads the tensors in place as float32."""
        for x in (self.directions, self.turns, self.basis):
            if x is not None and x.dtype != torch.float32:
                raise TypeError(f"kvant: metrics of keys are float32, not {x.dtype}")

    @property
    def n_layers(self) -> int:
        return self.directions.shape[0]

    def to(self, device: torch.device) -> KeyMetrics:
        return KeyMetrics(self.directions.to(device), self.turns.to(device), None if self.basis is None else self.basis.to(device))

    def of_heads(self, heads: slice) -> KeyMetrics:
        """Returns the metrics of the KV heads of one rank of tensor parallelism."""
        return KeyMetrics(self.directions[:, heads].contiguous(), self.turns, self.basis)

    def of_stage(self, layers: slice) -> KeyMetrics:
        """Returns the metrics of the layers of one stage of pipeline parallelism."""
        return KeyMetrics(self.directions[layers], self.turns[layers], self.basis)

    def in_order(self, orders: Sequence[torch.Tensor]) -> KeyMetrics:
        """Returns the metrics for the model with its channels in a different order, as channel_orders() returns it."""
        turns = torch.stack([torch.cat([_places(order)[x[order, :1].long()].float(), x[order, 1:]], 1)
                             for x, order in zip(self.turns, orders)])
        return KeyMetrics(torch.stack([x[:, order] for x, order in zip(self.directions, orders)]), turns, self.basis)

    def of_layer(self, layer: int, first_pages: torch.Tensor | None = None) -> PageMetrics:
        """Returns a layer's metrics. first_pages: int32 [n_seqs], the number of the page to seal in each sequence; None
        uses the numbers of the call."""
        return PageMetrics(directions=self.directions[layer], turns=self.turns[layer], basis=self.basis, first_pages=first_pages)

    def of_layers(self, first_pages: torch.Tensor) -> PageMetrics:
        """Returns the metrics of all layers, for one call."""
        return PageMetrics(directions=self.directions, turns=self.turns, basis=self.basis, first_pages=first_pages,
                           direction_layer_stride=self.directions.stride(0), turn_layer_stride=self.turns.stride(0))


def channel_orders(metrics: KeyMetrics, neighbours: bool) -> list[torch.Tensor]:
    """Returns for each layer int64 [head_dim], the channel of the metrics at each wanted place. In the wanted order,
    RoPE rotates neighbouring channels together, as in GGUF files of Llama's kind. Otherwise it rotates channel i with
    channel i + half of the rotated channels, as in checkpoints. Raises ValueError if the channels of a layer rotate in
    another way."""
    return [_order(turns[:, 0].round().long(), neighbours) for turns in metrics.turns]


def _order(partners: torch.Tensor, neighbours: bool) -> torch.Tensor:
    """partners: int64 [head_dim], the channel with which each channel rotates, or the channel itself."""
    channels = torch.arange(len(partners))
    # The first n channels are rotated.
    n = int((partners != channels).sum())
    half = torch.where(channels < n // 2, channels + n // 2, channels - n // 2)
    in_halves, in_pairs = (torch.equal(partners[:n], x[:n]) for x in (half, channels ^ 1))
    if not torch.equal(partners[n:], channels[n:]) or not (in_halves or in_pairs):
        raise ValueError("kvant: the constants are of a model whose RoPE rotates channels in an order that kvant does not support")
    order = channels.clone()
    if n == 0 or (in_pairs if neighbours else in_halves):
        return order
    pairs = channels[:n].view(2, -1).t().flatten() if in_halves else channels[:n].view(-1, 2).t().flatten()
    order[:n] = pairs
    return order


def _places(order: torch.Tensor) -> torch.Tensor:
    """Returns the new place of each channel."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places


def hadamard_matrix(head_dim: int) -> torch.Tensor:
    """Returns the orthonormal Walsh-Hadamard matrix, F32 [head_dim, head_dim], in host memory. head_dim must be a power
    of two. The type and the device are explicit, because vLLM changes PyTorch's defaults while it makes layers."""
    h = torch.ones(1, 1, dtype=torch.float32, device="cpu")
    while len(h) < head_dim:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h * head_dim ** -0.5
