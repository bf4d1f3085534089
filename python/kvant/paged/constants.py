"""What calibration has found out about a checkpoint, from a file of `kvant.hf.calibrate`, as the cache takes it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from kvant.paged.key_metrics import RANK, KeyMetrics, hadamard_matrix
from kvant.paged.recipes import Recipe

PAGE_METRIC = "page-metric"  # [head_dim][RANK] directions, then [head_dim][2] turns: src/format/page_metric.h


@dataclass(frozen=True)
class ModelShape:
    """Of a model whose layers are alike and see all tokens."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    softmax_scale: float
    trained_context: int  # tokens
    n_vocab: int

    def geometry(self):
        """The engine's."""
        from kvant import _engine

        return _engine.Geometry(self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim, self.softmax_scale,
                                self.trained_context)


def shaped(recipe: Recipe) -> Recipe:
    """A recipe as it is with constants. ValueError: it takes none."""
    if not recipe.takes_constants:
        raise ValueError(f"kvant: the recipe {recipe.name} ({recipe.text}) takes no constants: those there are are of recipes "
                         "whose keys are in a trellis format (tcq...), such as kvant-4bit")
    return replace(recipe, is_shaped=True)


@dataclass(frozen=True)
class Constants:
    """Of one recipe. `recipe` is it with them."""

    recipe: Recipe
    fingerprint: str  # of the checkpoint
    model: str  # for messages
    metrics: KeyMetrics


def read_constants(path: str | os.PathLike[str], recipe: Recipe, shape: ModelShape) -> Constants:
    """kvant.Error: a file that is no calibration, is damaged, or has no constants for the recipe and as many layers and heads."""
    from kvant import _engine

    recipe = shaped(recipe)
    file = _engine.Calibration.read(os.fspath(path))
    d = shape.head_dim
    directions = np.zeros((shape.n_layers, shape.n_kv_heads, d, RANK), np.float32)
    turns = np.zeros((shape.n_layers, d, 2), np.float32)
    for layer, kv_head, _, name, values in file.constants(recipe.text, shape.geometry()):
        assert name == PAGE_METRIC, name
        directions[layer, kv_head] = values[:d * RANK].reshape(d, RANK)
        turns[layer] = values[d * RANK:].reshape(d, 2)
    basis = hadamard_matrix(d) if recipe.key_hadamard else None
    return Constants(recipe, file.fingerprint, file.model, KeyMetrics(torch.from_numpy(directions), torch.from_numpy(turns), basis))


def heads_of_rank(n_kv_heads: int, rank: int, n_ranks: int) -> slice:
    """KV heads that a rank of tensor parallelism has, as vLLM deals them out: where there are fewer than ranks, several have the
    same."""
    first = rank * n_kv_heads // n_ranks
    return slice(first, first + max(1, n_kv_heads // n_ranks))
