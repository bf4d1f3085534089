#!/usr/bin/env python3
"""Replays conversations of agents, whose prompts grow from round to round, with caches that may be too small for them:

    vllm_replay.py --model FOLDER --dummy --kv kvant_uniform_4bit --cache-gib 12.1 --shares 0.25 0.5 1

All conversations begin with one system prompt. In each round, a conversation gets the result of a tool and then an
answer of --answer tokens. Of all conversations, --at-a-time have a request under way. The others wait in a queue, and a
conversation joins its end after each answer. If memory is short, vLLM has therefore evicted a conversation's prefix
before its next round.

--shares are shares of --cache-gib. For each, all conversations run once from the beginning, with an empty cache, while
the other blocks of the cache are kept from vLLM. Results of tools are random tokens of a fixed seed, and an answer never
ends early. The workload is therefore the same for each cache type and share.

A line of JSON for each share has the prompts' tokens, and how many of them vLLM found in its cache. `best_hit_rate` is
the share of tokens that an earlier request had sent or generated. The time to the first token counts from the moment the
request is sent. Its median and 90th percentile are given for the first, middle and last third of the rounds. The output
tokens per second are those from the first request to the last answer."""

import argparse
import json
import time

import engine
import replay_workload

# A step that is under way may still use blocks when its last request has ended.
EMPTY_S = 10


def limit(llm, n_blocks):
    """Empties the cache and leaves n_blocks blocks to vLLM."""
    end = time.monotonic() + EMPTY_S
    while not all(llm.collective_rpc("kvant_limit_blocks", args=(n_blocks,))):
        if time.monotonic() > end:
            raise SystemExit("vLLM still uses blocks of the cache")
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.25, 0.5, 1], help="of --cache-gib")
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=6, help="of each conversation, at least 3")
    parser.add_argument("--at-a-time", type=int, default=4, help="conversations with a request under way")
    parser.add_argument("--system", type=int, default=2048, help="tokens of the system prompt")
    parser.add_argument("--results", nargs=2, type=int, default=[1024, 8192], help="tokens of the shortest and longest result")
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    args = parser.parse_args()
    if args.cache_gib is None or args.rounds < 3 or args.tensor_parallel * args.pipeline_parallel > 1:
        parser.error("needs --cache-gib, at least 3 rounds, and one GPU")

    def conversations(seed, n, n_rounds):
        return replay_workload.conversations(seed, n, n_rounds, args.system, *args.results)

    talks, warm_up = conversations(1, args.conversations, args.rounds), conversations(2, args.at_a_time, 2)
    args.max_seqs = args.at_a_time
    llm = engine.start(args, max_model_len=replay_workload.longest_sequence(talks + warm_up, args.answer) + 8,
                       enable_prefix_caching=True, disable_log_stats=False)
    vllm, cache = llm.llm_engine, llm.llm_engine.vllm_config.cache_config
    sampling = engine.sampling(args.answer, output_kind=engine.only_new_tokens())
    # The first steps are slower, with and without hits.
    replay_workload.replay(vllm, warm_up, args.at_a_time, sampling)
    with engine.turn(args.in_turn, args.engines):
        for part in args.shares:
            limit(llm, int(part * cache.num_gpu_blocks))
            requests, seconds = replay_workload.replay(vllm, conversations(1, args.conversations, args.rounds), args.at_a_time,
                                                       sampling)
            print("RESULT", json.dumps({
                "kv": args.recipe or args.kv, "cache_gib": round(part * args.cache_gib, 3),
                "tokens_that_fit": int(part * cache.kv_cache_size_tokens),
                "working_set": replay_workload.working_set(talks, args.answer), "conversations": args.conversations,
                "rounds": args.rounds, "at_a_time": args.at_a_time, "answer": args.answer, "compiled": args.compile,
                **replay_workload.summary(requests, args.rounds, seconds)}), flush=True)


if __name__ == "__main__":
    main()
