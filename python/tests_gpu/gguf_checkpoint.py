#!/usr/bin/env python3
"""Writes a GGUF model of Llama's or Qwen2's architecture as a checkpoint that vLLM loads: gguf_checkpoint.py MODEL.gguf
FOLDER

Weights become BF16. The chat template is copied, and so is a tokenizer of SmolLM2's kind (GPT-2's, with single digits).
Needs the packages gguf and tokenizers."""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

# CONTROL is GGUF's type for control tokens.
CONTROL = 3
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
               "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
               "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def name_of(gguf_name):
    *parts, kind = gguf_name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{kind}"
    return f"{NAMES[parts[0]]}.{kind}"


def halves_apart(weights, n_heads):
    """Moves apart the two channels that RoPE rotates together. GGUF stores Llama's side by side, and the checkpoint half
    a head apart."""
    rows, columns = weights.shape
    return weights.reshape(n_heads, rows // n_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_tokenizer(fields, folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    def value(key, default=None):
        field = fields.get("tokenizer." + key)
        return default if field is None else field.contents()

    if (value("ggml.model"), value("ggml.pre")) != ("gpt2", "smollm"):
        return
    tokens = value("ggml.tokens")
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)},
                                     [tuple(merge.split(" ")) for merge in value("ggml.merges")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token, kind in zip(tokens, value("ggml.token_type")) if kind == CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=tokens[value("ggml.bos_token_id")],
        eos_token=tokens[value("ggml.eos_token_id")], chat_template=value("chat_template"))))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader, folder = gguf.GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2])

    architecture = reader.fields["general.architecture"].contents()
    if architecture not in CLASSES:
        sys.exit(f"{sys.argv[1]} is a model of {architecture}; this script knows {' and '.join(CLASSES)}")

    def value(key):
        return reader.fields[f"{architecture}.{key}"].contents()

    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    tensors = {}
    for tensor in reader.tensors:
        weights = np.array(gguf.dequantize(tensor.data, tensor.tensor_type))
        if architecture == "llama" and (".attn_q." in tensor.name or ".attn_k." in tensor.name):
            weights = halves_apart(weights, heads if ".attn_q." in tensor.name else kv_heads)
        if tensor.name != "rope_freqs.weight":
            tensors[name_of(tensor.name)] = torch.from_numpy(np.ascontiguousarray(weights)).bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    vocabulary, hidden = tensors["model.embed_tokens.weight"].shape
    (folder / "config.json").write_text(json.dumps(dict(
        architectures=[CLASSES[architecture]], model_type=architecture, hidden_size=hidden, vocab_size=vocabulary,
        intermediate_size=value("feed_forward_length"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        num_hidden_layers=value("block_count"), max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"), rope_theta=value("rope.freq_base"), hidden_act="silu",
        bos_token_id=reader.fields["tokenizer.ggml.bos_token_id"].contents(),
        eos_token_id=reader.fields["tokenizer.ggml.eos_token_id"].contents(),
        tie_word_embeddings="lm_head.weight" not in tensors, torch_dtype="bfloat16")))
    write_tokenizer(reader.fields, folder)


if __name__ == "__main__":
    main()
