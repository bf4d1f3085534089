"""One paged cache on a GPU for whoever runs a model on PyTorch: what a step does with its requests' pages, sinks and tails.
`kvant.vllm` and `kvant.hf` drive it."""
