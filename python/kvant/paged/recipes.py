"""What the cache keeps: recipes that are the same in all layers and heads. Some need constants of the model, some have use for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvant.paged.sink_layout import MAX_SINK

EXACT, FLASHQ = "exact", "flashq"
# Parameters of the engine's recipes by which formats differ among layers or heads. Blocks of all layers are equally large here.
BY_LAYER = re.compile(r"(?:budget|ladder|mix|mix_[kv]|[kv]@.*)")
CODEBOOK_FORMATS = ("vq", "pq", "nvq")  # beginnings of their names


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
    key_smooth: bool = False  # channels of K are divided by what calibration says, before they are rotated

    @property
    def has_integer_prompts(self) -> bool:
        return self.prompt == FLASHQ

    @property
    def can_be_shaped(self) -> bool:
        """Whether the search for codes of K weighs errors by calibration: that of trellis formats, in one basis for all layers."""
        return self.key_format.startswith("tcq") and not self.key_smooth

    @property
    def needs_constants(self) -> bool:
        """Whether it can't do without calibration."""
        return self.key_smooth or has_codebook(self.key_format) or has_codebook(self.value_format)

    @property
    def takes_constants(self) -> bool:
        """Whether calibration has something for it."""
        return self.can_be_shaped or self.needs_constants

    @property
    def text(self) -> str:
        """As `kvant eval --kv` takes it: the same cache in the engine."""
        steps = "+".join(name for name, is_there in (("smooth", self.key_smooth), ("hadamard", self.key_hadamard)) if is_there)
        text = f"k={steps + ':' if steps else ''}{self.key_format}"
        text += f",v={'hadamard:' if self.value_hadamard else ''}{self.value_format}"
        text += f",sink={self.sink}" if self.sink else ""
        text += f",prompt={self.prompt}" if self.prompt != EXACT else ""
        return text + (",encode=shaped" if self.is_shaped else "")


def has_codebook(format: str) -> bool:
    return format.startswith(CODEBOOK_FORMATS)


def without_constants(recipe: Recipe, how: str) -> Recipe:
    """A recipe as it is without any. how: the file with them is named. ValueError: it can't do without."""
    if recipe.needs_constants:
        raise ValueError(f"kvant: the recipe {recipe.name} ({recipe.text}) needs constants of the model, which kvant.hf.calibrate makes: "
                         f"{how}")
    return recipe


KVANT_RECIPES = (
    Recipe("kvant_4bit", "tcq4", "tcq4", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_3bit", "tcq3", "tcq3", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_2bit", "tcq2", "tcq2", key_hadamard=True, value_hadamard=True, sink=1),
    Recipe("kvant_fast4", "ch4g128", "tok4g128", sink=1),
)
# Others' systems, as far as they give the same answers whatever the steps are: TurboQuant with a rotation without random signs, KVLinC
# without its correction, TurboAttention with exact softmax, VecInfer with the page that is being filled in place of its window.
OTHER_RECIPES = (
    Recipe("kvant_kivi_4bit", "ch4g128", "tok4g128"),
    Recipe("kvant_kivi_2bit", "ch2g128", "tok2g128"),
    Recipe("kvant_kvlinc_2bit", "ch2g128", "tok2g128", value_hadamard=True),
    Recipe("kvant_turboquant_4bit", "lm4", "lm4", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_turboquant_3bit", "lm3", "lm3", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_turboquant_2bit", "lm2", "lm2", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_turboattention_4bit", "prog4", "prog4", sink=1, prompt=FLASHQ),
    Recipe("kvant_vecinfer_4bit", "vq-d2b8", "vq-d2b8", key_hadamard=True, sink=4, key_smooth=True),
    Recipe("kvant_vecinfer_2bit", "vq-d4b8", "vq-d4b8", key_hadamard=True, sink=4, key_smooth=True),
)
RECIPES = {recipe.name: recipe for recipe in (*KVANT_RECIPES, *OTHER_RECIPES)}


def parse_recipe(text: str) -> Recipe:
    """Of k=, v=, sink= and prompt=, as Recipe.text writes them, all or those that differ from a recipe whose name is before them.
    Whether there are kernels for the formats, the library knows."""
    if not isinstance(text, str):
        raise TypeError(f"kvant: a recipe is a text such as \"kvant-4bit\", not {text!r}")
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
        side = re.fullmatch(r"(?:((?:smooth\+)?hadamard|smooth):)?([a-z][a-z0-9-]*)", value)
        steps = (side[1] or "").split("+") if side else []
        if name == "k" and side:
            recipe = replace(recipe, key_smooth="smooth" in steps, key_hadamard="hadamard" in steps, key_format=side[2])
        elif name == "v" and side and "smooth" not in steps:
            recipe = replace(recipe, value_hadamard="hadamard" in steps, value_format=side[2])
        elif name == "sink" and value.isdecimal() and int(value) <= MAX_SINK:
            recipe = replace(recipe, sink=int(value))
        elif name == "prompt" and value in (EXACT, FLASHQ):
            recipe = replace(recipe, prompt=value)
        elif BY_LAYER.fullmatch(name):
            raise ValueError(f"kvant: \"{part}\" in the recipe \"{text}\" is not supported here: all layers and heads have the same "
                             "formats, as blocks of all layers are equally large; kvant itself has recipes with bits by layer")
        else:
            raise ValueError(f"kvant: \"{part}\" in the recipe \"{text}\" is none of k=FORMAT, v=FORMAT (hadamard:FORMAT: "
                             f"rotated, k=smooth+hadamard:FORMAT: smoothed first), sink=TOKENS (0 to {MAX_SINK}) and prompt={EXACT} or "
                             f"{FLASHQ}, which is all that is supported here")
    if not recipe.key_format or not recipe.value_format:
        raise ValueError(f"kvant: the recipe \"{text}\" needs both k=FORMAT and v=FORMAT")
    return recipe
