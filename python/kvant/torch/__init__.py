"""Calls the device libraries on PyTorch tensors. Calls go to the current CUDA stream, and can be captured into a CUDA
graph.

Structures such as `Shape`, `Pages` and `Layer` (include/kvant/kvant.h) describe what stays the same from call to call.
A structure keeps the tensors alive from which it was made. `kvant.torch.ops` has operators for torch.compile that take
only tensors."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as missing:
    raise ImportError("kvant.torch needs PyTorch, which is not installed: pip install torch") from missing

from kvant import PAGE
from kvant.c_api import (BF16, F16, F32, Dequantization, KvantError, Layer, Lengths, NewRows, PageMetrics, Pages,
                         Partial, Prompt, PromptPages, PromptShape, SealRange, Shape, Step, StepTable, Transformation)
from kvant.torch.library import TorchLibrary, new_rows, type_of
from kvant.torch.pages import page_pool
from kvant.torch.step_plan import StepPlan, step_table

__all__ = ["BF16", "F16", "F32", "PAGE", "Dequantization", "KvantError", "Layer", "Lengths", "NewRows", "PageMetrics", "Pages",
           "Partial", "Prompt", "PromptPages", "PromptShape", "SealRange", "Shape", "Step", "StepPlan", "StepTable", "TorchLibrary",
           "Transformation", "new_rows", "page_pool", "step_table", "type_of"]
