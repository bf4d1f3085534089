#!/usr/bin/env python3
"""Writes the prompts of vllm_logits.py and hf_cache.py: token numbers, int32 [n, length], with a prompt in each row.

    token_prompts.py MODEL.gguf wikitext.npy --each 4 wikitext-2-test.txt
    token_prompts.py MODEL.gguf prompts.npy --each 4 wikitext-2-test.txt code.txt

--each prompts come from the start of each text."""

import argparse
import pathlib

import numpy as np

import kvant


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, whose tokenizer is used")
    parser.add_argument("out", help="the array to write")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--each", type=int, default=4, help="prompts of each text")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a prompt")
    options = parser.parse_args()
    tokenizer = kvant.Model(options.model, "bf16", context=256).tokenizer
    rows = []
    for path in options.texts:
        tokens = tokenizer.encode(pathlib.Path(path).read_bytes().decode()).tolist()
        if len(tokens) < options.each * options.length:
            parser.error(f"{path} has {len(tokens)} tokens, and {options.each} prompts of {options.length} need more")
        rows += [tokens[i * options.length:(i + 1) * options.length] for i in range(options.each)]
    np.save(options.out, np.array(rows, dtype=np.int32))


if __name__ == "__main__":
    main()
