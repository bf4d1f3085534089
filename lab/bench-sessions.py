#!/usr/bin/env python3
"""Measures how soon a follow-up question gets its first token. The conversation is read anew, or comes from a session
in memory or on the disk.

    lab/bench-sessions.py KVANT MODEL                               a conversation of 6000 tokens, kvant-3bit
    lab/bench-sessions.py KVANT MODEL --tokens 2000 --kv bf16 --repeat 5
    lab/bench-sessions.py KVANT MODEL --llama-server PROGRAM        next to llama.cpp's server and the files of its slots

Prints the seconds to the first token of the follow-up, as a client sees them (the median of --repeat). Also prints
their share of the time for reading the conversation anew, and the bytes of the session's file. The system still holds
the file in memory after a restart of the server, as after a short break. Then the script prints the seconds from a
request to restore the session until the response, for a freshly started server (the best of --repeat). With
--llama-server it also prints llama.cpp's seconds for the file of a slot with equal tokens, and the bytes of that file.
"""
import argparse
import http.client
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "data/evaluation/code.txt"


class Server:
    def __init__(self, options, folder):
        context = 2 * options.tokens
        self.process = subprocess.Popen(
            [options.program, "serve", "-m", options.model, "--port", "0", "-c", str(context), "--kv", options.kv,
             "--parallel", "2", "--memory", options.memory, "--sessions", folder, "-t", str(options.threads)],
            stderr=subprocess.PIPE, text=True)
        port = None
        while port is None:
            line = self.process.stderr.readline()
            if not line:
                sys.exit("the server has ended")
            port = re.search(r" at http://127\.0\.0\.1:(\d+)", line)
        self.port = int(port[1])

    def request(self, method, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"{path}: {response.read().decode(errors='replace')}")
        return response

    def json(self, method, path, body):
        return json.load(self.request(method, path, body))

    def ask(self, prompt, n_tokens, **options):
        """Returns the seconds to the first token, the text, and how many tokens were reused."""
        body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}, **options}
        start, first, text, cached = time.perf_counter(), None, "", 0
        for line in self.request("POST", "/v1/completions", body):
            data = line.decode().removeprefix("data:").strip()
            if not data or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                sys.exit(f"the server failed: {event['error']}")
            for choice in event.get("choices", []):
                first = first or time.perf_counter() - start
                text += choice["text"]
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        return first, text, cached

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


class LlamaServer(Server):
    def __init__(self, options, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [options.llama_server, "-m", options.model, "--port", str(self.port), "-c", str(2 * options.tokens), "-np", "1",
             "--slot-save-path", folder, "-t", str(options.threads)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                if self.process.poll() is not None:
                    sys.exit("llama-server has ended")
            time.sleep(0.1)

    def kill(self):
        self.process.kill()
        self.process.wait()


def restores(start, options, folder, path, body):
    """Returns the seconds that a newly started server takes to restore a session, and its response. The result is the
    best of --repeat."""
    times = []
    for _ in range(options.repeat):
        server = start(options, folder)
        start_time = time.perf_counter()
        said = server.json("POST", path, body)
        times.append(time.perf_counter() - start_time)
        server.kill()
    return min(times), said


def compare_files(options, tokens, folder, session, ours, restored):
    server = LlamaServer(options, folder)
    server.json("POST", "/completion", {"prompt": tokens, "n_predict": 1, "temperature": 0, "cache_prompt": True})
    saved = server.json("POST", "/slots/0?action=save", {"filename": "bench"})
    server.kill()
    theirs, said = restores(LlamaServer, options, folder, "/slots/0?action=restore", {"filename": "bench"})
    ours_each, theirs_each = session["file_bytes"] / restored["tokens"], saved["n_written"] / said["n_restored"]
    print(f"file: {session['file_bytes']} bytes for {restored['tokens']} tokens, restored in {ours:.3f} s; llama-server's: "
          f"{saved['n_written']} bytes for {said['n_restored']}, {theirs:.3f} s: 1/{theirs_each / ours_each:.2f} of the bytes a token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--kv", default="kvant-3bit")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-server", help="llama.cpp's program of that name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, folder)
        text = TEXT.read_text(encoding="utf-8")[:8 * options.tokens]
        tokens = server.json("POST", "/tokenize", {"content": text, "parse_special": False})["tokens"][:options.tokens]
        prompt = server.json("POST", "/detokenize", {"tokens": tokens})["content"]
        _, answer, _ = server.ask(prompt, 64, session="bench")
        session = server.json("POST", "/v1/sessions/bench/save", {})
        follow_up = prompt + answer + "\n\nIn short, this program"
        memory, disk, anew = [], [], []
        for _ in range(options.repeat):
            memory.append(server.ask(follow_up, 4, session="bench"))
            server.json("POST", "/v1/sessions/bench/restore", {})
        for _ in range(options.repeat):
            server.kill()
            server = Server(options, folder)
            # The first request of a server is slow, because nothing is ready yet.
            server.ask("Hello", 1)
            disk.append(server.ask(follow_up, 4, session="bench"))
            server.kill()
            server = Server(options, folder)
            server.ask("Hello", 1)
            anew.append(server.ask(follow_up, 4))
        server.kill()
        ours, restored = restores(Server, options, folder, "/v1/sessions/bench/restore", {})
        print(f"restored just after the start of the server in {ours:.3f} s")
        if options.llama_server:
            compare_files(options, tokens, folder, session, ours, restored)
    for way in (memory, disk):
        if {cached for _, _, cached in way} != {session["tokens"]}:
            sys.exit(f"not all of the session's {session['tokens']} tokens were reused: {way}")
    if {text for _, text, _ in memory} != {text for _, text, _ in disk}:
        sys.exit("the session's answers differ")
    base = statistics.median(first for first, _, _ in anew)
    print(f"{options.kv}: a session of {session['tokens']} tokens, {session['file_bytes']} bytes in its file, "
          f"{session['bytes']} in memory, {session['bits']:.2f} bits an element")
    for name, way in (("read anew", anew), ("from memory", memory), ("from disk after a restart", disk)):
        first = statistics.median(first for first, _, _ in way)
        print(f"first token, {name}: {first:.3f} s ({100 * first / base:.1f} %)")


if __name__ == "__main__":
    main()
