"""libkvant_cuda on PyTorch tensors: calls go to the current CUDA stream, and can be captured into a CUDA graph.

Structures describe what stays the same from call to call (`Shape`, `Pages`, `Layer`: see include/kvant/kvant.h); they
keep the tensors alive that they were made of. `kvant.torch.ops` has operators for torch.compile, on tensors alone."""

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
