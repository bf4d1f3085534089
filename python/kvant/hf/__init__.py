"""Low-bit pages for transformers 5.x, on NVIDIA GPUs:

    from kvant.hf import KvantCache
    model = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.bfloat16, attn_implementation="kvant").to("cuda")
    model.generate(**inputs, past_key_values=KvantCache(model.config, "kvant-4bit"))

To be imported before the model is made: this registers the attention `kvant`."""

from kvant.hf.attention import register
from kvant.hf.cache import KvantCache
from kvant.hf.calibration import calibrate

register()

__all__ = ["KvantCache", "calibrate"]
