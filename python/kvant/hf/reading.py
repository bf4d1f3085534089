"""Shows calibration the queries, keys and values of a model of transformers. The model runs with the attention `kvant`
and with a cache that keeps nothing."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvant import PAGE

# Calibration leaves out the errors of the first tokens of a text (kSinkTokens in src/calibrate).
SINK_TOKENS = 4

# A Visitor takes a layer, queries [n_heads, n, head_dim], keys and values [n_kv_heads, n, head_dim], and the factor of
# the scores.
Visitor = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], None]
# The backward pass calls a QueryVisitor, which takes a layer, the layer's queries, and F32 [n_heads, n], how much each
# query counts.
QueryVisitor = Callable[[int, torch.Tensor, torch.Tensor], None]
# The backward pass calls a GradientVisitor, which takes a layer, queries, keys and values. The last argument is the
# derivative of the loss by the attention's output, [n_heads, n, head_dim].
GradientVisitor = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


class ReadingCache(Cache):
    """Takes part in one forward pass of one text, which attends to itself in float32. The cache shows each layer to
    `visit`, and in a backward pass to `visit_back` and `visit_gradient`."""

    def __init__(self, n_layers: int, visit: Visitor | None = None, visit_back: QueryVisitor | None = None,
                 visit_gradient: GradientVisitor | None = None):
        super().__init__(layers=[_ReadingLayer(layer, visit, visit_back, visit_gradient) for layer in range(n_layers)])


class _ReadingLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, number: int, visit: Visitor | None, visit_back: QueryVisitor | None, visit_gradient: GradientVisitor | None):
        super().__init__()
        self._number, self._visit, self._visit_back, self._visit_gradient = number, visit, visit_back, visit_gradient
        self._n_tokens = 0
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        self._n_tokens += key_states.shape[-2]
        # transformers calls the attention function next, which finds the cache through `kvant_layer`.
        key_states.kvant_layer = self
        return key_states, value_states

    def attend(self, q, keys, values, mask, softmax_scale) -> torch.Tensor:
        """Attends like KvantCache.attend, but without a cache."""
        if self._visit is not None:
            self._visit(self._number, q[0].detach(), keys[0].detach(), values[0].detach(), softmax_scale)
        visitors = [None if visit is None else functools.partial(visit, self._number) for visit in (self._visit_back, self._visit_gradient)]
        return _Attention.apply(q[0], keys[0], values[0], softmax_scale, *visitors).transpose(0, 1)[None]

    def lazy_initialization(self, key_states, value_states) -> None:
        pass

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._n_tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self._n_tokens

    def get_max_length(self) -> int:
        return -1


class _Attention(torch.autograd.Function):
    """Computes causal attention of q [n_heads, n, d] to keys and values [n_kv_heads, n, d], one page of queries at a
    time. The backward pass computes the weights again, which saves memory."""

    @staticmethod
    def forward(ctx, q, keys, values, scale, visit_back, visit_gradient=None):
        ctx.save_for_backward(q, keys, values)
        ctx.scale, ctx.visit_back, ctx.visit_gradient = scale, visit_back, visit_gradient
        wide, out = _grouped(q, keys), torch.empty_like(q)
        k, v = keys.float(), values.float()
        for rows in _pages(q.shape[1]):
            weights = _weights(wide[:, :, rows], k, rows, scale)
            out[:, rows] = (weights @ v[:, None, :rows.stop]).flatten(0, 1).to(q.dtype)
        return out

    @staticmethod
    def backward(ctx, gradient):
        """Computes gradients. With P the weights, S = Q K^T and O = P V: dV = P^T dO, dS = scale P (dO V^T - its mean
        under P), dQ = dS K, dK = dS^T Q.

        The weight of a query is the norm of the query's row of dS over tokens in quantized pages, without tokens of the
        sink."""
        q, keys, values = ctx.saved_tensors
        if ctx.visit_gradient is not None:
            ctx.visit_gradient(q, keys, values, gradient)
        wide, wide_gradient = _grouped(q, keys), _grouped(gradient, keys)
        k, v = keys.float(), values.float()
        dq, dk, dv = torch.empty_like(wide), torch.zeros_like(k), torch.zeros_like(v)
        lengths = torch.zeros(wide.shape[:3], device=q.device)
        for rows in _pages(q.shape[1]):
            weights, seen, d_out = _weights(wide[:, :, rows], k, rows, ctx.scale), slice(rows.stop), wide_gradient[:, :, rows]
            dv[:, seen] += (weights.transpose(2, 3) @ d_out).sum(1)
            by_weights = d_out @ v[:, None, seen].transpose(2, 3)
            by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdim=True)) * ctx.scale
            lengths[:, :, rows] = by_scores[..., SINK_TOKENS:max(rows.start, SINK_TOKENS)].norm(dim=-1)
            dq[:, :, rows] = by_scores @ k[:, None, seen]
            dk[:, seen] += (by_scores.transpose(2, 3) @ wide[:, :, rows]).sum(1)
        if ctx.visit_back is not None:
            ctx.visit_back(q, lengths.flatten(0, 1))
        return dq.flatten(0, 1).to(q.dtype), dk.to(keys.dtype), dv.to(values.dtype), None, None, None


def _grouped(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Groups queries by their KV head: F32 [n_kv_heads, queries per KV head, n, d]."""
    return q.float().unflatten(0, (len(keys), -1))


def _pages(n: int) -> list[slice]:
    return [slice(first, min(first + PAGE, n)) for first in range(0, n, PAGE)]


def _weights(q: torch.Tensor, k: torch.Tensor, rows: slice, scale: float) -> torch.Tensor:
    """Returns the weights of the queries `rows`: F32 [n_kv_heads, group, rows, all tokens up to the last row's]."""
    scores = q @ k[:, None, :rows.stop].transpose(2, 3) * scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(rows.start + 1)
    return scores.masked_fill_(later, float("-inf")).softmax(-1)


@contextlib.contextmanager
def reading(model: torch.nn.Module) -> Iterator[None]:
    """Makes a model readable inside the context: it uses the attention `kvant`, no dropout, and no gradients of its
    weights."""
    config = model.config.get_text_config(decoder=True)
    before, was_training = config._attn_implementation, model.training
    had_gradients = [x for x in model.parameters() if x.requires_grad]
    model.set_attn_implementation("kvant")
    model.eval()
    for weights in had_gradients:
        weights.requires_grad_(False)
    try:
        yield
    finally:
        for weights in had_gradients:
            weights.requires_grad_(True)
        model.train(was_training)
        model.set_attn_implementation(before)


@torch.no_grad()
def read(model: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, n_layers: int, visit: Visitor) -> None:
    """Runs a text's tokens [n] at positions [n]."""
    device = model.get_input_embeddings().weight.device
    model(tokens.to(device)[None], position_ids=positions.to(device)[None], **_as_cache(model, ReadingCache(n_layers, visit)),
          use_cache=True, logits_to_keep=1)


def _as_cache(model: torch.nn.Module, cache: Cache) -> dict[str, Cache]:
    """Returns the name of the cache argument of a forward pass. transformers 5.24 renamed it; 5.40 will drop the old
    name."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return {name: cache}


def drawn_scores(logits: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Draws a random vector u for each prediction [n, n_vocab]. For probabilities p, u has mean 0 and E u u^T = diag(p)
    - p p^T. The squared product of u with a small change of the logits is, on average, the cost of the change
    (src/calibrate/score_gradient.h)."""
    signs = torch.empty(logits.shape, dtype=torch.int8).random_(0, 2, generator=rng).to(logits.device) * 2 - 1
    masses = logits.softmax(-1)
    roots = masses.sqrt() * signs
    return roots - masses * roots.sum(-1, keepdim=True)


def read_back(model: torch.nn.Module, tokens: torch.Tensor, first_scored: int, rng: torch.Generator, n_layers: int,
              visit: QueryVisitor, visit_gradient: GradientVisitor | None = None) -> None:
    """Runs a text's tokens [n], and computes derivatives of the drawn scores of the predictions from token first_scored
    on."""
    embeddings = model.get_input_embeddings()
    device = embeddings.weight.device
    hook = embeddings.register_forward_hook(lambda module, inputs, output: output.requires_grad_())
    try:
        with torch.enable_grad():
            logits = model(tokens.to(device)[None], **_as_cache(model, ReadingCache(n_layers, visit_back=visit, visit_gradient=visit_gradient)),
                           use_cache=True, logits_to_keep=len(tokens) - first_scored).logits[0].float()
            logits.backward(drawn_scores(logits.detach(), rng))
    finally:
        hook.remove()
