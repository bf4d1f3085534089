"""Identifies checkpoints, because the cache must refuse constants of another checkpoint.

A fingerprint has two parts, joined by a hyphen. The first part is a hash of numbers in the model's configuration. The
second part is a hash of weights that are equal, as bfloat16, in a checkpoint's files and in memory. The hash covers the
layers' norms and, unless weights are quantized, the first rows of each layer's key projection."""

from __future__ import annotations

import hashlib
import pathlib
import re
from collections.abc import Callable, Iterable

import torch

_NORM = re.compile(r"(?:^|\.)(layers\.\d+\..*norm\.weight)$")
_KEYS = re.compile(r"(?:^|\.)(layers\.\d+\..*(?:k_proj|qkv_proj|query_key_value)\.weight)$")
_ROWS = 4  # rows of a projection
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NUMBERS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "vocab_size")

# Each entry is the name of a weight and a function that reads its first rows (None: all rows).
Weights = Iterable[tuple[str, Callable[[int | None], torch.Tensor]]]


def of_config(config) -> str:
    """Returns the part of a fingerprint that the configuration of a text model of transformers determines."""
    text = ",".join(f"{name}={getattr(config, name, None)}" for name in _NUMBERS)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def fingerprint(config, weights: Weights) -> str:
    """Returns the fingerprint of a checkpoint. Raises ValueError if the weights have no layer norm."""
    hashed = hashlib.sha256()
    is_quantized = getattr(config, "quantization_config", None) is not None
    patterns = {_NORM: None} if is_quantized else {_NORM: None, _KEYS: _ROWS}
    found = sorted((match[1], n_rows, read) for name, read in weights for pattern, n_rows in patterns.items()
                   if (match := pattern.search(name)))
    for name, n_rows, read in found:
        rows = read(n_rows)
        if rows.dtype in _FLOATS:
            hashed.update(name.encode())
            hashed.update(rows.detach().to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy().tobytes())
    if not found:
        raise ValueError("kvant: the model has no norm weights in its layers, which constants need to recognize it")
    return f"{of_config(config)}-{hashed.hexdigest()[:16]}"


def of_model(model: torch.nn.Module, config) -> str:
    """Returns the fingerprint of a model in memory. `config` is the configuration of its text model."""
    return fingerprint(config, ((name, lambda n, x=x: x[:n]) for name, x in model.named_parameters()))


def of_files(folder: str | pathlib.Path, config) -> str:
    """Returns the fingerprint of a checkpoint's safetensors files."""
    from safetensors import safe_open

    files = sorted(pathlib.Path(folder).glob("*.safetensors"))
    if not files:
        raise ValueError(f"kvant: constants need a checkpoint in safetensors files, but {folder} has none")
    opened = [safe_open(file, framework="pt") for file in files]
    return fingerprint(config, ((name, lambda n, file=file, name=name: file.get_slice(name)[:n] if n else file.get_tensor(name))
                                for file in opened for name in file.keys()))


def check_fingerprint(ours: str, theirs: str, model: str, path) -> None:
    """Raises ValueError if the fingerprints differ. `ours` is the model's fingerprint, or its known part. `theirs`
    belongs to the constants, whose model is called `model`."""
    if not theirs.startswith(ours):
        raise ValueError(f"kvant: the constants '{path}' are of another checkpoint ({model}, fingerprint {theirs}, not {ours}): "
                         "make constants for this one with kvant.hf.calibrate, in another file")
