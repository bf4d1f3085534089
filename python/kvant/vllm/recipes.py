"""The plug-in's recipes: `--kv-cache-dtype` names one, or names `kvant`, and `--additional-config '{"kvant": {"recipe":
"k=...,v=...,sink=1"}}'` says what it is."""

from __future__ import annotations

from collections.abc import Mapping

from kvant.paged.recipes import RECIPES, Recipe, parse_recipe

CUSTOM = "kvant"
_FIELD = "recipe"
_EXAMPLE = f'--additional-config \'{{"{CUSTOM}": {{"{_FIELD}": "k=hadamard:tcq4,v=hadamard:tcq3,sink=1"}}}}\''
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
