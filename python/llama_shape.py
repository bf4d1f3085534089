"""Defines a network of Llama-3.1-8B's shape with random weights in BF16, for benchmarks of caches in whole models. A
cache object supplies the attention."""

import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, KV_HEADS, D, FFN, VOCABULARY = 32, 4096, 32, 8, 128, 14336, 128256
ROPE_BASE = 500000
# A feed-forward layer processes AT_ONCE tokens at a time.
AT_ONCE = 16384


def _as_it_is(function):
    return function


class Network:
    def __init__(self, fused=_as_it_is):
        """`fused` turns a function's operations between matrix products into one kernel, as torch.compile does."""

        def weights(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

        self.layers = [{"qkv": weights((HEADS + 2 * KV_HEADS) * D, HIDDEN), "o": weights(HIDDEN, HEADS * D),
                        "gate_up": weights(2 * FFN, HIDDEN), "down": weights(HIDDEN, FFN)} for _ in range(LAYERS)]
        self.embedding, self.head = weights(VOCABULARY, HIDDEN), weights(VOCABULARY, HIDDEN)
        self.norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self._normed, self._turned, self._gated = fused(_normed), fused(_turned), fused(_gated)

    def forward(self, tokens, cache, rotation, n_layers=LAYERS):
        """Returns the token that follows the last of `tokens`, int64 [n], given what the cache holds of earlier tokens.
        rotation_of() explains `rotation`. A smaller n_layers makes a warm-up shorter. cache.attend(layer, q, k, v)
        takes [n, heads, D] and returns [n, HEADS * D]."""
        cache.begin_step()
        x = F.embedding(tokens, self.embedding)
        for i, layer in enumerate(self.layers[:n_layers]):
            rows = F.linear(self._normed(x, self.norm), layer["qkv"]).view(len(tokens), -1, D)
            turned = self._turned(rows[:, :HEADS + KV_HEADS], *rotation)
            attended = cache.attend(i, turned[:, :HEADS], turned[:, HEADS:], rows[:, HEADS + KV_HEADS:])
            x = torch.addmm(x, attended, layer["o"].t())
            for part in x.split(AT_ONCE):
                gated = self._gated(F.linear(self._normed(part, self.norm), layer["gate_up"]))
                part.addmm_(gated, layer["down"].t())
        return F.linear(self._normed(x[-1:], self.norm), self.head).argmax(-1)


def rotation_of(positions):
    """Returns RoPE's factors for vectors at positions [n], and for the vectors with exchanged halves: BF16 [n, 1, D].
    """
    frequency = ROPE_BASE ** -(torch.arange(0, D, 2, device="cuda") / D)
    angle = positions[:, None, None] * frequency
    return torch.cat((angle.cos(),) * 2, -1).bfloat16(), torch.cat((-angle.sin(), angle.sin()), -1).bfloat16()


def _normed(x, factors):
    return F.rms_norm(x, (HIDDEN,), factors)


def _turned(rows, cos, sin):
    return torch.addcmul(rows * cos, rows.roll(D // 2, -1), sin)


def _gated(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up
