"""Runs a conversation in a session, turn by turn."""
import random

from soak.requests import words
from soak.responses import read_answer

TURNS = (" And then", " But why?", " In short,", " The end of it was")


def turn_body(text, turn, session):
    return {"prompt": text, "max_tokens": 6 + 5 * turn, "temperature": 0.7, "seed": turn, "logprobs": 1, "session": session}


class Conversation:
    """Holds turns with their expected completions. `states` has (text, tokens) of the session before each turn and
    after the last."""

    def __init__(self, number):
        self.opening = words(random.Random(100 + number), 40, 220)
        self.states, self.answers = [(self.opening, 0)], []

    def prompt(self, turn):
        return self.states[turn][0] + (TURNS[turn - 1] if turn else "")

    def learn(self, server):
        rng = random.Random(1)
        name = "expected"
        for turn in range(len(TURNS) + 1):
            answers, _ = read_answer(server, "/v1/completions", turn_body(self.prompt(turn), turn, name), rng)
            tokens = server.json("GET", f"/v1/sessions/{name}")[1]["tokens"]
            self.states.append((self.prompt(turn) + answers[0][0], tokens))
            self.answers.append(answers[0])
        server.json("DELETE", f"/v1/sessions/{name}")
