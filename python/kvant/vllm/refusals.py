"""Refuses configurations of vLLM that the plug-in does not support, before a model is loaded."""

from __future__ import annotations

from kvant import PAGE
from kvant.vllm.recipes import CACHE_TYPES
from kvant.vllm.stages import stages_of

# Names vLLM's connector for CPU offload and the connector's only supported store.
OFFLOAD, CPU_STORE = "OffloadingConnector", "CPUOffloadingSpec"
# Lists the supported methods of speculative decoding. FROM_MODELS have attention layers of their own.
FROM_MODELS = ("draft_model", "eagle", "eagle3", "mtp")
DRAFTS = ("ngram", "ngram_gpu", *FROM_MODELS)


def refuse_unsupported(config, has_arenas: bool) -> None:
    """Raises an error for an unsupported VllmConfig. has_arenas says whether a block holds all layers. What users may do
    instead follows a colon."""
    parallel, cache = config.parallel_config, config.cache_config
    speculative = config.speculative_config
    method = speculative.method if speculative is not None else None
    is_hybrid, is_from_model = config.model_config.is_hybrid, method in FROM_MODELS
    transfer = config.kv_transfer_config
    connector = transfer.kv_connector if transfer is not None else None
    store = transfer.kv_connector_extra_config if transfer is not None else {}
    refusals = {
        "drafts (speculative decoding) of hybrid models": is_hybrid and method is not None,
        "pipeline parallelism of hybrid models": is_hybrid and parallel.pipeline_parallel_size > 1,
        f"drafts (speculative decoding) by {method}: use one of {', '.join(DRAFTS)}": method is not None and method not in DRAFTS,
        # Blocks would have the size of the drafter's pages, which are several times as large as kvant's.
        f"drafts by {method} with blocks of one layer: unset VLLM_KV_CACHE_LAYOUT": is_from_model and not has_arenas,
        # The last stage alone has the drafter's layers.
        f"drafts by {method} with pipeline parallelism": is_from_model and parallel.pipeline_parallel_size > 1,
        # Their drafter reads tokens of a prompt that the served model has not seen.
        "drafts by MTP with several modules: set num_speculative_tokens to 1": method == "mtp" and speculative.use_multi_module_mtp(),
        "a drafter with kvant's cache: leave kv_cache_dtype out of --speculative-config":
            is_from_model and speculative.kv_cache_dtype in CACHE_TYPES,
        f"{PAGE} or more drafts per request": n_drafts(config) >= PAGE,
        f"the KV connector {connector}: use vLLM's own CPU offload (--kv-offloading-size, without other settings that choose a connector)":
            transfer is not None and (connector != OFFLOAD or transfer.kv_connector_module_path is not None),
        # The keys of such stores do not name the recipe or the constants, so pages of another cache would be read.
        "stores of offloaded pages other than CPU memory: leave out spec_name and canonical_layout":
            store.get("spec_name", CPU_STORE) != CPU_STORE or bool(store.get("canonical_layout")),
        "CPU offload (--kv-offloading-size) of hybrid models": is_hybrid and transfer is not None,
        f"CPU offload (--kv-offloading-size) with drafts by {method}: drafts by ngram work": is_from_model and transfer is not None,
        # All workers share the memory, and each takes its own blocks' size for that of all. Their parts would overlap.
        "CPU offload (--kv-offloading-size) of stages with different numbers of layers: use another number of stages, or set "
        "VLLM_PP_LAYER_PARTITION": transfer is not None and len(set(stages_of(config).n_cached)) > 1,
        "decode context parallelism": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1) > 1,
        # Two steps would share one workspace.
        "microbatches (--enable-dbo, --ubatch-size)": parallel.use_ubatching,
        "--kv-cache-dtype-skip-layers": bool(cache.kv_cache_dtype_skip_layers),
        "prefix hits within a page (prefix_match_unit)": getattr(cache, "prefix_match_unit", None) not in (None, PAGE),
        "a disabled hybrid KV cache manager": config.scheduler_config.disable_hybrid_kv_cache_manager is True,
        "vLLM's first model runner: this model or configuration asks for it, and VLLM_USE_V2_MODEL_RUNNER=1 may help":
            not config.use_v2_model_runner}
    for what, is_asked in refusals.items():
        if is_asked:
            what, colon, instead = what.partition(":")
            raise NotImplementedError(f"kvant does not support {what} yet{colon}{instead}")


def n_drafts(config) -> int:
    """Returns the largest number of draft tokens after a request's newest token."""
    speculative = config.speculative_config
    return speculative.num_speculative_tokens if speculative is not None else 0
