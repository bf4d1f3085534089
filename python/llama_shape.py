"""A network of Llama-3.1-8B's shape with random weights in BF16, whose attention is what a cache makes of queries, keys and
values, for benchmarks of caches in whole models."""

import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, KV_HEADS, D, FFN, VOCABULARY = 32, 4096, 32, 8, 128, 14336, 128256
ROPE_BASE = 500000
AT_ONCE = 16384  # tokens in a feed-forward layer


def _as_it_is(function):
    return function


class Network:
    def __init__(self, fused=_as_it_is):
        """fused: makes one kernel of what a function does between products, as torch.compile does."""

        def weights(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

        self.layers = [{"qkv": weights((HEADS + 2 * KV_HEADS) * D, HIDDEN), "o": weights(HIDDEN, HEADS * D),
                        "gate_up": weights(2 * FFN, HIDDEN), "down": weights(HIDDEN, FFN)} for _ in range(LAYERS)]
        self.embedding, self.head = weights(VOCABULARY, HIDDEN), weights(VOCABULARY, HIDDEN)
        self.norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        self._normed, self._turned, self._gated = fused(_normed), fused(_turned), fused(_gated)

    def forward(self, tokens, cache, rotation, n_layers=LAYERS):
        """The token behind the last of `tokens`, int64 [n], by what the cache has of those before; rotation: see rotation_of;
        n_layers: fewer than there are, for a start. cache.attend(layer, q, k, v) of [n, heads, D] gives [n, HEADS * D]."""
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
    """RoPE's factors of vectors at positions [n], and of their halves exchanged: BF16 [n, 1, D]."""
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
