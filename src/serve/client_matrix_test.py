#!/usr/bin/env python3
"""Tests a server with the client packages, and with requests of programs that have protocols of their own.

    src/serve/client_matrix_test.py KVANT MODEL        KVANT is the program, and MODEL is a GGUF file

testing/requests has one request of each program, written from the program's documentation. The test runs with the
Python of .venv, where `scripts/setup.sh test` puts the packages. Tests of missing packages are skipped.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
from server_process import KEY, Server  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv/bin/python"
START = "{{- '<|im_start|>assistant\\n' -}}"
HISTORY = "{%- if message.content -%}{{- message.content -}}"


def template():
    """Returns the project's chat template with tools, extended by thoughts that a request turns on."""
    text = (ROOT / "data/templates/chatml-tools.jinja").read_text()
    assert START in text and HISTORY in text
    thought = "{%- if message.reasoning_content -%}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}"
    text = text.replace(HISTORY, thought + HISTORY)
    return text.replace(START, START + "{%- if enable_thinking is defined and enable_thinking -%}{{- '<think>\\n' -}}{%- endif -%}")


def has_packages():
    """Returns whether the packages are installed. Importing them would take seconds."""
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('openai', 'anthropic', 'litellm', 'langchain_openai'))))"
    return PYTHON.exists() and subprocess.run([PYTHON, "-c", look]).returncode == 0


class Packages(unittest.TestCase):
    def test_get_what_they_ask_for(self):
        if not has_packages():
            print(f"{__file__}:1: Skipped\nthe client packages are missing: scripts/setup.sh test installs them\n"
                  "\n[  SKIPPED ] Serve.ServesClientPackages (0 ms)")
            return
        run = subprocess.run([PYTHON, ROOT / "scripts/client-matrix.py", SERVER.url, "--key", KEY, "--json"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        cells = json.loads(run.stdout)
        self.assertEqual(len(cells), 5)
        for client, row in cells.items():
            for feature, found in row.items():
                self.assertIn(found, ("yes", ""), f"{client}, {feature}: {run.stderr}")
        self.assertLessEqual(sum(found == "" for row in cells.values() for found in row.values()), 1)


class Programs(unittest.TestCase):
    def test_get_a_whole_stream(self):
        model = SERVER.json("/v1/models")["data"][0]["id"]
        ends = {"/v1/messages": "message_stop", "/v1/responses": '"type":"response.', "/v1/chat": "[DONE]", "/v1/completions": "[DONE]"}
        files = sorted((HERE / "testing/requests").glob("*.json"))
        self.assertGreaterEqual(len(files), 6)
        for file in files:
            stored = json.loads(file.read_text())
            body = {**stored["body"], "max_output_tokens" if "input" in stored["body"] else "max_tokens": 8}
            if body["model"] == "MODEL":
                body["model"] = model
            with self.subTest(file.name):
                status, text = SERVER.request(stored["path"], body)
                self.assertEqual(status, 200, text)
                end = next(sign for path, sign in ends.items() if stored["path"].startswith(path))
                self.assertIn(end, text.strip().split("\n\n")[-1])
                self.assertNotIn('"error":{', text)
        self.assertTrue(any("'web_search' are ignored" in line for line in SERVER.messages), SERVER.messages)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # this keeps calibrations out of the user's cache folder
        path = pathlib.Path(folder) / "template.jinja"
        path.write_text(template())
        SERVER = Server(*sys.argv[1:3], "kvant-4bit", "--chat-template", str(path))
        try:
            result = unittest.main(argv=sys.argv[:1], exit=False).result
        finally:
            SERVER.end()
    sys.exit(not result.wasSuccessful())
