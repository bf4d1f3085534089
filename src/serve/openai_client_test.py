#!/usr/bin/env python3
"""Tests kvant serve with the openai package and with plain HTTP, against a started server.

    src/serve/openai_client_test.py KVANT MODEL [CLASSES]

KVANT is the program, MODEL is a GGUF file, and CLASSES are names of test classes. The test runs with the Python of
.venv, where `scripts/setup.sh test` puts the openai package. Without the package, the test is skipped.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
from server_process import run_with_openai  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEY = "a key for this test"
CONTEXT = 2048

try:
    import openai
except ImportError:
    reason = run_with_openai()
    print(f"{__file__}:1: Skipped\n{reason}\n\n[  SKIPPED ] Serve.AnswersTheOpenaiPackage (0 ms)")
    sys.exit(0)

PROGRAM, MODEL = sys.argv[1:3]


class ServerProcess:
    """Runs kvant serve on a free port."""

    def __init__(self, *options):
        self.process = subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "--port", "0", "-c", str(CONTEXT), *options],
                                        stderr=subprocess.PIPE, text=True)
        self.messages = ""
        port = None
        while port is None:
            line = self.process.stderr.readline()
            self.messages += line
            if not line:
                raise RuntimeError(f"the server has ended: {self.messages}")
            port = re.search(r" at http://127\.0\.0\.1:(\d+)", line)
        self.port = int(port[1])

    def client(self, key=KEY):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=300)

    def request(self, method, path, body=None, headers=None, key=KEY):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, body, {"Content-Type": "application/json", "Authorization": f"Bearer {key}",
                                                **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def json(self, method, path, body=None):
        status, text = self.request(method, path, body)
        assert status == 200, text
        return json.loads(text)

    def metric(self, name):
        return float(re.search(rf"(?m)^kvant_{re.escape(name)} (\S+)$", self.request("GET", "/metrics")[1])[1])

    def wait_until_idle(self):
        for _ in range(200):
            if not self.json("GET", "/slots"):
                return
            time.sleep(0.05)
        raise AssertionError(f"still running: {self.json('GET', '/slots')}")

    def end(self, sign=signal.SIGTERM):
        self.process.send_signal(sign)
        code = self.process.wait(timeout=120)
        self.messages += self.process.stderr.read()
        self.process.stderr.close()
        return code


SERVER = None
QUESTION = [{"role": "user", "content": "Name three colours."}]


def setUpModule():
    global SERVER
    SERVER = ServerProcess("--kv", "kvant-4bit", "--api-key", KEY, "--parallel", "4", "--queue", "16", "--memory", "400MiB")


def tearDownModule():
    assert SERVER.end() == 0, SERVER.messages


class Chat(unittest.TestCase):
    def setUp(self):
        self.client = SERVER.client()
        self.model = self.client.models.list().data[0].id

    def chat(self, **options):
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": QUESTION, "max_tokens": 16, "seed": 5, **options})

    def test_answers(self):
        answer = self.chat(temperature=0)
        self.assertTrue(answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn(answer.choices[0].finish_reason, ("stop", "length"))
        self.assertLessEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_streams_the_same_answer(self):
        whole = self.chat()
        text, reasons, usage = "", [], None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
                reasons.append(chunk.choices[0].finish_reason)
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual([r for r in reasons if r], [whole.choices[0].finish_reason])
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_repeats_itself_with_the_same_seed(self):
        self.assertEqual(self.chat().choices[0].message.content, self.chat().choices[0].message.content)
        others = {self.chat(seed=seed).choices[0].message.content for seed in range(6)}
        self.assertGreater(len(others), 1)

    def test_gives_several_answers(self):
        answers = self.chat(n=3)
        self.assertEqual([choice.index for choice in answers.choices], [0, 1, 2])
        for i, choice in enumerate(answers.choices):
            alone = self.chat(seed=5 + i)
            self.assertEqual(choice.message.content, alone.choices[0].message.content)

    def test_gives_probabilities(self):
        answer = self.chat(logprobs=True, top_logprobs=3, temperature=0)
        tokens = answer.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in tokens), answer.choices[0].message.content)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.token, token.top_logprobs[0].token)  # temperature 0 takes the likeliest token
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(bytes(token.bytes).decode(), token.token)

    def test_stops_at_a_text(self):
        whole = self.chat(temperature=0, max_tokens=24).choices[0].message.content
        stop = whole[len(whole) // 2:][:3]
        answer = self.chat(temperature=0, max_tokens=24, stop=[stop])
        self.assertEqual(answer.choices[0].message.content, whole[:whole.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_reads_a_conversation_only_once(self):
        long = [{"role": "user", "content": "Remember: " + " ".join(f"item {i}" for i in range(150))}]
        first = self.chat(messages=long, temperature=0)
        again = self.chat(messages=long, temperature=0)
        self.assertEqual(again.choices[0].message.content, first.choices[0].message.content)
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 256)
        answer = first.choices[0].message.model_dump()
        follow_up = self.chat(messages=[*long, answer, {"role": "user", "content": "Which items?"}])
        self.assertGreater(follow_up.usage.prompt_tokens_details.cached_tokens, 256)

    def test_refuses_what_it_does_not_have(self):
        for wrong in ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
                      {"response_format": {"type": "xml"}}, {"presence_penalty": "much"}, {"logit_bias": {"-5": 1}},
                      {"temperature": -1}, {"n": 0}, {"max_tokens": 0}, {"top_logprobs": 2}, {"messages": []},
                      {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
                      {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                      {"modalities": ["text", "audio"]}, {"extra_body": {"dry_multiplier": 1}}):
            with self.subTest(wrong), self.assertRaises(openai.BadRequestError) as raised:
                self.chat(**wrong)
            self.assertTrue(raised.exception.body["message"])
            self.assertIsInstance(raised.exception.code, str)
        self.assertEqual((raised.exception.code, raised.exception.param), ("unsupported_parameter", "dry_multiplier"))
        with self.assertRaises(openai.NotFoundError) as raised:
            self.chat(model="another")
        self.assertEqual(raised.exception.code, "model_not_found")

    def test_says_which_parameter_is_too_long(self):
        text = "word " * 4 * CONTEXT
        for parameter, ask in (("messages", lambda: self.chat(messages=[{"role": "user", "content": text}])),
                               ("input", lambda: self.client.responses.create(model=self.model, input=text)),
                               ("input", lambda: self.client.embeddings.create(model=self.model, input=text)),
                               ("prompt", lambda: self.client.completions.create(model=self.model, prompt=text))):
            with self.assertRaises(openai.BadRequestError) as raised:
                ask()
            self.assertEqual((raised.exception.code, raised.exception.param), ("context_length_exceeded", parameter))
            self.assertIn(f"maximum context length is {CONTEXT} tokens", raised.exception.message)

    def test_takes_hints_and_values_that_mean_the_default(self):
        plain = self.chat(temperature=0).choices[0].message.content
        hinted = self.chat(temperature=0, store=True, metadata={"a": "b"}, service_tier="auto", prompt_cache_key="k", stop=[""],
                           presence_penalty=0, extra_body={"top_k": -1, "nobody_knows": 1, "mirostat": 0})
        self.assertEqual(hinted.choices[0].message.content, plain)

    def test_penalties_and_biases_change_what_is_drawn(self):
        def tokens(**options):
            answer = self.chat(**{"temperature": 0, "logprobs": True, "max_tokens": 24, **options})
            return [token.token for token in answer.choices[0].logprobs.content]
        plain = tokens()
        distinct = tokens(frequency_penalty=100)
        self.assertEqual(len(set(distinct)), len(distinct))
        first = SERVER.json("POST", "/tokenize", {"content": plain[0]})["tokens"][0]
        self.assertNotEqual(tokens(logit_bias={str(first): -100}, max_tokens=1), plain[:1])


class Completions(unittest.TestCase):
    def setUp(self):
        self.client = SERVER.client()
        self.model = self.client.models.list().data[0].id

    def complete(self, prompt, **options):
        return self.client.completions.create(
            **{"model": self.model, "prompt": prompt, "max_tokens": 12, "seed": 3, **options})

    def test_continues_texts_and_tokens(self):
        text = "The capital of France is"
        whole = self.complete(text, temperature=0)
        tokens = SERVER.json("POST", "/tokenize", {"content": text})["tokens"]
        self.assertEqual(self.complete(tokens, temperature=0).choices[0].text, whole.choices[0].text)
        self.assertEqual(whole.usage.prompt_tokens, len(tokens))
        several = self.complete([text, "One, two,"], temperature=0, n=2)
        self.assertEqual([c.index for c in several.choices], [0, 1, 2, 3])
        self.assertEqual(several.choices[0].text, whole.choices[0].text)
        self.assertEqual(several.choices[2].text, self.complete("One, two,", temperature=0).choices[0].text)

    def test_streams_several_answers(self):
        texts = {}
        for chunk in self.complete(["Once upon a time", "The end"], stream=True, n=2):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        whole = self.complete(["Once upon a time", "The end"], n=2)
        self.assertEqual(texts, {choice.index: choice.text for choice in whole.choices})

    def test_gives_probabilities(self):
        answer = self.complete("Snow is", logprobs=2)
        found = answer.choices[0].logprobs
        self.assertEqual("".join(found.tokens), answer.choices[0].text)
        self.assertEqual(len(found.token_logprobs), answer.usage.completion_tokens)
        self.assertEqual(found.text_offset[0], 0)
        for token, probability, top in zip(found.tokens, found.token_logprobs, found.top_logprobs):
            self.assertLessEqual(len(top), 3)  # OpenAI's API adds the chosen token to the likeliest ones
            self.assertAlmostEqual(top[token], probability, places=9)

    def test_scores_a_prompt(self):
        prompt = SERVER.json("POST", "/tokenize", {"content": "The quick brown fox jumps over the lazy dog. " * 8})["tokens"]
        scored = self.complete(prompt, echo=True, logprobs=1, max_tokens=0, temperature=0)
        found = scored.choices[0].logprobs
        self.assertEqual((len(found.tokens), found.token_logprobs[0], scored.usage.completion_tokens), (len(prompt), None, 0))
        self.assertEqual("".join(found.tokens), scored.choices[0].text)
        self.assertEqual(found.text_offset, [len("".join(found.tokens[:i])) for i in range(len(prompt))])
        for n in (40, 70):  # a prompt that ends before the token gives nearly the same probability; products of few rows round differently
            (top,) = self.complete(prompt[:n], logprobs=20, max_tokens=1, extra_body={"ignore_eos": True}).choices[0].logprobs.top_logprobs
            self.assertAlmostEqual(top[found.tokens[n]], found.token_logprobs[n], delta=0.1)
        longer = self.complete(prompt, echo=True, logprobs=1, max_tokens=2, temperature=0).choices[0]
        self.assertEqual(longer.logprobs.token_logprobs[1:len(prompt)], found.token_logprobs[1:])
        self.assertEqual(len(longer.logprobs.tokens), len(prompt) + 2)

    def test_reads_control_tokens_unless_told_otherwise(self):
        prompt = "<|im_start|>user\nHi<|im_end|>\n"
        read = self.complete(prompt, max_tokens=1).usage.prompt_tokens
        self.assertEqual(read, len(SERVER.json("POST", "/tokenize", {"content": prompt})["tokens"]))
        self.assertGreater(self.complete(prompt, max_tokens=1, extra_body={"parse_special": False}).usage.prompt_tokens, read)

    def test_takes_many_prompts(self):
        prompts = [f"{i} and" for i in range(60)]  # there are more prompts than the queue has places
        whole = self.complete(prompts, max_tokens=2, temperature=0)
        self.assertEqual(len(whole.choices), 60)
        self.assertEqual(whole.choices[59].text, self.complete(prompts[59], max_tokens=2, temperature=0).choices[0].text)

    def test_refuses_what_it_does_not_have(self):
        for wrong in ({"best_of": 3}, {"prompt": [10**9]}, {"prompt": []},
                      {"prompt": {"a": 1}}, {"logprobs": 100}):
            with self.subTest(wrong), self.assertRaises(openai.BadRequestError):
                self.complete(**{"prompt": "x", **wrong})


class Together(unittest.TestCase):
    """Each completion must equal the completion of a lone run, whatever else runs at the same time."""

    def test_concurrent_clients_get_the_answers_of_lone_runs(self):
        client = SERVER.client()
        model = client.models.list().data[0].id
        rng = random.Random(1)
        words = (ROOT / "data/sample/canals.txt").read_text(encoding="utf-8").split()
        asked = []
        for i in range(10):
            first = rng.randrange(len(words) - 600)
            asked.append({"model": model, "prompt": " ".join(words[first:first + rng.choice((5, 60, 150, 300))]),
                          "max_tokens": rng.choice((4, 12, 24)), "seed": i, "temperature": rng.choice((0, 1)), "logprobs": 1})

        def ask(options):
            answer = client.completions.create(**options).choices[0]
            return answer.text, answer.logprobs.token_logprobs

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(ask, asked))
        alone = [ask(options) for options in asked]
        self.assertEqual(together, alone)

    def test_clients_that_go_away_free_their_memory(self):
        rng = random.Random(2)
        model = SERVER.json("GET", "/v1/models")["data"][0]["id"]
        before = SERVER.metric('requests_total{end="cancelled"}')
        for i in range(12):
            body = json.dumps({"model": model, "prompt": f"{i} " + "a long story " * rng.choice((2, 300)), "max_tokens": 1000,
                               "temperature": 1, "stream": rng.random() < 0.5})
            connection = socket.create_connection(("127.0.0.1", SERVER.port))
            head = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
            connection.sendall((head + body).encode())
            time.sleep(rng.random() * 0.3)
            connection.close()
        SERVER.wait_until_idle()
        self.assertEqual(SERVER.metric("cache_promised_bytes"), 0)
        self.assertGreaterEqual(SERVER.metric('requests_total{end="cancelled"}') - before, 8)
        self.assertLessEqual(SERVER.metric("cache_bytes"), SERVER.metric("cache_limit_bytes"))


class Http(unittest.TestCase):
    def test_asks_for_the_key(self):
        with self.assertRaises(openai.AuthenticationError):
            SERVER.client("another key").models.list()
        self.assertEqual(SERVER.request("GET", "/slots", key="")[0], 401)
        self.assertEqual(SERVER.request("GET", "/health", key="")[0], 200)

    def test_answers_nonsense_with_errors_in_the_api_s_format(self):
        for path, body, headers, status in (
                ("/v1/chat/completions", "{", {}, 400), ("/v1/chat/completions", "[]", {}, 400),
                ("/v1/chat/completions", "[" * 10000, {}, 400), ("/v1/completions", '{"prompt": "\xff"}'.encode("latin-1"), {}, 400),
                ("/v1/completions", '{"prompt": 1e999}', {}, 400), ("/v1/nothing", "{}", {}, 404),
                ("/v1/completions", '{"prompt": "x"}', {"Content-Type": "text/plain"}, 415),
                ("/v1/completions", "x" * (17 << 20), {}, 413),
                ("/tokenize", '{"content": 5}', {}, 400), ("/detokenize", '{"tokens": [-1]}', {}, 400)):
            with self.subTest(path=path, body=body[:20]):
                try:
                    answered, text = SERVER.request("POST", path, body, headers)
                except (BrokenPipeError, ConnectionResetError):
                    self.assertEqual(status, 413)  # the server need not read a body that it refuses
                    continue
                self.assertEqual(answered, status, text)
                self.assertTrue(json.loads(text)["error"]["message"])

    def test_tells_about_itself(self):
        props = SERVER.json("GET", "/props")
        self.assertEqual(props["default_generation_settings"]["n_ctx"], CONTEXT)
        self.assertEqual(props["total_slots"], 4)
        self.assertLess(props["kv"]["bits"], 6)
        self.assertTrue(props["kv"]["kernels"])
        self.assertEqual(SERVER.metric("context_tokens"), CONTEXT)
        for line in SERVER.request("GET", "/metrics")[1].splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) kvant_\w+ .+|kvant_\w+(\{[^}]*\})? [-+.\deE]+)$")

    def test_tokenizes_and_back(self):
        text = "Grüße, 世界!"
        tokens = SERVER.json("POST", "/tokenize", {"content": text})["tokens"]
        self.assertEqual(SERVER.json("POST", "/detokenize", {"tokens": tokens})["content"], text)
        pieces = SERVER.json("POST", "/tokenize", {"content": "a cat", "with_pieces": True})["tokens"]
        self.assertEqual("".join(p["piece"] for p in pieces), "a cat")


class Sessions(unittest.TestCase):
    """Tests a server with sessions, which is killed, ended and started again."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.start()

    def tearDown(self):
        self.assertEqual(self.server.end(), 0)
        self.folder.cleanup()

    def start(self):
        self.server = ServerProcess("--kv", "kvant-3bit", "--parallel", "2", "--memory", "300MiB", "--sessions",
                                    self.folder.name)

    def chat(self, session, messages):
        answer = self.server.client().chat.completions.create(
            model=pathlib.Path(MODEL).stem, messages=messages, max_tokens=24, temperature=0, extra_body={"session": session})
        return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens

    def session(self, name):
        return self.server.json("GET", f"/v1/sessions/{name}")

    def test_a_follow_up_reuses_all_even_after_a_kill(self):
        turns = [{"role": "user", "content": "Remember: " + ", ".join(f"item {i}" for i in range(150))}]
        answer, cached = self.chat("list", turns)
        self.assertEqual(cached, 0)
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Which items?"}]
        self.assertTrue(self.server.json("POST", "/v1/sessions/list/save", {})["saved"])
        self.assertEqual(self.server.json("POST", "/v1/sessions/list/fork", {"to": "other"})["tokens"],
                         self.session("list")["tokens"])
        held = self.session("list")["tokens"]
        expected, cached = self.chat("list", turns)
        self.assertEqual(cached, held)
        self.assertEqual(self.chat("other", turns), (expected, held))
        restored = self.server.json("POST", "/v1/sessions/list/restore", {})
        self.assertEqual((restored["tokens"], restored["saved"]), (held, True))
        self.assertEqual(self.chat("list", turns), (expected, held))
        self.server.end(signal.SIGKILL)
        self.start()
        listed = self.server.json("GET", "/v1/sessions")["data"]
        self.assertEqual([(s["id"], s["tokens"], s["in_memory"], s["on_disk"]) for s in listed], [("list", held, False, True)])
        self.assertEqual(self.chat("list", turns), (expected, held))

    def test_sessions_are_written_when_the_server_ends(self):
        answer, _ = self.chat("short", QUESTION)
        held = self.session("short")["tokens"]
        self.assertEqual(self.server.end(), 0)
        self.start()
        turns = [*QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "And one more?"}]
        self.assertEqual(self.chat("short", turns)[1], held)
        self.assertTrue(self.server.json("DELETE", "/v1/sessions/short")["deleted"])
        self.assertEqual(self.server.json("GET", "/v1/sessions")["data"], [])
        self.assertEqual(list(pathlib.Path(self.folder.name).glob("*.kvsession")), [])

    def test_refuses_what_can_not_be(self):
        for method, path, body, status in (
                ("GET", "/v1/sessions/none", None, 404), ("POST", "/v1/sessions/none/save", {}, 404),
                ("POST", "/v1/sessions/none/restore", {}, 404), ("POST", "/v1/sessions/none/fork", {"to": "x"}, 404),
                ("DELETE", "/v1/sessions/none", None, 404), ("GET", "/v1/sessions/a.b", None, 400),
                ("DELETE", "/v1/sessions/..%2Fmodel", None, 404), ("POST", "/v1/sessions/none/fork", {"to": "../x"}, 400),
                ("POST", "/v1/sessions/none/fork", {}, 400), ("POST", "/v1/sessions/none/fork", "{", 400),
                ("POST", "/v1/completions", {"prompt": "x", "session": "a/b"}, 400),
                ("POST", "/v1/completions", {"prompt": "x", "session": "a", "n": 2}, 400),
                ("POST", "/v1/completions", {"prompt": ["x", "y"], "session": "a"}, 400)):
            with self.subTest(method=method, path=path, body=body):
                answered, text = self.server.request(method, path, body)
                self.assertEqual(answered, status, text)
                self.assertTrue(json.loads(text)["error"]["message"])
        self.assertEqual(SERVER.request("GET", "/v1/sessions")[0], 404)
        self.assertEqual(SERVER.request("POST", "/v1/completions", {"prompt": "x", "session": "a"})[0], 400)


class Limits(unittest.TestCase):
    """Tests a server with tight limits."""

    def test_lets_requests_wait_and_tells_others_to_come_later(self):
        server = ServerProcess("--parallel", "1", "--queue", "1", "--memory", "300MiB")
        try:
            body = {"prompt": "a", "max_tokens": 60, "temperature": 1}
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: server.request("POST", "/v1/completions", body), range(8)))
            statuses = [status for status, _ in answers]
            self.assertGreaterEqual(statuses.count(200), 2)
            self.assertGreaterEqual(statuses.count(503), 1)
            self.assertEqual(statuses.count(200) + statuses.count(503), 8)
        finally:
            self.assertEqual(server.end(), 0)

    def test_answers_what_was_asked_before_it_ends(self):
        server = ServerProcess("--memory", "300MiB")
        self.assertEqual(server.request("GET", "/slots", headers={"Host": f"localhost:{server.port}"})[0], 200)
        self.assertEqual(server.request("GET", "/slots", headers={"Host": "a.page.example"})[0], 403)
        self.assertEqual(server.request("GET", "/slots", headers={"Host": "127.a.page.example"})[0], 403)
        self.assertEqual(server.request("GET", "/slots", headers={"Host": "127.0.0.2:80"})[0], 200)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.request, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 100, "temperature": 1})
            while not server.json("GET", "/slots"):
                time.sleep(0.01)
            self.assertEqual(server.end(), 0)
            status, text = asked.result()
        self.assertEqual(status, 200)
        self.assertTrue(json.loads(text)["choices"][0]["text"])

    def test_ends_at_once_when_told_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            options = "--memory", "300MiB", "--sessions", folder, "--prefix-disk", "64MiB"
            server = ServerProcess(*options)
            body = {"prompt": "One two three " * 60, "max_tokens": 2, "session": "kept"}
            self.assertEqual(server.request("POST", "/v1/completions", body)[0], 200)
            self.assertEqual(server.request("POST", "/v1/sessions/kept/save", {})[0], 200)
            tokens = server.json("GET", "/v1/sessions/kept")["tokens"]
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                # With ignore_eos, the completion runs until the second signal on any processor.
                asked = pool.submit(server.request, "POST", "/v1/completions",
                                    {"prompt": body["prompt"], "max_tokens": 2000, "ignore_eos": True, "stream": True})
                while not server.json("GET", "/slots"):
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.8)  # signals within half a second count as one
                start = time.time()
                self.assertEqual(server.end(), 128 + signal.SIGTERM)
                self.assertLess(time.time() - start, 1)
                asked.exception()  # the request must end, whether or not its response was cut off
            self.assertEqual(os.listdir(os.path.join(folder, "prefixes")), [".lock"])  # the server must have written nothing more
            server = ServerProcess(*options)
            status, restored = server.request("POST", "/v1/sessions/kept/restore", {})
            self.assertEqual((status, json.loads(restored)["tokens"]), (200, tokens))
            self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # this keeps calibrations out of the user's cache folder
        unittest.main(argv=sys.argv[:1] + sys.argv[3:])
