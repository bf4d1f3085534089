"""Checks the arguments of operators. The library reads tensors by their addresses, so a wrong type, shape or device
would cause a GPU error or pass unnoticed."""

from __future__ import annotations

import contextlib

import torch

from kvant.torch.library import TorchLibrary, current


def on_one_gpu(library: TorchLibrary, **tensors: torch.Tensor) -> contextlib.AbstractContextManager:
    """Makes the GPU of the tensors the current one. All tensors must be on one GPU."""
    device = next(iter(tensors.values())).device
    for name, x in tensors.items():
        if not library.serves(x.device):
            raise ValueError(f"kvant: {name} is on {x.device}, and the library is for NVIDIA GPUs")
        if x.device != device:
            raise ValueError(f"kvant: {name} is on {x.device}, and {next(iter(tensors))} on {device}: they must be on one GPU")
    return current(device)


def shaped(**tensors: tuple[torch.Tensor, tuple[int | None, ...]]) -> None:
    """Checks each tensor's sizes; None allows any size."""
    for name, (x, sizes) in tensors.items():
        if x.dim() != len(sizes) or any(size is not None and size != n for size, n in zip(sizes, x.shape)):
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            raise ValueError(f"kvant: {name} has the shape {list(x.shape)}; it must be [{wanted}]")


def typed(dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    for name, x in tensors.items():
        if x.dtype != dtype:
            raise TypeError(f"kvant: {name} is {x.dtype}; it must be {dtype}")


def dense(**tensors: torch.Tensor) -> None:
    """Checks that neighbours in the last dimension are contiguous."""
    for name, x in tensors.items():
        if x.shape[-1] > 1 and x.stride(-1) != 1:
            raise ValueError(f"kvant: {name} has gaps in its last dimension (strides {list(x.stride())}): {name}.contiguous()")
