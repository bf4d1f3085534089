#!/usr/bin/env python3
"""Tests how kvant serve handles clients that leave, HTTP headers, browsers, signals and logs.

    src/serve/operations_test.py KVANT MODEL        KVANT is the program, and MODEL is a GGUF file
"""
import contextlib
import fcntl
import http.client
import io
import json
import os
import pathlib
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.parse

sys.dont_write_bytecode = True
from server_process import KEY, Server  # noqa: E402

PROGRAM, MODEL = sys.argv[1:3]
ORIGIN = "https://chat.example"
SECRET = "the word plumtree stands in no log"
SERVER = None


def setUpModule():
    global SERVER
    SERVER = Server(PROGRAM, MODEL, "kvant-4bit", "--parallel", "1", "--log-format", "json", "--cors", ORIGIN)


def tearDownModule():
    SERVER.end()


def completion(path, prompt, **options):
    """Returns the path and body of a request whose completion goes on until max_tokens. Anthropic's API cannot ask
    for ignore_eos, but at temperature 0 a small model goes on anyway."""
    if path == "/v1/completions":
        return path, {"prompt": prompt, "ignore_eos": True, **options}
    return path, {"messages": [{"role": "user", "content": prompt}], **options,
                  **({"ignore_eos": True} if path == "/v1/chat/completions" else {"temperature": 0})}


class Client:
    """Holds a connection and sends arbitrary bytes."""

    def __init__(self, server=None):
        self.socket = socket.create_connection(("127.0.0.1", urllib.parse.urlparse((server or SERVER).url).port), timeout=60)
        self.text = b""

    def post(self, path, body, *headers, version="1.1"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"POST {path} HTTP/{version}", "Host: localhost", f"Authorization: Bearer {KEY}", "Content-Type: application/json",
                f"Content-Length: {len(data)}", *headers]
        self.socket.sendall("\r\n".join([*head, "", ""]).encode() + data)

    def hear(self, end=None):
        """Returns all bytes received until `end` has come or the server has closed the connection."""
        while end is None or end not in self.text:
            data = self.socket.recv(65536)
            if not data:
                break
            self.text += data
        return self.text

    def leave(self):
        self.socket.close()


def ask(method, path, body=None, headers=(), server=None, version="1.1", host="localhost"):
    """Sends a request exactly as given. Returns the response's status, headers and body."""
    client = Client(server)
    lines = [f"{method} {path} HTTP/{version}", *([f"Host: {host}"] if host else []), *headers, "Connection: close"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    client.socket.sendall("\r\n".join([*lines, "", ""]).encode() + (body or b""))
    head, _, text = client.hear().partition(b"\r\n\r\n")
    client.leave()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), http.client.parse_headers(io.BytesIO("\r\n".join([*fields, "", ""]).encode())), text.decode()


def busy():
    return [s for s in SERVER.json("/slots") if s["is_processing"]]


def wait_until(condition, patience=20):
    begin = time.time()
    while not condition():
        if time.time() - begin > patience:
            raise AssertionError("it has not come to pass")
        time.sleep(0.02)
    return time.time() - begin


def cancelled():
    return int(re.search(r'kvant_requests_total\{end="cancelled"\} (\d+)', SERVER.request("/metrics")[1])[1])


class Clients(unittest.TestCase):
    def tearDown(self):
        wait_until(lambda: not SERVER.json("/slots"), patience=60)

    def test_who_leaves_is_noticed_at_once(self):
        """The log must report a client's departure at once, whatever the model computes. The request ends with the
        model's step."""
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
            for prompt, stream in (("Tell me a very long story.", False), ("a word and another " * 200, False), ("Tell me a very long story.", True)):
                with self.subTest(path=path, prompt=prompt[:20], stream=stream):
                    before, lines = cancelled(), len(SERVER.messages)
                    client = Client()
                    client.post(*completion(path, prompt, max_tokens=1000, stream=stream))
                    wait_until(busy)
                    client.leave()
                    self.assertLess(wait_until(lambda: any("client left" in line for line in SERVER.messages[lines:])), 2)
                    wait_until(lambda: not SERVER.json("/slots"), patience=60)
                    self.assertEqual(cancelled(), before + 1)

    def test_who_only_stops_sending_gets_the_completion(self):
        for stream in (False, True):
            for version in ("1.1", "1.0"):
                with self.subTest(stream=stream, version=version):
                    client = Client()
                    client.post(*completion("/v1/completions", "Hello", max_tokens=40, stream=stream), "Connection: close", version=version)
                    client.socket.shutdown(socket.SHUT_WR)
                    text = client.hear().decode()
                    self.assertTrue(text.startswith("HTTP/1.1 200 OK\r\n"), text[:40])
                    self.assertIn('"finish_reason":"length"', text)
                    self.assertEqual("Transfer-Encoding: chunked" in text, stream and version == "1.1")
                    client.leave()

    def test_streams_are_not_silent_for_long(self):
        first = Client()
        first.post(*completion("/v1/completions", "Hello", max_tokens=1900))
        wait_until(busy)
        waiting = [Client(), Client()]
        waiting[0].post(*completion("/v1/chat/completions", "Hello", max_tokens=4, stream=True))
        waiting[1].post(*completion("/v1/messages", "Hello", max_tokens=4, stream=True))
        begin = time.time()
        for client in waiting:
            self.assertIn(b": still at work\n\n", client.hear(b": still at work\n\n"))
        self.assertLess(time.time() - begin, 9)
        first.leave()
        self.assertIn(b"data: [DONE]", waiting[0].hear(b"data: [DONE]"))
        self.assertIn(b"message_stop", waiting[1].hear(b"message_stop"))
        for client in waiting:
            client.leave()

    def test_idle_connections_delay_nobody(self):
        running = Client()
        running.post(*completion("/v1/completions", "Hello", max_tokens=1900))
        idle = [Client() for _ in range(300)]
        for client in idle[::3]:
            client.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
        for _ in range(3):
            begin = time.time()
            self.assertEqual(ask("GET", "/health")[0], 200)
            self.assertLess(time.time() - begin, 1)
        for client in [*idle, running]:
            client.leave()


class Manners(unittest.TestCase):
    """The server must accept every spelling of headers that HTTP allows."""

    def test_of_headers(self):
        body = json.dumps({"content": "a cat"}).encode()
        for headers in ([f"authorization: bearer {KEY}", "content-type: Application/JSON; charset=utf-8"], [f"AUTHORIZATION: BEARER {KEY}"],
                        [f"X-Api-Key: {KEY}", "Content-Type: application/x-www-form-urlencoded"]):
            self.assertEqual(ask("POST", "/tokenize?verbose=1", body, headers)[0], 200, headers)
        key = f"Authorization: Bearer {KEY}"
        for headers in (["Content-Type: text/plain"], ["Origin: https://evil.com"], ["Sec-Fetch-Site: cross-site"],
                        ["Origin: https://evil.com", "Content-Type: application/x-www-form-urlencoded"]):
            self.assertEqual(ask("POST", "/tokenize", body, [key, *headers])[0], 415, headers)
        status, _, text = ask("POST", "/tokenize", body, [key, "Content-Type: application/json", "Content-Encoding: gzip"])
        self.assertEqual((status, "Content-Encoding 'gzip'" in text), (415, True))

    def test_of_paths_and_methods(self):
        key = [f"Authorization: Bearer {KEY}"]
        for path in ("/v1/models/", "//v1/models", "/v1//models?x=/"):
            self.assertEqual(ask("GET", path, headers=key)[0], 200, path)
        for method, path, allow in (("PUT", "/v1/models", "GET, HEAD"), ("POST", "/health", "GET, HEAD"), ("GET", "/v1/chat/completions", "POST"),
                                    ("DELETE", "/tokenize", "POST"), ("HEAD", "/v1/messages", "POST"), ("PATCH", "/v1/sessions/a", "GET, HEAD, DELETE")):
            status, headers, text = ask(method, path, None if method in ("GET", "HEAD") else b"{}", key)
            self.assertEqual((status, headers["Allow"]), (405, allow), (method, path))
            self.assertTrue(method == "HEAD" or json.loads(text)["error"]["message"])
        status, headers, text = ask("HEAD", "/v1/models", headers=key)
        self.assertEqual((status, text), (200, ""))
        self.assertGreater(int(headers["Content-Length"]), 10)
        self.assertEqual(ask("GET", "/nothing", headers=key)[0], 404)

    def test_of_methods_and_versions_that_it_does_not_have(self):
        for method, target, version, expected, part in (("TRACE", "/v1/models", "1.1", 501, "use GET, HEAD, POST, DELETE or OPTIONS"),
                                                        ("CONNECT", "example.com:443", "1.1", 501, "use GET"), ("PRI", "*", "2.0", 505, "HTTP/1.1")):
            status, headers, text = ask(method, target, version=version)
            self.assertEqual((status, headers["Connection"]), (expected, "close"), method)
            self.assertIn(part, json.loads(text)["error"]["message"])

    def test_of_old_programs(self):
        self.assertEqual(ask("GET", "/health", version="1.0", host=None)[0], 200)
        self.assertEqual(ask("GET", "/v1/models", version="1.0", host=None, headers=[f"Authorization: Bearer {KEY}"])[0], 200)
        self.assertEqual(ask("GET", "/health", host=None)[0], 400)

    def test_of_proxies_and_caches(self):
        key = f"Authorization: Bearer {KEY}"
        whole = ask("GET", "/v1/models", headers=[key])[2]
        self.assertEqual(ask("GET", "http://proxied.example:80/v1/models", headers=[key])[2], whole)
        status, _, text = ask("GET", "/v1/models", headers=[key, "Range: bytes=0-4"])
        self.assertEqual((status, text), (200, whole))
        self.assertEqual(ask("GET", "/health", headers=["Host: another"])[0], 400)

    def test_of_addresses_with_a_wrong_end(self):
        key = [f"Authorization: Bearer {KEY}"]
        for path, end in (("/chat/completions", "with"), ("/models", "with"), ("/v1/v1/messages", "without")):
            status, _, text = ask("GET", path, headers=key)
            self.assertEqual(status, 404, path)
            self.assertIn(f"this server's address {end} '/v1' at its end", json.loads(text)["error"]["message"])
        status, _, text = ask("POST", "/completion", b"{}", headers=key)
        self.assertEqual(status, 404)
        self.assertIn("use /v1/completions", json.loads(text)["error"]["message"])

    def test_for_more_completions_than_can_run(self):
        body = json.dumps({"prompt": "Hello", "n": 2}).encode()
        status, _, text = ask("POST", "/v1/completions", body, [f"Authorization: Bearer {KEY}", "Content-Type: application/json"])
        error = json.loads(text)["error"]
        self.assertEqual((status, error["param"]), (400, "n"))
        self.assertIn("--parallel 2", error["message"])

    def test_of_large_heads(self):
        self.assertEqual(ask("GET", "/health", headers=["Cookie: " + "a" * 20000])[0], 200)
        for headers in (["Cookie: " + "a" * 70000], [f"X-{i}: a" for i in range(120)]):
            status, headers, text = ask("GET", "/health", headers=headers)
            self.assertEqual((status, headers["Connection"], json.loads(text)["error"]["code"]), (431, "close", "request_too_large"))
            self.assertIn("65536 bytes or 100 fields", text)

    def test_each_response_has_an_id(self):
        status, headers, _ = ask("GET", "/health", headers=["X-Request-ID: mine-1"])
        self.assertEqual((status, headers["x-request-id"]), (200, "mine-1"))
        self.assertRegex(ask("GET", "/v1/models")[1]["x-request-id"], "^req-[0-9a-f]{24}$")  # the client sent no id, so the server made one
        status, headers, text = ask("POST", "/v1/messages", b"{}", headers=["X-Request-ID: mine-2", "Content-Type: application/json"])
        # Anthropic's API names the header request-id and the member request_id.
        self.assertEqual((headers["request-id"], json.loads(text)["request_id"]), ("mine-2", "mine-2"))


class Browsers(unittest.TestCase):
    def test_pages_of_the_origins_that_are_named_may_ask(self):
        status, headers, _ = ask("OPTIONS", "/v1/chat/completions", headers=[
            f"Origin: {ORIGIN}", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type,anthropic-version"])
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (204, ORIGIN))
        self.assertEqual(headers["Access-Control-Allow-Headers"], "authorization,content-type,anthropic-version")
        self.assertIn("POST", headers["Access-Control-Allow-Methods"])
        for key, expected in ((KEY, 200), ("wrong", 401)):  # a page must be able to read why it is refused
            status, headers, _ = ask("POST", "/tokenize", b'{"content": "a"}',
                                     [f"Origin: {ORIGIN}", f"Authorization: Bearer {key}", "Content-Type: application/json"])
            self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (expected, ORIGIN))

    def test_others_may_not(self):
        for method in ("OPTIONS", "GET"):
            _, headers, _ = ask(method, "/v1/models", headers=["Origin: https://evil.com", "Access-Control-Request-Method: GET"])
            self.assertIsNone(headers["Access-Control-Allow-Origin"])
            self.assertEqual(headers["Vary"], "Origin")


class Logs(unittest.TestCase):
    def test_have_a_line_for_each_request_and_no_secrets(self):
        SERVER.json("/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 5})
        self.assertEqual(SERVER.request("/v1/nothing?key=" + urllib.parse.quote(SECRET))[0], 404)
        client = Client()
        client.post(*completion("/v1/completions", SECRET, max_tokens=1900))
        wait_until(busy)
        client.leave()
        wait_until(lambda: any("client left" in line for line in SERVER.messages))
        lines = [json.loads(line) for line in SERVER.messages if line.startswith("{")]
        chat = [line for line in lines if line.get("path") == "/v1/chat/completions" and line["status"] == 200][-1]
        self.assertEqual((chat["event"], chat["client"], chat["method"], chat["end"]), ("request", "127.0.0.1", "POST", "length"))
        self.assertEqual((chat["model"], chat["generated_tokens"]), (pathlib.Path(MODEL).stem, 5))
        self.assertGreater(chat["prompt_tokens"], 5)
        self.assertTrue(0 < chat["first_token_seconds"] <= chat["seconds"])
        self.assertRegex(chat["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertIn(404, [line["status"] for line in lines if line.get("path") == "/v1/nothing"])
        left = [line for line in lines if line.get("end") == "client left"][-1]
        self.assertGreater(left["prompt_tokens"], 0)
        self.assertNotIn("plumtree", "".join(SERVER.messages))
        self.assertNotIn(KEY, "".join(SERVER.messages))


class Process(unittest.TestCase):
    def start(self, folder, *options, **how):
        return subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "-c", "512", "--memory", "100MiB", "--kv", "kvant-4bit", "--sessions", folder, *options],
                                **{"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **how})

    def test_shares_no_port(self):
        port = urllib.parse.urlparse(SERVER.url).port
        with tempfile.TemporaryDirectory() as folder:
            for host in ("127.0.0.1", "0.0.0.0"):
                second = self.start(folder, "--host", host, "--port", str(port), "--api-key", "x")
                _, messages = second.communicate(timeout=60)
                self.assertNotEqual(second.returncode, 0)
                self.assertIn(f"cannot listen on port {port} of {host}: another program already listens there", messages)
        with tempfile.TemporaryDirectory() as folder:  # the port of a server that has just ended must be free
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                free = probe.getsockname()[1]
            for _ in range(2):
                server = self.start(folder, "--port", str(free))
                while " at http://" not in (line := server.stderr.readline()):
                    self.assertTrue(line)
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", free, timeout=30)) as connection:
                    connection.request("GET", "/health")  # the client leaves the connection open, and the server closes it
                    self.assertEqual(connection.getresponse().read(), b'{"status":"ok"}')
                    server.terminate()
                    server.communicate(timeout=60)
                self.assertEqual(server.returncode, 0)

    def ask_in_session(self, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", "max_tokens": 4, "session": "kept"}),
                           {"Content-Type": "application/json"})
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()

    def test_a_terminal_that_closes_loses_no_session(self):
        with tempfile.TemporaryDirectory() as folder:
            terminal, programs_end = pty.openpty()
            server = self.start(folder, "--port", "0", stdin=programs_end, stdout=programs_end, stderr=programs_end, text=False,
                                preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
            os.close(programs_end)
            said = b""
            while b"run at a time" not in said:
                said += os.read(terminal, 4096)
            self.ask_in_session(int(re.search(rb"127\.0\.0\.1:(\d+)", said)[1]))
            os.close(terminal)  # the system sends SIGHUP because the terminal is gone
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGHUP)  # a shell sends SIGHUP once more
            self.assertEqual(server.wait(timeout=60), 0)
            self.assertEqual([p.stem for p in pathlib.Path(folder).iterdir() if not p.name.startswith(".")], ["kept"])

    def test_a_limit_on_file_sizes_is_like_a_full_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            server = self.start(folder, "--port", "0", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
            while " at http://" not in (line := server.stderr.readline()):
                self.assertTrue(line)
            port = int(re.search(r"127\.0\.0\.1:(\d+)", line)[1])
            self.ask_in_session(port)
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/v1/sessions/kept/save")
                response = connection.getresponse()
                self.assertEqual(response.status, 507)
                self.assertIn("File too large", json.loads(response.read())["error"]["message"])
            server.terminate()
            _, messages = server.communicate(timeout=60)
            self.assertEqual(messages.count("the session 'kept' is lost"), 1, messages)
            self.assertIn("1 session is lost", messages)
            self.assertEqual(server.returncode, 2)
            self.assertEqual([p.name for p in pathlib.Path(folder).iterdir() if not p.name.startswith(".")], [])

    def test_goes_on_where_hangups_are_ignored(self):
        with tempfile.TemporaryDirectory() as folder:
            server = self.start(folder, "--port", "0", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
            while " at http://" not in (line := server.stderr.readline()):
                self.assertTrue(line)
            server.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            self.ask_in_session(int(re.search(r"127\.0\.0\.1:(\d+)", line)[1]))
            server.terminate()
            server.terminate()  # timeout(1) signals a program and then its process group, so two signals come at once
            server.communicate(timeout=60)
            self.assertEqual(server.returncode, 0)
            self.assertTrue(any(pathlib.Path(folder).iterdir()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # this keeps calibrations out of the user's cache folder
        unittest.main(argv=sys.argv[:1] + sys.argv[3:])
