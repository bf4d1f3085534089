#!/usr/bin/env python3
"""Writes a small random hybrid model of Qwen3.5's architecture as a checkpoint for vLLM: random_hybrid.py FOLDER

Every fourth layer has attention, with 8 query heads and 2 KV heads of 256 channels. The others are gated delta nets."""

import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_5 import Qwen3_5TextConfig


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    # The scale of weights makes predictions depend on the context.
    config = Qwen3_5TextConfig(
        vocab_size=8192, hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, full_attention_interval=4, linear_num_key_heads=4, linear_num_value_heads=8,
        linear_key_head_dim=128, linear_value_head_dim=128, max_position_embeddings=32768, initializer_range=0.05,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
