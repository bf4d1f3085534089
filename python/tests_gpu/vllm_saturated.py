#!/usr/bin/env python3
"""Output tokens a second of a server that always has more requests than its cache holds, in the steady state:

    vllm_saturated.py --model FOLDER --dummy --kv kvant_uniform_4bit --cache-gib 8 --loads 1024+4096 4096+2048

A load is tokens of a prompt + tokens of its answer, the same for all requests. So that the steady state needn't be waited for, the
first requests are those that would be under way: a part of the answer, any from none to all of it, is in the prompt already.
When no more of them fit, the others are replaced by whole ones, of which some always wait. A line of JSON for each load: output
tokens a second in a stretch of time, prompts of new requests included, how many requests were under way at a time, preempted ones
included, and how many ended. Then, with --prompts, seconds until each of a batch has its first token, the least of three times, or
of as many as begin within ten seconds; and with --hits, seconds until each of a batch has its first token whose prompts are found in
the prefix cache but for some new tokens, the least of five times. With --profile, for each GPU, which kernels run until each of a
batch has its first token."""

import argparse
import json
import time

import engine
import numpy as np

FULL_STEPS = 30  # without a first token, while requests wait: the cache is full
N_WAITING = 8


class Clients:
    """They ask for answers without end."""

    def __init__(self, llm, prompt, answer, rng):
        self.vllm, self.prompt, self.answer, self.rng = llm.llm_engine, prompt, answer, rng
        self.n_asked = self.n_tokens = self.n_ended = 0
        self.waiting, self.under_way = set(), set()  # without a token so far, and with one

    def ask(self, of_answer=0):
        """of_answer: tokens that are there already."""
        name = str(self.n_asked)
        self.n_asked += 1
        prompt, = engine.prompts(self.rng.integers(10, 8000, (1, self.prompt + of_answer)))
        self.vllm.add_request(name, prompt, engine.sampling(self.answer - of_answer, output_kind=engine.only_new_tokens()))
        self.waiting.add(name)

    def give_up(self):
        """Whoever has no token yet."""
        self.vllm.abort_request(list(self.waiting))
        self.waiting.clear()

    def end(self):
        self.vllm.abort_request([*self.waiting, *self.under_way])
        while self.vllm.has_unfinished_requests():
            self.vllm.step()

    def step(self):
        """Whether a request got its first token."""
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
    """What is measured of a load."""
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
    """Seconds until each of n prompts has its first token, each time."""
    rng, times = np.random.default_rng(2), []
    while len(times) < 3 and sum(times) < 10:
        prompts = engine.prompts(rng.integers(10, 8000, (n, length)))
        start = time.perf_counter()
        llm.generate(prompts, engine.sampling(1), use_tqdm=False)
        times.append(time.perf_counter() - start)
    return times


def profile(llm, n, length):
    """Of each GPU, milliseconds and launches of each kernel until each of n prompts has its first token."""
    prompts = engine.prompts(np.random.default_rng(4).integers(10, 8000, (n, length)))
    llm.collective_rpc("kvant_start_profile")
    llm.generate(prompts, engine.sampling(1), use_tqdm=False)
    return llm.collective_rpc("kvant_stop_profile")


def first_tokens_of_hits(llm, n, length, n_new):
    """Seconds until each of n prompts has its first token, each time, if all but n_new of its tokens are in the prefix cache."""
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
