"""Refuses configurations of vLLM that the plug-in does not support, before a model is loaded."""

from __future__ import annotations

from kvant import PAGE

# Lists the supported methods of speculative decoding.
DRAFTS = ("ngram", "ngram_gpu")


def refuse_unsupported(config) -> None:
    """Raises an error for an unsupported VllmConfig."""
    parallel, cache = config.parallel_config, config.cache_config
    speculative = config.speculative_config
    method = speculative.method if speculative is not None else None
    is_hybrid = config.model_config.is_hybrid
    refusals = {
        "drafts (speculative decoding) of hybrid models": is_hybrid and method is not None,
        "pipeline parallelism of hybrid models": is_hybrid and parallel.pipeline_parallel_size > 1,
        f"drafts (speculative decoding) by {method}, only by {', '.join(DRAFTS)}": method is not None and method not in DRAFTS,
        f"{PAGE} or more drafts per request": n_drafts(config) >= PAGE,
        "KV connectors and offloading (--kv-transfer-config, --kv-offloading-size)": config.kv_transfer_config is not None,
        "decode context parallelism": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        # Two steps would share one workspace.
        "microbatches (--enable-dbo, --ubatch-size)": parallel.use_ubatching,
        "--kv-cache-dtype-skip-layers": bool(cache.kv_cache_dtype_skip_layers),
        "prefix hits within a page (prefix_match_unit)": getattr(cache, "prefix_match_unit", None) not in (None, PAGE),
        "a disabled hybrid KV cache manager": config.scheduler_config.disable_hybrid_kv_cache_manager is True,
        "vLLM's first model runner, which this model or configuration asks for (VLLM_USE_V2_MODEL_RUNNER=1 may help)":
            not config.use_v2_model_runner}
    for what, is_asked in refusals.items():
        if is_asked:
            raise NotImplementedError(f"kvant does not support {what} yet")


def n_drafts(config) -> int:
    """Returns the largest number of draft tokens after a request's newest token."""
    speculative = config.speculative_config
    return speculative.num_speculative_tokens if speculative is not None else 0
