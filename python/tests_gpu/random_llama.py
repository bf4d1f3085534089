#!/usr/bin/env python3
"""Writes a model of Llama's architecture with random weights:

    random_llama.py FOLDER [--layers N] [--shape-only | --windows PERIOD | --softcap C]

    --layers N         (2) layers with Llama-3.1-8B's attention shape: 32 query heads and 8 KV heads of 128
    --shape-only       no weights: Llama-3.1-8B's config.json, for vLLM's load_format=dummy
    --windows PERIOD   Gemma 3's architecture: all layers but every PERIOD-th have a sliding window; with period 0,
                       Mistral's, in which all layers have one
    --softcap C        Gemma 2's architecture with capped scores; every other layer has a window"""

import argparse
import json
import pathlib

HEADS, KV_HEADS, D = 32, 8, 128
WINDOW = 512


def config(layers, hidden, intermediate, vocabulary):
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=intermediate,
                num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=D, num_hidden_layers=layers,
                vocab_size=vocabulary, max_position_embeddings=262144, rms_norm_eps=1e-5, rope_theta=500000.0,
                hidden_act="silu", bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, torch_dtype="bfloat16")


def with_windows(shape, period):
    if period == 0:
        return shape | dict(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=WINDOW)
    kinds = ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(shape["num_hidden_layers"])]
    rope = {kind: dict(rope_type="default", rope_theta=theta) for kind, theta in (("full_attention", 1e6),
                                                                                 ("sliding_attention", 1e4))}
    return shape | dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", sliding_window=WINDOW, layer_types=kinds,
                        query_pre_attn_scalar=D, hidden_activation="gelu_pytorch_tanh", rope_parameters=rope,
                        attn_logit_softcapping=None, final_logit_softcapping=None)


def with_softcap(shape, softcap):
    kinds = ["sliding_attention", "full_attention"] * (shape["num_hidden_layers"] // 2)
    return shape | dict(architectures=["Gemma2ForCausalLM"], model_type="gemma2", attn_logit_softcapping=softcap,
                        final_logit_softcapping=None, sliding_window=WINDOW, query_pre_attn_scalar=D, tie_word_embeddings=True,
                        layer_types=kinds, hidden_activation="gelu_pytorch_tanh")


def weights(shape):
    import torch

    hidden, intermediate, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    torch.manual_seed(0)

    def random(*size, std=0.02):
        return (torch.randn(*size) * std).bfloat16()

    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": random(vocabulary, hidden, std=1.0), "model.norm.weight": ones.clone(),
               "lm_head.weight": random(vocabulary, hidden, std=0.03)}
    for i in range(shape["num_hidden_layers"]):
        # Queries and keys are large enough for attention to prefer some tokens.
        of_q, of_kv = shape["num_attention_heads"] * D, shape["num_key_value_heads"] * D
        sizes = {"self_attn.q_proj": (of_q, hidden, 0.05), "self_attn.k_proj": (of_kv, hidden, 0.05),
                 "self_attn.v_proj": (of_kv, hidden, 0.05), "self_attn.o_proj": (hidden, of_q, 0.05),
                 "mlp.gate_proj": (intermediate, hidden, 0.02), "mlp.up_proj": (intermediate, hidden, 0.02),
                 "mlp.down_proj": (hidden, intermediate, 0.02)}
        for name, (rows, columns, std) in sizes.items():
            tensors[f"model.layers.{i}.{name}.weight"] = random(rows, columns, std=std)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{name}.weight"] = ones.clone()
    return gemma(tensors, shape) if shape["model_type"].startswith("gemma") else tensors


def gemma(tensors, shape):
    """Adapts the tensors to Gemma. Gemma adds 1 to the weights of its norms, has more norms, and multiplies embeddings
    by the root of their length. Gemma 3's queries and keys are made twice as large as its norms make them, which lets
    attention prefer some tokens."""
    import torch

    norms, hidden = ["model.norm"], shape["hidden_size"]
    for i in range(shape["num_hidden_layers"]):
        norms += [f"model.layers.{i}.{name}_layernorm" for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")]
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] / hidden ** 0.5
    tensors |= {name + ".weight": torch.zeros(hidden, dtype=torch.bfloat16) for name in norms}
    if shape["model_type"] == "gemma2":
        # The embeddings serve as the output weights. Attention must be strong to change the prediction that a token's
        # own embedding gives.
        del tensors["lm_head.weight"]
        return tensors | {name + ".weight": torch.full((hidden,), 7.0, dtype=torch.bfloat16)
                          for name in norms if name.endswith(".post_attention_layernorm")}
    return tensors | {f"model.layers.{i}.self_attn.{side}_norm.weight": torch.ones(D, dtype=torch.bfloat16)
                      for i in range(shape["num_hidden_layers"]) for side in "qk"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--shape-only", action="store_true")
    parser.add_argument("--windows", type=int, metavar="PERIOD")
    parser.add_argument("--softcap", type=float, metavar="C")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    shape = config(32, 4096, 14336, 128256) if args.shape_only else config(args.layers, 1024, 2048, 8192)
    if args.windows is not None:
        shape = with_windows(shape, args.windows)
    if args.softcap is not None:
        shape = with_softcap(shape, args.softcap)
    (args.folder / "config.json").write_text(json.dumps(shape))
    if not args.shape_only:
        from safetensors.torch import save_file

        save_file(weights(shape), args.folder / "model.safetensors")


if __name__ == "__main__":
    main()
