"""Reads what calibration has learned about a model from a file of `kvant.hf.calibrate` or `kvant calibrate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvant.c_api import KEY, VALUE
from kvant.paged.codebooks import Codebooks, stacked
from kvant.paged.key_metrics import RANK, KeyMetrics, channel_orders, hadamard_matrix
from kvant.paged.key_scales import KeyScales, smoothing
from kvant.paged.model_constants import ModelConstants
from kvant.paged.recipes import Recipe, allocated, calibrated, has_codebook

# The constants below name the arrays of a calibration file. The comment of each constant describes the array.
# The array holds [head_dim][RANK] directions, then [head_dim][2] turns (src/format/page_metric.h).
PAGE_METRIC = "page-metric"
# The format's name follows; the array holds the centroids one after another (src/format/vq.cc).
CODEBOOK = "codebook/"
# The array is [head_dim] (src/transform/smooth.cc).
SMOOTH = "smooth"
# The array is [head_dim] and exists if the engine balances the norms of queries and keys
# (src/model/query_key_balance.h).
KEY_FACTORS = "key-factors"
# In models of the types TURNS_NEIGHBOURS, RoPE rotates neighbouring channels together. For other types it rotates
# channel i with channel i + half.
TURNS_NEIGHBOURS = ("cohere", "cohere2", "ernie4_5", "glm", "glm4", "helium")


@dataclass(frozen=True)
class ModelShape:
    """Describes a model whose layers all have one shape and full attention."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    softmax_scale: float
    trained_context: int  # tokens
    n_vocab: int
    # The flag is true if RoPE rotates channels 2 i and 2 i + 1. Otherwise it rotates i and i + half of the rotated
    # channels.
    turns_neighbours: bool = False

    def geometry(self):
        """Returns the shape as the engine describes it."""
        from kvant.engine import _engine

        return _engine.Geometry(self.n_layers, self.n_heads, self.n_kv_heads, self.head_dim, self.softmax_scale,
                                self.trained_context)


@dataclass(frozen=True)
class Constants:
    """Holds the constants of one recipe. `recipe` is the recipe with everything that the constants decide."""

    recipe: Recipe
    # Identifies the checkpoint (kvant.paged.checkpoint).
    fingerprint: str
    # Names the model in messages.
    model: str
    of_model: ModelConstants
    # The flag is true if `kvant calibrate` made the constants for a GGUF file, whose fingerprint has a different form.
    is_of_gguf: bool = False


def read_constants(path: str | os.PathLike[str], recipe: Recipe, shape: ModelShape, serves_by_head: bool = False,
                   n_ranks: int = 1) -> Constants:
    """Reads the constants of a recipe from a file. serves_by_head says whether the cache supports formats by layer and
    head. If so, and if the file has sensitivities, a recipe such as kvant-4bit gets such formats. The heads of each of
    n_ranks ranks of tensor parallelism then have the whole budget for themselves, so all ranks need about equal memory.

    Raises kvant.Error or ValueError if the file is no calibration, is damaged, or lacks constants for this recipe,
    number of layers or number of heads."""
    # Frameworks build models with a GPU as the default device, and constants are read on the CPU.
    with torch.device("cpu"):
        return _read(path, recipe, shape, serves_by_head, n_ranks)


def _read(path: str | os.PathLike[str], recipe: Recipe, shape: ModelShape, serves_by_head: bool, n_ranks: int) -> Constants:
    from kvant.engine import _engine

    recipe, geometry = calibrated(recipe), shape.geometry()
    file = _engine.Calibration.read(os.fspath(path))
    if file.numbers != (shape.n_layers, shape.n_kv_heads):
        raise ValueError("kvant: the constants '{}' are of {} layers with {} KV heads ({}), and this model has {} with {}".format(
            path, *file.numbers, file.model, shape.n_layers, shape.n_kv_heads))
    text = recipe.text
    if serves_by_head and recipe.may_be_allocated and file.has_sensitivities(recipe.asked_name, geometry):
        text = recipe.asked_name
        recipe = allocated(recipe, _planned_heads(file, text, shape, n_ranks))
    arrays = {(name, side, layer, kv_head): values
              for layer, kv_head, side, name, values in file.constants(text, geometry)}
    is_of_gguf = "-" not in file.fingerprint

    def of_heads(name: str, side: int = KEY) -> list[list[np.ndarray]]:
        """Returns the arrays of each layer and KV head."""
        return [[arrays[name, side, layer, head] for head in range(shape.n_kv_heads)] for layer in range(shape.n_layers)]

    def books(format: str, side: int) -> torch.Tensor | None:
        return stacked(of_heads(CODEBOOK + format, side)) if has_codebook(format) else None

    codebooks = Codebooks(books(recipe.key_format, KEY), books(recipe.value_format, VALUE))
    if is_of_gguf and (codebooks.keys is not None or codebooks.values is not None or recipe.key_smooth):
        raise ValueError(f"kvant: the constants '{path}' are of a GGUF file ({file.model}), but codebooks and scales of keys for a "
                         "checkpoint must be made by kvant.hf.calibrate")
    metrics = _metrics(of_heads(PAGE_METRIC), recipe, shape.head_dim) if recipe.is_shaped else None
    scales = smoothing(of_heads(SMOOTH)) if recipe.key_smooth else None
    if is_of_gguf and metrics is not None:
        orders = channel_orders(metrics, shape.turns_neighbours)
        metrics = metrics.in_order(orders)
        arrays |= {(KEY_FACTORS, side, layer, kv_head): values for layer, kv_head, side, values in file.stored(KEY_FACTORS)}
        if (KEY_FACTORS, KEY, 0, 0) in arrays:
            factors = torch.from_numpy(np.array(of_heads(KEY_FACTORS)))
            factors = torch.stack([x[:, order] for x, order in zip(factors, orders)])
            scales = KeyScales(factors, 1 / factors)
    return Constants(recipe, file.fingerprint, file.model, ModelConstants(
        metrics, codebooks if codebooks.keys is not None or codebooks.values is not None else None, scales), is_of_gguf)


def _planned_heads(file, text: str, shape: ModelShape, n_ranks: int) -> list[list]:
    """Returns what the engine plans for each layer and KV head."""
    if n_ranks == 1:
        return file.planned_heads(text, shape.geometry())
    slices = [heads_of_rank(shape.n_kv_heads, rank, n_ranks) for rank in range(n_ranks)]
    # Several ranks may share a head.
    ranges = dict.fromkeys((heads.start, heads.stop - heads.start) for heads in slices)
    of_ranges = [file.planned_heads(text, shape.geometry(), *heads) for heads in ranges]
    return [sum((of_range[layer] for of_range in of_ranges), []) for layer in range(shape.n_layers)]


def _metrics(arrays: Sequence[Sequence[np.ndarray]], recipe: Recipe, d: int) -> KeyMetrics:
    numbers = torch.from_numpy(np.array(arrays, np.float32))
    directions, turns = numbers[..., :d * RANK].unflatten(-1, (d, RANK)), numbers[:, -1, d * RANK:].unflatten(-1, (d, 2))
    return KeyMetrics(directions.contiguous(), turns.contiguous(), hadamard_matrix(d) if recipe.key_hadamard else None)


def heads_of_rank(n_kv_heads: int, rank: int, n_ranks: int) -> slice:
    """Returns the KV heads of a rank of tensor parallelism, as vLLM distributes them. If there are fewer heads than
    ranks, several ranks have one head in common."""
    first = rank * n_kv_heads // n_ranks
    return slice(first, first + max(1, n_kv_heads // n_ranks))
