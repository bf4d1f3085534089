#!/usr/bin/env python3
"""Measures mistral.rs on the CPU with a GGUF model: a prompt of some hundred tokens and 32 tokens after the prompt.

    pip install mistralrs
    lab/bench-mistralrs.py MODEL.gguf --json FILE
"""
import argparse
import json
import pathlib
import statistics

import mistralrs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    runner = mistralrs.Runner(
        which=mistralrs.Which.GGUF(quantized_model_id=str(options.model.parent), quantized_filename=options.model.name),
        # Without a prefix cache, every prompt is computed.
        max_seqs=1, prefix_cache_n=0)
    request = mistralrs.CompletionRequest(model="default", prompt="The river runs through the valley and the town. " * 46,
                                          max_tokens=options.tokens, temperature=0.0)
    usages = [runner.send_completion_request(request).usage for _ in range(options.repetitions + 1)][1:]
    result = {"schema": "kvant.bench.mistralrs/1", "model": options.model.name, "prompt": usages[0].prompt_tokens,
              "decode": usages[0].completion_tokens, "repeats": options.repetitions,
              "prompt_tps": statistics.median(u.avg_prompt_tok_per_sec for u in usages),
              "decode_tps": statistics.median(u.avg_compl_tok_per_sec for u in usages)}
    print(f"prompt of {result['prompt']}: {result['prompt_tps']:.1f} tokens/s, then {result['decode_tps']:.1f} tokens/s")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
