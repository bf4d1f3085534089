"""Makes calibration files for checkpoints of transformers, as `kvant calibrate` does for GGUF files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvant.hf.cache import shape_of
from kvant.hf.channel_turns import PROBED_SHIFT, Turns, candidates, turn, turns_of_layers
from kvant.hf.reading import SINK_TOKENS, read, read_back, reading
from kvant.paged import checkpoint
from kvant.paged.constants import ModelShape, read_constants
from kvant.paged.recipes import calibrated, parse_recipe

PROBED_TOKENS = 32


def calibrate(model: torch.nn.Module, tokenizer: Any, kv: str = "uniform-4bit", *, text: str = "",
              path: str | os.PathLike[str] | None = None, seed: int = 0, threads: int | None = None) -> pathlib.Path:
    """Learns what a recipe should know about a model. Returns the path of a file for KvantCache(constants=...) and the
    vLLM plug-in. An existing file is returned at once.

    model is a causal language model of transformers, on any device. Trellis formats need a model for which PyTorch can
    compute gradients.
    kv is a recipe as KvantCache takes it. One file serves all recipes with equal constants.
    tokenizer is the model's tokenizer, or the tokens of a text, whole numbers [n].
    text is the text to learn from; an empty text selects the text that ships with kvant.
    path is the file to write. None selects a file in the user's cache folder, named by the checkpoint's fingerprint.

    In addition to the model, calibration takes the memory of a forward and backward pass over 1024 tokens. Raises
    ValueError if the path holds the file of another checkpoint."""
    from kvant.engine import _engine

    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise TypeError(f"kvant.hf.calibrate takes a model of transformers, not a {type(model).__name__}")
    if tokenizer is None:
        raise TypeError("kvant.hf.calibrate takes the model's tokenizer, or tokens, not None")
    recipe, config = calibrated(parse_recipe(kv)), model.config.get_text_config(decoder=True)
    text_of_recipe = recipe.asked_name if recipe.may_be_allocated else recipe.text
    shape, fingerprint = shape_of(config), checkpoint.of_model(model, config)
    found = None
    if path is None:
        if not callable(tokenizer):
            raise ValueError("kvant.hf.calibrate: with tokens of your own, give the file: path=...")
        path = _engine.calibration_path(text_of_recipe, shape.geometry(), fingerprint, text)
        # The file is missing, or an earlier version of kvant wrote it.
        with contextlib.suppress(_engine.Error):
            found = read_constants(path, recipe, shape, serves_by_head=True)
    elif os.path.exists(path):
        found = read_constants(path, recipe, shape, serves_by_head=True)
    path = pathlib.Path(path)
    if found is not None:
        checkpoint.check_fingerprint(fingerprint, found.fingerprint, found.model, path)
        if found.recipe.by_head or not recipe.may_be_allocated:
            return path
    text = (text or _engine.default_calibration_text()) if callable(tokenizer) else ""
    tokens, bos = _tokens_of(tokenizer, text, shape.n_vocab)
    _check_writable(path)
    with reading(model):
        made = _Calibration(model, shape, text_of_recipe, fingerprint, text, seed).run(tokens, bos, threads or _engine.usable_threads())
    made.write(os.fspath(path.absolute()))
    return path


def _check_writable(path: pathlib.Path) -> None:
    """Checks that the path can be written, before calibration takes minutes."""
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as failure:
        raise OSError(f"kvant.hf.calibrate cannot write {path}: {failure.strerror}; name another file: path=...") from failure


def _tokens_of(tokenizer: Any, text: str, n_vocab: int) -> tuple[npt.NDArray[np.int32], int]:
    """Returns the tokens of the text, and the token that begins the model's texts, or -1."""
    if not callable(tokenizer):
        tokens = np.asarray(tokenizer)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be a list of whole numbers, not {tokens.dtype} of shape {tokens.shape}")
        return _in_vocabulary(tokens, n_vocab), -1
    with_special, without = (tokenizer("a", add_special_tokens=x)["input_ids"] for x in (True, False))
    is_added = len(with_special) > len(without) and with_special[0] != without[0]
    tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return _in_vocabulary(np.asarray(tokens), n_vocab), with_special[0] if is_added else -1


def _in_vocabulary(tokens: npt.NDArray, n_vocab: int) -> npt.NDArray[np.int32]:
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < n_vocab:
        raise ValueError(f"the model's tokens are from 0 to {n_vocab - 1}, and these from {tokens.min()} to {tokens.max()}: is it the "
                         "model's own tokenizer?")
    return tokens.astype(np.int32)


class _Calibration:
    def __init__(self, model: torch.nn.Module, shape: ModelShape, recipe: str, fingerprint: str, text: str, seed: int):
        from kvant.engine import _engine

        self._model, self._shape, self._rng = model, shape, torch.Generator().manual_seed(seed)
        self._turns = self._probed_turns()
        self._engine = _engine.OutsideCalibration.make(
            description=f"{type(model).__name__} {getattr(model.config, '_name_or_path', '')}".strip(), fingerprint=fingerprint,
            geometry=shape.geometry(), turns=self._turns, recipe=recipe, text=text,
            device=model.get_input_embeddings().weight.device.type, seed=seed)

    def run(self, tokens: npt.NDArray[np.int32], bos: int, threads: int):
        samples, contexts = self._engine.samples(tokens, bos), self._engine.query_contexts(tokens, bos)
        done = _Progress(len(samples) + len(contexts))
        for number, (sample, offset) in enumerate(samples):
            self._store(number, torch.from_numpy(sample).long(), offset)
            done.advance()
        for number, (context, _) in enumerate(contexts):
            self._weigh(number, torch.from_numpy(context).long(), threads)
            done.advance()
        return self._engine.learn(threads)

    def _store(self, number: int, tokens: torch.Tensor, offset: int) -> None:
        positions = torch.arange(len(tokens))
        positions[SINK_TOKENS:] += offset

        def store(layer, q, keys, values, softmax_scale):
            self._engine.store(number, layer, *map(_rows_of_heads, (q, keys, values)))

        read(self._model, tokens, positions, self._shape.n_layers, store)

    def _weigh(self, number: int, tokens: torch.Tensor, threads: int) -> None:
        positions, group = torch.arange(len(tokens)), self._shape.n_heads // self._shape.n_kv_heads
        moments_of: list[tuple[int, int, npt.NDArray[np.float64]]] = []

        def add(layer, q, lengths):
            rows = turn(q.float(), self._turns[layer], -positions)
            moments = (rows * lengths[..., None]).transpose(1, 2) @ rows  # [n_heads, d, d]
            for head, found in enumerate(moments.unflatten(0, (-1, group)).sum(1).double().cpu()):
                moments_of.append((layer, head, found.contiguous().numpy()))

        def weigh(layer, *rows):
            self._engine.add_gradient(layer, *map(_rows_of_heads, rows))

        first_scored, weighs = self._engine.first_scored(len(tokens)), self._engine.weighs
        if weighs:
            self._engine.begin_context(number, threads)
        read_back(self._model, tokens, first_scored, self._rng, self._shape.n_layers, add, weigh if weighs else None)
        if weighs:
            self._engine.end_context(number, len(tokens) - first_scored)
        for found in moments_of:
            self._engine.add_moments(*found)

    def _probed_turns(self) -> list[Turns]:
        tokens = torch.randint(self._shape.n_vocab, (PROBED_TOKENS,), generator=torch.Generator().manual_seed(1))
        queries: dict[int, list[torch.Tensor]] = {0: [], PROBED_SHIFT: []}
        for shift, found in queries.items():
            read(self._model, tokens, torch.arange(PROBED_TOKENS) + shift, self._shape.n_layers,
                 lambda layer, q, keys, values, scale, found=found: found.append(q.float().cpu()))
        return turns_of_layers(candidates(self._model, self._shape.head_dim), *queries.values())


def _rows_of_heads(x: torch.Tensor) -> npt.NDArray[np.float32]:
    """Turns [heads, n, head_dim] into F32 [n, heads * head_dim]."""
    return x.transpose(0, 1).flatten(1).float().cpu().contiguous().numpy()


class _Progress:
    """Prints progress in one line of a terminal."""

    def __init__(self, n_steps: int):
        self._n_steps, self._done = n_steps, 0

    def advance(self) -> None:
        self._done += 1
        if sys.stderr.isatty():
            print(f"\rkvant: reading {self._done} of {self._n_steps} texts", end="\n" if self._done == self._n_steps else "",
                  file=sys.stderr, flush=True)
