#!/usr/bin/env python3
"""Kills kvant serve with SIGKILL at random moments while it saves sessions, and checks that no session is lost.

    scripts/kill-test.py KVANT MODEL                     200 kills
    scripts/kill-test.py KVANT MODEL --kills 5 --words 50

Each client continues one session and saves it after every turn, as fast as it can. After each kill the server is
started again on the same folder. Every session that was reported as saved must then exist and must be restorable. The
session must have the reported state, or the state of a later save that had begun. No file may be damaged, and no
incomplete file may be left."""
import argparse
import http.client
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENTS = 4
# A client sees one of FAILURES when its server is killed.
FAILURES = (OSError, http.client.HTTPException, json.JSONDecodeError)


class Server:
    def __init__(self, program, model, folder):
        self.process = subprocess.Popen(
            [program, "serve", "-m", model, "--port", "0", "-c", "8192", "--kv", "kvant-3bit", "--parallel", str(CLIENTS),
             "--memory", "500MiB", "--sessions", folder], stderr=subprocess.PIPE, text=True)
        port, self.messages = None, ""
        while port is None:
            line = self.process.stderr.readline()
            self.messages += line
            if not line:
                sys.exit(f"the server has ended: {self.messages}")
            port = re.search(r" at http://127\.0\.0\.1:(\d+)", line)
        self.port = int(port[1])

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, json.dumps(body or {}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


class Client(threading.Thread):
    """Continues a session and saves it until the server is gone. `states` holds the text for each number of tokens."""

    def __init__(self, server, session):
        super().__init__()
        self.server, self.session, self.saves, self.failure = server, session, 0, None

    def run(self):
        try:
            while not self.failure:
                self.turn()
        except FAILURES:
            pass

    def turn(self):
        session, path = self.session, f"/v1/sessions/{self.session.name}"
        text = session.states[session.tokens] + " and"
        status, answer = self.server.request("POST", "/v1/completions", {
            "prompt": text, "max_tokens": 2, "temperature": 0, "session": session.name})
        if status != 200:
            return self.fail("a turn", answer)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if session.tokens and cached != session.tokens:
            return self.fail("a turn", f"{cached} tokens were reused of {session.tokens}")
        tokens = self.server.request("GET", path)[1]["tokens"]
        session.states[tokens] = text + answer["choices"][0]["text"]
        session.tokens = tokens
        status, saved = self.server.request("POST", path + "/save")
        if status != 200 or not saved["saved"]:
            return self.fail("a save", saved)
        session.saved, self.saves = tokens, self.saves + 1
        return None

    def fail(self, what, why):
        self.failure = f"session {self.session.name}: {what} failed: {why}"


class Session:
    def __init__(self, name, text):
        self.name, self.states = name, {0: text}
        self.tokens = self.saved = 0


def check(server, folder, sessions):
    """Returns a sentence about what is wrong with the server after a kill, or None."""
    left = [path.name for path in pathlib.Path(folder).glob("*.tmp")]
    if left:
        return f"half files are left: {left}"
    listed = {s["id"]: s for s in server.request("GET", "/v1/sessions")[1]["data"]}
    for session in sessions:
        if not session.saved:
            session.tokens = listed.get(session.name, {}).get("tokens", 0)
            continue
        status, restored = server.request("POST", f"/v1/sessions/{session.name}/restore")
        if status != 200:
            return f"session {session.name} was reported saved and is lost: {restored}"
        if not session.saved <= restored["tokens"] <= session.tokens:
            return f"session {session.name} has {restored['tokens']} tokens, not {session.saved} to {session.tokens}"
        session.tokens = session.saved = restored["tokens"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--words", type=int, default=700, help="words that each session begins with")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    words = (ROOT / "data/sample/canals.txt").read_text(encoding="utf-8").split()
    sessions = [Session(f"s{i}", " ".join(words[i:i + options.words])) for i in range(CLIENTS)]
    saves, unreported, half, start = 0, 0, 0, time.time()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.program, options.model, folder)
        for kill in range(options.kills):
            clients = [Client(server, session) for session in sessions]
            for client in clients:
                client.start()
            while not all(c.saves or not c.is_alive() for c in clients):  # until all clients have saved
                time.sleep(0.01)
            time.sleep(rng.random() * 0.5)
            server.kill()
            for client in clients:
                client.join()
            saves += sum(client.saves for client in clients)
            half += len(list(pathlib.Path(folder).glob("*.tmp")))
            before = [session.saved for session in sessions]
            server = Server(options.program, options.model, folder)
            wrong = next((c.failure for c in clients if c.failure), None) or check(server, folder, sessions)
            unreported += sum(session.saved > saved for session, saved in zip(sessions, before))
            if wrong:
                server.kill()
                sys.exit(f"after {kill + 1} kills: {wrong}")
        server.kill()
    print(f"{options.kills} kills in {time.time() - start:.0f} s: {saves} saves were reported, all of them restored; "
          f"{half} files were half written when the server was killed, {unreported} whole but not reported yet")


if __name__ == "__main__":
    main()
