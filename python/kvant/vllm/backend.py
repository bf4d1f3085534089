"""Implements vLLM's attention interface: what the backend supports, the metadata of a step, and the forward pass of a
layer."""

from __future__ import annotations

import torch
from vllm.logger import init_logger
from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadataBuilder,
                                       AttentionType)

from kvant import PAGE
from kvant.torch import TorchLibrary
from kvant.paged import prefill
from kvant.paged.model_state import ModelState, Step, attend
from kvant.vllm import guard_metrics
from kvant.vllm.hybrids import HybridPool
from kvant.vllm.recipes import CACHE_TYPES

logger = init_logger("vllm.kvant")

HEAD_SIZES = (64, 128, 256)
ACTIVATIONS = (torch.bfloat16, torch.float16)
MAX_GROUP = 16
MAX_KV_HEADS = 64
# KvantBackend gives clearer reasons in place of the base class's REPLACED_REASONS.
REPLACED_REASONS = ("head_size not supported", "dtype not supported", "kv_cache_dtype not supported",
                    "block_size not supported", "compute capability not supported", "sliding window not supported")


class KvantBackend(AttentionBackend):
    """Attends on sealed pages. Subclasses know the block size and the layouts of their model."""

    supported_dtypes = list(ACTIVATIONS)
    supported_kv_cache_dtypes = list(CACHE_TYPES)
    layouts: tuple[str, ...] = ()
    # Holds the pool of a hybrid model. Other models have None.
    pool: HybridPool | None = None

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return KvantImpl

    @staticmethod
    def get_builder_cls():
        return SealedBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [PAGE]

    @classmethod
    def supported_kv_cache_layouts(cls):
        from vllm.v1.kv_cache_layout import KVCacheLayout

        return tuple(KVCacheLayout[name] for name in cls.layouts)

    @classmethod
    def customize_spec(cls, spec):
        """Returns the specification from which vLLM computes the block size of a hybrid model."""
        return spec if cls.pool is None else cls.pool.of_token(spec)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        """Returns True, because refuse_unsupported refuses all connectors but one."""
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Returns False, because the host divides a step among its requests."""
        return False

    @classmethod
    def validate_configuration(cls, head_size, dtype, kv_cache_dtype, block_size, *, device_capability,
                               has_sliding_window=False, **others) -> list[str]:
        """Returns sentences that say why a configuration is refused, or an empty list if it is supported."""
        reasons = []
        if kv_cache_dtype not in CACHE_TYPES:
            reasons.append(f"kvant needs --kv-cache-dtype {', '.join(CACHE_TYPES)}, not {kv_cache_dtype}")
        if head_size not in HEAD_SIZES:
            reasons.append(f"kvant has kernels for heads of {', '.join(map(str, HEAD_SIZES))} channels, not {head_size}")
        if dtype not in ACTIVATIONS:
            reasons.append(f"kvant takes bfloat16 and float16 activations, not {dtype}: --dtype bfloat16")
        if block_size not in (None, PAGE):
            reasons.append(f"a page has {PAGE} tokens: --block-size {PAGE}, not {block_size}")
        if device_capability.major < 8:
            reasons.append("kvant's kernels are for GPUs of compute capability 8.0 and newer")
        if has_sliding_window:
            reasons.append("layers with a sliding window are not supported yet")
        base = super().validate_configuration(
            head_size, dtype, kv_cache_dtype, block_size, device_capability=device_capability,
            has_sliding_window=has_sliding_window, **others)
        return reasons + [reason for reason in base if reason not in REPLACED_REASONS]


class KvantTailBackend(KvantBackend):
    """Stands for the unquantized tails of requests in vLLM's list of backends. Tails are only memory, so the class
    attends to nothing."""

    @staticmethod
    def get_builder_cls():
        return TailBuilder


class _Builder(AttentionMetadataBuilder[Step]):
    # All decoded requests of a captured step must have equally many drafts.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    kind = ""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        context = vllm_config.compilation_config.static_forward_context
        self.state: ModelState = context[layer_names[0]].kvant
        # One description of a step must serve all layers.
        if len(layer_names) != len(self.state.layers):
            raise NotImplementedError("kvant does not support models with fewer other layers, such as those with a sliding window, than "
                                      "layers with kvant's cache, because vLLM divides the latter among several block tables")

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> Step:
        step = self.state.add(self.kind, common_attn_metadata)
        if line := self.state.start_up_line():
            logger.info("%s", line)
        return step

    def build_for_cudagraph_capture(self, common_attn_metadata) -> Step:
        return self.state.add(self.kind, common_attn_metadata)


class SealedBuilder(_Builder):
    kind = "sealed"

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.state.watcher = guard_metrics.reporter(guard_metrics.number_of(vllm_config.parallel_config), logger.info, logger.warning)
        self.state.start(TorchLibrary(), vllm_config.scheduler_config.max_num_seqs,
                         vllm_config.model_config.max_model_len, device)


class TailBuilder(_Builder):
    kind = "tail"


class KvantImpl(AttentionImpl[Step]):
    """Runs the attention of one layer."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type=AttentionType.DECODER,
                 kv_sharing_target_layer_name=None, sinks=None, **others):
        """`sinks` holds the attention sinks of gpt-oss, logits [num_heads], which exist once the weights are loaded."""
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype, self.softcap = kv_cache_dtype, float(logits_soft_cap or 0)
        self.sinks, self._sink_logits = sinks, None
        refusals = {
            "ALiBi slopes": alibi_slopes is not None, "layers with a sliding window": sliding_window is not None,
            f"attention of type {attn_type}": attn_type != AttentionType.DECODER,
            "layers that share another layer's cache": kv_sharing_target_layer_name is not None,
            f"more than {MAX_GROUP} query heads per KV head": num_heads > MAX_GROUP * self.num_kv_heads,
            f"more than {MAX_KV_HEADS} KV heads per GPU": self.num_kv_heads > MAX_KV_HEADS}
        refusals |= {name: True for name, x in others.items() if x is not None and x is not False}
        for what, is_asked in refusals.items():
            if is_asked:
                raise NotImplementedError(f"kvant does not support {what}")

    def process_weights_after_loading(self, act_dtype) -> None:
        if self.sinks is not None:
            logits = self.sinks.detach().float().contiguous()
            # A second load of the weights copies the sinks into the tensor, because CUDA graphs read it in place.
            self._sink_logits = logits if self._sink_logits is None else self._sink_logits.copy_(logits)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None):
        """Runs a layer. query, output: BF16 or F16 [n_tokens, num_heads, head_size]. key, value: BF16 or F16 [n_tokens,
        num_kv_heads, head_size]."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("kvant does not support quantized attention outputs")
        # vLLM measures the memory that a step takes.
        if attn_metadata is None:
            return self._rehearse(layer, output)
        attention = None if self.softcap or self.sinks is not None else _prompt_attention(self.head_size)
        attend(attn_metadata, kv_cache, query, key, value, output, attention, self._sink_logits)
        return output

    @staticmethod
    def _rehearse(layer, output):
        state = layer.kvant
        n_tokens, n_heads, head_dim = output.shape
        torch.empty(prefill.scratch_bytes(state.layout, n_heads, n_tokens), dtype=torch.uint8, device=output.device)
        return output.fill_(0)


def _prompt_attention(head_size: int) -> prefill.VarlenAttention | None:
    """Returns the attention for prompts, or None for the library's. On Hopper, FlashAttention 3 is faster for heads of
    256."""
    return _flash_attention if head_size > 128 and torch.cuda.get_device_capability() == (9, 0) else None


def _flash_attention(*args, **kwargs):
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(*args, fa_version=3, **kwargs)
