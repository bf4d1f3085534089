"""What `--kv-cache-dtype` may name: recipes without calibrated constants, the same in all layers and heads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    name: str  # as vLLM knows it
    key_format: str
    value_format: str
    key_hadamard: bool = False
    value_hadamard: bool = False

    @property
    def text(self) -> str:
        """As `kvant eval --kv` takes it: the same cache in the engine."""
        sides = (("k", self.key_hadamard, self.key_format), ("v", self.value_hadamard, self.value_format))
        return ",".join(f"{side}={'hadamard:' if hadamard else ''}{format}" for side, hadamard, format in sides)


RECIPES = {recipe.name: recipe for recipe in (
    Recipe("kvant_4bit", "tcq4", "tcq4", key_hadamard=True, value_hadamard=True),
    Recipe("kvant_fast4", "ch4g128", "tok4g128"),
    Recipe("kvant_2bit", "tcq2", "tcq2", key_hadamard=True, value_hadamard=True),
)}
