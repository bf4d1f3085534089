"""Reads responses, whole and as streams, in a form that can be compared."""
import collections
import http.client
import json
import time

from soak.server import REFUSED, Wrong

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
