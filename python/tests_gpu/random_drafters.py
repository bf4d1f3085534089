#!/usr/bin/env python3
"""Writes random models and their drafters as checkpoints for vLLM:

    random_drafters.py FOLDER

    target        a model of Llama's architecture with 4 layers: 8 query heads and 2 KV heads of 128
    draft_model   a model of one layer
    eagle         a head of EAGLE
    eagle3        a head of EAGLE-3
    mimo          the target in MiMo's architecture, with a module for MTP

All drafters compute the target's first layer, and the target's other layers change predictions little. The target
therefore accepts many drafts, but not all."""

import argparse
import json
import pathlib

import torch
from random_llama import config, weights
from safetensors.torch import save_file

LAYERS, HIDDEN = 4, 1024
FADING = 0.1
SHAPE = config(LAYERS, HIDDEN, 2048, 8192) | dict(num_attention_heads=8, num_key_value_heads=2)
FIRST = "model.layers.0."


def target_weights():
    tensors = weights(SHAPE)
    for name, tensor in tensors.items():
        if name.startswith("model.layers.") and not name.startswith(FIRST) and name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= FADING
    return tensors


def of_embedding():
    """Returns weights [HIDDEN, 2 * HIDDEN] that take the embedding from an embedding and a hidden state after it."""
    return torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1).bfloat16()


def eagle(first):
    # EAGLE has no norm before its layer. Random embeddings hardly need one.
    return {f"layers.0.{name}": tensor for name, tensor in first.items() if name != "input_layernorm.weight"} | {"fc.weight": of_embedding()}


def eagle3(first):
    """Queries, keys and values come from the embedding and a hidden state, which has no effect here."""
    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    tensors = {"fc.weight": torch.zeros(HIDDEN, 3 * HIDDEN, dtype=torch.bfloat16), "norm.weight": ones,
               "midlayer.hidden_norm.weight": ones.clone()}
    for name, tensor in first.items():
        if name.startswith(("self_attn.q", "self_attn.k", "self_attn.v")):
            tensor = torch.cat([tensor, torch.zeros_like(tensor)], 1)
        tensors[f"midlayer.{name}"] = tensor
    return tensors


def mimo(tensors, first):
    ones, module = torch.ones(HIDDEN, dtype=torch.bfloat16), dict(first)
    module |= {f"{name}_layernorm.weight": ones.clone() for name in ("token", "hidden", "final")}
    # The hidden state comes first here.
    module["input_proj.weight"] = of_embedding().roll(HIDDEN, 1)
    tensors = tensors | {f"model.mtp_layers.0.{name}": tensor for name, tensor in module.items()}
    for layer in (*(f"model.layers.{i}." for i in range(LAYERS)), "model.mtp_layers.0."):
        for side, heads in (("q", 8), ("k", 2), ("v", 2)):
            tensors[f"{layer}self_attn.{side}_proj.bias"] = torch.zeros(heads * 128, dtype=torch.bfloat16)
    return tensors


def write(folder, shape, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    # A tensor that several names have would not be saved.
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder, tensors = parser.parse_args().folder, target_weights()
    first = {name.removeprefix(FIRST): tensor for name, tensor in tensors.items() if name.startswith(FIRST)}
    one_layer = SHAPE | dict(num_hidden_layers=1)
    write(folder / "target", SHAPE, tensors)
    write(folder / "draft_model", one_layer, {name: tensor for name, tensor in tensors.items()
                                              if name.startswith(FIRST) or not name.startswith("model.layers.")})
    write(folder / "eagle", one_layer, eagle(first))
    write(folder / "eagle3", one_layer | dict(architectures=["LlamaForCausalLMEagle3"], eagle_aux_hidden_state_layer_ids=[1, 2, 3]),
          eagle3(first))
    qwen = dict(architectures=["MiMoForCausalLM"], model_type="qwen2", num_nextn_predict_layers=1)
    write(folder / "mimo", SHAPE | qwen, mimo(tensors, first))


if __name__ == "__main__":
    main()
