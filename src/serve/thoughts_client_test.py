#!/usr/bin/env python3
"""Tests thoughts by HTTP against a started server, with the messages that clients send.

    src/serve/thoughts_client_test.py KVANT MODEL        KVANT is the program, and MODEL is a GGUF file

The server gets a chat template with thoughts. A grammar forces the model to generate the text that a test needs.
"""
import json
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from server_process import Server  # noqa: E402

TEMPLATE = r"""{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.reasoning_content -%}{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}
{{- message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{%- endif -%}"""
QUESTION = [{"role": "user", "content": "Is water wet?"}]
SPOKEN = {"messages": QUESTION, "temperature": 0, "max_tokens": 60, "grammar": r'root ::= "<think>\nWet is a word.\n</think>\n\nYes, it is."'}


def deltas(text):
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    return [event["choices"][0]["delta"] for event in events if event["choices"]]


class Thoughts(unittest.TestCase):
    def test_come_apart_from_the_content(self):
        completion = SERVER.json("/v1/chat/completions", {**SPOKEN, "logprobs": True})
        choice = completion["choices"][0]
        self.assertEqual(choice["message"]["reasoning_content"], "Wet is a word.")
        self.assertEqual(choice["message"]["content"], "Yes, it is.")
        tokens = choice["logprobs"]["content"]
        self.assertEqual("".join(token["token"] for token in tokens), "<think>\nWet is a word.\n</think>\n\nYes, it is.")
        self.assertLessEqual(completion["usage"]["completion_tokens"] - len(tokens), 1)  # the token that ends the turn may count, too

    def test_come_apart_in_a_stream(self):
        status, text = SERVER.request("/v1/chat/completions", {**SPOKEN, "stream": True})
        self.assertEqual(status, 200)
        parts = deltas(text)
        self.assertEqual("".join(part.get("reasoning_content", "") for part in parts), "Wet is a word.")
        self.assertEqual("".join(part.get("content") or "" for part in parts), "Yes, it is.")
        self.assertGreater(sum("reasoning_content" in part for part in parts), 1)

    def test_stay_in_the_text_where_a_client_wants_it(self):
        message = SERVER.json("/v1/chat/completions", {**SPOKEN, "reasoning_format": "none"})["choices"][0]["message"]
        self.assertEqual(message["content"], "<think>\nWet is a word.\n</think>\n\nYes, it is.")
        self.assertNotIn("reasoning_content", message)

    def test_go_on_in_the_next_turn(self):
        message = SERVER.json("/v1/chat/completions", SPOKEN)["choices"][0]["message"]
        turns = [*QUESTION, message, {"role": "user", "content": "Why?"}]
        prompt = SERVER.json("/apply-template", {"messages": turns})["prompt"]
        self.assertIn("assistant\n<think>\nWet is a word.\n</think>\n\nYes, it is.<|im_end|>", prompt)
        blocks = [{"type": "thinking", "thinking": "Wet is a word.", "signature": "x"}, {"type": "text", "text": "Yes, it is."}]
        turns[1] = {"role": "assistant", "content": blocks}
        thoughts = SERVER.json("/v1/messages/count_tokens", {"messages": turns})["input_tokens"]
        turns[1] = {"role": "assistant", "content": blocks[1:]}
        self.assertGreater(thoughts, SERVER.json("/v1/messages/count_tokens", {"messages": turns})["input_tokens"])

    def test_are_turned_off_by_an_effort(self):
        off = SERVER.json("/apply-template", {"messages": QUESTION, "reasoning_effort": "none"})["prompt"]
        self.assertTrue(off.endswith("<think>\n\n</think>\n\n"))
        on = SERVER.json("/apply-template", {"messages": QUESTION, "reasoning_effort": "low"})["prompt"]
        self.assertTrue(on.endswith("assistant\n"))


class Messages(unittest.TestCase):
    def test_may_have_a_nul(self):
        turns = [*QUESTION, {"role": "assistant", "content": "a\0b"}, {"role": "user", "content": "c\0d"}]
        prompt = SERVER.json("/apply-template", {"messages": turns})["prompt"]
        self.assertIn("assistant\na\0b<|im_end|>\n<|im_start|>user\nc\0d<|im_end|>", prompt)

    def test_name_the_part_that_is_no_text(self):
        parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
        status, text = SERVER.request("/v1/chat/completions", {"messages": [*QUESTION, {"role": "user", "content": parts}]})
        self.assertEqual(status, 400)
        self.assertEqual(json.loads(text)["error"]["param"], "messages[1].content[1].type")
        self.assertIn("image_url", json.loads(text)["error"]["message"])


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write(TEMPLATE)
        template.flush()
        SERVER = Server(*sys.argv[1:3], "kvant-4bit", "--chat-template", template.name)
        try:
            program = unittest.main(argv=sys.argv[:1], exit=False)
        finally:
            SERVER.end()
    sys.exit(not program.result.wasSuccessful())
