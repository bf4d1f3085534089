#!/usr/bin/env python3
"""Tests what every server with the OpenAI API and llama-server's endpoints must do, through the openai package.

    src/serve/any_server_test.py KVANT MODEL        starts kvant serve. KVANT is the program, and MODEL is a GGUF file
    src/serve/any_server_test.py --url URL          asks a server that runs, such as
        llama-server -m MODEL --metrics --chat-template-file data/templates/chatml-tools.jinja

The server's chat template must have tools. The test runs with the Python of .venv, where `scripts/setup.sh test`
puts the openai package. Without the package the test is skipped.
"""
import json
import os
import pathlib
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
from server_process import KEY, Server, run_with_openai  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "data/templates/chatml-tools.jinja"

try:
    import openai
except ImportError:
    reason = run_with_openai()
    print(f"{__file__}:1: Skipped\n{reason}\n\n[  SKIPPED ] Serve.IsAsOthersAre (0 ms)")
    sys.exit(0)

URL = None
QUESTION = [{"role": "user", "content": "Name three colours."}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99},
                                           "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 2}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"]}}}


def fetch(path, body=None):
    """Sends a request, by POST if there is a body. Returns status and text of the response."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"})
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Client(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=300)
        self.model = self.client.models.list().data[0].id

    def chat(self, **options):
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": QUESTION, "max_tokens": 16, "temperature": 0, "seed": 5, **options})

    def assert_person(self, text):
        person = json.loads(text)
        self.assertEqual(sorted(person), ["age", "name", "tags"])
        self.assertIsInstance(person["name"], str)
        self.assertTrue(1 <= person["age"] <= 99)
        self.assertTrue(1 <= len(person["tags"]) <= 2 and set(person["tags"]) <= {"red", "green"})


class Texts(Client):
    def test_streams_the_answer_that_it_gives_whole(self):
        whole = self.chat()
        self.assertEqual(whole.choices[0].message.role, "assistant")
        self.assertTrue(whole.choices[0].message.content)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        text, usage = "", None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_ends_at_a_length_and_at_a_text(self):
        whole = self.chat(max_tokens=8).choices[0]
        self.assertEqual(whole.finish_reason, "length")
        stop = whole.message.content[3:6]
        stopped = self.chat(max_tokens=8, stop=[stop]).choices[0]
        self.assertEqual((stopped.message.content, stopped.finish_reason), (whole.message.content.split(stop)[0], "stop"))

    def test_gives_the_probabilities_of_tokens(self):
        tokens = self.chat(logprobs=True, top_logprobs=2, max_tokens=6).choices[0].logprobs.content
        self.assertGreaterEqual(len(tokens), 5)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(token.top_logprobs[0].token, token.token)  # temperature 0 takes the likeliest token
            self.assertGreaterEqual(token.top_logprobs[0].logprob, token.top_logprobs[1].logprob)

    def test_completes_texts(self):
        answer = self.client.completions.create(model=self.model, prompt="The capital of France is", max_tokens=4, temperature=0)
        self.assertIn("Paris", answer.choices[0].text)

    def test_has_the_endpoints_beside(self):
        tokens = json.loads(fetch("/tokenize", {"content": "a cat"})[1])["tokens"]
        self.assertEqual(json.loads(fetch("/detokenize", {"tokens": tokens})[1])["content"], "a cat")
        self.assertIn(QUESTION[0]["content"], json.loads(fetch("/apply-template", {"messages": QUESTION})[1])["prompt"])
        self.assertEqual(json.loads(fetch("/health")[1]), {"status": "ok"})
        self.assertIn("total_slots", json.loads(fetch("/props")[1]))
        self.assertIsInstance(json.loads(fetch("/slots")[1]), list)
        self.assertRegex(fetch("/metrics")[1], r"(?m)^# TYPE \S+ (counter|gauge)$")


class Formats(Client):
    def test_holds_answers_to_a_schema(self):
        wanted = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        for temperature in (0, 1):
            answer = self.chat(response_format=wanted, max_tokens=120, temperature=temperature).choices[0]
            self.assertEqual(answer.finish_reason, "stop", answer.message.content)
            self.assert_person(answer.message.content)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in self.chat(response_format=wanted, max_tokens=120, stream=True))
        self.assert_person(text)

    def test_holds_answers_to_json_and_to_grammars(self):
        extra = {"type": "json_object", "schema": PERSON}
        self.assert_person(self.chat(max_tokens=120, extra_body={"response_format": extra}).choices[0].message.content)
        self.assertTrue(self.chat(response_format={"type": "json_object"}).choices[0].message.content.lstrip().startswith("{"))
        self.assertRegex(self.chat(extra_body={"grammar": 'root ::= ("yes" | "no") " "[a-c]'}).choices[0].message.content,
                         r"^(yes|no) [a-c]$")

    def test_gives_the_model_s_own_probabilities_of_what_it_was_held_to(self):
        free = self.chat(logprobs=True, top_logprobs=1, max_tokens=1).choices[0].logprobs.content[0]
        held = self.chat(logprobs=True, top_logprobs=1, max_tokens=1, extra_body={"grammar": 'root ::= "~"'}).choices[0].logprobs.content[0]
        self.assertEqual(held.token, "~")
        # The server reports the model's probability, not the probability 1 of a token that the grammar forced.
        self.assertLess(held.logprob, free.logprob - 1)
        self.assertEqual(held.top_logprobs[0].token, free.token)
        self.assertAlmostEqual(held.top_logprobs[0].logprob, free.logprob, places=3)


def asked_before(city, number):
    """Returns two turns: a question about the weather, and the assistant's tool call for that question."""
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city, "days": 1})}}
    return [{"role": "user", "content": f"How is the weather in {city}?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


class Tools(Client):
    # The conversation has earlier calls, because a small model repeats earlier behaviour. A server may let the model
    # write text before a required call.
    TURNS = [turn for i, city in enumerate(("Paris", "Rome", "Oslo", "Cairo")) for turn in asked_before(city, i)]
    TURNS += [{"role": "user", "content": "How is the weather in Ghent?"}]

    def call(self, **options):
        return self.chat(**{"messages": self.TURNS, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 80, **options})

    def assert_call(self, name, arguments):
        self.assertEqual(name, "weather")
        found = json.loads(arguments)
        self.assertEqual(sorted(found), ["city", "days"])
        self.assertTrue(isinstance(found["city"], str) and 1 <= found["days"] <= 9)

    def test_are_called(self):
        answer = self.call().choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        self.assertEqual(len(answer.message.tool_calls), 1)
        call = answer.message.tool_calls[0]
        self.assertEqual(call.type, "function")
        self.assertTrue(call.id)
        self.assert_call(call.function.name, call.function.arguments)

    def test_are_called_in_streams(self):
        name, arguments, reasons = "", "", []
        for chunk in self.call(stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            reasons.append(chunk.choices[0].finish_reason)
        self.assert_call(name, arguments)
        self.assertEqual([r for r in reasons if r], ["tool_calls"])

    def test_give_what_the_next_answer_reads(self):
        call = self.call().choices[0].message.tool_calls[0]
        turns = [*self.TURNS, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
                 {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
        answer = self.chat(messages=turns, tools=[WEATHER], tool_choice="none")
        self.assertTrue(answer.choices[0].message.content)
        self.assertIn("sunny, 21 degrees", json.loads(fetch("/apply-template", {"messages": turns, "tools": [WEATHER]})[1])["prompt"])

    def test_need_not_be_called(self):
        answer = self.chat(tools=[WEATHER], tool_choice="none").choices[0]
        self.assertFalse(answer.message.tool_calls)
        self.assertIn(answer.finish_reason, ("stop", "length"))


class Responses(Client):
    LOOK = {"type": "function", "name": "weather", "description": "The weather of a city.", "strict": False,
            "parameters": WEATHER["function"]["parameters"]}
    ASKED = [{"role": "user", "content": "How is the weather in Paris?"},
             {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris", "days": 1}'}]

    def respond(self, **options):
        return self.client.responses.create(
            **{"model": self.model, "input": QUESTION, "max_output_tokens": 16, "temperature": 0, "store": False, **options})

    def test_say_what_a_chat_says(self):
        response = self.respond(instructions="Be brief.")
        chat = self.chat(messages=[{"role": "system", "content": "Be brief."}, *QUESTION])
        self.assertEqual(response.output_text, chat.choices[0].message.content)
        self.assertEqual(response.usage.input_tokens, chat.usage.prompt_tokens)
        self.assertEqual(response.usage.output_tokens, chat.usage.completion_tokens)
        self.assertEqual(self.respond(input=QUESTION[0]["content"], instructions="Be brief.").output_text, response.output_text)

    def test_stream_what_they_say_whole(self):
        whole = self.respond()
        events = list(self.respond(stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        self.assertEqual("".join(event.delta for event in deltas), whole.output_text)
        others = [event.type.removeprefix("response.") for event in events if event not in deltas]
        self.assertEqual(others, ["created", "in_progress", "output_item.added", "content_part.added", "output_text.done",
                                  "content_part.done", "output_item.done", "incomplete" if whole.incomplete_details else "completed"])
        last = events[-1].response
        self.assertEqual((last.output_text, last.status, last.usage.output_tokens), (whole.output_text, whole.status, whole.usage.output_tokens))
        self.assertEqual({event.item_id for event in deltas}, {last.output[0].id})

    def test_call_functions_and_read_what_these_gave(self):
        wanted = {"input": self.ASKED[:1], "tools": [self.LOOK], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 80}
        with self.client.responses.stream(model=self.model, temperature=0, **wanted) as stream:
            streamed = [event for event in stream if event.type == "response.function_call_arguments.done"]
        for call in (self.respond(**wanted).output[0], *streamed):
            found = json.loads(call.arguments)
            self.assertTrue(call.name == "weather" and isinstance(found["city"], str) and 1 <= found["days"] <= 9)
        self.assertEqual(len(streamed), 1)
        output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny, 21 degrees"}
        response = self.respond(input=[*self.ASKED, output], tools=[self.LOOK], tool_choice="none")
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": self.ASKED[1]["arguments"]}}
        chat = self.chat(tools=[WEATHER], tool_choice="none", messages=[
            self.ASKED[0], {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": output["output"]}])
        self.assertEqual(response.output_text, chat.choices[0].message.content)

    def test_are_held_to_a_schema(self):
        wanted = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": PERSON}}
        self.assert_person(self.respond(text=wanted, max_output_tokens=120).output_text)

    def test_refuse_what_only_a_server_that_stores_them_has(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.respond(previous_response_id="resp_1")
        self.assertIn("previous_response_id", raised.exception.body["message"])


class Errors(Client):
    def test_are_in_the_api_s_format(self):
        for wrong in ({"tool_choice": "sometimes", "tools": [WEATHER]},
                      {"response_format": {"type": "xml"}},
                      {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
                      {"extra_body": {"grammar": "root ::= other"}}, {"top_logprobs": 2}):
            with self.subTest(wrong), self.assertRaises(openai.APIStatusError) as raised:
                self.chat(**wrong)
            self.assertGreaterEqual(raised.exception.status_code, 400)
            self.assertTrue(raised.exception.body["message"])
        for path, body in (("/v1/chat/completions", b"{"), ("/v1/nothing", b"{}")):
            status, text = fetch(path, body)
            self.assertGreaterEqual(status, 400)
            self.assertTrue(json.loads(text)["error"]["message"])


def main():
    global URL
    if sys.argv[1] == "--url":
        URL = sys.argv[2].rstrip("/")
        return unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False).result
    server = Server(*sys.argv[1:3], "kvant-4bit", "--chat-template", str(TEMPLATE))
    URL = server.url
    try:
        return unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False).result
    finally:
        server.end()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # this keeps calibrations out of the user's cache folder
        sys.exit(not main().wasSuccessful())
