"""Makes attention layers of a small model by vLLM's own code, with a stand-in for vLLM's selector and configuration.
Must be imported after vllm_stub.install()."""

import contextlib
import types
from unittest import mock

import torch
# A `from` import would find a mock.
import vllm.compilation.backends as compilation_backends
import vllm.model_executor.layers.attention.attention as attention
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.kv_cache_interface import KVQuantMode

import kvant.torch
from kvant import PAGE
from kvant.vllm import attach, backend


def simple(**members):
    """Returns an object whose members are `members`; dictionaries become objects too."""
    return types.SimpleNamespace(**{name: simple(**x) if type(x) is dict and name != "static_forward_context" else x
                                    for name, x in members.items()})


class FlashAttentionBuilder:
    """Stands in for a builder that reads the cache type from the server's configuration."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device, block_table_width=0):
        self.cache_type, self.vllm_config, self.width = vllm_config.cache_config.cache_dtype, vllm_config, block_table_width


class FlashAttention:
    """Stands in for vLLM's own backend of layers with a window."""

    forward_includes_kv_cache_update = True

    @staticmethod
    def supports_alibi_sqrt():
        return False

    @staticmethod
    def is_mla():
        return False

    @staticmethod
    def indexes_kv_by_block_stride():
        return True

    @classmethod
    def customize_spec(cls, spec):
        return spec

    @staticmethod
    def get_impl_cls():
        return mock.MagicMock()

    @staticmethod
    def get_builder_cls():
        return FlashAttentionBuilder


def stand_in(name, *sizes):
    """Returns a stand-in for a backend of vLLM's that reads pages of the given sizes."""
    return type(name, (FlashAttention,), {"get_name": staticmethod(lambda: name),
                                          "get_supported_kernel_block_sizes": staticmethod(lambda kv_cache_spec=None: list(sizes))})


# Holds vLLM's own backends by the name that a layer asks for. None means that the layer asks for no backend.
OTHER_BACKENDS = {None: stand_in("FLASH_ATTN", MultipleOf(16)), "TRITON_ATTN": stand_in("TRITON_ATTN", MultipleOf(16)),
                  "FLASHINFER": stand_in("FLASHINFER", 16, 32, 64)}


def supported(**changed):
    """Returns what kvant reads of vLLM's configuration. All values are supported, except for the given changes."""
    values = dict(
        speculative_config=None, kv_transfer_config=None, use_v2_model_runner=True, additional_config={},
        parallel_config=dict(rank=0, use_ubatching=False, data_parallel_size=1, pipeline_parallel_size=1, tensor_parallel_size=1, decode_context_parallel_size=1,
                             prefill_context_parallel_size=1),
        model_config=dict(enable_sleep_mode=False, max_model_len=131072, is_mm_prefix_lm=False, is_hybrid=False, dtype=torch.bfloat16,
                          hf_text_config=None, get_total_num_kv_heads=None, get_head_size=None, model=""),
        cache_config=dict(kv_cache_dtype_skip_layers=[], prefix_match_unit=None, cache_dtype="kvant_uniform_4bit", sliding_window=None,
                          block_size=PAGE, skip_page_size_padded=None, calculate_kv_scales=False, enable_prefix_caching=True),
        scheduler_config=dict(disable_hybrid_kv_cache_manager=False),
        attention_config=dict(backend="CUSTOM", backend_per_kind={}),
        compilation_config=dict(static_forward_context={}))
    for name, value in changed.items():
        part = next((x for x in values.values() if isinstance(x, dict) and name in x), values)
        part[name] = value
    own = simple(**values)
    own.attention_config.backend_per_kind, own.additional_config = {}, {}
    return own


def planner_config(layout, block_size=PAGE, max_model_len=131072):
    """Returns what vLLM's planner reads of its configuration. `layout` is one of vLLM's layouts."""
    return simple(
        scheduler_config=dict(disable_hybrid_kv_cache_manager=False), kv_transfer_config=None, speculative_config=None,
        model_config=dict(max_model_len=max_model_len, original_max_model_len=max_model_len, is_encoder_decoder=False,
                          supports_kv_cache_grouping=False),
        parallel_config=dict(decode_context_parallel_size=1, tensor_parallel_size=1), max_in_flight_tokens=16384,
        num_prefill_lookahead_tokens=0, attention_config=dict(hisparse_config=None),
        cache_config=dict(num_gpu_blocks_override=None, block_size=block_size, enable_prefix_caching=True, prefix_match_unit=None,
                          prefix_cache_retention_interval=None, get_resolved_kv_cache_layout=lambda: layout))


def select_backend(vllm_config):
    """Returns a selector like vLLM's: it takes the backend of the layer's kind, or else the requested backend. The
    chosen backend may give reasons against the layer."""

    def select(head_size, dtype, kv_cache_dtype, use_mla=False, has_sink=False, use_mm_prefix=False,
               use_per_head_quant_scales=False, attn_type=None, has_sliding_window=False, num_heads=None):
        config = vllm_config.attention_config
        chosen = config.backend_per_kind.get("sliding_window" if has_sliding_window else "full_attention", config.backend)
        if chosen in OTHER_BACKENDS:
            return OTHER_BACKENDS[chosen]
        reasons = backend.KvantBackend.validate_configuration(
            head_size=head_size, dtype=dtype, kv_cache_dtype=kv_cache_dtype, block_size=None, use_mla=use_mla,
            has_sink=has_sink, use_sparse=False, use_mm_prefix=use_mm_prefix,
            use_per_head_quant_scales=use_per_head_quant_scales, attn_type=attn_type, has_sliding_window=has_sliding_window,
            device_capability=simple(major=9))
        if reasons:
            raise ValueError(reasons)
        return backend.KvantBackend

    return select


def use(test, vllm_config, library):
    """Makes layers use the configuration and the library until the test ends."""
    for where, name, value in (
            (attention, "get_current_vllm_config", lambda: vllm_config), (attach, "get_current_vllm_config", lambda: vllm_config),
            (attention, "get_attn_backend", select_backend(vllm_config)), (attention, "_init_kv_cache_quant", mock.Mock()),
            (attention, "kv_cache_dtype_str_to_dtype", lambda name, _: torch.bfloat16 if name == "bfloat16" else torch.uint8),
            (attention, "AttentionType", backend.AttentionType), (attention, "get_kv_quant_mode", lambda name: KVQuantMode.NONE),
            (torch, "get_default_dtype", lambda: torch.bfloat16), (kvant.torch, "TorchLibrary", library)):
        patch = mock.patch.object(where, name, value)
        patch.start()
        test.addCleanup(patch.stop)
    return vllm_config


def of_model(method="eagle3", num_speculative_tokens=4, attention_backend=None, kv_cache_dtype=None, n_modules=1):
    """Returns what kvant reads of vLLM's configuration of drafts that a model makes."""
    return simple(method=method, num_speculative_tokens=num_speculative_tokens, parallel_drafting=False, attention_backend=attention_backend,
                  kv_cache_dtype=kv_cache_dtype, use_multi_module_mtp=lambda: n_modules > 1)


def drafter_layer(vllm_config, i, tag="eagle_head", **more):
    """Makes an attention layer of a drafter, as vLLM does after the layers of the served model."""
    with mock.patch.object(compilation_backends, "model_tag", tag):
        made = layer(vllm_config, i, **more)
    made.is_draft_layer = True
    return made


@contextlib.contextmanager
def making_layers():
    """Sets what vLLM sets while it makes a model's layers: the default type and device of tensors. The device here is
    one on which tensors have no numbers."""
    before = torch.tensor(0.0).dtype
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def layer(vllm_config, i, window=None, heads=8, d=128, kind=attention.Attention, group=4, **more):
    """Makes an attention layer with `heads` KV heads."""
    return kind(group * heads, d, d ** -0.5, num_kv_heads=heads, cache_config=vllm_config.cache_config,
                per_layer_sliding_window=window, prefix=f"model.layers.{i}.attn", attn_type=backend.AttentionType.DECODER, **more)
