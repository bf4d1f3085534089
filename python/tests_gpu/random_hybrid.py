#!/usr/bin/env python3
"""Writes a random hybrid model of Qwen3.5's architecture as a checkpoint for vLLM:

    random_hybrid.py FOLDER [--shape-only]

Every fourth layer has attention, with heads of 256 channels: 8 query heads and 2 KV heads, or 24 and 4 with
--shape-only. The others are gated delta nets.

    --shape-only   writes no weights, but the config.json of Qwen3.5-27B's shape, cut to 16 layers, for vLLM's
                   load_format=dummy"""

import argparse
import pathlib

import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5 import Qwen3_5TextConfig

SMALL = dict(
    vocab_size=8192, hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8,
    num_key_value_heads=2, linear_num_key_heads=4, linear_num_value_heads=8, max_position_embeddings=32768)
# Four of the layers have attention.
SHAPE_OF_27B = dict(
    vocab_size=248320, hidden_size=5120, intermediate_size=17408, num_hidden_layers=16, num_attention_heads=24,
    num_key_value_heads=4, linear_num_key_heads=16, linear_num_value_heads=48, max_position_embeddings=262144)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape-only", action="store_true")
    options = parser.parse_args()
    # The scale of weights makes predictions depend on the context.
    config = Qwen3_5TextConfig(
        **(SHAPE_OF_27B if options.shape_only else SMALL), head_dim=256, full_attention_interval=4,
        linear_key_head_dim=128, linear_value_head_dim=128, initializer_range=0.05, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False)
    if options.shape_only:
        config.architectures = ["Qwen3_5ForCausalLM"]
        config.dtype = torch.bfloat16
        config.save_pretrained(options.folder)
        return
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
