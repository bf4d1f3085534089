"""Starts the server, sends requests to it and reads its memory."""
import http.client
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONTEXT = 1024
# The codes in REFUSED tell a client to come again. Anthropic's API uses 529 for 503.
REFUSED = {503, 529, 409}


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
            raise Wrong(f"the server has ended with {code}: {self.reports()}")

    def reports(self):
        """Returns what the server wrote besides its log of requests, such as the reports of a sanitizer."""
        return "".join(line for line in self.messages if '"event":"request"' not in line)

    def last_reports(self):
        """Ends the server after a failure, and returns its reports."""
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reader.join()
        return self.reports()
