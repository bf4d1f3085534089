"""Tests the workload and the accounting of python/tests_gpu/vllm_replay.py, with a small stand-in for vLLM's
engine."""

import pathlib
import sys
import unittest
from importlib.util import find_spec
from types import SimpleNamespace

if find_spec("numpy") is None:
    raise unittest.SkipTest("no NumPy")

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests_gpu"))

import replay_workload  # noqa: E402

SYSTEM, SHORTEST, LONGEST, ANSWER, BLOCK = 64, 16, 128, 8, 16
N, ROUNDS, AT_A_TIME = 6, 6, 2


class Engine:
    """Answers each request with ANSWER tokens, one in each step. The cache holds whole blocks, and without a capacity it
    forgets nothing."""

    def __init__(self, token, caches=True):
        self.token, self.caches = token, caches
        self.seen, self.under_way, self.prompts, self.most_under_way = set(), {}, {}, 0

    def add_request(self, name, prompt, sampling):
        tokens = prompt["prompt_token_ids"]
        hits = 0
        while hits + BLOCK < len(tokens) and tuple(tokens[:hits + BLOCK]) in self.seen:
            hits += BLOCK
        self.prompts[name] = tokens
        self.under_way[name] = hits, []
        self.most_under_way = max(self.most_under_way, len(self.under_way))

    def step(self):
        for name, (hits, answer) in list(self.under_way.items()):
            answer.append(self.token)
            ended = len(answer) == ANSWER
            if ended:
                del self.under_way[name]
                # The last token of an answer is never computed.
                tokens = (self.prompts[name] + answer)[:-1]
                if self.caches:
                    self.seen.update(tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK))
            yield SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[self.token])], finished=ended,
                                  num_cached_tokens=hits, metrics=SimpleNamespace(num_preemptions=int(name == "3-2")))


def conversations():
    return replay_workload.conversations(1, N, ROUNDS, SYSTEM, SHORTEST, LONGEST)


def run(engine):
    return replay_workload.replay(engine, conversations(), AT_A_TIME, None)[0]


class Replay(unittest.TestCase):
    def test_every_cache_gets_the_same_work(self):
        one, other = run(Engine(7)), run(Engine(9, caches=False))
        self.assertEqual([(r.round, r.prompt, r.known, r.answer) for r in one],
                         [(r.round, r.prompt, r.known, r.answer) for r in other])
        self.assertEqual({r.answer for r in one}, {ANSWER})
        self.assertEqual(len(one), N * ROUNDS)

    def test_conversations_take_turns(self):
        engine = Engine(7)
        self.assertEqual([r.round for r in run(engine)], [i for i in range(ROUNDS) for _ in range(N)])
        self.assertEqual(engine.most_under_way, AT_A_TIME)

    def test_a_prompt_is_the_conversation_so_far(self):
        engine = Engine(7)
        run(engine)
        for i in range(1, ROUNDS):
            before = engine.prompts[f"2-{i - 1}"] + [7] * ANSWER
            self.assertEqual(engine.prompts[f"2-{i}"][:len(before)], before)
        results = [result for talk in conversations() for result in talk.tool_results]
        self.assertTrue(all(SHORTEST <= len(result) <= LONGEST for result in results))
        self.assertEqual(engine.prompts["0-0"][:SYSTEM], engine.prompts["1-0"][:SYSTEM])
        self.assertNotEqual(engine.prompts["0-0"][SYSTEM:SYSTEM + 8], engine.prompts["1-0"][SYSTEM:SYSTEM + 8])

    def test_hits_of_a_cache_that_forgets_nothing_are_the_known_tokens_in_whole_blocks(self):
        requests = run(Engine(7))
        for request in requests[AT_A_TIME:]:
            # The last known token was generated and not computed.
            computed = request.known - (request.round > 0)
            self.assertEqual(request.hits, computed // BLOCK * BLOCK)
        # Requests that begin together cannot share what none of them has computed.
        self.assertEqual([request.hits for request in requests[:AT_A_TIME]], [0] * AT_A_TIME)

    def test_sizes_of_the_workload(self):
        engine, talks = Engine(7), conversations()
        run(engine)
        ends = [len(engine.prompts[f"{i}-{ROUNDS - 1}"]) + ANSWER for i in range(N)]
        self.assertEqual(replay_workload.longest_sequence(talks, ANSWER), max(ends))
        self.assertEqual(replay_workload.working_set(talks, ANSWER), sum(ends) - (N - 1) * SYSTEM)

    def test_summary(self):
        requests = run(Engine(7))
        for request in requests:
            request.first_token_s = request.round / 2
        result = replay_workload.summary(requests, ROUNDS, 4.0)
        self.assertEqual(result["output_tokens_s"], N * ROUNDS * ANSWER / 4)
        self.assertEqual(result["hit_rate"], round(sum(r.hits for r in requests) / sum(r.prompt for r in requests), 4))
        self.assertLess(result["hit_rate"], result["best_hit_rate"])
        self.assertEqual(result["preemptions"], 1)
        self.assertEqual([result[name]["first_token_s"] for name in replay_workload.THIRDS], [0.25, 1.25, 2.25])
        self.assertEqual(result["last"]["first_token_s_90_percent"], 2.5)
        self.assertLess(result["first"]["hit_rate"], result["last"]["hit_rate"])

    def test_thirds_of_rounds(self):
        def of(n_rounds):
            return [replay_workload.third(SimpleNamespace(round=i), n_rounds) for i in range(n_rounds)]

        self.assertEqual(of(3), list(replay_workload.THIRDS))
        self.assertEqual(of(5), ["first", "first", "middle", "middle", "last"])


if __name__ == "__main__":
    unittest.main()
