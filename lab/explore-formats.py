#!/usr/bin/env python3
"""Tries out formats before they are written in C++, with a simulation of kvant's semantics in PyTorch.

    python3 lab/explore-formats.py --model MODEL.npz --text TOKENS.i32 --learn TOKENS.i32 [--context 8192]

MODEL.npz holds the tensors of a Llama-like GGUF file, dequantized to F32 under their GGUF names. Two more arrays are
`shape`, [layers, heads, KV heads, head size], and `rope`, [frequency base]. TOKENS.i32 holds token ids as int32.
Contexts of thousands of tokens need a GPU.

Query t sees page j (128 tokens) quantized if and only if t >= 128 (j + 1); the first 4 tokens stay unquantized. Each
candidate format is applied to K alone and then to V alone, in all layers. The script prints the mean KL divergence from
the unquantized predictions over the second half of the context. The bits include all side information.
"""

import argparse
import math

import numpy as np
import torch

PAGE, SINK = 128, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_grad_enabled(False)
torch.backends.cuda.matmul.allow_tf32 = False


# ---- the model ----
class Model:
    def __init__(self, path):
        arrays = np.load(path)
        self.w = {name: torch.from_numpy(arrays[name]).to(DEVICE) for name in arrays.files}
        self.n_layers, self.n_heads, self.n_kv_heads, self.d = (int(x) for x in arrays["shape"])
        self.base = float(arrays["rope"][0])

    def rope(self, x):  # [heads, tokens, d], with neighbouring channels in pairs
        steps = torch.arange(0, self.d, 2, device=DEVICE, dtype=torch.float64) / self.d
        angles = torch.arange(x.shape[1], device=DEVICE, dtype=torch.float64)[:, None] * self.base**-steps
        c, s = angles.cos().float(), angles.sin().float()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w[name]

    def heads(self, x, name, n):
        return (x @ self.w[name].T).view(x.shape[0], n, self.d).transpose(0, 1)

    def attention(self, q, k, v, stored_k, stored_v):
        token = torch.arange(q.shape[1], device=DEVICE)
        causal = token[None] <= token[:, None]
        sealed = (token[None] // PAGE < token[:, None] // PAGE) & (token[None] >= SINK)
        out = torch.empty_like(q)
        for head in range(self.n_heads):
            g = head // (self.n_heads // self.n_kv_heads)
            scaled = q[head] / math.sqrt(self.d)
            scores = torch.where(sealed, scaled @ stored_k[g].T, scaled @ k[g].T)
            p = torch.softmax(scores.masked_fill(~causal, -math.inf), -1)
            far = p * sealed
            out[head] = far @ stored_v[g] + (p - far) @ v[g]
        return out

    def log_probabilities(self, tokens, store=lambda layer, k, v: (k, v)):
        """Returns the predictions for the tokens of the second half. `store` returns K and V as the cache would return
        them."""
        x = self.w["token_embd.weight"][tokens]
        for layer in range(self.n_layers):
            p = f"blk.{layer}."
            h = self.norm(x, p + "attn_norm.weight")
            q = self.rope(self.heads(h, p + "attn_q.weight", self.n_heads))
            k = self.rope(self.heads(h, p + "attn_k.weight", self.n_kv_heads))
            v = self.heads(h, p + "attn_v.weight", self.n_kv_heads).contiguous()
            o = self.attention(q, k, v, *store(layer, k, v))
            x = x + o.transpose(0, 1).reshape(x.shape[0], -1) @ self.w[p + "attn_output.weight"].T
            h = self.norm(x, p + "ffn_norm.weight")
            gate = torch.nn.functional.silu(h @ self.w[p + "ffn_gate.weight"].T)
            x = x + (gate * (h @ self.w[p + "ffn_up.weight"].T)) @ self.w[p + "ffn_down.weight"].T
        x = self.norm(x, "output_norm.weight")[len(tokens) // 2 : -1]
        return torch.log_softmax(x @ self.w.get("output.weight", self.w["token_embd.weight"]).T, -1)


# ---- formats, which take pages [heads, pages, PAGE, d] ----
def hadamard(d):
    h = torch.ones(1, 1, device=DEVICE)
    while len(h) < d:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(d)


def uniform_by_channel(x, bits):
    low, high = x.amin(2, keepdim=True).half().float(), x.amax(2, keepdim=True).half().float()
    step = ((high - low) / (2**bits - 1)).clamp_min(1e-9)
    return ((x - low) / step).round().clamp(0, 2**bits - 1) * step + low


def normal_levels(bits):
    """Returns the Lloyd-Max levels of the normal distribution."""
    x = torch.linspace(-6, 6, 200001, dtype=torch.float64)
    p = torch.exp(-x * x / 2)
    levels = torch.linspace(-2.5, 2.5, 2**bits, dtype=torch.float64)
    for _ in range(1500):
        i = torch.bucketize(x, (levels[1:] + levels[:-1]) / 2)
        levels = torch.zeros_like(levels).index_add_(0, i, x * p) / torch.zeros_like(levels).index_add_(0, i, p)
    return levels.float().to(DEVICE)


def nearest_level(x, levels):
    return levels[torch.bucketize(x.contiguous(), (levels[1:] + levels[:-1]) / 2)]


def nearest_centroid(x, centroids):
    flat = x.reshape(-1, centroids.shape[1])
    parts = [(centroids.pow(2).sum(1) - 2 * part @ centroids.T).argmin(1) for part in flat.split(1 << 18)]
    return centroids[torch.cat(parts)].reshape(x.shape)


def k_means(points, n, iterations=20):
    centroids = points[torch.randperm(len(points), device=DEVICE)[:n]].clone()
    for _ in range(iterations):
        i = (centroids.pow(2).sum(1) - 2 * points @ centroids.T).argmin(1)
        count = torch.bincount(i, minlength=n).float()[:, None]
        total = torch.zeros_like(centroids).index_add_(0, i, points)
        centroids = torch.where(count > 0, total / count.clamp_min(1), centroids)
    return centroids


def gains_in_octaves(gain):
    loudest = gain.amax(2, keepdim=True)
    return loudest * torch.exp2(-((torch.log2(loudest / gain.clamp_min(1e-20)) * 32).round().clamp(max=255)) / 32)


def around_means(x, code, with_mean=True, with_gain=True):
    """Encodes a mean for each channel and page and a gain for each token. `code` encodes the remainder, which has unit
    variance."""
    mean = x.mean(2, keepdim=True).half().float() if with_mean else torch.zeros_like(x[:, :, :1])
    rest = x - mean
    gain = rest.pow(2).mean((3,) if with_gain else (2, 3), keepdim=True).sqrt().clamp_min(1e-12)
    return gains_in_octaves(gain.expand(-1, -1, PAGE, -1)) * code(rest / gain) + mean


def candidates(d, learned):
    """Yields the name and bits of a format, and its function of (pages, layer). `learned` holds rotated rows [heads,
    tokens, d] for each layer."""
    levels = {bits: normal_levels(bits) for bits in (2, 3, 4)}
    side = {"mean+gain": 16 / PAGE + 8 / d, "gain": 8 / d, "mean": 16 / PAGE}
    for bits in (2, 3, 4):
        yield f"channel extremes, {bits} bits", bits + 32 / PAGE, lambda x, _, b=bits: uniform_by_channel(x, b)
        for what, extra in side.items():
            yield (f"{what}, Lloyd-Max {bits}", bits + extra,
                   lambda x, _, b=bits, w=what: around_means(
                       x, lambda z: nearest_level(z, levels[b]), "mean" in w, "gain" in w))
    centroids = {}

    def vector_quantized(x, layer):
        if layer not in centroids:
            rows = learned[layer]
            pages = rows[:, : rows.shape[1] // PAGE * PAGE].reshape(len(rows), -1, PAGE, d)
            rest = pages - pages.mean(2, keepdim=True)
            rest = rest / rest.pow(2).mean(3, keepdim=True).sqrt()
            centroids[layer] = [k_means(head.reshape(-1, 4)[:262144], 256) for head in rest]
        return around_means(
            x, lambda z: torch.stack([nearest_centroid(h, c) for h, c in zip(z, centroids[layer])]))

    yield "mean+gain, 256 centroids of 4", 2 + side["mean+gain"], vector_quantized


def stored(x, layer, code, rotation):
    pages = (x @ rotation).view(len(x), -1, PAGE, x.shape[-1]).clone()
    pages[:, 0, :SINK] = pages[:, 0, SINK : 2 * SINK]
    back = code(pages, layer).reshape(x.shape) @ rotation.T
    back[:, :SINK] = x[:, :SINK]
    return back


def read_tokens(path, n):
    tokens = np.fromfile(path, dtype=np.int32)[: n // PAGE * PAGE]
    return torch.from_numpy(tokens.astype(np.int64)).to(DEVICE)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--model", "--text", "--learn"):
        parser.add_argument(name, required=True)
    parser.add_argument("--context", type=int, default=8192)
    options = parser.parse_args()
    model = Model(options.model)
    text, learn = read_tokens(options.text, options.context), read_tokens(options.learn, options.context)
    rotation = hadamard(model.d)
    rows = {"K": [], "V": []}

    def keep(_, k, v):
        rows["K"].append(k @ rotation)
        rows["V"].append(v @ rotation)
        return k, v

    model.log_probabilities(learn, keep)
    exact = model.log_probabilities(text)
    for side in ("K", "V"):
        for name, bits, code in candidates(model.d, rows[side]):
            def store(layer, k, v):
                if side == "K":
                    return stored(k, layer, code, rotation), v
                return k, stored(v, layer, code, rotation)

            got = model.log_probabilities(text, store)
            divergence = (exact.exp() * (exact - got)).sum(-1).mean().item()
            print(f"{side} {name:34s} {bits:6.3f} bits  KLD {divergence:.5f}", flush=True)


if __name__ == "__main__":
    main()
