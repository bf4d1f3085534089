"""Reads the plug-in's recipes. `--kv-cache-dtype` names a recipe, or is `kvant`. In the second case
`--additional-config '{"kvant": {"recipe": "k=...,v=...,sink=1"}}'` gives the recipe, as keys or as a name with
differing items ("uniform-4bit,prompt=flashq"). An entry "constants" in that configuration names the file that
kvant.hf.calibrate or `kvant calibrate` made for the model. An entry "calibrate" that is false forbids calibration at
the first start. An entry "windows" that is "fp8" lets vLLM keep layers with a sliding window in FP8.

A cache type is called `kvant_` and the recipe's name in the registry. Older names keep the cache that they had, except
`kvant_4bit`, `kvant_3bit` and `kvant_2bit`. The log says which recipe an older name means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvant.paged.recipes import OTHER_NAMES, Recipe, parse_recipe

CUSTOM = "kvant"
_RECIPE, _CONSTANTS, _CALIBRATE, _WINDOWS = "recipe", "constants", "calibrate", "windows"
_KINDS = {_RECIPE: str, _CONSTANTS: str, _CALIBRATE: bool, _WINDOWS: str}
FP8 = "fp8"
_EXAMPLE = f'--additional-config \'{{"{CUSTOM}": {{"{_RECIPE}": "k=hadamard:tcq4,v=hadamard:tcq3,sink=1"}}}}\''
CONSTANTS_EXAMPLE = f'--additional-config \'{{"{CUSTOM}": {{"{_CONSTANTS}": "FILE"}}}}\''
NO_CALIBRATION = f'--additional-config \'{{"{CUSTOM}": {{"{_CALIBRATE}": false}}}}\''
_NAMED = {f"{CUSTOM}_{name.replace('-', '_').removeprefix('kvant_')}": name
          for name in ("kvant-4bit", "kvant-3bit", "kvant-2bit", "uniform-4bit", "uniform-3bit", "uniform-2bit")}
_FROM_BEFORE = {name.replace("-", "_"): text for name, text in OTHER_NAMES.items()}
CACHE_TYPES = (*_NAMED, *_FROM_BEFORE, CUSTOM)


def _own(additional_config) -> Mapping[str, str | bool]:
    own = additional_config.get(CUSTOM) if isinstance(additional_config, Mapping) else None
    if own is None:
        return {}
    if not isinstance(own, Mapping) or not own or not all(isinstance(x, _KINDS.get(key, ())) for key, x in own.items()):
        raise ValueError(f"kvant: in --additional-config, \"{CUSTOM}\" is an object with the texts \"{_RECIPE}\", "
                         f"\"{_CONSTANTS}\" and \"{_WINDOWS}\" (\"{FP8}\"), and \"{_CALIBRATE}\", which is true or false: {_EXAMPLE}")
    if own.get(_WINDOWS, FP8) != FP8:
        raise ValueError(f"kvant: in --additional-config, \"{_WINDOWS}\" is \"{FP8}\", not \"{own[_WINDOWS]}\"; without it, layers with "
                         "a sliding window are unquantized")
    return own


def find_recipe(cache_type: str, additional_config) -> Recipe:
    """Returns the recipe for a cache type of CACHE_TYPES and vLLM's additional_config. Raises ValueError with a
    sentence for users."""
    text = _own(additional_config).get(_RECIPE)
    if cache_type != CUSTOM:
        if text is not None:
            raise ValueError(f"kvant: a recipe in --additional-config needs --kv-cache-dtype {CUSTOM}, not {cache_type}")
        if cache_type in _NAMED:
            return parse_recipe(_NAMED[cache_type])
        return replace(parse_recipe(_FROM_BEFORE[cache_type]), asked=cache_type)
    if text is None:
        raise ValueError(f"kvant: --kv-cache-dtype {CUSTOM} needs a recipe: {_EXAMPLE}")
    return parse_recipe(text)


def constants_file(additional_config) -> str | None:
    """Returns the file of the model's constants, or None. Raises ValueError with a sentence for users."""
    return _own(additional_config).get(_CONSTANTS)


def may_calibrate(additional_config) -> bool:
    """Returns whether the first start of a model may make the model's constants."""
    return bool(_own(additional_config).get(_CALIBRATE, True))


def has_fp8_windows(additional_config) -> bool:
    """Returns whether layers with a sliding window are in FP8."""
    return _WINDOWS in _own(additional_config)
