"""kvant: low-bit KV caches. `kvant.torch` has the GPU library's operations on PyTorch tensors, `kvant.vllm` the plug-in
for vLLM; this module and `kvant.c_api` need neither."""

__version__ = "0.1.0"
PAGE = 128  # tokens of a page
