#!/usr/bin/env python3
"""Measures a server that speaks the OpenAI API: kvant serve, llama-server, vLLM.

    scripts/bench-serve.py --url http://127.0.0.1:8080                  8 clients, contexts of 2k to 8k
    scripts/bench-serve.py --url URL --clients 4 --requests 2 --contexts 512,1024 --json FILE

Each client sends one request after the other. Prompts are unique, so a prefix cache cannot help. The lengths of prompts
cycle through --contexts, the lengths of completions through --answers. The script prints the tokens per second of all
clients together. The script also prints the median and 99th percentile of the time to the first token and of the time
between tokens.
"""
import argparse
import http.client
import json
import pathlib
import random
import statistics
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "data/evaluation/code.txt"


class Server:
    def __init__(self, url, key):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port or 80
        self.path = parts.path.rstrip("/").removesuffix("/v1")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=3600)
        connection.request(method, self.path + path, json.dumps(body) if body else None, self.headers)
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"{path}: status {response.status}: {response.read().decode(errors='replace')}")
        return response

    def json(self, method, path, body=None):
        return json.load(self.request(method, path, body))

    def events(self, path, body):
        for line in self.request("POST", path, body):
            data = line.decode().strip().removeprefix("data:").strip()
            if data == "[DONE]":
                return
            if data and line.startswith(b"data:"):
                yield json.loads(data)


def measure(server, model, prompt, n_tokens, seed):
    """Sends one request. Returns when its tokens came and how many tokens the server counted, or None without text."""
    body = {"model": model, "prompt": prompt, "max_tokens": n_tokens, "temperature": 1, "seed": seed, "stream": True,
            "stream_options": {"include_usage": True}}
    start, times, usage = time.perf_counter(), [], None
    for event in server.events("/v1/completions", body):
        if "error" in event:
            sys.exit(f"the server failed: {event['error']}")
        usage = event.get("usage") or usage
        if event.get("choices") and event["choices"][0].get("text"):
            times.append(time.perf_counter())
    if not times or not usage:
        # The completion has no text.
        return None
    return {"first": times[0] - start, "next": [b - a for a, b in zip(times, times[1:])], "start": start, "end": times[-1],
            "prompt_tokens": usage["prompt_tokens"], "generated_tokens": usage["completion_tokens"]}


def characters_per_token(server, model, text):
    """Returns the characters per token of this model on the text, from the usage that the server reports."""
    usage = server.json("POST", "/v1/completions", {"model": model, "prompt": text[:4000], "max_tokens": 1})["usage"]
    return 4000 / usage["prompt_tokens"]


def run_client(number, server, model, text, ratio, options, results):
    rng = random.Random(options.seed * 1000 + number)
    for i in range(options.requests):
        context = options.contexts[(number + i) % len(options.contexts)]
        answer = options.answers[(number + i) % len(options.answers)]
        # Texts differ in characters per token, so the prompt is slightly too short rather than too long.
        n_characters = int((context - answer) * ratio * 0.97)
        first = rng.randrange(max(1, len(text) - n_characters))
        prompt = f"{rng.randrange(10**9)} " + text[first:first + n_characters]
        results.append(measure(server, model, prompt, answer, seed=number * 100 + i))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(results):
    done = [r for r in results if r]
    if not done:
        sys.exit("no answer has any text")
    first = [r["first"] for r in done]
    following = [t for r in done for t in r["next"]] or [0.0]
    wall = max(r["end"] for r in done) - min(r["start"] for r in done)
    prompt, generated = sum(r["prompt_tokens"] for r in done), sum(r["generated_tokens"] for r in done)
    return {"requests": len(done), "seconds": wall, "prompt_tokens": prompt, "generated_tokens": generated,
            "tokens_per_second": (prompt + generated) / wall, "generated_per_second": generated / wall,
            "first_token_median": statistics.median(first), "first_token_p99": percentile(first, 0.99),
            "next_token_median": statistics.median(following), "next_token_p99": percentile(following, 0.99)}


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the server, without /v1")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=4, help="of each client")
    parser.add_argument("--contexts", type=numbers, default=[2048, 4096, 6144, 8192], help="tokens of prompt and answer")
    parser.add_argument("--answers", type=numbers, default=[32, 64, 128], help="tokens of the answers")
    parser.add_argument("--text", default=str(TEXT), help="what prompts are cut from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    text = pathlib.Path(options.text).read_text(encoding="utf-8")
    server = Server(options.url, options.api_key)
    model = server.json("GET", "/v1/models")["data"][0]["id"]
    ratio = characters_per_token(server, model, text)
    results = []
    clients = [threading.Thread(target=run_client, args=(i, server, model, text, ratio, options, results))
               for i in range(options.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if len(results) != options.clients * options.requests:
        sys.exit("a client has failed")
    figures = {"model": model, "clients": options.clients, "contexts": options.contexts, "answers": options.answers,
               **summary(results)}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"{figures['requests']} requests of {options.clients} clients in {figures['seconds']:.1f} s: "
          f"{figures['prompt_tokens']} tokens read, {figures['generated_tokens']} generated")
    print(f"throughput   {figures['tokens_per_second']:9.1f} tokens/s, {figures['generated_per_second']:.1f} generated/s")
    for name, key in (("first token", "first_token"), ("next token", "next_token")):
        print(f"{name:12} {1000 * figures[key + '_median']:9.1f} ms median, {1000 * figures[key + '_p99']:.1f} ms 99th percentile")


if __name__ == "__main__":
    main()
