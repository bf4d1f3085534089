"""Reads recipes for the paged cache. The names come from kvant's registry (kvant/recipes.json, which
scripts/reference.py writes). The cache supports recipes whose layers and heads all have equal formats, and bits by
layer and head from calibration. Some recipes need constants of the model, and others can use them."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvant.paged.sink_layout import MAX_SINK

EXACT, FLASHQ = "exact", "flashq"
SAS = "sas"
# Names of formats with codebooks begin with one of these.
CODEBOOK_FORMATS = ("vq", "pq", "nvq", "npq")
# Recipes with a key that matches BY_LAYER have formats that differ by layer or head.
BY_LAYER = re.compile(r"(?:budget|ladder|mix|mix_[kv]|mix_metric|[kv]@.*)")
_SIDE = re.compile(r"(?:([a-z0-9+]+):)?([a-z][a-z0-9_-]*)")
_STEPS = {"k": ([], ["hadamard"], ["smooth"], ["smooth", "hadamard"]), "v": ([], ["hadamard"])}
# The names in this table are older than the registry that all programs share.
OTHER_NAMES = {
    "kvant-fast4": "k=ch4g128,v=tok4g128,sink=1",
    "kvant-kivi-4bit": "kivi-4bit,window=0",
    "kvant-kivi-2bit": "kivi-2bit,window=0",
    "kvant-kvlinc-2bit": "kvlinc-2bit,window=0,correction=none",
    "kvant-turboquant-4bit": "k=hadamard:lm4,v=hadamard:lm4",
    "kvant-turboquant-3bit": "k=hadamard:lm3,v=hadamard:lm3",
    "kvant-turboquant-2bit": "k=hadamard:lm2,v=hadamard:lm2",
    "kvant-turboattention-4bit": "k=prog4,v=prog4,sink=1,prompt=flashq",
    "kvant-vecinfer-4bit": "vecinfer-4bit,window=0",
    "kvant-vecinfer-2bit": "vecinfer-2bit,window=0",
}


@dataclass(frozen=True)
class Recipe:
    # Gives the recipe's name in messages: the registry's name with the differing items, or the text.
    name: str
    key_format: str
    value_format: str
    key_hadamard: bool = False
    value_hadamard: bool = False
    sink: int = 0  # tokens
    # The flag is true if calibration moves errors of K to directions that queries read least.
    is_shaped: bool = False
    # Prompts attend exactly, or by FlashQ with q, K, V and weights in INT8.
    prompt: str = EXACT
    # The flag is true if channels of K are divided by calibrated factors before rotation.
    key_smooth: bool = False
    # Decode may leave V of a page unread if no token of the page has a softmax weight above `skip` (Sparse V).
    skip: float = 0.0
    # The flag is true if the exponential is TurboAttention's approximation (SAS).
    has_sas: bool = False
    # Holds the text that asked for the recipe.
    asked: str = field(default="", compare=False)
    # Holds the formats (K, V) of each layer and KV head if calibration measured their sensitivities. If empty,
    # key_format and value_format apply.
    by_head: tuple[tuple[tuple[str, str], ...], ...] = ()

    @property
    def has_integer_prompts(self) -> bool:
        return self.prompt == FLASHQ

    @property
    def formats(self) -> set[str]:
        """Returns all formats of layers, heads and sides."""
        if not self.by_head:
            return {self.key_format, self.value_format}
        return {format for layer in self.by_head for pair in layer for format in pair}

    def of_heads(self, heads: slice) -> Recipe:
        """Returns the recipe for the KV heads of one rank of tensor parallelism."""
        return replace(self, by_head=tuple(layer[heads] for layer in self.by_head))

    def of_stage(self, layers: slice) -> Recipe:
        """Returns the recipe for the layers of one stage of pipeline parallelism."""
        return replace(self, by_head=self.by_head[layers])

    @property
    def asked_name(self) -> str:
        """Returns the recipe as the user asked for it, in a form that the engine accepts."""
        first, comma, others = self.asked.partition(",")
        return first.replace("_", "-") + comma + others

    @property
    def may_be_allocated(self) -> bool:
        """Returns whether the user named a recipe with bits by layer and head."""
        _, recipes = _registry()
        return "uncalibrated" in recipes.get(self.asked_name.split(",")[0], {})

    @property
    def can_be_shaped(self) -> bool:
        """Returns whether calibration can weigh errors in the search for K's codes. The search needs a trellis format
        and one basis for all layers."""
        return self.key_format.startswith("tcq") and not self.key_smooth

    @property
    def needs_constants(self) -> bool:
        """Returns whether the recipe cannot work without calibration."""
        return self.key_smooth or has_codebook(self.key_format) or has_codebook(self.value_format)

    @property
    def takes_constants(self) -> bool:
        """Returns whether calibration can measure something for the recipe."""
        return self.can_be_shaped or self.needs_constants

    @property
    def text(self) -> str:
        """Returns the text that makes `kvant eval --kv` use an equal cache in the engine."""
        if self.by_head:
            return self.name
        steps = "+".join(name for name, is_there in (("smooth", self.key_smooth), ("hadamard", self.key_hadamard)) if is_there)
        text = f"k={steps + ':' if steps else ''}{self.key_format}"
        text += f",v={'hadamard:' if self.value_hadamard else ''}{self.value_format}"
        text += f",sink={self.sink}" if self.sink else ""
        text += f",prompt={self.prompt}" if self.prompt != EXACT else ""
        text += f",skip={self.skip:g}" if self.skip else ""
        text += f",softmax={SAS}" if self.has_sas else ""
        return text + (",encode=shaped" if self.is_shaped else "")


def has_codebook(format: str) -> bool:
    return format.startswith(CODEBOOK_FORMATS)


def without_constants(recipe: Recipe, how: str) -> Recipe:
    """Returns the recipe for a model without constants. `how` tells users how to name a file of constants. Raises
    ValueError if the recipe needs constants."""
    if recipe.needs_constants:
        raise ValueError(f"kvant: the recipe {recipe.name} ({recipe.text}) needs constants of the model, which kvant.hf.calibrate makes: "
                         f"{how}")
    return recipe


def calibrated(recipe: Recipe) -> Recipe:
    """Returns the recipe for a model with constants. Raises ValueError if the recipe takes none."""
    if not recipe.takes_constants:
        raise ValueError(f"kvant: the recipe {recipe.name} ({recipe.text}) takes no constants: constants are for recipes "
                         "with keys in a trellis format (tcq...), such as uniform-4bit, or with codebooks or smoothed keys, such as "
                         "vecinfer-4bit,window=0")
    return replace(recipe, is_shaped=True, name=f"{recipe.name},encode=shaped") if recipe.can_be_shaped else recipe


@functools.cache
def _registry() -> tuple[dict[str, str], dict[str, dict]]:
    """Returns the defaults of all keys, and the recipes by name."""
    table = json.loads((pathlib.Path(__file__).resolve().parent.parent / "recipes.json").read_text(encoding="utf-8"))
    return table["defaults"], {recipe["name"]: recipe for recipe in table["recipes"]}


@dataclass(frozen=True)
class _Written:
    """Holds a recipe as it was written, before it is known whether the cache supports it."""

    # The text is empty if the recipe has no name.
    name: str
    # Holds only the values that differ from the defaults.
    values: Mapping[str, str]


def parse_recipe(text: str) -> Recipe:
    """Reads a recipe as `kvant run --kv` takes it: a name with the differing items, or keys. If the name belongs to a
    recipe with bits by layer and head, the registry's recipe for uncalibrated models is served under its own name.

    Raises ValueError with a sentence for users. Only the library knows whether it has kernels for the formats."""
    if not isinstance(text, str):
        raise TypeError(f"kvant: a recipe must be a text such as \"uniform-4bit\", not {text!r}")
    written = _read(text)
    for side in ("k", "v"):
        if side not in written.values:
            raise ValueError(f"kvant: the recipe \"{text}\" needs both k=FORMAT and v=FORMAT")
    _refuse_others(text, written.values)
    key_steps, key_format = _side(text, "k", written.values["k"])
    value_steps, value_format = _side(text, "v", written.values["v"])
    recipe = Recipe(written.name, key_format, value_format, "hadamard" in key_steps, "hadamard" in value_steps, _sink(text, written.values),
                    prompt=written.values.get("prompt", EXACT), key_smooth="smooth" in key_steps, skip=_skip(text, written.values), has_sas=written.values.get("softmax") == SAS, asked=text.replace(" ", ""))
    return recipe if recipe.name else replace(recipe, name=recipe.text)


def _read(text: str) -> _Written:
    """Reads a text into a recipe with all values that its name stands for."""
    first, *others = text.replace(" ", "").split(",")
    if "=" in first:
        named, others = _Written("", {}), [first, *others]
    else:
        named = _named(first)
    defaults, _ = _registry()
    values = dict(named.values)
    for part in others:
        key, equals, value = part.partition("=")
        if not equals or (key not in defaults and not BY_LAYER.fullmatch(key)):
            raise ValueError(f"kvant: \"{part}\" in the recipe \"{text}\" is not a key of recipes: {', '.join(defaults)}")
        if key == "encode":
            raise ValueError(f"kvant: \"{part}\" in the recipe \"{text}\" is not supported here: constants of the "
                             "model decide whether errors of keys are shaped")
        values[key] = value
    name = ",".join([named.name, *others]) if named.name else ""
    return _Written(name, {key: value for key, value in values.items() if key in ("k", "v") or value != defaults.get(key)})


def _named(name: str) -> _Written:
    defaults, recipes = _registry()
    with_hyphens = name.replace("_", "-")
    if with_hyphens in OTHER_NAMES:
        return _read(OTHER_NAMES[with_hyphens])
    found = recipes.get(name) or recipes.get(with_hyphens)
    if found is None:
        near = " or ".join(difflib.get_close_matches(with_hyphens, (*recipes, *OTHER_NAMES)))
        raise ValueError(f"kvant: there is no recipe \"{name}\"{f' (did you mean {near}?)' if near else ''}: give a name from kvant's table of "
                         "recipes, such as uniform-4bit, or write k=FORMAT,v=FORMAT,sink=TOKENS")
    if "uncalibrated" in found:
        return _read(found["uncalibrated"])
    return _Written(found["name"], {"k": defaults["k"], "v": defaults["v"], **found["values"]})


def _refuse_others(text: str, values: Mapping[str, str]) -> None:
    """Raises ValueError for values of keys that the cache does not implement."""
    refused = [key for key in values if key not in ("k", "v", "sink", "prompt", "skip") and (key, values[key]) not in (("tail", "bf16"), ("softmax", SAS))]
    if values.get("prompt", EXACT) not in (EXACT, FLASHQ):
        refused.append("prompt")
    if not refused:
        return
    key, why = refused[0], ""
    if BY_LAYER.fullmatch(key):
        why = ": only calibration gives layers and heads unlike formats (kvant-4bit); `kvant run` has bits by layer"
    else:
        defaults, _ = _registry()
        # The empty default of `tail` means bf16. For other keys with an empty default, parse_recipe() raises an error.
        without = ",".join((text, *(f"{x}={defaults[x] or 'bf16'}" for x in refused if x in defaults)))
        with contextlib.suppress(ValueError):
            parse_recipe(without)
            why = f": \"{without}\" is"
    raise ValueError(f"kvant: the recipe \"{text}\" has {key}={values[key]}, which is not supported here{why}")


def _side(text: str, side: str, value: str) -> tuple[list[str], str]:
    """Splits a side into its transforms and its format."""
    match = _SIDE.fullmatch(value)
    steps = (match[1] or "").split("+") if match and match[1] else []
    if not match or steps not in _STEPS[side]:
        known = " or ".join(f"{side}={'+'.join(x) + ':' if x else ''}FORMAT" for x in _STEPS[side])
        raise ValueError(f"kvant: the recipe \"{text}\" has {side}={value}, which is not supported here: {known}")
    return steps, match[2]


def _sink(text: str, values: Mapping[str, str]) -> int:
    value = values.get("sink", "0")
    if not value.isdecimal() or int(value) > MAX_SINK:
        raise ValueError(f"kvant: the recipe \"{text}\" has sink={value}, which is not supported here: 0 to {MAX_SINK} tokens")
    return int(value)


def _skip(text: str, values: Mapping[str, str]) -> float:
    value = values.get("skip", "0")
    with contextlib.suppress(ValueError):
        if 0 <= float(value) < 1:
            return float(value)
    raise ValueError(f"kvant: the recipe \"{text}\" has skip={value}, which is not supported here: 0 to below 1")


def allocated(recipe: Recipe, heads: Sequence[Sequence[tuple[Sequence[str], str, Sequence[str], str]]]) -> Recipe:
    """Gives a recipe the transforms and formats of K and V that the engine planned for each layer and KV head. Raises
    ValueError if the transforms differ from the transforms of the uncalibrated recipe."""
    steps = ([name for name, is_there in (("smooth", recipe.key_smooth), ("hadamard", recipe.key_hadamard)) if is_there],
             ["hadamard"] if recipe.value_hadamard else [])
    if any((list(of_key), list(of_value)) != steps for layer in heads for of_key, _, of_value, _ in layer):
        raise ValueError(f"kvant: the recipe {recipe.asked} has transforms that differ by layer or head, which is not supported here")
    return replace(recipe, name=recipe.asked_name, is_shaped=recipe.can_be_shaped,
                   by_head=tuple(tuple((key, value) for _, key, _, value in layer) for layer in heads))


def resolved_line(recipe: Recipe, serves_by_head: bool = False, why: str = "") -> str | None:
    """Returns a line that tells users under which other name their recipe is served, or None if the name is unchanged.
    serves_by_head says whether the cache supports formats by layer and head. `why` may say why there are no constants.
    """
    first = recipe.asked.split(",")[0].replace("_", "-")
    if not first or "=" in first or recipe.by_head or recipe.asked == recipe.name:
        return None
    if not recipe.may_be_allocated:
        return f"kvant: the recipe {recipe.asked} is {recipe.name}"
    if serves_by_head:
        why = "the constants have no bits by layer and head" if recipe.is_shaped else why or "there are no constants"
        return (f"kvant: {recipe.name} is used in place of {recipe.asked}, because {why}: kvant.hf.calibrate(model, tokenizer, \"{first}\") "
                f"makes them, or `kvant calibrate --kv {first}` of the model's GGUF file")
    line = f"kvant: {recipe.name} is used in place of {recipe.asked}, whose bits by layer and head are not supported here"
    return line if recipe.is_shaped else line + ": `kvant.hf.calibrate(model, tokenizer)` makes constants that lower its errors"
