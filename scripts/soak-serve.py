#!/usr/bin/env python3
"""Runs many clients against kvant serve for a long time, some of which misbehave. Nothing may be lost, and no response
may be wrong.

    scripts/soak-serve.py KVANT MODEL                                  64 clients, 30 minutes
    scripts/soak-serve.py KVANT MODEL --minutes 2 --clients 16

The script first learns the expected responses from a server with a single client. The script sends requests with random
parameters to all endpoints, whole and as streams. The script also runs conversations turn by turn, as many as
--learn-minutes allow. Requests for features that the server lacks are left out and listed.

Then the clients repeat these requests in random order against a server whose memory holds only a few of them. Some
clients leave while they wait, while their prompt is read, or in the middle of a response. Some send malformed requests.
Sessions are saved, restored, forked and deleted between turns.

Every complete response must equal the expected response: the text, and the probabilities to the last bit. A session
must have as many tokens as after its newest turn. When all clients have ended, the server may not run any request or
reserve any memory. Then the server gets SIGTERM and must end by itself. A new server on the same folder must continue
every session. The script prints what was asked, and the server's memory over time.

The verdict on memory compares equal states of the server. After all clients have left, one client sends {ROUNDS} equal
rounds: the learned requests with little text, whole, as streams and left early, malformed requests, and the life of a
session. After each round the script reads what the heap holds besides the cache. Nothing of a round is kept, so the heap
may grow by at most {GROWTH} bytes a request. Memory under load depends on what runs at that moment, and is only printed.
"""
import argparse
import collections
import pathlib
import random
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from soak.client import Client  # noqa: E402
from soak.conversation import Conversation, turn_body  # noqa: E402
from soak.memory import GROWTH, ROUNDS, Rounds, judge  # noqa: E402
from soak.requests import random_request  # noqa: E402
from soak.responses import Refused, read_answer, read_response  # noqa: E402
from soak.server import Server, Wrong  # noqa: E402

__doc__ = __doc__.format(ROUNDS=ROUNDS, GROWTH=GROWTH)


class Soak:
    def __init__(self, options):
        self.options, self.failure = options, None
        # Each entry has the endpoint, the body, and the expected response by whether it is streamed.
        self.requests = []
        self.conversations = [Conversation(i) for i in range(5)]
        self.server, self.deadline = None, 0

    def learn(self):
        """Learns the expected responses from a server with enough memory for everything and a single client. Each
        request is sent twice. A slow build learns only as much as the time allows, and only that is asked later."""
        with tempfile.TemporaryDirectory() as folder:
            server, rng = Server(self.options, folder, "500MiB"), random.Random(0)
            end = time.time() + 60 * self.options.learn_minutes
            learned, refused, number = [], {}, 0
            for i, conversation in enumerate(self.conversations):
                if i >= 1 and time.time() > end:
                    break
                while len(self.requests) < 12 * (i + 1) and (number < 12 or time.time() < end):
                    path, body = random_request(rng, number)
                    number += 1
                    try:
                        whole = read_response(server, path, body, rng, stream=False)
                        if read_response(server, path, body, rng, stream=False) != whole:
                            raise Wrong(f"two lone responses differ: {path} {body}")
                        has_stream = path not in ("/v1/embeddings", "/infill")
                        self.requests.append((path, body, {False: whole, True: read_response(server, path, body, rng, True) if has_stream else None}))
                    except Refused as reason:
                        refused[str(reason)] = None
                conversation.learn(server)
                learned.append(conversation)
            for reason in refused:
                print(f"left out: {reason}")
            self.conversations = learned
            server.end()

    def run(self):
        start = time.time()
        self.learn()
        print(f"answers to {len(self.requests)} requests and in {len(self.conversations)} conversations are expected, learned in "
              f"{time.time() - start:.0f} s", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            self.server = Server(self.options, folder, self.options.memory)
            clients = [Client(self, i) for i in range(self.options.clients)]
            begin = time.time()
            self.deadline = begin + 60 * self.options.minutes
            for client in clients:
                client.start()
            resident = self.watch(begin)
            for client in clients:
                client.join()
            if self.failure:
                raise Wrong(f"{self.failure}\n{self.server.last_reports()}")
            seconds, metrics = time.time() - begin, self.server.idle_metrics()
            rounds = Rounds(self.server, self.requests)
            growth = rounds.growth() if self.server.held() else []
            self.server.end()
            self.check_sessions(folder, clients)
        self.print_figures(clients, seconds, resident, metrics)
        judge(growth, rounds.n_requests)

    def watch(self, begin):
        """Returns the server's memory over time, in MiB."""
        resident, interval = [], max(1.0, 60 * self.options.minutes / 180)
        while time.time() < self.deadline and not self.failure:
            time.sleep(interval)
            if self.server.process.poll() is not None:
                self.failure = self.failure or "the server has gone"
                break
            resident.append(self.server.resident())
            if len(resident) % 30 == 0:
                print(f"{time.time() - begin:.0f} s: {resident[-1]:.1f} MiB", flush=True)
        return resident

    def check_sessions(self, folder, clients):
        """Checks that a new server has every session as the clients left it, and continues it as expected."""
        server, rng = Server(self.options, folder, self.options.memory), random.Random(2)
        listed = {s["id"]: s for s in server.json("GET", "/v1/sessions")[1]["data"]}
        going = [c for c in clients if c.turn]
        for client in going:
            c, turn, held = client.conversation, client.turn, listed.get(client.session)
            if held is None or held["tokens"] != c.states[turn][1]:
                raise Wrong(f"after the end {client.session} is {held}, and had {c.states[turn][1]} tokens")
            if turn == len(c.answers):
                continue
            answers, cached = read_answer(server, "/v1/completions", turn_body(c.prompt(turn), turn, client.session), rng)
            if answers[0] != c.answers[turn] or cached != held["tokens"]:
                raise Wrong(f"after the end {client.session} answers {answers[0]} instead of {c.answers[turn]}")
        server.end()
        print(f"{len(going)} sessions were continued after the server's restart")

    def print_figures(self, clients, seconds, resident, metrics):
        counts = sum((client.counts for client in clients), collections.Counter())
        print(f"{len(clients)} clients for {seconds:.0f} s: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
        for name in ("cache_bytes", "cache_limit_bytes", "cached_tokens_total", "generated_tokens_total", "prefixes_dropped_total", "sessions",
                     "requests_total"):
            for line in re.findall(rf"^kvant_{name}(?:{{.*}})? .*$", metrics, re.MULTILINE):
                print(line)
        n = len(resident)
        parts = [max(resident[n * i // 6:max(n * (i + 1) // 6, n * i // 6 + 1)]) for i in range(6)]
        print("largest memory of the server by sixths of the time, MiB: " + ", ".join(f"{part:.1f}" for part in parts))
        if "lost" in "".join(self.server.messages):
            raise Wrong("".join(self.server.messages))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--kv", default="kvant-3bit")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--learn-minutes", type=float, default=1.5, help="after which no more answers to expect are begun with")
    parser.add_argument("--memory", default="48MiB")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    try:
        Soak(options).run()
    except Wrong as wrong:
        sys.exit(f"wrong: {wrong}")


if __name__ == "__main__":
    main()
