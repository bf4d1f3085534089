"""Tail pages fill tail blocks without overlap, and figures are those of a count by hand."""

import unittest

from kvant import PAGE
from kvant.vllm.block_layout import BlockLayout
from kvant.vllm.recipes import RECIPES

CH4, TOK4 = 8704, 8704  # bytes of a page of 128 channels: 4 bits, and 32 for every 128 values


class Layout(unittest.TestCase):
    def test_tail_pages_do_not_overlap(self):
        for heads, d, key, value in ((8, 128, CH4, TOK4), (8, 128, 4608, 4608), (3, 64, 4352, 4352), (1, 128, CH4, TOK4),
                                     (4, 256, 17408, 17408), (2, 64, 2304, 2304),
                                     (3, 64, 4368, 4368)):
            layout = BlockLayout(heads, d, key, value)
            bytes_of_block = {}
            for head in range(heads):
                for side in range(2):
                    block, unit = layout.tail_place(head, side)
                    self.assertLess(block, layout.tail_blocks)
                    used = bytes_of_block.setdefault(block, set())
                    first = unit * layout.unit_bytes
                    place = set(range(first, first + layout.tail_page_bytes, layout.unit_bytes))
                    self.assertFalse(used & place)
                    self.assertGreaterEqual(layout.unit_bytes, 512)
                    self.assertLessEqual(first + layout.tail_page_bytes, layout.block_bytes)
                    used |= place
            self.assertEqual(len(bytes_of_block), layout.tail_blocks)

    def test_llama_8b_at_4_bits(self):
        layout = BlockLayout(8, 128, CH4, TOK4)
        self.assertEqual((layout.block_bytes, layout.tail_blocks), (139264, 4))
        self.assertEqual(layout.bf16_block_bytes, 8 * PAGE * 128 * 2 * 2)
        # A request of 1024 tokens: 8 sealed blocks and 4 of its tail.
        self.assertEqual(layout.tokens_that_fit(1200, 1024), 100 * 1024)

    def test_few_heads_pad_the_block(self):
        layout = BlockLayout(1, 128, CH4, TOK4)
        self.assertEqual((layout.block_bytes, layout.tail_pages_per_block, layout.tail_blocks), (PAGE * 128 * 2, 1, 2))


class Recipes(unittest.TestCase):
    def test_texts_are_those_of_the_engine(self):
        self.assertEqual(RECIPES["kvant_4bit"].text, "k=hadamard:tcq4,v=hadamard:tcq4")
        self.assertEqual(RECIPES["kvant_fast4"].text, "k=ch4g128,v=tok4g128")


if __name__ == "__main__":
    unittest.main()
