#!/usr/bin/env python3
"""Is the plug-in right? Log-probabilities of prompts, and greedy answers, of one engine; with --against, beside another's:

    vllm_logits.py --model FOLDER --out bf16.pt
    vllm_logits.py --model FOLDER --kv kvant_4bit --out 4bit.pt --against bf16.pt
    vllm_logits.py --model FOLDER --kv kvant_4bit --single --against 4bit.pt     the prompts token by token: the decode path

Prompts are random, or --tokens FILE.npy, int [n, length]. Scored is the second half of each. A line of JSON says: mean KL
divergence of the distributions and the share of positions with the same first token; greedy answers that are equal, or
where they first differ, against the other engine's, and asked again, when prefixes are found in the cache."""

import argparse
import json
import os

import engine
import numpy as np
import torch

ANSWER = 150  # tokens: each crosses a page's border


class LogProbabilities:
    """Catches the logits of prompts, of which there is one at a time. F32 [n_tokens, vocabulary] a prompt."""

    def __init__(self):
        from vllm.v1.worker.gpu.sample import prompt_logprob

        self._chunks = []
        original = prompt_logprob.compute_prompt_logprobs_with_chunking

        def wrapped(token_ids, hidden_states, logits_fn, *args, **kwargs):
            for first in range(0, len(hidden_states), 1024):
                self._chunks.append(logits_fn(hidden_states[first:first + 1024]).float().log_softmax(-1).cpu())
            return original(token_ids, hidden_states, logits_fn, *args, **kwargs)

        prompt_logprob.compute_prompt_logprobs_with_chunking = wrapped

    def take(self):
        result, self._chunks = torch.cat(self._chunks), []
        return result


def compare(of_prompt, reference):
    """Mean KL divergence, and the share of equal first tokens, of F32 [n, vocabulary]."""
    divergence = (reference.exp() * (reference - of_prompt)).sum(-1)
    return divergence.mean().item(), (of_prompt.argmax(-1) == reference.argmax(-1)).float().mean().item()


def first_differences(answers, others):
    """For each answer, the first place where it differs, or its length."""
    return [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(x)) for x, y in zip(answers, others)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine.add_arguments(parser)
    parser.add_argument("--tokens", help="prompts, .npy")
    parser.add_argument("--out")
    parser.add_argument("--against")
    parser.add_argument("--single", action="store_true", help="one token of a prompt a step")
    parser.add_argument("--prompts", type=int, default=4, help="how many are scored")
    parser.add_argument("--length", type=int, default=1000, help="of random prompts")
    args = parser.parse_args()
    rng = np.random.default_rng(7)
    tokens = np.load(args.tokens) if args.tokens else rng.integers(10, 8000, (args.prompts, args.length))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # logits are caught in this process
    options = dict(long_prefill_token_threshold=1, async_scheduling=False) if args.single else {}
    catcher = LogProbabilities()
    llm = engine.start(args, max_model_len=max(tokens.shape[1] + 2, 4096), **options)

    scored = []
    for prompt in engine.prompts(tokens[:args.prompts]):
        llm.generate([prompt], engine.sampling(1, prompt_logprobs=1), use_tqdm=False)
        log_probabilities = catcher.take()
        scored.append(log_probabilities[len(log_probabilities) // 2:].clone())
    result = {"model": args.model, "kv": args.kv, "chunk": 1 if args.single else args.chunk, "eager": args.eager}
    answers = []
    if not args.single:
        lengths = [5, 100, 127, 128, 129, 255, 256, 257, 700, 1000]
        questions = engine.prompts([np.resize(tokens.reshape(-1)[17 * i:], n) for i, n in enumerate(lengths)])
        ask = lambda: [list(x.outputs[0].token_ids)  # noqa: E731
                       for x in llm.generate(questions, engine.sampling(ANSWER), use_tqdm=False)]
        answers = ask()
        result["asked again, equal up to"] = first_differences(answers, ask())
    if args.out:
        torch.save({"scored": scored, "answers": answers}, args.out)
    if args.against:
        other = torch.load(args.against)
        pairs = [compare(x, y) for x, y in zip(scored, other["scored"])]
        result["against"] = args.against
        result["mean KLD"], result["same first token"] = np.mean(pairs, axis=0).tolist()
        if answers and other["answers"]:
            result["answers equal up to"] = first_differences(answers, other["answers"])
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
