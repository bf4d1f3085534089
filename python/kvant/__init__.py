"""kvant: language models on low-bit KV caches.

`Model`, `evaluate` and `plan` are the engine of the program `kvant`, on the CPU or a GPU. `kvant.torch` has the
operations of the device libraries on PyTorch tensors, `kvant.hf` a cache for transformers, and `kvant.vllm` the plug-in
for vLLM. Packages that only these modules need are imported with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvant.engine import Answer, Error, Model, Tokenizer, evaluate, plan

__version__ = "0.2.0"
PAGE = 128  # tokens of a page
__all__ = ["PAGE", "Answer", "Error", "Model", "Tokenizer", "evaluate", "plan"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'kvant' has no attribute {name!r}")
    from kvant import engine

    return getattr(engine, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
