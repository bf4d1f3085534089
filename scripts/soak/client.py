"""Acts as a client that asks, goes on with its session, and sometimes misbehaves."""
import collections
import random
import threading
import time
import traceback

from soak.conversation import turn_body
from soak.malformed import malformed_requests, send_half_a_request, send_malformed_request
from soak.responses import read_answer, read_response
from soak.server import Wrong


class Client(threading.Thread):
    def __init__(self, soak, number):
        super().__init__()
        self.soak, self.server, self.number = soak, soak.server, number
        self.rng = random.Random(1000 + number)
        self.session = f"client{number}"
        self.conversation, self.turn, self.saved_turn = None, 0, 0
        self.counts = collections.Counter()

    def run(self):
        try:
            while time.time() < self.soak.deadline and not self.soak.failure:
                self.act()
        except Exception:
            self.soak.failure = self.soak.failure or f"client {self.number} at turn {self.turn}: {traceback.format_exc()}"

    def act(self):
        kind = self.rng.random()
        if kind < 0.35:
            self.single()
        elif kind < 0.75:
            self.go_on()
        elif kind < 0.9:
            self.look_after_session()
        elif kind < 0.97:
            self.misbehave()
        else:
            path = self.rng.choice(["/metrics", "/slots", "/cache", "/v1/sessions", "/health"])
            status, _ = self.server.ask("GET", path)
            self.expect(status == 200, f"{path}: {status}")
            self.counts["looks"] += 1

    def expect(self, condition, what):
        if not condition:
            raise Wrong(what)

    def single(self):
        path, body, expected = self.rng.choice(self.soak.requests)
        stream, leave = self.rng.random() < 0.5 and expected[True] is not None, self.rng.random() < 0.3
        found = read_response(self.server, path, body, self.rng, stream, leave)
        if found is None:
            self.counts["left" if leave else "refused for now"] += 1
            if not leave:
                time.sleep(self.rng.random())
            return
        self.expect(found == expected[stream], f"{path} {body} stream {stream}: {found} instead of {expected[stream]}")
        self.counts[f"whole responses of {path}"] += 1

    # --- sessions ---

    def tokens(self, name=None):
        """Returns the tokens of a session after the server has stopped working on it, or 0 without a session."""
        while True:
            status, session = self.server.json("GET", f"/v1/sessions/{name or self.session}")
            if status == 404:
                return 0
            self.expect(status == 200 and "problem" not in session, f"{name or self.session}: {session}")
            if not session["running"]:
                return session["tokens"]
            time.sleep(0.02)

    def go_on(self):
        if self.conversation is None:
            self.conversation, self.turn, self.saved_turn = self.rng.choice(self.soak.conversations), 0, 0
        if self.turn == len(self.conversation.answers):
            return self.delete()
        c, turn = self.conversation, self.turn
        leave = self.rng.random() < 0.15
        answer = read_answer(self.server, "/v1/completions", turn_body(c.prompt(turn), turn, self.session), self.rng, leave)
        # The completion may have ended before the server noticed that its client had left.
        if answer is None:
            tokens = self.tokens()
            self.expect(tokens in (c.states[turn][1], c.states[turn + 1][1]),
                        f"{self.session}: {tokens} tokens, not {c.states[turn][1]} or {c.states[turn + 1][1]}")
            self.turn += tokens == c.states[turn + 1][1]
            self.counts["left" if leave else "refused for now"] += 1
            return None
        self.expect(answer[0][0] == c.answers[turn], f"{self.session}: {answer[0][0]} instead of {c.answers[turn]}")
        self.expect(turn == 0 or answer[1] == c.states[turn][1], f"{self.session}: {answer[1]} of {c.states[turn][1]} tokens were reused")
        self.turn += 1
        self.counts["turns"] += 1
        return None

    def look_after_session(self):
        if not self.turn:
            return
        path, kind = f"/v1/sessions/{self.session}", self.rng.random()
        if kind < 0.4:
            status, saved = self.server.json("POST", path + "/save")
            self.expect(status == 200 and saved["on_disk"], f"save: {status} {saved}")
            self.saved_turn = self.turn
            self.counts["saves"] += 1
        elif kind < 0.65 and self.saved_turn:
            # The file holds the saved state. If the server needed the memory and wrote the session to the file, the
            # file holds a later state.
            status, restored = self.server.json("POST", path + "/restore")
            states = [tokens for _, tokens in self.conversation.states]
            self.expect(status == 200 and restored["tokens"] in states[self.saved_turn:self.turn + 1], f"restore: {status} {restored}")
            self.turn = self.saved_turn = states.index(restored["tokens"])
            self.counts["restores"] += 1
        elif kind < 0.9:
            copy = f"{self.session}-fork"
            status, forked = self.server.json("POST", path + "/fork", {"to": copy})
            self.expect(status == 200 and forked["tokens"] == self.conversation.states[self.turn][1], f"fork: {status} {forked}")
            if self.turn < len(self.conversation.answers):
                body = turn_body(self.conversation.prompt(self.turn), self.turn, copy)
                answer = read_answer(self.server, "/v1/completions", body, self.rng)
                self.expect(answer is None or answer[0][0] == self.conversation.answers[self.turn], f"{copy}: {answer}")
            self.tokens(copy)
            status, deleted = self.server.json("DELETE", f"/v1/sessions/{copy}")
            self.expect(status == 200, f"delete: {status} {deleted}")
            self.counts["forks"] += 1
        else:
            self.expect(self.tokens() == self.conversation.states[self.turn][1], f"{self.session} has other tokens")

    def delete(self):
        status, deleted = self.server.json("DELETE", f"/v1/sessions/{self.session}")
        self.expect(status == 200, f"delete: {status} {deleted}")
        self.conversation = None
        self.turn = 0

    def misbehave(self):
        send_malformed_request(self.server, *self.rng.choice(malformed_requests(self.rng)))
        self.counts["malformed"] += 1
        if self.rng.random() < 0.3:
            send_half_a_request(self.server)
            self.counts["malformed"] += 1
