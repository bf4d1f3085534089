"""Writes a small random model of Qwen 2's architecture, without using the engine: as a GGUF file, and as a model of
transformers with the same weights. Channels have the same order in both, so pages get the same codes."""

import struct

import numpy as np
from calibration_file import F32, aligned, length_and_text

# GGUF's numbers for the types of values follow.
U32, I32, F32_VALUE, TEXT, ARRAY = 4, 5, 6, 8, 9
N_LAYERS, N_HEADS, N_KV_HEADS, D, N_VOCAB, N_FEED_FORWARD, CONTEXT = 2, 4, 2, 64, 97, 64, 1024
EPSILON, ROPE_BASE = 1e-6, 10000.0


def weights(rng):
    """Returns the weights by their names in GGUF."""
    width, of_keys = N_HEADS * D, N_KV_HEADS * D
    shapes = {"attn_q": (width, width), "attn_k": (of_keys, width), "attn_v": (of_keys, width), "attn_output": (width, width),
              "ffn_gate": (N_FEED_FORWARD, width), "ffn_up": (N_FEED_FORWARD, width), "ffn_down": (width, N_FEED_FORWARD)}
    found = {"token_embd": rng.standard_normal((N_VOCAB, width)), "output_norm": np.ones(width),
             "output": 0.1 * rng.standard_normal((N_VOCAB, width))}
    for layer in range(N_LAYERS):
        found |= {f"blk.{layer}.{name}": 0.1 * rng.standard_normal(shape) for name, shape in shapes.items()}
        found |= {f"blk.{layer}.{name}": np.ones(width) for name in ("attn_norm", "ffn_norm")}
        found |= {f"blk.{layer}.{name}.bias": 0.5 * rng.standard_normal(shapes[name][0]) for name in ("attn_q", "attn_k", "attn_v")}
    return {name: x.astype(np.float32) for name, x in found.items()}


def _pair(key, value):
    begin = length_and_text(key)
    if isinstance(value, str):
        return begin + struct.pack("<I", TEXT) + length_and_text(value)
    if isinstance(value, float):
        return begin + struct.pack("<If", F32_VALUE, value)
    if isinstance(value, int):
        return begin + struct.pack("<II", U32, value)
    if isinstance(value[0], str):
        return begin + struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(length_and_text, value))
    return begin + struct.pack("<IIQ", ARRAY, I32, len(value)) + np.asarray(value, "<i4").tobytes()


def write(path, of_model):
    width = N_HEADS * D
    fields = {"general.architecture": "qwen2", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
              "tokenizer.ggml.tokens": [f"t{i}" for i in range(N_VOCAB)], "tokenizer.ggml.token_type": N_VOCAB * [1],
              "tokenizer.ggml.merges": ["t 1"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
    fields |= {f"qwen2.{key}": value for key, value in {
        "block_count": N_LAYERS, "context_length": CONTEXT, "embedding_length": width, "feed_forward_length": N_FEED_FORWARD,
        "attention.head_count": N_HEADS, "attention.head_count_kv": N_KV_HEADS, "attention.layer_norm_rms_epsilon": EPSILON,
        "rope.freq_base": ROPE_BASE}.items()}
    infos = data = b""
    for name, x in of_model.items():
        infos += length_and_text(name if name.endswith(".bias") else name + ".weight") + struct.pack("<I", x.ndim)
        infos += b"".join(struct.pack("<Q", n) for n in reversed(x.shape)) + struct.pack("<IQ", F32, len(data))
        data = aligned(data + x.astype("<f4").tobytes())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(of_model), len(fields)) + b"".join(_pair(*pair) for pair in fields.items())
    path.write_bytes(aligned(head + infos) + data)


def of_transformers(of_model):
    """Returns the same model for transformers, in F32."""
    import torch
    import transformers

    config = transformers.Qwen2Config(
        hidden_size=N_HEADS * D, num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, vocab_size=N_VOCAB,
        num_hidden_layers=N_LAYERS, intermediate_size=N_FEED_FORWARD, rms_norm_eps=EPSILON, max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE}, eos_token_id=1, pad_token_id=0, tie_word_embeddings=False)
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    others = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    found = {}
    for name, x in of_model.items():
        kind, parts = "bias" if name.endswith(".bias") else "weight", name.split(".")
        theirs = f"model.layers.{parts[1]}.{names[parts[2]]}" if parts[0] == "blk" else others[name]
        found[f"{theirs}.{kind}"] = torch.from_numpy(x)
    model = transformers.Qwen2ForCausalLM(config)
    model.load_state_dict(found)
    return model.eval()
