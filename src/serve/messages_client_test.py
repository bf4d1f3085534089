#!/usr/bin/env python3
"""Tests POST /v1/messages and /apply-template by HTTP against a started server.

    src/serve/messages_client_test.py KVANT MODEL        KVANT is the program, and MODEL is a GGUF file
"""
import json
import os
import sys
import tempfile
import unittest
import urllib.request

sys.dont_write_bytecode = True
from server_process import KEY, Server  # noqa: E402

MESSAGES = [{"role": "user", "content": "Name three colours."}]


def ask(**more):
    return {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, **more}


class Messages(unittest.TestCase):
    def test_answers_as_the_other_endpoint_does(self):
        system = "Be brief."
        answer = SERVER.json("/v1/messages", ask(system=system))
        chat = SERVER.json("/v1/chat/completions", ask(messages=[{"role": "system", "content": system}, *MESSAGES]))
        self.assertEqual(answer["content"], [{"type": "text", "text": chat["choices"][0]["message"]["content"]}])
        self.assertEqual(answer["stop_reason"], {"stop": "end_turn", "length": "max_tokens"}[chat["choices"][0]["finish_reason"]])
        usage = answer["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(usage["output_tokens"], chat["usage"]["completion_tokens"])

    def test_streams_the_same_answer(self):
        whole = SERVER.json("/v1/messages", ask())
        status, text = SERVER.request("/v1/messages", ask(stream=True))
        self.assertEqual(status, 200)
        events = []
        for event in text.split("\n\n")[:-1]:
            name, data = event.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            self.assertEqual(name, f"event: {events[-1]['type']}")
        types = [event["type"] for event in events]
        self.assertEqual(types[:2], ["message_start", "content_block_start"])
        self.assertEqual(set(types[2:-3]), {"content_block_delta"})
        self.assertEqual(types[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual("".join(event["delta"]["text"] for event in events[2:-3]), whole["content"][0]["text"])
        self.assertEqual(events[-2]["usage"]["output_tokens"], whole["usage"]["output_tokens"])
        self.assertEqual(events[-2]["delta"]["stop_reason"], whole["stop_reason"])

    def test_is_held_to_a_format(self):
        schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"], "additionalProperties": False}
        answer = SERVER.json("/v1/messages", ask(output_config={"format": {"type": "json_schema", "schema": schema}}))
        self.assertIn(json.loads(answer["content"][0]["text"]), ({"colour": "red"}, {"colour": "green"}))

    def test_says_in_a_stream_what_need_not_be_read(self):
        question = [{"role": "user", "content": "Name some colours. " * 100}]
        for cached in (0, 256):
            _, text = SERVER.request("/v1/messages", ask(messages=question, max_tokens=2, stream=True))
            start, *_, end, _ = (json.loads(event.split("\ndata: ")[1]) for event in text.split("\n\n")[:-1])
            for usage in (start["message"]["usage"], end["usage"]):
                self.assertEqual(usage["cache_read_input_tokens"] >= 256, cached > 0)
            self.assertEqual(start["message"]["usage"]["input_tokens"], end["usage"]["input_tokens"])
        body = {"messages": question, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
        _, text = SERVER.request("/v1/chat/completions", body)
        usage = json.loads(text.split("data: ")[-2])["usage"]
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], end["usage"]["cache_read_input_tokens"])

    def test_begins_a_stream_before_the_prompt_is_read(self):
        question = [{"role": "user", "content": "Name some rivers and where they go. " * 200}]
        body = json.dumps(ask(messages=question, max_tokens=1, stream=True)).encode()
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(SERVER.url + "/v1/messages", body, headers), timeout=120) as events:
            self.assertEqual(events.readline(), b"event: message_start\n")
            running = SERVER.json("/slots")
            self.assertEqual([slot["state"] for slot in running], ["reading"])
            usage = json.loads(events.readline().removeprefix(b"data: "))["message"]["usage"]
            self.assertEqual(usage["input_tokens"], running[0]["prompt_tokens"])
            self.assertIn(b"message_stop", events.read())

    def test_compares_with_an_unquantized_cache(self):
        usage = COMPARING.json("/v1/messages", ask(guard=True))["usage"]
        _, text = COMPARING.request("/v1/messages", ask(guard=True, stream=True))
        end = json.loads(text.split("\n\n")[-3].split("\ndata: ")[1])
        self.assertEqual(end["usage"]["guard"], usage["guard"])
        self.assertGreaterEqual(usage["guard"]["tokens"], usage["output_tokens"])
        self.assertNotIn("guard", COMPARING.json("/v1/messages", ask())["usage"])
        status, text = SERVER.request("/v1/messages", ask(guard=True))
        self.assertEqual((status, "--guard" in text), (400, True))

    def test_stops_at_a_text_and_says_which(self):
        whole = SERVER.json("/v1/messages", ask())["content"][0]["text"]
        stop = whole[len(whole) // 2:][:3]
        answer = SERVER.json("/v1/messages", ask(stop_sequences=["never said", stop]))
        self.assertEqual(answer["content"][0]["text"], whole[:whole.index(stop)])
        self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("stop_sequence", stop))

    def test_takes_the_key_in_either_header_and_says_errors_in_its_format(self):
        for body, headers, status, kind in ((ask(), {"x-api-key": KEY}, 200, None), (ask(), {}, 401, "authentication_error"),
                                            (ask(), {"x-api-key": "another"}, 401, "authentication_error"),
                                            (ask(model="another"), None, 404, "not_found_error"),
                                            (ask(model="claude-haiku-4-5"), None, 200, None),
                                            (ask(messages=[{"role": "user", "content": "word " * 9000}]), None, 400, "invalid_request_error"),
                                            (ask(tools=[{"name": "f"}]), None, 400, "invalid_request_error"),
                                            ({"messages": MESSAGES}, None, 400, "invalid_request_error")):
            with self.subTest(status=status, headers=headers):
                answered, text = SERVER.request("/v1/messages", body, headers)
                self.assertEqual(answered, status, text)
                if kind:
                    error = json.loads(text)
                    self.assertEqual((error["type"], error["error"]["type"]), ("error", kind))
                    self.assertTrue(error["error"]["message"])
        self.assertRegex(SERVER.request("/v1/messages", ask(messages=[{"role": "user", "content": "word " * 9000}]))[1],
                         r"prompt is too long: \d+ tokens > 2048 maximum")

    def test_counts_the_tokens_of_a_prompt(self):
        request = {"messages": MESSAGES, "system": "Be brief."}
        usage = SERVER.json("/v1/messages", {**request, "max_tokens": 1})["usage"]
        counted = SERVER.json("/v1/messages/count_tokens", request)
        self.assertEqual(counted, {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]})
        self.assertEqual(SERVER.request("/v1/messages/count_tokens", {"messages": []})[0], 400)
        self.assertEqual(SERVER.request("/v1/messages/count_tokens", {**request, "model": "another"})[0], 404)

    def test_says_what_is_asked_by_post(self):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/apply-template"):
            status, text = SERVER.request(path)
            self.assertEqual(status, 405, path)
            self.assertIn("does not support GET: use POST", text)

    def test_tokenizes_only_what_is_there(self):
        status, text = SERVER.request("/tokenize", {"add_special": True})
        self.assertEqual(status, 400)
        self.assertIn("'content' is missing: give a text", text)

    def test_applies_the_chat_template(self):
        prompt = SERVER.json("/apply-template", {"messages": MESSAGES})["prompt"]
        tokens = SERVER.json("/tokenize", {"content": prompt})["tokens"]
        usage = SERVER.json("/v1/chat/completions", ask(max_tokens=1))["usage"]
        self.assertIn(MESSAGES[0]["content"], prompt)
        self.assertEqual(len(tokens), usage["prompt_tokens"])
        self.assertEqual(SERVER.request("/apply-template", {"messages": []})[0], 400)


class TwoRecipes(unittest.TestCase):
    """Tests a server with --compare."""

    def test_answer_under_names_of_their_own(self):
        first, other = COMPARING.json("/v1/models")["data"]
        self.assertEqual((first["id"], other["id"]), ("pair", "pair:kivi-2bit"))
        answers = {}
        for model in (first, other):
            answer = COMPARING.json("/v1/chat/completions", ask(model=model["id"], logprobs=True))
            self.assertEqual(answer["model"], model["id"])
            answers[model["id"]] = answer["choices"][0]
            self.assertEqual(COMPARING.json("/v1/messages", ask(model=model["id"]))["content"][0]["text"], answer["choices"][0]["message"]["content"])
        self.assertEqual(answers[first["id"]], SERVER.json("/v1/chat/completions", ask(logprobs=True))["choices"][0])
        status, text = COMPARING.request("/v1/chat/completions", ask(model="another"))
        self.assertEqual(status, 404)
        self.assertIn(f"'{first['id']}' and '{other['id']}' are", text)

    def test_have_a_cache_each(self):
        first, other = (model["id"] for model in COMPARING.json("/v1/models")["data"])
        question = [{"role": "user", "content": "Name some animals. " * 60}]
        cached = [COMPARING.json("/v1/chat/completions", ask(messages=question, model=model, max_tokens=1))["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
                  for model in (first, other, first, other)]
        self.assertEqual(cached, [False, False, True, True])
        self.assertEqual(COMPARING.json("/cache")["model"], first)
        self.assertEqual(COMPARING.json(f"/cache?model={other}")["model"], other)
        self.assertEqual(COMPARING.request("/cache?model=another")[0], 404)
        self.assertEqual(COMPARING.json("/props")["compare"]["model"], other)
        self.assertRegex(COMPARING.request("/metrics")[1], r'kvant_prefix_hits_total\{recipe="kivi-2bit"\} 1\n')

    def test_leave_sessions_to_the_first(self):
        other = COMPARING.json("/v1/models")["data"][1]["id"]
        status, text = COMPARING.request("/v1/chat/completions", ask(model=other, session="x"))
        self.assertEqual(status, 400)
        self.assertIn("sessions are for the model", text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # this keeps calibrations out of the user's cache folder
        SERVER = Server(*sys.argv[1:3])
        COMPARING = Server(*sys.argv[1:3], "kvant-4bit", "--compare", "kivi-2bit", "--guard", "--alias", "pair")
        try:
            result = unittest.main(argv=sys.argv[:1], exit=False).result
        finally:
            SERVER.end()
            COMPARING.end()
    sys.exit(not result.wasSuccessful())
