"""Runs GGUF models on low-bit KV caches, on the CPU or a GPU. The classes in this file wrap the engine of the program
`kvant`.

Arrays are NumPy arrays. A user's mistake raises `Error` with the program's sentence, or ValueError. Ctrl-C interrupts a
running call. Threads that share a model take turns."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from kvant import _engine
except ImportError as missing:
    raise ImportError("kvant's engine is not in this installation: `pip install .` in kvant's source tree builds it "
                      "(docs/guide/python.md)") from missing

Error = _engine.Error

_MAX_TOKENS = 1 << 30
_MAX_THREADS = 1024


def _checked(name: str, value: int, least: int, most: int) -> int:
    if not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")
    return int(value)


def _number(name: str, value: float) -> float:
    if not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    return float(value)


def _several(values: Any) -> list[Any]:
    """Returns a list of the given values, also if there is only one."""
    return [values] if isinstance(values, (str, bytes, os.PathLike, int, np.integer)) else list(values)


def _text(name: str, value: Any) -> str:
    """Returns a text that the engine can take as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a str")
    try:
        value.encode()
    except UnicodeEncodeError as wrong:
        raise ValueError(f"{name} cannot be encoded as UTF-8: its character {wrong.start} is half of a surrogate pair") from None
    return value


def _threads(threads: int | None) -> int:
    return min(_engine.usable_threads(), _MAX_THREADS) if threads is None else _checked("threads", threads, 1, _MAX_THREADS)


def _backend(device: str, backend: str | None, usual: str) -> str:
    if _text("device", device) != "cpu" and backend is not None:
        raise ValueError(f"backend={backend!r} selects an attention backend of the CPU, but {device!r} has its own kernels: "
                         "leave out one of them")
    return usual if backend is None else _text("backend", backend)


def _token_array(tokens: npt.ArrayLike) -> npt.NDArray[np.int32]:
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"tokens must be a list of whole numbers, not {array.dtype} of shape {array.shape}")
    if array.size and (array.min() < 0 or array.max() > np.iinfo(np.int32).max):
        raise ValueError("a token must be a number from 0 to 2147483647")
    return np.ascontiguousarray(array, dtype=np.int32)


class Answer(Iterator[str]):
    """Generates a completion. Iterating over an Answer yields the text in pieces of whole characters, as soon as the
    model generates them.

    `text`, `tokens`, `logprobs` and `end` describe the whole completion. Reading one of them therefore generates the
    rest."""

    def __init__(self, answer: _engine.Answer, has_logprobs: bool, process: int):
        self._answer, self._has_logprobs, self._process = answer, has_logprobs, process
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []
        self._logprobs: list[float] = []

    def __next__(self) -> str:
        if os.getpid() != self._process:
            raise RuntimeError("the completion belongs to another process: continue it there, or open the model in this one")
        while (shown := self._answer.next()) is not None:
            self._logprobs += shown[1]
            if piece := self._decoder.decode(shown[0]):
                self._pieces.append(piece)
                return piece
        raise StopIteration

    def _finish(self) -> None:
        for _ in self:
            pass

    @property
    def text(self) -> str:
        self._finish()
        return "".join(self._pieces)

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Returns the completion's tokens, int32 [n], without the token by which the model ended the completion."""
        self._finish()
        return self._answer.tokens()

    @property
    def logprobs(self) -> npt.NDArray[np.float64]:
        """Returns the natural logarithms of the tokens' probabilities before temperature, top_k, top_p and min_p,
        float64 [n]. Tokens of a stop text are left out. Raises ValueError without `logprobs=True`."""
        if not self._has_logprobs:
            raise ValueError("the completion has no log-probabilities: generate it with logprobs=True")
        self._finish()
        return np.array(self._logprobs)

    @property
    def end(self) -> str:
        """Returns why the completion ended: "finished" (by the model or a stop text), "length" (by max_tokens) or
        "context_full"."""
        self._finish()
        return self._answer.end or ""

    @property
    def stop(self) -> str:
        """Returns the stop text that ended the completion, or an empty text if no stop text did."""
        self._finish()
        return self._answer.stop

    @property
    def prompt_tokens(self) -> int:
        return self._answer.prompt_tokens

    @property
    def cache_bytes(self) -> int:
        """Returns the current size of the KV cache in bytes."""
        return self._answer.cache_bytes

    def __repr__(self) -> str:
        return f"<kvant.Answer of {len(self._answer.tokens())} tokens so far>"


class Tokenizer:
    """Converts between texts and tokens with the tokenizer in the model's file."""

    def __init__(self, model: _engine.Model):
        self._model = model

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> npt.NDArray[np.int32]:
        """Returns the tokens of a text, int32 [n]. With add_special they start with the token that begins the model's
        texts, if it has one. With parse_special, "<|im_start|>" in the text becomes that token."""
        return self._model.encode(_text("the text", text), bool(add_special), bool(parse_special))

    def decode(self, tokens: npt.ArrayLike) -> str:
        """Returns the text of tokens [n]. Bytes that form no whole character become U+FFFD."""
        array = _token_array(tokens)
        if array.size and array.max() >= self.n_vocab:
            raise ValueError(f"token {array.max()} is not in the model's vocabulary of {self.n_vocab}")
        return self._model.decode(array).decode("utf-8", "replace")

    def ends_generation(self, token: int) -> bool:
        """Returns whether the model ends a text or a turn by this token."""
        return self._model.ends_generation(_checked("the token", token, 0, self.n_vocab - 1))

    @property
    def n_vocab(self) -> int:
        return self._model.n_vocab


class Model:
    """Holds a GGUF model whose attention runs on a low-bit KV cache."""

    def __init__(self, path: str | os.PathLike[str], kv: str = "kvant-4bit", *, context: int = 0,
                 calibration: str | os.PathLike[str] = "", device: str = "cpu", threads: int | None = None,
                 backend: str | None = None, strict: bool = False, chat_template: str | os.PathLike[str] = "",
                 draft_max: int = 15):
        """Opens the GGUF file at `path`. Raises `Error` if the file or the recipe cannot be used.

        kv is a recipe as `kvant run --kv` takes it: a name, a name with values ("kivi-2bit,window=0"), formats
        ("k=hadamard:ch4g128,v=hadamard:tok4g128,sink=4") or a file.
        context is the maximum number of tokens of a text. 0 selects the trained context, or more if a text needs more.
        calibration is a file of `kvant calibrate -o`. An empty text selects the file in the user's cache folder. If
        that file is missing, a recipe that cannot work without calibration is calibrated now.
        device is "cpu", "cuda", or "cuda:1" for the second GPU. The device holds the model and its caches
        (docs/guide/gpu.md).
        backend names the code with which the CPU attends; None selects "cpu", the fastest code.
        strict makes a fallback to a slower kernel an error.
        chat_template is a file with a Jinja template that replaces the model's own template.
        draft_max is the largest number of drafted tokens that a step verifies (docs/guide/speculative-decoding.md). 0
        disables speculative decoding."""
        self._opened = _engine.Model.open(os.fsdecode(path), _text("kv", kv), _checked("context", context, 0, _MAX_TOKENS),
                                          os.fsdecode(calibration), device, _backend(device, backend, "cpu"), _threads(threads),
                                          bool(strict), os.fsdecode(chat_template),
                                          _checked("draft_max", draft_max, 0, 63))
        self._process = os.getpid()
        self.path = os.fsdecode(path)

    @property
    def _model(self) -> _engine.Model:
        if os.getpid() != self._process:
            raise RuntimeError("the model was opened in another process, whose threads do not survive a fork: open it in this one, or "
                               "start processes with multiprocessing's \"spawn\"")
        return self._opened

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self._model)

    @property
    def recipe(self) -> str:
        """Returns the recipe with all of its values."""
        return self._model.recipe

    @property
    def description(self) -> str:
        return self._model.description

    @property
    def trained_context(self) -> int:
        return self._model.trained_context

    def generate(self, prompt: str | npt.ArrayLike, *, max_tokens: int = -1, stop: str | Sequence[str] | None = (),
                 temperature: float = 0.0, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05, seed: int = 0,
                 presence_penalty: float = 0.0, frequency_penalty: float = 0.0, repeat_penalty: float = 1.0,
                 logprobs: bool = False) -> Answer:
        """Continues a text, or tokens [n]. generate() reads the prompt. Iterating over the result, or reading one of
        its properties, generates the completion.

        max_tokens limits the completion; with -1 the model decides when to end.
        stop is a text, or several, that end the completion and do not belong to the completion.
        temperature 0 always takes the likeliest token. Otherwise a token is drawn from the tokens that three limits
        leave: top_k keeps the top_k likeliest tokens (0 keeps all), top_p the smallest set with the probability top_p,
        and min_p the tokens at least min_p times as likely as the likeliest. Equal seeds draw equal tokens.
        presence_penalty is subtracted once from the logit of a token that the completion contains; frequency_penalty is
        subtracted for each occurrence.
        repeat_penalty divides the positive logits of the last 64 tokens of prompt and completion, and multiplies their
        negative logits.
        logprobs=True keeps the log-probabilities of the completion's tokens."""
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _token_array(prompt)
        stops = [] if stop is None or stop == "" else [_text("a stop text", x) for x in _several(stop)]
        if "" in stops:
            raise ValueError("a stop text must not be empty")
        return Answer(_engine.Answer(self._model, tokens, _checked("max_tokens", max_tokens, -1, _MAX_TOKENS), stops,
                                     bool(logprobs), _number("temperature", temperature),
                                     _checked("top_k", top_k, -1, _MAX_TOKENS), _number("top_p", top_p), _number("min_p", min_p),
                                     _number("presence_penalty", presence_penalty),
                                     _number("frequency_penalty", frequency_penalty),
                                     _number("repeat_penalty", repeat_penalty),
                                     _checked("seed", seed, 0, 2**32 - 1)), bool(logprobs), self._process)

    def chat(self, messages: str | Sequence[Mapping[str, str]], **options: Any) -> Answer:
        """Generates the model's next turn in a conversation. The model's chat template turns `messages` into the
        prompt.

        messages is the user's message, or a list of {"role": "system" | "user" | "assistant", "content": TEXT}. options
        are the options of `generate`."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if not isinstance(messages, Sequence):
            raise TypeError(f"messages must be a text or a list of messages, not {messages!r}")
        turns = []
        for message in messages:
            if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)
                    and isinstance(message.get("content"), str)):
                raise ValueError(f'a message must be {{"role": ..., "content": ...}} with two texts, not {message!r}')
            turns.append((_text("a message's role", message["role"]), _text("a message's content", message["content"])))
        if not turns:
            raise ValueError("the conversation is empty: give a message")
        return self.generate(self._model.chat_prompt(turns), **options)

    def score(self, text: str | npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Scores a text, or tokens [n]. Returns the natural logarithm of each token's probability given the tokens
        before that token, float64 [n - 1]. The cache is filled as in decoding."""
        return self._model.score(self.tokenizer.encode(text) if isinstance(text, str) else _token_array(text))

    def plan(self, context: int = 0, batch: int = 1) -> dict[str, Any]:
        """Returns what `kvant.plan` returns for this model."""
        return json.loads(self._model.info(_checked("context", context, 0, _MAX_TOKENS),
                                           _checked("batch", batch, 1, 1 << 20)))

    def __repr__(self) -> str:
        return f"<kvant.Model {self.description}, {self.recipe}>"


def plan(path: str | os.PathLike[str], kv: str = "kvant-4bit", *, context: int = 0, batch: int = 1,
         calibration: str | os.PathLike[str] = "", device: str = "cpu", backend: str | None = None) -> dict[str, Any]:
    """Returns the size of a model's cache and what fits into memory, as `kvant info --json` writes it
    (docs/reference/json.md). The figures are for `batch` sequences of `context` tokens on `device`. A context of 0
    selects the trained context."""
    return json.loads(_engine.plan(os.fsdecode(path), _text("kv", kv), _checked("context", context, 0, _MAX_TOKENS),
                                   _checked("batch", batch, 1, 1 << 20), os.fsdecode(calibration), device,
                                   _backend(device, backend, "cpu"), _threads(None)))


def evaluate(path: str | os.PathLike[str], text: str, kv: str | Sequence[str] | None = None, *,
             context: int | Sequence[int] = (), chunks: int | None = None, reference: str = "", suite: str = "",
             layers: bool = False, retrieval: bool = False, greedy: bool = False, max_tokens: int = 128, seed: int = 1,
             all_prompt: bool = False, control: bool = False, compare_backend: str = "",
             calibrate_on: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), calibration: str | os.PathLike[str] = "",
             weights: str = "f32", device: str = "cpu", threads: int | None = None, backend: str | None = None,
             strict: bool = False) -> Any:
    """Measures what caches cost in quality, as `kvant eval --json` writes it (docs/reference/json.md). The result is a
    dictionary, or a list with one per context if several are given. The options are the program's
    (docs/reference/commands.md).

    text is the text itself, not a file's name.
    kv holds recipes, or "llama.cpp:TYPE", in a list or separated by commas. None selects kvant-4bit, or only the recipes
    of the suite if `suite` is given.

    Without `layers`, `retrieval` and `greedy`, each of "results" (the reference first) also has arrays for all scored
    positions: "kld_positions", float64 [positions], in nats; "same_top", bool [positions]; and "kld_blocks", float64,
    for the units of the bootstrap."""
    if sum((layers, retrieval, greedy)) > 1 or (compare_backend and (retrieval or greedy)):
        raise ValueError("layers, retrieval, greedy and compare_backend exclude each other")
    if calibrate_on and calibration:
        raise ValueError("calibrate_on and calibration exclude each other")
    if weights not in ("f32", "stored"):
        raise ValueError(f'weights is {weights!r}; it must be "f32" or "stored"')
    options = _engine.EvaluationOptions(os.fsdecode(path), os.fsdecode(calibration), device,
                                        _backend(device, backend, "reference"), _threads(threads), bool(strict))
    if kv is None:
        kv = [] if suite else "kvant-4bit"
    options.recipes = [name for item in _several(kv) for name in _engine.split_recipes(_text("a recipe", item))]
    options.contexts = [_checked("context", x, 2, 1 << 24) for x in _several(context)]
    options.chunks = -1 if chunks is None else _checked("chunks", chunks, 0, 1 << 24)
    options.reference, options.suite = _text("reference", reference), _text("suite", suite)
    options.compare_backend = _text("compare_backend", compare_backend)
    options.calibrate_on = [os.fsdecode(x) for x in _several(calibrate_on)]
    options.layers, options.retrieval, options.greedy = layers, retrieval, greedy
    options.generated_tokens = _checked("max_tokens", max_tokens, 1, 1 << 20)
    options.seed = _checked("seed", seed, 0, 2**64 - 1)
    options.all_prompt, options.control, options.stored_weights = all_prompt, control, weights == "stored"
    documents = [_with_arrays(document) for document in json.loads(_engine.evaluate(options, _text("the text", text)))]
    return documents[0] if len(documents) == 1 else documents


def _with_arrays(document: dict[str, Any]) -> dict[str, Any]:
    for result in document.get("results", []):
        for name, kind in (("kld_positions", np.float64), ("same_top", np.bool_), ("kld_blocks", np.float64)):
            if name in result:
                result[name] = np.array(result[name], dtype=kind)
    return document
