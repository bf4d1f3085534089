"""What the cache keeps: recipes without calibrated constants, the same in all layers and heads. `--kv-cache-dtype` names one,
or names `kvant`, and `--additional-config '{"kvant": {"recipe": "k=...,v=...,sink=1"}}'` says what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvant.vllm.sink_layout import MAX_SINK

CUSTOM = "kvant"
_FIELD = "recipe"
_EXAMPLE = f'--additional-config \'{{"{CUSTOM}": {{"{_FIELD}": "k=hadamard:tcq4,v=hadamard:tcq3,sink=1"}}}}\''


@dataclass(frozen=True)
class Recipe:
    name: str  # as vLLM knows it
    key_format: str
    value_format: str
    key_hadamard: bool = False
    value_hadamard: bool = False
    sink: int = 0  # tokens

    @property
    def text(self) -> str:
        """As `kvant eval --kv` takes it: the same cache in the engine."""
        sides = (("k", self.key_hadamard, self.key_format), ("v", self.value_hadamard, self.value_format))
        text = ",".join(f"{side}={'hadamard:' if hadamard else ''}{format}" for side, hadamard, format in sides)
        return text + (f",sink={self.sink}" if self.sink else "")


RECIPES = {recipe.name: recipe for recipe in (
    Recipe("kvant_4bit", "tcq4", "tcq4", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_3bit", "tcq3", "tcq3", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_2bit", "tcq2", "tcq2", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_fast4", "ch4g128", "tok4g128", sink=1),
)}
CACHE_TYPES = (*RECIPES, CUSTOM)


def find_recipe(cache_type: str, additional_config) -> Recipe:
    """cache_type: one of CACHE_TYPES; additional_config: vLLM's. ValueError: a sentence for users."""
    own = additional_config.get(CUSTOM) if isinstance(additional_config, Mapping) else None
    if own is not None and (not isinstance(own, Mapping) or set(own) != {_FIELD} or not isinstance(own[_FIELD], str)):
        raise ValueError(f"kvant: in --additional-config, \"{CUSTOM}\" is an object with one text, \"{_FIELD}\": {_EXAMPLE}")
    if cache_type != CUSTOM:
        if own is not None:
            raise ValueError(f"kvant: a recipe in --additional-config needs --kv-cache-dtype {CUSTOM}, not {cache_type}")
        return RECIPES[cache_type]
    if own is None:
        raise ValueError(f"kvant: --kv-cache-dtype {CUSTOM} needs a recipe: {_EXAMPLE}")
    return parse_recipe(own[_FIELD])


def parse_recipe(text: str) -> Recipe:
    """Of k=, v= and sink=, as Recipe.text writes them. Whether there are kernels for the formats, the library knows."""
    recipe = Recipe(CUSTOM, "", "")
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        side = re.fullmatch(r"(hadamard:)?([a-z][a-z0-9-]*)", value)
        if name == "k" and side:
            recipe = replace(recipe, key_hadamard=side[1] is not None, key_format=side[2])
        elif name == "v" and side:
            recipe = replace(recipe, value_hadamard=side[1] is not None, value_format=side[2])
        elif name == "sink" and value.isdecimal() and int(value) <= MAX_SINK:
            recipe = replace(recipe, sink=int(value))
        else:
            raise ValueError(f"kvant: \"{part}\" in the recipe \"{text}\" is none of k=FORMAT, v=FORMAT (hadamard:FORMAT: "
                             f"rotated) and sink=TOKENS (0 to {MAX_SINK}), which is all that the plug-in supports")
    if not recipe.key_format or not recipe.value_format:
        raise ValueError(f"kvant: the recipe \"{text}\" needs both k=FORMAT and v=FORMAT")
    return recipe
