"""Describes the formats of a layer's sealed pages to the library, by KV head."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from kvant.c_api import Shape
from kvant.paged.block_layout import SIDES

# A pair holds the formats of K and of V.
Pair = tuple[str, str]


class PageFormats:
    """Holds the formats of one layer, or of all layers with equal formats."""

    def __init__(self, heads: Sequence[Pair], page_bytes: Callable[[str], int]):
        """`heads` holds the formats of each KV head. page_bytes() returns the size of a format's page at the model's
        head size."""
        self._heads, self._are_mixed = heads, len(set(heads)) > 1
        sizes = [page_bytes(format) for pair in heads for format in pair]
        self.block_bytes = sum(sizes)  # bytes of 128 tokens of all heads
        # If all heads have equal formats, the distances between pages of heads and sides are constant.
        self.offsets = {} if self._are_mixed else dict(head_offset=sum(sizes[:SIDES]), side_offset=sizes[0])
        # Structures of the library point to _begins and _names, so the arrays must live as long as this object.
        self._begins = (ctypes.c_int64 * len(sizes))(*(sum(sizes[:i]) for i in range(len(sizes))))
        self._names = [(ctypes.c_char_p * len(heads))(*(pair[side].encode() for pair in heads)) for side in range(SIDES)]

    def shape(self, **members: Any) -> Shape:
        key, value = self._heads[0]
        members |= dict(key_format=key.encode(), value_format=value.encode())
        if self._are_mixed:
            keys, values = map(ctypes.addressof, self._names)
            members |= dict(head_key_formats=keys, head_value_formats=values)
        return Shape(**members)

    @property
    def of_sealed(self) -> dict[str, int]:
        """Returns the members of a Layer that give the places of sealed pages in a block."""
        return dict(sealed_offsets=ctypes.addressof(self._begins)) if self._are_mixed else {}
