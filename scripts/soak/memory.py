"""Compares what the server's heap holds in equal states, and judges its growth."""
import random
import statistics

from soak.conversation import turn_body
from soak.malformed import malformed_requests, send_half_a_request, send_malformed_request
from soak.requests import WORDS
from soak.responses import read_answer, read_response
from soak.server import Wrong

ROUNDS, WARM_UP = 8, 3  # the first WARM_UP rounds may still fill what the server keeps
GROWTH = 64  # bytes a request


def shortened(value):
    """Returns a request with so little text that the prefix cache keeps none of it."""
    if isinstance(value, dict):
        texts = ("prompt", "content", "input", "input_prefix", "input_suffix")
        limits = {k: min(v, 4) for k, v in value.items() if k in ("max_tokens", "max_output_tokens", "n_predict")}
        return {k: shortened(v) if k in texts or k == "messages" else v for k, v in value.items()} | limits
    return [shortened(v) for v in value] if isinstance(value, list) else value[:24] if isinstance(value, str) else value


class Rounds:
    """Sends the same short requests several times."""

    def __init__(self, server, requests):
        self.server, self.n_requests = server, 0
        self.cases = [(path, shortened(body), expected[True] is not None) for path, body, expected in requests]

    def growth(self):
        """Returns the bytes by which the heap grows for each request, by round."""
        growth, before = [], self.server.held()
        for _ in range(ROUNDS):
            self.send()
            after = self.server.held()
            growth.append((after - before) / self.n_requests)
            before = after
        return growth

    def send(self):
        rng, self.n_requests = random.Random(3), 0
        for path, body, has_stream in self.cases:
            for stream, leave in ((False, False), (True, False), (True, True)):
                if stream and not has_stream:
                    continue
                if read_response(self.server, path, body, rng, stream, leave) is None and not leave:
                    raise Wrong(f"{path} is refused, and nothing else runs")
                self.n_requests += 1
        for case in malformed_requests(rng):
            send_malformed_request(self.server, *case)
            send_half_a_request(self.server)
            self.n_requests += 2
        self.live_a_session(rng)

    def live_a_session(self, rng):
        path, copy = "/v1/sessions/round", "/v1/sessions/round-fork"
        read_answer(self.server, "/v1/completions", turn_body(WORDS[0], 0, "round"), rng)
        steps = [("POST", path + "/save", {}), ("POST", path + "/fork", {"to": "round-fork"}), ("POST", path + "/restore", {}),
                 ("GET", "/v1/sessions", None), ("GET", "/cache", None), ("DELETE", copy, None), ("DELETE", path, None)]
        for method, where, body in steps:
            status, answer = self.server.json(method, where, body)
            if status != 200:
                raise Wrong(f"{method} {where}: {status} {answer}")
        self.n_requests += 1 + len(steps)


def judge(growth, n_requests):
    if not growth:
        print("no verdict on memory: this server does not count what its heap holds")
        return
    print(f"growth of the heap in rounds of {n_requests} requests, bytes a request: " + ", ".join(f"{g:.1f}" for g in growth))
    if statistics.median(growth[WARM_UP:]) > GROWTH:
        raise Wrong("the server's heap grows with every round of equal requests")
