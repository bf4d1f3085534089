#!/usr/bin/env python3
"""Checks that `vllm serve` with the plug-in serves the openai client and curl: serve_client.py --model FOLDER [--kv
kvant_uniform_4bit] [--chat] [--data-parallel N]

The script starts a server on a separate port and asks one question twice; the second time, the cache has its prefix.
The script asks once as a stream and once by curl, sends many questions for the quality guard, reads the metrics, and
ends the server. Without --chat, prompts and completions are token ids, so the model needs no tokenizer. The script
prints the server's command and the lines that kvant writes at the start. "of all tokens" is a checksum of the answer, and
"engines" are the engines of data parallelism that have served requests."""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zlib

import engine  # noqa: F401  sets the environment

# A server has the port FIRST_PORT plus its number of engines.
FIRST_PORT = 8122
START_S = 240
PROMPT = list(range(100, 400))  # token ids
METRICS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total",
           "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:num_preemptions_total",
           "kvant_guard_attention_error", "kvant_guard_worst_layer_error", "kvant_guard_estimated_divergence_nats",
           "kvant_guard_checks")
# The guard reports within GUARD_SECONDS.
GUARD_SECONDS = 17
QUESTION = "Write a numbered list of ten facts about canals, a sentence each."


def wait(server, url):
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if urllib.request.urlopen(url + "/health", timeout=2).status == 200:
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"no server: {'exited with status ' + str(server.poll()) if server.poll() is not None else 'too slow'}")


def metrics(url):
    """Returns the values of METRICS, summed over labels, and the numbers of the engines that have served a request."""
    found, engines = dict.fromkeys(METRICS, 0.0), set()
    for line in urllib.request.urlopen(url + "/metrics", timeout=10).read().decode().splitlines():
        name = line.partition("{")[0]
        if name in found:
            value = float(line.rsplit(" ", 1)[1])
            found[name] += value
            if name == "vllm:request_success_total" and value:
                engines |= set(re.findall(r'engine="(\d+)"', line))
    return found | {"engines": sorted(engines)}


def by_curl(url, model):
    """Returns the token ids of the completion."""
    asked = dict(model=model, prompt=PROMPT, max_tokens=140, temperature=0, ignore_eos=True, return_token_ids=True)
    command = ["curl", "-sS", url + "/v1/completions", "-H", "Content-Type: application/json", "-d", json.dumps(asked)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout
    return json.loads(answer)["choices"][0]["token_ids"]


def ask_ids(client, model):
    """Returns the token ids of the completions, and how many pieces a stream of them had."""
    options = dict(model=model, prompt=[PROMPT], max_tokens=140, temperature=0,
                   extra_body={"ignore_eos": True, "return_token_ids": True})
    answers = [client.completions.create(**options).choices[0].token_ids for _ in range(2)]
    return answers, sum(1 for _ in client.completions.create(**options, stream=True))


def ask_for_the_guard(client, model):
    """Sends new prompts, one in each step. The guard checks one layer for each."""
    for i in range(40):
        client.completions.create(model=model, prompt=[[i + 1] + PROMPT], max_tokens=1)
    time.sleep(GUARD_SECONDS)
    for i in range(2):
        client.completions.create(model=model, prompt=[[i + 50] + PROMPT], max_tokens=2)


def ask_chat(client, model):
    options = dict(model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=200, temperature=0)
    answers = [client.chat.completions.create(**options).choices[0].message.content for _ in range(2)]
    return answers, sum(1 for _ in client.chat.completions.create(**options, stream=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv", default="kvant_uniform_4bit")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--data-parallel", type=int, default=1, help="engines, each on a GPU of its own")
    args = parser.parse_args()
    port = FIRST_PORT + args.data_parallel
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", args.model, "--port", str(port), "--host",
               "127.0.0.1", "--attention-backend", "CUSTOM", "--kv-cache-dtype", args.kv, "--max-model-len", "4096",
               "--dtype", "bfloat16", "--kv-cache-memory-bytes", str(2 << 30), "--gpu-memory-utilization", "0.1",
               "--max-num-seqs", "8"] + ([] if args.chat else ["--skip-tokenizer-init"])
    if args.data_parallel > 1:
        command += ["--data-parallel-size", str(args.data_parallel)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print("COMMAND vllm", *command[3:], flush=True)
    server = subprocess.Popen(command)
    try:
        wait(server, url)
        from openai import OpenAI

        client = OpenAI(base_url=url + "/v1", api_key="none")
        answers, pieces = (ask_chat if args.chat else ask_ids)(client, args.model)
        result = {"served": args.kv, "asked again, equal": answers[0] == answers[1], "pieces of a stream": pieces,
                  "answer": answers[0] if args.chat else answers[0][:12], "of all tokens": zlib.crc32(repr(answers[0]).encode())}
        if not args.chat:
            result["by curl, equal"] = by_curl(url, args.model) == answers[1]
            ask_for_the_guard(client, args.model)
        print("RESULT", json.dumps(result | metrics(url)), flush=True)
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
