"""Finds out how a model of transformers rotates its queries and keys (RoPE), as far as calibration needs to know."""

from __future__ import annotations

import torch

# Each entry holds two channels that rotate together, and the share of a whole turn that each token adds.
Turns = list[tuple[int, int, float]]

PROBED_SHIFT = 3  # tokens
# A rotation fits a layer if the queries' relative error is at most MOST_RESIDUAL. BF16's rounding through all layers
# causes about 0.01.
MOST_RESIDUAL = 0.1


def candidates(model: torch.nn.Module, head_dim: int) -> list[Turns]:
    """Returns the rotations that layers may have. There may be none, or within the rotated part of a head, channel i
    rotates with channel i + half, or neighbouring channels rotate together."""
    frequencies = {tuple(x.double().cpu().tolist()) for name, x in model.named_buffers()
                   if name.split(".")[-1].endswith("inv_freq") and 2 * len(x) <= head_dim}
    found: list[Turns] = [[]]
    for radians in frequencies:
        n, shares = len(radians), [x / (2 * torch.pi) for x in radians]
        found.append([(i, i + n, share) for i, share in enumerate(shares)])
        found.append([(2 * i, 2 * i + 1, share) for i, share in enumerate(shares)])
    return found


def turn(rows: torch.Tensor, turns: Turns, n_tokens: torch.Tensor) -> torch.Tensor:
    """Rotates rows [..., n, head_dim] as RoPE does when their positions grow by n_tokens [n]; negative numbers rotate
    back."""
    if not turns:
        return rows
    first, second, shares = zip(*turns)
    share = torch.tensor(shares, dtype=torch.float64, device=rows.device)
    angle = (n_tokens.to(rows.device).double()[:, None] * share).frac() * (2 * torch.pi)
    cosine, sine = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
    a, b = rows[..., list(first)], rows[..., list(second)]
    turned = rows.clone()
    turned[..., list(first)], turned[..., list(second)] = a * cosine - b * sine, b * cosine + a * sine
    return turned


def turns_of_layers(found: list[Turns], queries: list[torch.Tensor], shifted: list[torch.Tensor]) -> list[Turns]:
    """Returns which of the rotations in `found` each layer has. The queries, F32 [n_heads, n, head_dim], belong to
    equal tokens at positions that differ by PROBED_SHIFT. Attention depends on distances alone, so only RoPE makes the
    queries differ. Raises NotImplementedError if no rotation fits a layer."""
    layers = []
    for layer, (q, q_shifted) in enumerate(zip(queries, shifted)):
        steps = torch.full((q.shape[-2],), PROBED_SHIFT)
        norm = q_shifted.norm()
        # YaRN also changes the magnitudes, but equally at both positions.
        residuals = [((turn(q, turns, steps) - q_shifted).norm() / norm).item() for turns in found]
        best = min(range(len(found)), key=residuals.__getitem__)
        if not residuals[best] <= MOST_RESIDUAL:
            raise NotImplementedError(f"kvant.hf.calibrate does not support the kind of RoPE that layer {layer} uses")
        layers.append(found[best])
    return layers
