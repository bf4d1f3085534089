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
import http.client
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS = (ROOT / "data/sample/canals.txt").read_text(encoding="utf-8").split()
CONTEXT = 1024
TURNS = (" And then", " But why?", " In short,", " The end of it was")
# The codes in REFUSED tell a client to come again. Anthropic's API uses 529 for 503.
REFUSED = {503, 529, 409}
GONE = (OSError, http.client.HTTPException)
ROUNDS, WARM_UP = 8, 3  # the first WARM_UP rounds may still fill what the server keeps
GROWTH = 64  # bytes a request
__doc__ = __doc__.format(ROUNDS=ROUNDS, GROWTH=GROWTH)


class Wrong(Exception):
    """Reports an observation that must not occur."""


class Server:
    def __init__(self, options, folder, memory):
        self.process = subprocess.Popen(
            [options.program, "serve", "-m", options.model, "--port", "0", "-c", str(CONTEXT), "--kv", options.kv, "--parallel", "12",
             "--queue", "24", "--memory", memory, "--sessions", folder, "-t", str(options.threads), "--log-format", "json",
             "--chat-template", str(ROOT / "data/templates/chatml-tools.jinja")], stderr=subprocess.PIPE, text=True,
            # The C library would count blocks that threads keep for later as held.
            env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"})
        self.messages, port = [], None
        while port is None:
            line = self.process.stderr.readline()
            self.messages.append(line)
            if not line:
                raise Wrong(f"the server has ended: {''.join(self.messages)}")
            port = re.search(r" at http://127\.0\.0\.1:(\d+)", line)
        self.port = int(port[1])
        self.reader = threading.Thread(target=lambda: self.messages.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def send(self, method, path, body=None, headers=None, patience=600):
        """Sends a request. Returns the connection and the head of the response; the caller reads the rest and closes.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience)
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        connection.request(method, path, data if method != "GET" else None, headers or {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=None):
        connection, response = self.send(method, path, body, headers)
        try:
            return response.status, response.read()
        finally:
            connection.close()

    def json(self, method, path, body=None):
        """Repeats a request until the response no longer tells the client to come again."""
        while True:
            status, text = self.ask(method, path, body)
            if status not in REFUSED:
                return status, json.loads(text)
            time.sleep(0.05 + 0.2 * random.random())

    def resident(self):
        """Returns the server's own memory in MiB. Mapped files do not count, because the system can drop their pages at
        any time."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"RssAnon:\s+(\d+) kB", text)[1]) / 1024

    def idle_metrics(self):
        """Returns the metrics after all requests have ended."""
        end = time.time() + 60
        while self.json("GET", "/slots")[1]:
            if time.time() > end:
                raise Wrong("requests whose clients have gone still run")
            time.sleep(0.1)
        metrics = self.ask("GET", "/metrics")[1].decode()
        if not re.search(r"(?m)^kvant_cache_promised_bytes 0$", metrics):
            raise Wrong("memory is promised to nobody")
        return metrics

    def held(self):
        """Returns the bytes that the heap holds besides the cache, or 0 if the server does not count them (a sanitized build)."""
        metrics = self.idle_metrics()
        heap = sum(int(n) for n in re.findall(r"(?m)^kvant_heap_bytes{.*} (\d+)$", metrics))
        return heap - int(re.search(r"(?m)^kvant_cache_bytes (\d+)$", metrics)[1]) if heap else 0

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=600)
        self.reader.join()
        if code != 0:
            raise Wrong(f"the server has ended with {code}: {''.join(self.messages)[-4000:]}")


# --- requests and expected responses ---

def words(rng, least, most):
    n, first = rng.randint(least, most), rng.randrange(len(WORDS) - most)
    return " ".join(WORDS[first:first + n])


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
OPENAI_TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}


def sampling(rng, seed):
    """Returns random parameters that completions and chats have in common. Each parameter occurs in a part of the
    requests."""
    options = {"max_tokens": rng.randint(1, 24), "temperature": rng.choice([0, 0.8, 1.2]), "seed": seed}
    for name, value in (("top_p", rng.choice([0.5, 0.95])), ("top_k", rng.randint(1, 50)), ("min_p", 0.05), ("stop", [" the", "\n"]),
                        ("presence_penalty", round(rng.uniform(-1, 1.5), 2)), ("frequency_penalty", round(rng.uniform(-1, 1.5), 2)),
                        ("repeat_penalty", 1.1), ("logit_bias", {str(rng.randint(5, 900)): rng.choice([-100, -2, 3])}), ("n", 2)):
        if rng.random() < 0.25:
            options[name] = value
    return options


def form(rng):
    """Returns a grammar, schema or tool choice that a chat must follow, in half of the cases."""
    return rng.choice([{}, {}, {}, {"grammar": 'root ::= ("yes" | "no") [a-z ]*'},
                       {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
                       {"tools": [OPENAI_TOOL], "tool_choice": rng.choice(["auto", "required", "none"])}])


def random_request(rng, number):
    """Returns an endpoint and a body for it."""
    text = words(rng, 3, 300)
    kind = rng.choice(["chat", "chat", "chat", "completions", "completions", "messages", "responses", "infill", "embeddings"])
    if kind == "chat":
        held = form(rng)
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **sampling(rng, number), "logprobs": "tools" not in held, **held}
    if kind == "completions":
        return "/v1/completions", {"prompt": text if rng.random() < 0.7 else [text, text[:80]], **sampling(rng, number), "logprobs": 1}
    if kind == "messages":
        held = rng.choice([{}, {"tools": [{"name": "weather", "input_schema": WEATHER}], "tool_choice": {"type": rng.choice(["auto", "any"])}}])
        return "/v1/messages", {"messages": [{"role": "user", "content": text}], "system": "Be short.", "max_tokens": rng.randint(1, 24),
                                "temperature": 0, **held}
    if kind == "responses":
        return "/v1/responses", {"input": text, "max_output_tokens": rng.randint(1, 24), "temperature": 0, "store": False}
    if kind == "infill":
        return "/infill", {"input_prefix": text[:60], "input_suffix": text[60:120], "n_predict": 8, "temperature": 0}
    return "/v1/embeddings", {"input": [text, text[:50]]}


VOLATILE = {"id", "call_id", "created", "created_at", "completed_at", "usage", "timings", "tokens_cached", "tokens_evaluated", "item_id", "response_id"}


def lasting(value):
    """Returns a response without the fields that differ between runs."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in VOLATILE}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def of_stream(path, events):
    """Returns what the events of a stream say together, however they are cut into pieces. Returns None if the stream
    has not ended."""
    if path == "/v1/responses":
        ended = [e["response"] for e in events if e.get("type") in ("response.completed", "response.incomplete")]
        return lasting(ended[-1]["output"]) if ended else None
    texts, facts, ended = collections.defaultdict(str), {}, False
    for event in events:
        if event == "[DONE]" or event.get("type") == "message_stop":
            ended = True
            continue
        for choice in event.get("choices", []):
            where, delta = choice["index"], choice.get("delta") or {}
            texts[where, "text"] += choice.get("text") or delta.get("content") or ""
            texts[where, "thoughts"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                texts[where, call["index"], "call"] += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            logprobs = choice.get("logprobs") or {}
            facts.setdefault((where, "logprobs"), []).extend(logprobs.get("token_logprobs") or [t["logprob"] for t in logprobs.get("content") or []])
            if choice.get("finish_reason"):
                facts[where, "end"] = choice["finish_reason"]
        if event.get("type") == "content_block_start":
            facts[event["index"], "block"] = (event["content_block"]["type"], event["content_block"].get("name"))
        if event.get("type") == "content_block_delta":
            texts[event["index"], "block"] += "".join(v for k, v in event["delta"].items() if k != "type" and isinstance(v, str))
        if event.get("type") == "message_delta":
            facts["end"] = event["delta"]["stop_reason"]
    return (dict(texts), facts) if ended else None


class Refused(Wrong):
    """Reports that the server lacks a requested feature."""


def read_response(server, path, body, rng, stream, leave=False):
    """Returns the response to a request in a form that can be compared. Returns None if the server said to come again,
    or if the client left."""
    if stream:
        body = {**body, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        # Leave while the request waits, while its prompt is read, or later.
        if leave and rng.random() < 0.5:
            time.sleep(rng.choice([0, 0.01, 0.1, 1]) * rng.random())
            return None
        response = connection.getresponse()
        if response.status in REFUSED:
            response.read()
            return None
        if response.status in (400, 404):
            raise Refused(f"{path} {response.read().decode()[:200]}")
        if response.status != 200 or not response.getheader("x-request-id"):
            raise Wrong(f"{path} {body}: {response.status} {response.read()}")
        if not stream:
            return lasting(json.loads(response.read()))
        events, end = [], rng.randint(0, 12)
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line.decode()[5:].strip()
            events.append(data if data == "[DONE]" else json.loads(data))
            if leave and len(events) > end:
                return None
            if isinstance(events[-1], dict) and (events[-1].get("error") or events[-1].get("type") in ("error", "response.failed")):
                raise Wrong(f"{path} {body}: {data}")
        whole = of_stream(path, events)
        if whole is None:
            raise Wrong(f"{path} {body}: a stream without an end")
        return whole
    finally:
        connection.close()


def turn_body(text, turn, session):
    return {"prompt": text, "max_tokens": 6 + 5 * turn, "temperature": 0.7, "seed": turn, "logprobs": 1, "session": session}


def read_answer(server, path, body, rng, leave=False):
    """Returns the completions of a request by index, each with text and probabilities, and how many tokens were cached.
    Returns None if the server said to come again, or if the client left."""
    stream = leave or rng.random() < 0.5
    if stream:
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    connection, response = server.send("POST", path, body)
    try:
        if response.status in REFUSED:
            if response.status == 503 and not response.getheader("Retry-After"):
                raise Wrong("503 without Retry-After")
            response.read()
            return None
        if response.status != 200:
            raise Wrong(f"{path}: {response.status} {response.read()}")
        if not stream:
            whole = json.loads(response.read())
            return {c["index"]: answer_of([c]) for c in whole["choices"]}, whole["usage"]["prompt_tokens_details"]["cached_tokens"]
        choices, cached, events, end = collections.defaultdict(list), 0, 0, rng.randint(0, 12)
        for line in response:
            data = line.decode().removeprefix("data:").strip()
            if data == "[DONE]":
                return {i: answer_of(parts) for i, parts in choices.items()}, cached
            # The server sends comments to show that it is alive.
            if not data or data.startswith(":"):
                continue
            events += 1
            if leave and events > end:
                return None
            event = json.loads(data)
            if "error" in event:
                raise Wrong(f"{path}: {event}")
            for c in event["choices"]:
                choices[c["index"]].append(c)
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        raise Wrong(f"{path}: a stream without an end")
    finally:
        connection.close()


def answer_of(parts):
    """Returns the text and probabilities of a completion from its parts, which may be one whole response or a stream.
    """
    text, probabilities = "", []
    for part in parts:
        text += part.get("text") or (part.get("message") or part.get("delta") or {}).get("content") or ""
        logprobs = part.get("logprobs") or {}
        probabilities += logprobs.get("token_logprobs") or [t["logprob"] for t in logprobs.get("content") or []]
    return text, probabilities


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


# --- malformed requests and lost connections ---

def malformed_requests(rng):
    """Returns the endpoint, the body, the headers and the right statuses of each."""
    chat, json_type = "/v1/chat/completions", {"Content-Type": "application/json"}
    good = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    text = json.dumps(good).encode()
    return [
        (chat, text[:rng.randrange(len(text))], json_type, {400}),
        (chat, bytes(rng.randrange(256) for _ in range(200)), json_type, {400}),
        (chat, b"[" * 100000, json_type, {400}),
        (chat, b" " * (3 << 20), json_type, {413}),
        (chat, text, {"Content-Type": "text/plain"}, {415}),
        (chat, json.dumps({**good, "max_tokens": -rng.randint(3, 9)}).encode(), json_type, {400}),
        (chat, json.dumps({**good, "temperature": "hot"}).encode(), json_type, {400}),
        (chat, json.dumps({**good, "n": 1000}).encode(), json_type, {400}),
        (chat, json.dumps({**good, "session": "../../etc/passwd"}).encode(), json_type, {400}),
        ("/v1/completions", json.dumps({"prompt": "word " * 5000}).encode(), json_type, {400}),
        ("/v1/completions", json.dumps({"prompt": [1 << 30]}).encode(), json_type, {400}),
        ("/v1/nothing", text, json_type, {404}),
        ("/v1/sessions/none/restore", b"{}", json_type, {404}),
        ("/v1/sessions/a%2Fb/save", b"{}", json_type, {400, 404}),
    ]


def send_malformed_request(server, path, body, headers, statuses):
    try:
        status, answer = server.ask("POST", path, body, headers)
    except GONE:
        # The server closes the connection without reading a body that is too large.
        if statuses != {413}:
            raise
        return
    if status not in statuses or "error" not in json.loads(answer):
        raise Wrong(f"{path} {headers} {body[:200]}: {status} {answer[:200]}")


def send_half_a_request(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.connect()
    connection.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
    connection.close()


# --- clients ---

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


# --- memory ---

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
                self.server.process.terminate()
                raise Wrong(self.failure + "".join(self.server.messages)[-2000:])
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
                self.failure = self.failure or "the server has gone: " + "".join(self.server.messages)[-4000:]
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
