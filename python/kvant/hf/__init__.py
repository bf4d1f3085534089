"""Keeps the KV cache of transformers 5.x in low-bit pages, on NVIDIA GPUs and CPUs:

    from kvant.hf import KvantCache
    model = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.bfloat16, attn_implementation="kvant").to("cuda")
    model.generate(**inputs, past_key_values=KvantCache(model.config, "uniform-4bit"))

Import this module before the model is made, because the import registers the attention `kvant`."""

try:
    import torch  # noqa: F401
    import transformers
except ModuleNotFoundError as missing:
    raise ImportError(f"kvant.hf needs PyTorch and transformers 5, but {missing.name} is not installed: pip install torch "
                      "\"transformers>=5,<6\"") from missing

if transformers.__version__.partition(".")[0] != "5":
    raise ImportError(f"kvant.hf needs transformers 5, not {transformers.__version__}: pip install \"transformers>=5,<6\"")

from kvant.hf.attention import register
from kvant.hf.cache import KvantCache
from kvant.hf.calibration import calibrate

register()

__all__ = ["KvantCache", "calibrate"]
