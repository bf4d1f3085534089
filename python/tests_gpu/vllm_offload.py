#!/usr/bin/env python3
"""Checks CPU offload (--kv-offloading-size) with a cache that is too small for all prompts. Each prompt is asked twice,
and the pages of the other prompts evict its pages in between. With --decoded, the answers are asked too, each after its
prompt. The other engine has no offload and a large cache, so it finds all of these tokens on the GPU:

    vllm_offload.py --model FOLDER --kv kvant_uniform_4bit --cache-tokens 80000 --out gpu.pt
    vllm_offload.py --model FOLDER --kv kvant_uniform_4bit --offload-gib 2 --against gpu.pt

A line of JSON says how many tokens came from the CPU, and how many answers equal those of the other engine. "difference"
is the largest difference of the log-probabilities of likely tokens at equal places; 0 means equal bits. "seconds" are
medians of the time to one token: of prompts that no cache has ("computed"), and of the same prompts again ("found").
The check fails if --offload-gib is given and no token came from the CPU."""

import argparse
import json
import os
import pathlib
import shutil
import time

import engine
import numpy as np
import torch
from vllm_logits import wait_for

# Multiples of a page are among the lengths, and neighbours of multiples.
LENGTHS = (8000, 8063, 8064, 8065, 5000, 8100)
ANSWER = 150
N_LIKELY = 20
LONGEST = 8448
# Engines that start side by side share the machine's memory.
N_ENGINES = 4
TOKENS_OF_BLOCK = {True: 128, False: 16}


class Loads:
    """Counts tokens that are loaded from the CPU."""

    def __init__(self):
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler as Scheduler

        self.tokens, original = 0, Scheduler.update_state_after_alloc

        def wrapped(scheduler, request, blocks, num_external_tokens):
            self.tokens += num_external_tokens
            return original(scheduler, request, blocks, num_external_tokens)

        Scheduler.update_state_after_alloc = wrapped


def has_shared_memory(gib):
    """Returns whether vLLM can keep the pages in shared memory. Otherwise this function makes vLLM use other pinned
    memory, because containers often have little shared memory."""
    if shutil.disk_usage("/dev/shm").free > N_ENGINES * gib * 2**30:
        return True
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    CPUOffloadingSpec._uses_shared_region = lambda spec: False
    return False


def ask(llm, prompt, n_tokens):
    """Returns the answer, the log-probabilities of likely tokens at each place, and the time. The engine has no other
    request, so the shapes of all steps depend on the request alone."""
    begin = time.monotonic()
    output = llm.generate(engine.prompts([prompt]), engine.sampling(n_tokens, logprobs=N_LIKELY), use_tqdm=False)[0].outputs[0]
    seconds = time.monotonic() - begin
    return list(output.token_ids), [{token: x.logprob for token, x in place.items()} for place in output.logprobs], seconds


def compare(mine, theirs):
    """Returns how many answers are equal, and the largest difference as far as they are."""
    equal, difference = 0, 0.0
    for (tokens, likely, _), (other_tokens, other_likely, _) in zip(mine, theirs):
        equal += tokens == other_tokens
        for token, other_token, place, other_place in zip(tokens, other_tokens, likely, other_likely):
            difference = max([difference, *(abs(place[x] - other_place[x]) for x in place.keys() & other_place.keys())])
            if token != other_token:
                break
    return {"equal": f"{equal} of {len(mine)}", "difference": difference}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    parser.add_argument("--offload-gib", type=float, help="of CPU memory; no offload, if not given")
    parser.add_argument("--cache-tokens", type=int, default=20000, help="that fit on the GPU")
    parser.add_argument("--decoded", action="store_true", help="also store pages of answers")
    parser.add_argument("--out")
    parser.add_argument("--against", help="what another engine's --out is, or will be")
    args = parser.parse_args()
    # Loads are counted in this process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    args.blocks = args.cache_tokens // TOKENS_OF_BLOCK[args.kv.startswith("kvant")]
    options, memory = {}, None
    if args.offload_gib:
        options["kv_offloading_size"] = args.offload_gib
        memory = "shared" if has_shared_memory(args.offload_gib) else "pinned"
        if args.decoded:
            options["kv_transfer_config"] = dict(kv_connector_extra_config=dict(offload_prompt_only=False))
    loads = Loads()
    llm = engine.start(args, max_model_len=LONGEST, enable_prefix_caching=True, **options)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(10, 8000, n).tolist() for n in LENGTHS]
    with engine.turn(args.in_turn, args.engines):
        ask(llm, rng.integers(10, 8000, LENGTHS[0]).tolist(), 2)
        computed = [ask(llm, prompt, 1)[2] for prompt in prompts]
        first = [ask(llm, prompt, ANSWER) for prompt in prompts]
        found = [ask(llm, prompt, 1)[2] for prompt in prompts]
        again = [ask(llm, prompt, ANSWER) for prompt in prompts]
        longer = [prompt + answer for prompt, (answer, *_) in zip(prompts, first)] if args.decoded else []
        loaded = loads.tokens
        after = [ask(llm, prompt, 2) for prompt in longer]
    result = {"kv": args.recipe or args.kv, "offload GiB": args.offload_gib, "memory": memory, "decoded": args.decoded,
              "cache tokens": args.cache_tokens, "prompt tokens": sum(LENGTHS), "from the CPU": loads.tokens,
              "of these after answers": loads.tokens - loaded,
              "seconds": {"computed": round(float(np.median(computed)), 4), "found": round(float(np.median(found)), 4)},
              "asked again": compare(first, again)}
    if args.offload_gib and not loads.tokens:
        raise SystemExit(f"no token came from the CPU: {json.dumps(result)}")
    if args.out:
        torch.save({"first": first, "again": again, "after": after}, args.out + ".part")
        os.rename(args.out + ".part", args.out)
    if args.against:
        other = wait_for(args.against)
        result["against"] = {pathlib.Path(args.against).stem: {name: compare(mine, other[name]) for name, mine in (
            ("first", first), ("again", again), ("after", after)) if mine and other[name]}}
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
