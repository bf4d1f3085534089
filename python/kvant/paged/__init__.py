"""Keeps a paged cache for programs that run a model on PyTorch. The package says what a step does with the pages,
sinks and tails of its requests. `kvant.vllm` and `kvant.hf` build on the package."""
