"""Collects arrays that the host computes for a step and copies them to the device."""

from __future__ import annotations

import numpy as np
import torch


class DeviceArrays:
    """Copies int32 arrays to the device in one transfer."""

    def __init__(self, arrays: dict[str, np.ndarray], device: torch.device):
        flat = torch.from_numpy(np.concatenate([np.ascontiguousarray(x, np.int32).reshape(-1) for x in arrays.values()]))
        if device.type == "cuda":
            flat = flat.pin_memory()
        on_device = flat.to(device, non_blocking=True)
        self._arrays, first = {}, 0
        for name, x in arrays.items():
            self._arrays[name] = on_device[first:first + x.size].view(x.shape)
            first += x.size

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._arrays[name]
