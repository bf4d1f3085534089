"""Runs kvant serve on a free port, for tests."""
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request

KEY = "a key for this test"


def run_with_openai():
    """Runs the test again with the Python of .venv, which has the openai package. Returns why that is impossible."""
    python = pathlib.Path(__file__).resolve().parents[2] / ".venv/bin/python"
    if not python.exists() or subprocess.run([python, "-c", "import openai"], capture_output=True).returncode != 0:
        return "the openai package is missing: scripts/setup.sh test installs it"
    os.execv(python, [str(python), *sys.argv])


class Server:
    def __init__(self, program, model, recipe="kvant-4bit", *options):
        self.process = subprocess.Popen([program, "serve", "-m", model, "--port", "0", "-c", "2048", "--memory", "300MiB", "--kv", recipe,
                                         "--api-key", KEY, *options], stderr=subprocess.PIPE, text=True)
        self.url, self.messages = None, []  # `messages` holds the lines of the server's log
        while self.url is None:
            line = self.process.stderr.readline()
            self.messages.append(line)
            if not line:
                raise RuntimeError(f"the server has ended: {''.join(self.messages)}")
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            self.url = found and found[0]
        self.reader = threading.Thread(target=lambda: self.messages.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def request(self, path, body=None, headers=None):
        """Sends a request, by POST if there is a body. Returns the response's status and text."""
        headers = {"Authorization": f"Bearer {KEY}"} if headers is None else headers
        request = urllib.request.Request(self.url + path, body and json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def json(self, path, body=None):
        status, text = self.request(path, body)
        assert status == 200, text
        return json.loads(text)

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.reader.join()
        self.process.stderr.close()
