"""Makes the conversations of vllm_replay.py, runs them on vLLM's LLMEngine, and accounts for their requests. The module
itself imports nothing of vLLM."""

import collections
import time
from dataclasses import dataclass

import numpy as np

VOCABULARY = 10, 8000
THIRDS = "first", "middle", "last"


class Conversation:
    """Holds a conversation's tokens, and the tool results of its coming rounds. All conversations begin with the same
    system prompt."""

    def __init__(self, number, system, tool_results):
        self.number, self.tokens, self.tool_results, self.round = number, list(system), tool_results, 0

    def prompt(self):
        """Appends the next tool result and returns all tokens."""
        self.tokens += self.tool_results[self.round]
        return list(self.tokens)

    def answered(self, tokens):
        """Appends an answer and returns whether the conversation goes on."""
        self.tokens += tokens
        self.round += 1
        return self.round < len(self.tool_results)


def conversations(seed, n, n_rounds, system, shortest, longest):
    """Returns n new conversations, which are the same for each cache. Tool results have `shortest` to `longest` tokens.
    The logarithms of their lengths are uniformly distributed."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(shortest), np.log(longest), (n, n_rounds))).astype(int)
    prefix = rng.integers(*VOCABULARY, system).tolist()
    return [Conversation(i, prefix, [rng.integers(*VOCABULARY, length).tolist() for length in row])
            for i, row in enumerate(lengths)]


def longest_sequence(talks, answer):
    """Returns how many tokens the longest of new conversations has at its end."""
    return max(len(talk.tokens) + sum(map(len, talk.tool_results)) + answer * len(talk.tool_results) for talk in talks)


def working_set(talks, answer):
    """Returns how many tokens a cache must hold for no token of new conversations to be computed twice."""
    system = len(talks[0].tokens)
    return system + sum(longest_sequence([talk], answer) - system for talk in talks)


@dataclass
class Request:
    """Describes a turn of a conversation. `known` counts the prompt's tokens that an earlier request had sent or generated,
    and `hits` counts the tokens that vLLM found in its cache."""

    round: int
    prompt: int
    known: int
    asked_at: float
    hits: int = 0
    first_token_s: float | None = None
    answer: int = 0
    preemptions: int = 0


def replay(vllm, talks, at_a_time, sampling):
    """Runs new conversations to their end, of which `at_a_time` have a request under way. Returns the requests and the
    seconds. `sampling` is vLLM's SamplingParams, by which an output has only new tokens."""
    queue, under_way, requests = collections.deque(talks), {}, []
    start = time.perf_counter()
    while queue or under_way:
        while queue and len(under_way) < at_a_time:
            talk = queue.popleft()
            known, prompt = len(talk.tokens) if requests else 0, talk.prompt()
            requests.append(Request(talk.round, len(prompt), known, time.perf_counter()))
            name = f"{talk.number}-{talk.round}"
            under_way[name] = talk, requests[-1], []
            vllm.add_request(name, dict(prompt_token_ids=prompt), sampling)
        for output in vllm.step():
            talk, request, answer = under_way[output.request_id]
            answer += output.outputs[0].token_ids
            if answer and request.first_token_s is None:
                request.first_token_s = time.perf_counter() - request.asked_at
                request.hits = output.num_cached_tokens
            if output.finished:
                del under_way[output.request_id]
                request.answer, request.preemptions = len(answer), output.metrics.num_preemptions
                if talk.answered(answer):
                    queue.append(talk)
    return requests, time.perf_counter() - start


def third(request, n_rounds):
    return THIRDS[request.round * 3 // n_rounds]


def share(part, whole):
    return round(part / whole, 4) if whole else 0.0


def summary(requests, n_rounds, seconds):
    """Returns the measurements of all requests of a replay. There must be at least three rounds."""
    prompt, known, hits, answers = (sum(getattr(request, name) for request in requests)
                                    for name in ("prompt", "known", "hits", "answer"))
    result = {"requests": len(requests), "prompt_tokens": prompt, "known_tokens": known, "hit_tokens": hits,
              "hit_rate": share(hits, prompt), "best_hit_rate": share(known, prompt), "output_tokens": answers,
              "output_tokens_s": round(answers / seconds, 1), "seconds": round(seconds, 2),
              "preemptions": sum(request.preemptions for request in requests)}
    for name in THIRDS:
        group = [request for request in requests if third(request, n_rounds) == name]
        median, slowest = np.percentile([request.first_token_s for request in group], (50, 90))
        result[name] = {"first_token_s": round(median, 4), "first_token_s_90_percent": round(slowest, 4),
                        "hit_rate": share(sum(request.hits for request in group), sum(request.prompt for request in group))}
    return result
