#!/usr/bin/env python3
"""Measures the output tokens per second of a server that always has more requests than its cache holds, in the steady
state:

    vllm_saturated.py --model FOLDER --dummy --kv kvant_uniform_4bit --cache-gib 8 --loads 1024+4096 4096+2048

A load is the tokens of a prompt + the tokens of its completion, which are equal for all requests. The first requests
already have a part of the completion in their prompts, from none to all, which reaches the steady state at once. When
the cache is full, the remaining requests are replaced by whole ones, some of which always wait. A line of JSON for each
load has the output tokens per second in a stretch of time, including prompts of new requests. The line also has how
many requests ran at a time, including preempted ones, and how many ended.

--prompts adds the seconds until each request of a batch has its first token. The figure is the minimum of three runs,
or of as many runs as begin within ten seconds. --hits adds these seconds for prompts whose tokens are in the prefix
cache, except for some new ones, as the minimum of five runs. --profile adds which kernels run on each GPU until each
request of a batch has its first token."""

import argparse
import json
import time

import engine
import numpy as np

# The cache counts as full after FULL_STEPS steps without a first token while requests wait.
FULL_STEPS = 30
N_WAITING = 8


class Clients:
    """Sends requests for completions without end, as clients do."""

    def __init__(self, llm, prompt, answer, rng):
        self.vllm, self.prompt, self.answer, self.rng = llm.llm_engine, prompt, answer, rng
        self.n_asked = self.n_tokens = self.n_ended = 0
        # `waiting` holds requests that have no token yet, and `under_way` holds requests that have one.
        self.waiting, self.under_way = set(), set()

    def ask(self, of_answer=0):
        """Sends a request. `of_answer` tokens of its completion already exist."""
        name = str(self.n_asked)
        self.n_asked += 1
        prompt, = engine.prompts(self.rng.integers(10, 8000, (1, self.prompt + of_answer)))
        self.vllm.add_request(name, prompt, engine.sampling(self.answer - of_answer, output_kind=engine.only_new_tokens()))
        self.waiting.add(name)

    def give_up(self):
        """Aborts all requests that have no token yet."""
        self.vllm.abort_request(list(self.waiting))
        self.waiting.clear()

    def end(self):
        self.vllm.abort_request([*self.waiting, *self.under_way])
        while self.vllm.has_unfinished_requests():
            self.vllm.step()

    def step(self):
        """Runs a step and returns whether a request got its first token."""
        is_new = False
        for output in self.vllm.step():
            name, n = output.request_id, len(output.outputs[0].token_ids)
            if n and name in self.waiting:
                self.waiting.remove(name)
                self.under_way.add(name)
                is_new = True
            self.n_tokens += n
            if output.finished:
                self.n_ended += name in self.under_way
                self.under_way.discard(name)
        return is_new


def saturated(llm, prompt, answer, args):
    """Returns the measurements of a load."""
    clients = Clients(llm, prompt, answer, np.random.default_rng(1))
    start = time.perf_counter()
    for age in clients.rng.permutation(np.linspace(0, answer - 1, args.max_seqs).astype(int)):
        clients.ask(int(age))
    since_first = 0
    while since_first < FULL_STEPS and clients.waiting:
        since_first = 0 if clients.step() else since_first + 1
    clients.give_up()
    full = time.perf_counter()
    n_steps = n_under_way = 0
    while (now := time.perf_counter()) < full + args.warm_up + args.seconds:
        while len(clients.waiting) < N_WAITING:
            clients.ask()
        if n_steps == 0 and now >= full + args.warm_up:
            begin, tokens, ended = now, clients.n_tokens, clients.n_ended
        clients.step()
        if now >= full + args.warm_up:
            n_steps, n_under_way = n_steps + 1, n_under_way + len(clients.under_way)
    seconds = time.perf_counter() - begin
    result = {"tokens_s": round((clients.n_tokens - tokens) / seconds, 1), "under_way": round(n_under_way / n_steps, 1),
              "ms_a_step": round(1e3 * seconds / n_steps, 2), "ended": clients.n_ended - ended,
              "seconds": round(seconds, 1), "filled_s": round(full - start, 1)}
    clients.end()
    return result


def first_tokens(llm, n, length):
    """Returns for each run the seconds until each of n prompts has its first token."""
    rng, times = np.random.default_rng(2), []
    while len(times) < 3 and sum(times) < 10:
        prompts = engine.prompts(rng.integers(10, 8000, (n, length)))
        start = time.perf_counter()
        llm.generate(prompts, engine.sampling(1), use_tqdm=False)
        times.append(time.perf_counter() - start)
    return times


def profile(llm, n, length):
    """Returns for each GPU the milliseconds and launches of each kernel until each of n prompts has its first token."""
    prompts = engine.prompts(np.random.default_rng(4).integers(10, 8000, (n, length)))
    llm.collective_rpc("kvant_start_profile")
    llm.generate(prompts, engine.sampling(1), use_tqdm=False)
    return llm.collective_rpc("kvant_stop_profile")


def first_tokens_of_hits(llm, n, length, n_new):
    """Returns for each run the seconds until each of n prompts has its first token. The prefix cache has all but n_new
    tokens of each prompt."""
    rng = np.random.default_rng(3)
    before, times = rng.integers(10, 8000, (n, length)), []
    llm.generate(engine.prompts(before), engine.sampling(1), use_tqdm=False)
    for _ in range(5):
        prompts = engine.prompts(np.concatenate([before, rng.integers(10, 8000, (n, n_new))], 1))
        start = time.perf_counter()
        llm.generate(prompts, engine.sampling(1), use_tqdm=False)
        times.append(time.perf_counter() - start)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    parser.add_argument("--loads", nargs="*", default=[], help="prompt + answer, in tokens")
    parser.add_argument("--seconds", type=float, default=20, help="that are measured of each load")
    parser.add_argument("--warm-up", type=float, default=3, help="seconds before them")
    parser.add_argument("--prompts", nargs="*", default=[], help="requests x prompt tokens, at once")
    parser.add_argument("--profile", nargs="*", default=[], help="requests x prompt tokens")
    parser.add_argument("--hits", nargs="*", default=[], help="requests x tokens that are found + new tokens")
    args = parser.parse_args()
    hits = [tuple(map(int, hit.replace("+", "x").split("x"))) for hit in args.hits]
    loads = [tuple(map(int, load.split("+"))) for load in args.loads]
    batches, profiled = ([tuple(map(int, batch.split("x"))) for batch in asked] for asked in (args.prompts, args.profile))
    longest = max([*map(sum, loads), *(length + 1 for _, length in batches + profiled), *(found + new + 1 for _, found, new in hits)])
    llm = engine.start(args, max_model_len=longest + 8, enable_prefix_caching=bool(hits))
    llm.generate(engine.prompts([np.arange(10, 310)]), engine.sampling(8), use_tqdm=False)
    about = {"kv": args.recipe or args.kv, "GPUs": args.tensor_parallel, "cache_gib": args.cache_gib}
    with engine.turn(args.in_turn, args.engines):
        for load in loads:
            print("RESULT", json.dumps({**about, "load": "{}+{}".format(*load), **saturated(llm, *load, args)}), flush=True)
        for n, length in batches:
            times = first_tokens(llm, n, length)
            print("RESULT", json.dumps({**about, "prompts": f"{n}x{length}", "seconds": round(min(times), 3),
                                        "times": len(times)}), flush=True)
        for n, length in profiled:
            print("RESULT", json.dumps({**about, "prompts": f"{n}x{length}", "ms and launches by kernel": profile(llm, n, length)}),
                  flush=True)
        for hit in hits:
            times = first_tokens_of_hits(llm, *hit)
            print("RESULT", json.dumps({**about, "hits": "{}x{}+{}".format(*hit), "seconds": round(min(times), 4)}), flush=True)


if __name__ == "__main__":
    main()
