#!/usr/bin/env python3
"""Measures an agent that works on this repository with tools through kvant serve: how long it waits, and whether its
tool calls are valid.

    scripts/agent-turns.py KVANT MODEL -t 2                                  20 turns for each of five caches, on the CPU
    scripts/agent-turns.py KVANT MODEL --device cuda --conversations 3 --tool-choice required

Each turn asks for one thing that one tool does: read lines of a file, search a folder, list a folder. The model may
write a call (tool_choice auto) or must write one (required). The tool's true result goes back, and the model sums the
result up. The conversation grows to about 16,000 tokens. After half of the turns the server gets SIGTERM and is started
again on the same folder. All requests are greedy and carry the whole conversation, as agents' requests do.

The script prints three figures for both requests of each turn: the prompt's tokens, how many tokens the cache had, and
the time to the first token. For each depth it prints how many calls were valid and how many were exactly what was
asked. A valid message has one call of an offered tool whose arguments fit the schema. A failed call counts against the
cache, and the conversation continues with the right call.
"""
import argparse
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTEXT = 20480
DEPTHS = (4096, 8192, 12288, CONTEXT)
# With tool results of RESULT_BYTES, 20 turns take about 16,000 tokens.
RESULT_BYTES = 2600
SYSTEM = ("You help a developer to read a C++ repository. Answer every request of the user with a call of one tool. "
          "After a tool's result, say in one short sentence what it shows.")


def tool(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TOOLS = [tool("read_file", "Reads lines of a file.", path=TEXT, first_line=NUMBER, last_line=NUMBER),
         tool("search", "Finds the lines of a folder's files that contain a word.", word=TEXT, folder=TEXT),
         tool("list_folder", "Lists the files of a folder.", folder=TEXT)]
TYPES = {"string": str, "integer": int}


class Server:
    """Runs kvant serve and reads its log."""

    def __init__(self, options, recipe, folder):
        command = [options.kvant, "serve", "-m", options.model, "--port", "0", "-c", str(CONTEXT), "--kv", recipe, "--sessions", folder,
                   "--prefix-disk", "4GiB", "--log-format", "json", "--device", options.device]
        if options.threads:
            command += ["-t", str(options.threads)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url, self.records, self.ready = None, [], threading.Condition()
        lines = []
        while self.url is None:
            line = self.process.stderr.readline()
            lines.append(line)
            if not line:
                sys.exit(f"the server has ended: {''.join(lines)}")
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            self.url = found and found[0]
        threading.Thread(target=self.read_log, daemon=True).start()
        with urllib.request.urlopen(self.url + "/props", timeout=600) as response:
            # Without calibration, the server serves uniform-4bit for kvant-4bit.
            self.recipe = json.load(response)["kv"]["recipe"]

    def read_log(self):
        for line in self.process.stderr:
            # Only records of generations have prompt_tokens.
            if line.startswith("{") and "prompt_tokens" in (record := json.loads(line)):
                with self.ready:
                    self.records.append(record)
                    self.ready.notify()

    def chat(self, messages, max_tokens, tool_choice):
        """Returns the message of the completion, and the server's log record of the request."""
        body = {"messages": messages, "tools": TOOLS, "tool_choice": tool_choice, "parallel_tool_calls": False, "max_tokens": max_tokens, "temperature": 0}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        n_records = len(self.records)
        try:
            with urllib.request.urlopen(request, timeout=3600) as response:
                message = json.load(response)["choices"][0]["message"]
        except urllib.error.HTTPError as error:
            sys.exit(f"the server has refused a turn: {error.read().decode()}")
        with self.ready:
            self.ready.wait_for(lambda: len(self.records) > n_records, timeout=60)
            return message, self.records[n_records]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if (code := self.process.wait(timeout=600)) != 0:
            sys.exit(f"the server has ended with {code}")


def shortened(text):
    return text if len(text) <= RESULT_BYTES else text[:text.rindex("\n", 0, RESULT_BYTES) + 1] + "(shortened)\n"


def tasks(rng, n_turns):
    """Yields for each turn the user's words, the right call, and the call's result."""
    files = sorted(path for path in (ROOT / "src").rglob("*.cc") if len(path.read_text().splitlines()) > 120)
    rng.shuffle(files)
    folders = sorted({path.parent for path in files})
    for turn, path in zip(range(n_turns), files):
        lines, name = path.read_text().splitlines(), str(path.relative_to(ROOT))
        folder = rng.choice(folders)
        if turn % 4 == 2:
            word = rng.choice(["Result", "override", "KVANT_CHECK", "const auto&", "std::span"])
            found = [f"{file.name}:{number}: {line.strip()}" for file in sorted(folder.glob("*.cc"))
                     for number, line in enumerate(file.read_text().splitlines(), 1) if word in line]
            folder = str(folder.relative_to(ROOT))
            yield (f"Use search to find the word `{word}` in the folder {folder}.", {"name": "search", "arguments": {"word": word, "folder": folder}},
                   "\n".join(found) + "\n")
        elif turn % 4 == 3:
            entries = "\n".join(sorted(f"{file.name} ({file.stat().st_size} bytes)" for file in folder.iterdir() if file.is_file()))
            folder = str(folder.relative_to(ROOT))
            yield f"Use list_folder to list the files in {folder}.", {"name": "list_folder", "arguments": {"folder": folder}}, entries + "\n"
        else:
            first = rng.randrange(1, len(lines) - 100)
            yield (f"Use read_file to show lines {first} to {first + 90} of {name}.",
                   {"name": "read_file", "arguments": {"path": name, "first_line": first, "last_line": first + 90}},
                   "\n".join(lines[first - 1:first + 90]) + "\n")


def judged(message, right):
    """Returns whether the message is one valid call, and whether this call is exactly what was asked for."""
    calls = message.get("tool_calls") or []
    if len(calls) != 1:
        return False, False
    function = calls[0]["function"]
    offered = {t["function"]["name"]: t["function"]["parameters"]["properties"] for t in TOOLS}
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return False, False
    schema = offered.get(function["name"])
    is_valid = (schema is not None and isinstance(arguments, dict) and arguments.keys() == schema.keys() and
                all(type(arguments[key]) is TYPES[schema[key]["type"]] for key in schema))
    return is_valid, is_valid and {"name": function["name"], "arguments": arguments} == right


def shown(record):
    return f"{record['prompt_tokens']:6} tokens, {record['cached_tokens']:6} reused, first token {record['first_token_seconds'] or 0:7.3f} s"


def converse(options, recipe, seed, folder):
    """Runs one conversation. Returns the name of the served recipe, and a list of turns."""
    server, turns = Server(options, recipe, folder), []
    messages = [{"role": "system", "content": SYSTEM}]
    for turn, (words, right, result) in enumerate(tasks(random.Random(seed), options.turns)):
        if turn == options.turns // 2:
            server.end()
            server = Server(options, recipe, folder)
        messages.append({"role": "user", "content": words})
        message, call_record = server.chat(messages, 160, options.tool_choice)
        is_valid, is_right = judged(message, right)
        calls = message["tool_calls"] if is_valid else [{"id": f"call_{turn}", "type": "function", "function": {
            "name": right["name"], "arguments": json.dumps(right["arguments"])}}]
        messages.append({"role": "assistant", "content": message["content"] if is_valid else "", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": shortened(result)})
        answer, answer_record = server.chat(messages, 80, "auto" if options.tool_choice == "auto" else "none")
        messages.append({"role": "assistant", "content": answer["content"] or "This is what was asked for."})
        turns.append({"depth": call_record["prompt_tokens"], "valid": is_valid, "right": is_right, "records": [call_record, answer_record]})
        if options.show_turns:
            print(f"  {turn + 1:2} call: {shown(call_record)}, {'right' if is_right else 'valid' if is_valid else 'INVALID'}", flush=True)
            print(f"     text: {shown(answer_record)}: {(answer['content'] or '')[:200]!r}", flush=True)
            if not is_right:
                print(f"     wrote {json.dumps(message)[:400]}", flush=True)
    server.end()
    return server.recipe, turns


def report(recipe, turns):
    print(f"{recipe}:")
    for least, depth in zip((0, *DEPTHS), DEPTHS):
        here = [t for t in turns if least <= t["depth"] < depth]
        if not here:
            continue
        waits = [r["first_token_seconds"] or 0 for t in here for r in t["records"]]
        tokens = sum(r["prompt_tokens"] for t in here for r in t["records"])
        reused = sum(r["cached_tokens"] for t in here for r in t["records"])
        print(f"  {least:5} to {depth:5} tokens: valid {sum(t['valid'] for t in here)} of {len(here)}, right {sum(t['right'] for t in here)}, "
              f"first token {statistics.median(waits):.2f} s (most {max(waits):.2f}), reused {100 * reused / tokens:.1f} % of the prompts' tokens")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvant")
    parser.add_argument("model")
    parser.add_argument("--kv", nargs="+", default=["bf16", "kvant-4bit", "kvant-3bit", "kvant-2bit", "q4_0"])
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tool-choice", choices=["auto", "required"], default="auto", help="whether the model has to call a tool")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--conversations", type=int, default=1)
    parser.add_argument("--show-turns", action="store_true", help="print each turn, and what the model wrote where the call was not right")
    options = parser.parse_args()
    for recipe in options.kv:
        turns = []
        for seed in range(options.conversations):
            with tempfile.TemporaryDirectory() as folder:
                served, more = converse(options, recipe, seed, folder)
                turns += more
        report(served, turns)


if __name__ == "__main__":
    main()
