#!/usr/bin/env python3
"""Checks that the plug-in is right by the distributions of prompts and the greedy completions of one engine. With
--against, compares them with another engine's:

    vllm_logits.py --model FOLDER --out bf16.pt
    vllm_logits.py --model FOLDER --kv kvant_uniform_4bit --out 4bit.pt --against bf16.pt
    vllm_logits.py --model FOLDER --kv kvant_uniform_4bit --single --against 4bit.pt     the prompts token by token: the decode path

Prompts are random, or --tokens FILE.npy, int [n, length]. The second half of each prompt is scored. A line of JSON has
the mean KL divergence, its standard error over prompts, and the share of positions with an equal most likely token. The
line also says how many greedy completions equal the other engine's completions, and how many equal a second run that
finds prefixes in the cache. For different completions, the line says where they first differ, and by how many nats the
token that the other engine chose was less likely. A small number means that both tokens were nearly as good."""

import argparse
import json
import os
import pathlib
import tempfile
import time

import engine
import numpy as np
import torch

# A completion has ANSWER tokens, so each completion crosses a page border.
ANSWER = 150
# QUESTIONS holds the questions' numbers of tokens.
QUESTIONS = [5, 100, 127, 128, 129, 255, 256, 257, 700, 1000]


class SchedulerCounts:
    """Counts preempted requests, drafts, and accepted drafts."""

    def __init__(self):
        self.preemptions = self.drafts = self.accepted = 0
        self._watch("_preempt_request", self._preempted)
        self._watch("make_spec_decoding_stats", self._drafted)

    def _watch(self, name, count):
        from vllm.v1.core.sched.scheduler import Scheduler

        original = getattr(Scheduler, name)

        def wrapped(*args, **kwargs):
            count(**kwargs)
            return original(*args, **kwargs)

        setattr(Scheduler, name, wrapped)

    def _preempted(self, **_):
        self.preemptions += 1

    def _drafted(self, num_draft_tokens, num_accepted_tokens, **_):
        self.drafts += num_draft_tokens
        self.accepted += num_accepted_tokens


def compare(of_prompt, reference):
    """Returns the mean KL divergence, and the share of equal first tokens, for F32 [n, vocabulary]."""
    divergence = (reference.exp() * (reference - of_prompt)).sum(-1)
    return divergence.mean().item(), (of_prompt.argmax(-1) == reference.argmax(-1)).float().mean().item()


def ask(llm, tokens, rounds):
    """Returns greedy completions: the tokens of each, and the log-probabilities of the likeliest tokens at each place.
    """
    questions = engine.prompts([np.resize(tokens.reshape(-1)[17 * i:], n) for i, n in enumerate(rounds * QUESTIONS)])
    answers = []
    for result in llm.generate(questions, engine.sampling(ANSWER, logprobs=20), use_tqdm=False):
        output = result.outputs[0]
        likely = [{token: x.logprob for token, x in place.items()} for place in output.logprobs]
        answers.append((list(output.token_ids), likely))
    return answers


def compare_answers(answers, others):
    equal, places, gaps = 0, [], []
    for (mine, likely), (theirs, _) in zip(answers, others):
        at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), None)
        equal += at is None
        if at is not None:
            places.append(at)
            gaps.append(round(likely[at][mine[at]] - likely[at].get(theirs[at], float("-inf")), 4))
    return {"equal": f"{equal} of {len(answers)}", "first differ at": places, "by nats": gaps}


def wait_for(path):
    """Waits for what another engine saves, because the engines are started side by side."""
    while not os.path.exists(path):
        time.sleep(1)
    return torch.load(path)


def compare_engines(scored, answers, other):
    """Compares log-probabilities and completions, as far as both engines have them."""
    result = {}
    if scored and other["scored"]:
        pairs = [compare(x, y) for x, y in zip(scored, other["scored"])]
        result["mean KLD"], result["same first token"] = np.mean(pairs, axis=0).tolist()
        result["standard error"] = float(np.std([kld for kld, _ in pairs], ddof=1) / len(pairs) ** 0.5)
    if answers and other["answers"]:
        result["answers"] = compare_answers(answers, other["answers"])
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    parser.add_argument("--tokens", help="prompts, .npy")
    parser.add_argument("--out")
    parser.add_argument("--against", nargs="+", default=[], help="what other engines' --out is, or will be")
    parser.add_argument("--single", action="store_true", help="one token of a prompt a step")
    parser.add_argument("--prompts", type=int, default=4, help="how many are scored")
    parser.add_argument("--length", type=int, default=1000, help="of random prompts")
    parser.add_argument("--rounds", type=int, default=1, help="of ten completions; several rounds give a more exact share of accepted drafts")
    args = parser.parse_args()
    rng = np.random.default_rng(7)
    tokens = np.load(args.tokens) if args.tokens else rng.integers(10, 8000, (args.prompts, args.length))
    # Logits are caught in this process.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    options = dict(long_prefill_token_threshold=1) if args.single else {}
    counts = SchedulerCounts()
    llm = engine.start(args, max_model_len=max(tokens.shape[1] + 2, 4096), **options)

    together = args.prompts if args.single else 1
    prompts, scored = engine.prompts(tokens[:args.prompts]), []
    llm.collective_rpc("kvant_catch_logits")
    for first in range(0, len(prompts), together):
        llm.generate(prompts[first:first + together], engine.sampling(1, prompt_logprobs=1), use_tqdm=False)
        with tempfile.NamedTemporaryFile() as file:
            llm.collective_rpc("kvant_save_logits", args=(file.name,))
            scored += torch.load(file.name)
    result = {"model": args.model, "kv": args.recipe or args.kv, "chunk": 1 if args.single else args.chunk,
              "eager": args.eager, "async": not args.sync, "drafts": args.drafts, "drafter": args.drafter, "blocks": args.blocks,
              "GPUs": args.tensor_parallel * args.pipeline_parallel, "stages": args.pipeline_parallel}
    answers = []
    if not args.single:
        counts.preemptions = 0
        answers = ask(llm, tokens, args.rounds)
        result |= {"preemptions": counts.preemptions, "accepted": f"{counts.accepted} of {counts.drafts} drafts"}
        result["asked again"] = compare_answers(answers, ask(llm, tokens, args.rounds))
    if args.out:
        torch.save({"scored": scored, "answers": answers}, args.out + ".part")
        os.rename(args.out + ".part", args.out)
    result["against"] = {pathlib.Path(path).stem: compare_engines(scored, answers, wait_for(path)) for path in args.against}
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
