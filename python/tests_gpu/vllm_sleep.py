#!/usr/bin/env python3
"""Checks sleep mode: answers are equal before sleep and after it. At level 1, weights come back from the CPU's memory;
at level 2, they are loaded again from the checkpoint. The cache is lost in both.

    vllm_sleep.py --model FOLDER --kv kvant_uniform_4bit

Each level prints a line of JSON. "difference" is the largest difference of log-probabilities, as in vllm_offload.py."""

import argparse
import json
import os

import engine
import numpy as np
from vllm_offload import ANSWER, ask, compare

LENGTHS = (5, 127, 128, 129, 1000, 3000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    llm = engine.start(args, max_model_len=4096, enable_sleep_mode=True)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(10, 8000, n).tolist() for n in LENGTHS]
    # vLLM compares the GPU's free memory before and after sleep, so no other engine may allocate memory meanwhile.
    with engine.turn(args.in_turn, args.engines):
        before = [ask(llm, prompt, ANSWER) for prompt in prompts]
        for level in (1, 2):
            # The last token of this answer fills a page, which is still unsealed when the engine falls asleep.
            ask(llm, prompts[2][:120], 9)
            llm.sleep(level=level)
            llm.wake_up(tags=["weights"])
            if level == 2:
                llm.collective_rpc("reload_weights")
            llm.wake_up(tags=["kv_cache"])
            after = [ask(llm, prompt, ANSWER) for prompt in prompts]
            print("RESULT", json.dumps({"kv": args.recipe or args.kv, "level": level, "after sleep": compare(before, after)}),
                  flush=True)


if __name__ == "__main__":
    main()
