#!/usr/bin/env python3
"""Measures the output tokens per second of one cache type for batches of equally long prompts:

    vllm_throughput.py --model FOLDER --dummy --kv kvant_uniform_4bit --batches 24x32768 128x4096 1x131072

Prompts differ, so no prefix is shared. A line of JSON for each batch has the seconds until every request has a token.
The line has the output tokens per second from then until the first request ends, while the whole batch only decodes. A
cache that is too small never reaches this state. The line also has the output tokens per second from beginning to end,
prompts included. An example with more requests than fit:

    vllm_throughput.py --model FOLDER --dummy --kv kvant_uniform_4bit --cache-gib 16 --answer 512 --batches 160x4096

With --runs N, a batch runs N times with other prompts. The line then has medians, and the measurements of all runs.

With --profile STEPS, each batch runs once more, and another line lists the kernels of STEPS decoding steps for each GPU.
A page has 128 tokens, so 128 steps seal a page of each request."""

import argparse
import json
import statistics
import time

import engine
import numpy as np

# FIRST_STEPS steps run between prompts and a profile. A profiled completion has MORE_TOKENS tokens outside the profile.
FIRST_STEPS, MORE_TOKENS = 20, 120


def add_requests(llm, prompts, answer):
    for i, prompt in enumerate(prompts):
        llm.llm_engine.add_request(str(i), prompt, engine.sampling(answer))


def run(llm, prompts, answer):
    """Returns the measurements of a batch."""
    vllm = llm.llm_engine
    add_requests(llm, prompts, answer)
    counts = dict.fromkeys(map(str, range(len(prompts))), 0)
    start = time.perf_counter()
    # `decoding` and `end` hold a time, and the number of tokens at that time.
    decoding = end = None
    while vllm.has_unfinished_requests():
        for output in vllm.step():
            counts[output.request_id] = len(output.outputs[0].token_ids)
            if output.finished and end is None:
                end = time.perf_counter(), sum(counts.values())
        if decoding is None and min(counts.values()) > 0:
            decoding = time.perf_counter(), sum(counts.values())
    seconds = time.perf_counter() - start
    result = {"prompt_s": round(decoding[0] - start, 3), "all_s": round(seconds, 3),
              "all_tokens_s": round(sum(counts.values()) / seconds, 1)}
    if decoding[0] < end[0]:
        tokens, seconds = end[1] - decoding[1], end[0] - decoding[0]
        result |= {"tokens": tokens, "tokens_s": round(tokens / seconds, 1),
                   "ms_a_step": round(1e3 * seconds * len(prompts) / tokens, 3)}
    return result


def summary(results):
    """Returns the medians of a batch's runs, and the measurements of all runs."""
    if len(results) == 1:
        return results[0]
    # A run whose cache is too small lacks the measurements of decoding.
    names = [name for name in results[0] if all(name in result for result in results)]
    by_name = {name: [result[name] for result in results] for name in names}
    return {name: statistics.median(values) for name, values in by_name.items()} | {"runs": by_name}


def profile(llm, prompts, n_steps):
    """Returns for each GPU the time of each kernel in about n_steps steps that decode the whole batch. The number is
    approximate, because vLLM does not wait for this function."""
    vllm = llm.llm_engine
    # The first requests decode while the last ones are still in their prompts.
    add_requests(llm, prompts, MORE_TOKENS + n_steps)
    waiting = set(map(str, range(len(prompts))))
    while waiting:
        waiting -= {output.request_id for output in vllm.step() if output.outputs[0].token_ids}
    # The first steps after prompts may be slower.
    for _ in range(FIRST_STEPS):
        vllm.step()
    llm.collective_rpc("kvant_start_profile")
    for _ in range(n_steps):
        vllm.step()
    kernels = llm.collective_rpc("kvant_stop_profile")
    while vllm.has_unfinished_requests():
        vllm.step()
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    parser.add_argument("--batches", nargs="+", default=["24x32768", "128x4096", "1x131072"], help="requests x prompt tokens")
    parser.add_argument("--answer", type=int, default=256, help="tokens")
    parser.add_argument("--runs", type=int, default=1, help="of each batch")
    parser.add_argument("--profile", type=int, default=0, metavar="STEPS")
    args = parser.parse_args()
    batches = [tuple(map(int, batch.split("x"))) for batch in args.batches]
    args.max_seqs = max(n for n, _ in batches)
    llm = engine.start(args, max_model_len=max(length for _, length in batches) + max(args.answer, MORE_TOKENS + args.profile) + 8,
                       enable_prefix_caching=False)
    rng = np.random.default_rng(1)
    llm.generate(engine.prompts([rng.integers(10, 8000, 300)]), engine.sampling(8), use_tqdm=False)
    about = {"kv": args.recipe or args.kv, "GPUs": args.tensor_parallel * args.pipeline_parallel,
             "stages": args.pipeline_parallel, "custom all-reduce": args.custom_all_reduce,
             "cache_gib": args.cache_gib, "compiled": args.compile}
    with engine.turn(args.in_turn, args.engines):
        for n, length in batches:
            results = [run(llm, engine.prompts(rng.integers(10, 8000, (n, length))), args.answer) for _ in range(args.runs)]
            print("RESULT", json.dumps({**about, "requests": n, "prompt": length, **summary(results)}), flush=True)
        for n, length in batches if args.profile else ():
            kernels = profile(llm, engine.prompts(rng.integers(10, 8000, (n, length))), args.profile)
            print("RESULT", json.dumps({**about, "requests": n, "prompt": length, "steps": args.profile,
                                        "ms and launches by kernel": kernels}), flush=True)


if __name__ == "__main__":
    main()
