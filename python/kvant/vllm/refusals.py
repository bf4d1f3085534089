"""Refuses configurations of vLLM that the plug-in does not support, before a model is loaded."""

from __future__ import annotations

from kvant import PAGE

PIPELINE, DATA, SLEEP = "pipeline parallelism", "data parallelism of a model with experts", "sleep mode"
HYBRID = "hybrid models, whose other layers keep a recurrent state (Mamba, gated delta nets: Qwen 3.5 and the like),"
# Lists features that only some of the supported releases have.
OF_SOME_RELEASES = (PIPELINE, DATA, SLEEP, HYBRID)


def refuse_unsupported(config, drafts_of=(), features=()) -> None:
    """Raises an error for an unsupported VllmConfig. `drafts_of` lists the supported methods of speculative decoding, and
    `features` those of OF_SOME_RELEASES that the release has."""
    parallel, cache = config.parallel_config, config.cache_config
    speculative = config.speculative_config
    method = speculative.method if speculative is not None else None
    is_hybrid = config.model_config.is_hybrid
    refusals = {
        # vLLM 0.26 pads kvant's blocks to the size of a recurrent state, and kvant's kernels would write into other
        # layers' states.
        HYBRID: is_hybrid,
        "drafts (speculative decoding) of hybrid models": is_hybrid and method is not None,
        "pipeline parallelism of hybrid models": is_hybrid and parallel.pipeline_parallel_size > 1,
        f"drafts (speculative decoding) by {method}, only by {', '.join(drafts_of)}" if drafts_of else
        "drafts (speculative decoding)": method is not None and method not in drafts_of,
        f"{PAGE} or more drafts per request": n_drafts(config) >= PAGE,
        "KV connectors and offloading (--kv-transfer-config, --kv-offloading-size)": config.kv_transfer_config is not None,
        # vLLM gives each engine of another model a configuration without data parallelism.
        DATA: parallel.data_parallel_size > 1,
        PIPELINE: parallel.pipeline_parallel_size > 1,
        "decode context parallelism": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        # Two steps would share one workspace.
        "microbatches (--enable-dbo, --ubatch-size)": parallel.use_ubatching,
        # vLLM 0.26 discards what builders have allocated along with the cache.
        SLEEP: config.model_config.enable_sleep_mode,
        "--kv-cache-dtype-skip-layers": bool(cache.kv_cache_dtype_skip_layers),
        "prefix hits within a page (prefix_match_unit)": getattr(cache, "prefix_match_unit", None) not in (None, PAGE),
        "a disabled hybrid KV cache manager": config.scheduler_config.disable_hybrid_kv_cache_manager is True,
        "vLLM's first model runner, which this model or configuration asks for (VLLM_USE_V2_MODEL_RUNNER=1 may help)":
            not config.use_v2_model_runner}
    for what, is_asked in refusals.items():
        if is_asked and what in OF_SOME_RELEASES:
            if what not in features:
                raise NotImplementedError(f"kvant supports {what} only with vLLM 0.33")
        elif is_asked:
            raise NotImplementedError(f"kvant does not support {what} yet")


def n_drafts(config) -> int:
    """Returns the largest number of draft tokens after a request's newest token."""
    speculative = config.speculative_config
    return speculative.num_speculative_tokens if speculative is not None else 0
