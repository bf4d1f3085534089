"""Uses the installed package, and prints the results as JSON: use_package.py MODEL TEXT KV QUESTION. wheel_test.py runs
this script and checks the results."""

import importlib.metadata
import json
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

import kvant
import kvant.c_api
from kvant.paged.recipes import parse_recipe
from kvant.vllm.recipes import CACHE_TYPES, find_recipe

model_path, text_path, kv, question = sys.argv[1:]
text = pathlib.Path(text_path).read_text()
found = {"version": kvant.__version__, "metadata_version": importlib.metadata.version("kvant"),
         "entry_points": [x.value for x in importlib.metadata.entry_points(group="vllm.general_plugins")]}

model = kvant.Model(model_path, kv)
answer = model.chat(question, max_tokens=12)
found["pieces"] = "".join(answer)
found["chat"] = model.chat([{"role": "user", "content": question}], max_tokens=12).text
found["repeated"] = model.generate("One two three four. " * 8, max_tokens=24).text
template = pathlib.Path("turns.jinja").absolute()
template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
other = kvant.Model(model_path, kv, chat_template=template, draft_max=0)
found["templated"] = other.chat(question, max_tokens=12).text
found["repeated_without_drafts"] = other.generate("One two three four. " * 8, max_tokens=24).text
found["by_hand"] = model.generate(model.tokenizer.encode(f"user: {question}\nassistant:"), max_tokens=12).text
del other
found["sampled"] = model.generate(question, max_tokens=12, temperature=0.8, seed=7).text
prompt = model.tokenizer.encode(question)
greedy = model.generate(prompt, max_tokens=12, logprobs=True)
found["logprobs"] = greedy.logprobs.tolist()
found["scored"] = model.score(np.concatenate([prompt, greedy.tokens]))[len(prompt) - 1:].tolist()
stopped = model.generate(question, stop=[model.tokenizer.decode(greedy.tokens[2:3])])
found["stopped"] = [stopped.end, "finished" if stopped.stop else stopped.text]
found["decoded"] = model.tokenizer.decode(model.tokenizer.encode("Zürich – 水", add_special=False))
found["fingerprint"] = model._model.fingerprint
found["evaluation"] = kvant.evaluate(model_path, text, kv, context=256, chunks=1)
found["plan"] = kvant.plan(model_path, kv, context=2048, batch=3)


def planned(recipe: str) -> dict:
    return kvant.plan(model_path, recipe, context=256)


# found["served"] holds what front ends make of recipes' names, and what the engine plans for the name and for the front
# end's cache.
found["served"] = []
for asked, parse in [*((name, parse_recipe) for name in (*(f"{kind}-{bits}bit" for kind in ("kvant", "uniform") for bits in "432"), "kvant-1.5bit",
                                                         "kvant-2bit,prompt=flashq,sink=1", "kivi-2bit,window=0", "vecinfer-4bit,window=0")),
                     *((name, lambda name: find_recipe(name, None)) for name in CACHE_TYPES if name != "kvant")]:
    served = parse(asked)
    by_name = asked if parse is parse_recipe else served.name
    found["served"].append({"asked": asked, "name": served.name, "by_name": planned(by_name), "by_text": planned(served.text)})


def message_of(call) -> str:
    try:
        call()
    except (kvant.Error, ValueError, TypeError, FileNotFoundError, RuntimeError) as error:
        return str(error)
    return ""


def message_of_child(call) -> str:
    """Returns the message of a call in a forked process."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        os.write(writable, message_of(call).encode())
        os._exit(0)
    os.close(writable)
    with open(readable, encoding="utf-8") as pipe:
        return pipe.read()


found["errors"] = {
    "recipe": message_of(lambda: kvant.Model(model_path, "kvant-5bit")),
    "file": message_of(lambda: kvant.Model(text_path)),
    "device": message_of(lambda: kvant.Model(model_path, device="tpu")),
    "backend": message_of(lambda: kvant.evaluate(model_path, text, kv, device="cuda", backend="reference")),
    "prompt": message_of(lambda: model.generate([])),
    "stop": message_of(lambda: model.generate("x", stop=[""])),
    "tokens": message_of(lambda: model.generate([10**7])),
    "score": message_of(lambda: model.score([1, 10**7])),
    "temperature": message_of(lambda: model.generate("x", temperature=float("nan"))),
    "context": message_of(lambda: kvant.evaluate(model_path, text, kv, context=257, chunks=1)),
    "decoded": message_of(lambda: model.tokenizer.decode([10**7])),
    "surrogate": message_of(lambda: model.generate("half \ud800")),
    "recipes": message_of(lambda: kvant.Model(model_path, [kv])),
    "role": message_of(lambda: model.chat([{"content": "x"}])),
    "messages": message_of(lambda: model.chat(None)),
    "fraction": message_of(lambda: model.generate("x", max_tokens=2.5)),
    "number": message_of(lambda: model.generate("x", temperature="hot")),
    "stop_number": message_of(lambda: model.generate("x", stop=[5])),
    "path": message_of(lambda: kvant.Model(b"/nowhere.gguf", device=5)),
    "fork": message_of_child(lambda: model.generate("x")),
    "fork_answer": message_of_child(lambda: answer.text),
    "cuda": message_of(kvant.c_api.find_library)}

# Sends Ctrl-C while a long text is read.
threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
started = time.monotonic()
try:
    model.score(np.tile(prompt, 4000))
    found["interrupted"] = ["not at all"]
except KeyboardInterrupt:
    late = time.monotonic() - started > 10
    found["interrupted"] = ["late" if late else "KeyboardInterrupt", "goes on" if model.generate("x", max_tokens=1).text else ""]

found["modules"] = sorted({name.split(".")[0] for name in sys.modules})


def plain(x):
    return x.tolist() if isinstance(x, np.ndarray) else str(x)


print(json.dumps(found, default=plain))
