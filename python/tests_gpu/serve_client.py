#!/usr/bin/env python3
"""Does `vllm serve` with the plug-in answer the openai client? serve_client.py --model FOLDER [--kv kvant_4bit] [--chat]

Starts a server on a port of its own, asks the same question twice (the second time its prefix is found in the cache) and
once as a stream, and ends it. Without --chat, prompts and answers are token ids: the model needs no tokenizer."""

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.request

import engine  # noqa: F401  sets the environment

PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
START_S = 240
QUESTION = "Write a numbered list of ten facts about canals, a sentence each."


def wait(server):
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if urllib.request.urlopen(URL + "/health", timeout=2).status == 200:
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"no server: {'exited with status ' + str(server.poll()) if server.poll() is not None else 'too slow'}")


def ask_ids(client, model):
    """A prompt of 300 token ids: the answers' token ids, and how many pieces a stream of them had."""
    options = dict(model=model, prompt=[list(range(100, 400))], max_tokens=140, temperature=0,
                   extra_body={"ignore_eos": True, "return_token_ids": True})
    answers = [client.completions.create(**options).choices[0].token_ids for _ in range(2)]
    return answers, sum(1 for _ in client.completions.create(**options, stream=True))


def ask_chat(client, model):
    options = dict(model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=200, temperature=0)
    answers = [client.chat.completions.create(**options).choices[0].message.content for _ in range(2)]
    return answers, sum(1 for _ in client.chat.completions.create(**options, stream=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv", default="kvant_4bit")
    parser.add_argument("--chat", action="store_true")
    args = parser.parse_args()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", args.model, "--port", str(PORT), "--host",
               "127.0.0.1", "--attention-backend", "CUSTOM", "--kv-cache-dtype", args.kv, "--max-model-len", "4096",
               "--dtype", "bfloat16", "--kv-cache-memory-bytes", str(2 << 30), "--gpu-memory-utilization", "0.1",
               "--max-num-seqs", "8"] + ([] if args.chat else ["--skip-tokenizer-init"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    server = subprocess.Popen(command)
    try:
        wait(server)
        from openai import OpenAI

        client = OpenAI(base_url=URL + "/v1", api_key="none")
        answers, pieces = (ask_chat if args.chat else ask_ids)(client, args.model)
        print("RESULT", json.dumps({"served": args.kv, "asked again, equal": answers[0] == answers[1],
                                    "pieces of a stream": pieces, "answer": answers[0] if args.chat else answers[0][:12]}), flush=True)
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
