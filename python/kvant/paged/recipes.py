"""What the cache keeps: recipes that do without calibrated constants, the same in all layers and heads."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvant.paged.sink_layout import MAX_SINK

EXACT, FLASHQ = "exact", "flashq"


@dataclass(frozen=True)
class Recipe:
    name: str
    key_format: str
    value_format: str
    key_hadamard: bool = False
    value_hadamard: bool = False
    sink: int = 0  # tokens
    is_shaped: bool = False  # errors of K go where queries, by calibration, read least
    prompt: str = EXACT  # how prompts attend: exactly, or by FlashQ, with q, K, V and weights in INT8

    @property
    def has_integer_prompts(self) -> bool:
        return self.prompt == FLASHQ

    @property
    def takes_constants(self) -> bool:
        """Whether calibration has something for it: the search of trellis formats weighs errors of K."""
        return self.key_format.startswith("tcq")

    @property
    def text(self) -> str:
        """As `kvant eval --kv` takes it: the same cache in the engine."""
        sides = (("k", self.key_hadamard, self.key_format), ("v", self.value_hadamard, self.value_format))
        text = ",".join(f"{side}={'hadamard:' if hadamard else ''}{format}" for side, hadamard, format in sides)
        text += f",sink={self.sink}" if self.sink else ""
        text += f",prompt={self.prompt}" if self.prompt != EXACT else ""
        return text + (",encode=shaped" if self.is_shaped else "")


KVANT_RECIPES = (
    Recipe("kvant_4bit", "tcq4", "tcq4", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_3bit", "tcq3", "tcq3", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_2bit", "tcq2", "tcq2", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_fast4", "ch4g128", "tok4g128", sink=1),
)
# Others' systems, as far as they do without constants of a model and give the same answers whatever the steps are: TurboQuant with
# a rotation without random signs, KVLinC without its correction, TurboAttention with exact softmax.
OTHER_RECIPES = (
    Recipe("kvant_kivi_4bit", "ch4g128", "tok4g128"),
    Recipe("kvant_kivi_2bit", "ch2g128", "tok2g128"),
    Recipe("kvant_kvlinc_2bit", "ch2g128", "tok2g128", value_hadamard=True),
    Recipe("kvant_turboquant_4bit", "lm4", "lm4", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_turboquant_3bit", "lm3", "lm3", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_turboquant_2bit", "lm2", "lm2", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_turboattention_4bit", "prog4", "prog4", sink=1, prompt=FLASHQ),
)
RECIPES = {recipe.name: recipe for recipe in (*KVANT_RECIPES, *OTHER_RECIPES)}


def parse_recipe(text: str) -> Recipe:
    """Of k=, v=, sink= and prompt=, as Recipe.text writes them, all or those that differ from a recipe whose name is before them.
    Whether there are kernels for the formats, the library knows."""
    recipe, (first, *others) = Recipe("kvant", "", ""), text.replace(" ", "").split(",")
    if "=" not in first and first:
        if (name := first.replace("-", "_")) not in RECIPES:
            names = ", ".join(x.replace("_", "-") for x in RECIPES)
            raise ValueError(f"kvant: there is no recipe \"{first}\" for the GPU: it is one of {names}, or k=FORMAT,v=FORMAT,sink=TOKENS")
        recipe = RECIPES[name]
    else:
        others = [first, *others]
    for part in others:
        name, _, value = part.partition("=")
        side = re.fullmatch(r"(hadamard:)?([a-z][a-z0-9-]*)", value)
        if name == "k" and side:
            recipe = replace(recipe, key_hadamard=side[1] is not None, key_format=side[2])
        elif name == "v" and side:
            recipe = replace(recipe, value_hadamard=side[1] is not None, value_format=side[2])
        elif name == "sink" and value.isdecimal() and int(value) <= MAX_SINK:
            recipe = replace(recipe, sink=int(value))
        elif name == "prompt" and value in (EXACT, FLASHQ):
            recipe = replace(recipe, prompt=value)
        else:
            raise ValueError(f"kvant: \"{part}\" in the recipe \"{text}\" is none of k=FORMAT, v=FORMAT (hadamard:FORMAT: "
                             f"rotated), sink=TOKENS (0 to {MAX_SINK}) and prompt={EXACT} or {FLASHQ}, which is all that is "
                             "supported here")
    if not recipe.key_format or not recipe.value_format:
        raise ValueError(f"kvant: the recipe \"{text}\" needs both k=FORMAT and v=FORMAT")
    return recipe
