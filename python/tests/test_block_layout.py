"""Tests that tail pages fill tail blocks without overlap, and that figures agree with a count by hand."""

import unittest
from dataclasses import replace

from kvant import PAGE
from kvant.paged.block_layout import BlockLayout
from kvant.paged.recipes import Recipe, _registry, calibrated, parse_recipe, resolved_line, without_constants
from kvant.paged.sink_layout import SinkLayout
from kvant.vllm.recipes import CACHE_TYPES, find_recipe

try:
    import numpy as np
except ImportError:
    np = None

# A page of 128 channels has 8704 bytes: 4 bits per value, and 32 bits per 128 values.
CH4, TOK4 = 8704, 8704


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
        # A request of 1024 tokens takes 8 sealed blocks and 4 tail blocks.
        self.assertEqual(layout.tokens_that_fit(1200, 1024), 100 * 1024)

    def test_few_heads_pad_the_block(self):
        layout = BlockLayout(1, 128, CH4, TOK4)
        self.assertEqual((layout.block_bytes, layout.tail_pages_per_block, layout.tail_blocks), (PAGE * 128 * 2, 1, 2))


    def test_the_sink_of_one_token_takes_three_tiles_of_8_heads(self):
        layout = BlockLayout(8, 128, CH4, TOK4, 1)
        self.assertEqual(layout.sink.bytes, 3 * 16 * 128 * 2)
        self.assertEqual((layout.block_bytes, layout.tail_blocks), (139264 + 12288, 4))


def plain_order(d):
    """Returns [2, 128, d], the places of numbers in an unquantized page of keys and of values, in the order of the
    GPU's tensor cores."""
    token, channel = np.arange(PAGE)[:, None], np.arange(d)[None]
    tile, row, g = token // 16, token // 8 % 2, token % 8
    within, lane = channel % (d // 4), g * 4 + channel // (d // 4)
    keys = ((tile * (d // 16) + within // 4) * 32 + lane) * 8 + (row + within % 4 // 2 * 2) * 2 + within % 2
    within, lane = channel % (d // 8), channel // (d // 8) * 4 + g // 2
    values = ((tile * (d // 16) + within // 2) * 32 + lane) * 8 + (within % 2 + row * 2) * 2 + g % 2
    return np.stack([keys, values])


@unittest.skipIf(np is None, "no NumPy")
class Sink(unittest.TestCase):
    def test_tokens_of_all_heads_lie_apart_and_in_their_place(self):
        for heads, d, tokens in ((8, 128, 1), (3, 64, 1), (8, 128, 2), (5, 256, 3), (9, 64, 4), (1, 128, 4)):
            self.check(SinkLayout(heads, d, tokens), plain_order(d))
            rows = np.arange(PAGE * d).reshape(1, PAGE, d)
            self.check(SinkLayout(heads, d, tokens, has_rows=True), np.concatenate([rows, rows]))

    def check(self, sink, order):
        heads, d, tokens = sink.n_kv_heads, sink.head_dim, sink.n_tokens
        taken = set()
        for head in range(heads):
            for side in range(2):
                place = sink.place(head, side)
                self.assertEqual(place % 16, 0)
                numbers = {place // 2 + int(i) for i in order[side][:tokens].reshape(-1)}
                self.assertEqual(len(numbers), tokens * d)
                self.assertFalse(taken & numbers)
                self.assertLess(max(numbers), sink.bytes // 2)
                taken |= numbers

    def test_no_sink_takes_nothing(self):
        self.assertEqual(SinkLayout(8, 128, 0).bytes, 0)
        with self.assertRaises(ValueError):
            SinkLayout(8, 128, 5)


class Recipes(unittest.TestCase):
    def test_names_are_those_of_the_registry(self):
        self.assertEqual(parse_recipe("uniform-4bit").text, "k=hadamard:tcq4,v=hadamard:tcq4,sink=4")
        self.assertEqual(parse_recipe("uniform-4bit").name, "uniform-4bit")
        self.assertIsNone(resolved_line(parse_recipe("uniform-4bit")))
        self.assertEqual(parse_recipe("kivi-4bit,window=0").text, "k=ch4g128,v=tok4g128")

    def test_recipes_with_bits_by_layer_are_served_as_the_uniform_ones_under_their_names(self):
        for name in ("kvant-4bit", "kvant_4bit"):
            recipe = parse_recipe(name)
            self.assertEqual((recipe, recipe.name), (parse_recipe("uniform-4bit"), "uniform-4bit"))
            self.assertEqual(resolved_line(recipe), f"kvant: uniform-4bit is used in place of {name}, whose bits by layer and head are "
                             "not supported here: `kvant.hf.calibrate(model, tokenizer)` makes constants that lower its errors")
            self.assertNotIn("calibrate", resolved_line(calibrated(recipe)))
        recipe = parse_recipe("kvant-2bit,prompt=flashq,sink=1")
        self.assertEqual(recipe.name, "uniform-2bit,prompt=flashq,sink=1")
        self.assertEqual(recipe.text, "k=hadamard:tcq2,v=hadamard:tcq2,sink=1,prompt=flashq")

    def test_names_from_before_say_what_they_are(self):
        recipe = find_recipe("kvant_4bit", None)
        self.assertEqual((recipe, recipe.asked_name), (parse_recipe("kvant-4bit"), "kvant-4bit"))
        self.assertIn("kvant: uniform-4bit is used in place of kvant-4bit, whose bits", resolved_line(recipe))
        self.assertIn("uniform-4bit is used in place of kvant-4bit, because there is no time: kvant.hf.calibrate(model, tokenizer, "
                      "\"kvant-4bit\")", resolved_line(recipe, serves_by_head=True, why="there is no time"))
        recipe = find_recipe("kvant_fast4", None)
        self.assertEqual((recipe.name, recipe.text), 2 * ("k=ch4g128,v=tok4g128,sink=1",))
        self.assertEqual(resolved_line(recipe), "kvant: the recipe kvant_fast4 is k=ch4g128,v=tok4g128,sink=1")
        recipe = find_recipe("kvant_kvlinc_2bit", None)
        self.assertEqual(recipe.name, "kvlinc-2bit,window=0,correction=none")
        self.assertEqual(recipe.text, "k=ch2g128,v=hadamard:tok2g128")

    def test_any_recipe_by_its_text(self):
        text = "k=hadamard:tcq5,v=tok3g64"
        recipe = find_recipe("kvant", {"kvant": {"recipe": "k=hadamard:tcq5, v=tok3g64"}})
        self.assertEqual(recipe, Recipe(text, "tcq5", "tok3g64", key_hadamard=True))
        self.assertIsNone(resolved_line(recipe))
        for name in CACHE_TYPES[:-1]:
            recipe = find_recipe(name, None)
            self.assertEqual(parse_recipe(recipe.text).text, recipe.text)
            self.assertEqual(parse_recipe(recipe.name), recipe)

    def test_a_name_with_what_differs(self):
        recipe = find_recipe("kvant", {"kvant": {"recipe": "uniform-4bit, prompt=flashq"}})
        self.assertEqual(recipe, replace(parse_recipe("uniform-4bit"), name="uniform-4bit,prompt=flashq", prompt="flashq"))
        self.assertEqual(recipe.text, "k=hadamard:tcq4,v=hadamard:tcq4,sink=4,prompt=flashq")
        self.assertEqual(parse_recipe("kvant-fast4,sink=0,prompt=exact").text, "k=ch4g128,v=tok4g128")

    def test_smoothing_and_codebooks_need_constants(self):
        self.assertEqual(find_recipe("kvant_vecinfer_4bit", None).text, "k=smooth+hadamard:vq-d2b8,v=vq-d2b8,sink=4")
        self.assertEqual(parse_recipe("vecinfer-2bit,window=0,sink=1").text, "k=smooth+hadamard:vq-d4b8,v=vq-d4b8,sink=1")
        for text in ("vecinfer-4bit,window=0", "k=smooth:ch4g128,v=tok4g128", "k=tcq4,v=vq-d4b12", "k=pq-d4b8,v=tok4g128"):
            self.assertTrue(parse_recipe(text).takes_constants)
            with self.assertRaisesRegex(ValueError, "needs constants of the model, which kvant.hf.calibrate makes: HERE"):
                without_constants(parse_recipe(text), "HERE")
        for text in ("uniform-4bit", "k=hadamard:lm4,v=hadamard:lm4"):
            self.assertEqual(without_constants(parse_recipe(text), ""), parse_recipe(text))

    def test_constants_are_in_the_name(self):
        self.assertEqual(calibrated(parse_recipe("uniform-3bit")).name, "uniform-3bit,encode=shaped")
        self.assertEqual(resolved_line(calibrated(parse_recipe("uniform-3bit"))),
                         "kvant: the recipe uniform-3bit is uniform-3bit,encode=shaped")

    def test_every_recipe_of_the_registry_is_served_or_refused_by_a_key(self):
        _, registry = _registry()
        served = set()
        for name, found in registry.items():
            try:
                parse_recipe(name)
                served.add(name)
            except ValueError as refused:
                self.assertRegex(str(refused), f'the recipe "{name}" (has [a-z_@.0-9-]+=|needs both)', name)
        self.assertLess({"kvant-4bit", "kvant-2bit", "uniform-4bit", "q8_0", "fp8"}, served)
        self.assertEqual(served & {"turbo4", "kvlinc-2bit", "vquant-k4v2", "vecinfer-4bit", "turboattention-mix", "oscar-2bit"}, set())

    def test_what_the_cache_cannot_serve_is_refused_by_its_key(self):
        for text, sentence in (
                ("kivi-4bit", "\"kivi-4bit\" has window=128, which is not supported here: \"kivi-4bit,window=0\" is"),
                ("kvlinc-2bit", "\"kvlinc-2bit,window=0,correction=none\" is"), ("oscar-2bit", "has window=256, which is not supported here$"),
                ("turbo4", "has k=rhadamard:lm4, which is not supported here"), ("h2o-50", "has window=128"),
                ("turboattention-4bit", "has products=integer, which is not supported here: \"turboattention-4bit,products=real,tail=bf16\" is"),
                ("turboattention-paper", "has softmax=sas-paper"), ("k=tcq4,v=tcq4,skip=1", "has skip=1, which is not supported here: 0 to below 1"),
                ("k=tcq4,v=tcq4,skip=a", "has skip=a"), ("vquant-k4v2,window=0", "has protect=0.05"), ("turboattention-mix", "has mix=0.5"),
                ("vecinfer-4bit", "\"vecinfer-4bit,window=0\" is"), ("turbo3-sparse-v", "has k=rhadamard:lm3"),
                ("uniform-4bit,tail=int8", "has tail=int8"), ("uniform-4bit,encode=plain", "\"encode=plain\" in the recipe .* whether errors of keys are shaped"),
                ("uniform-4bit,encode=sampled", "\"encode=sampled\" in the recipe .* whether errors of keys are shaped"),
                ("k=tcq4,v=tcq4,window=128", "has window=128"), ("k=mean:tcq4,v=tcq4", "k=mean:tcq4"), ("k=tcq4,v=smooth:tcq4", "v=smooth:tcq4"),
                ("k=hadamard+smooth:tcq4,v=tcq4", "k=hadamard\\+smooth:tcq4"), ("k=tcq4,v=tcq4,sink=5", "sink=5"),
                ("uniform-4bit,prompt=int8", "prompt=int8")):
            with self.assertRaisesRegex(ValueError, sentence):
                parse_recipe(text)
        for part in ("budget=4.5", "ladder=tcq2+tcq4", "k@0-3=bf16", "v@18.1=tok4g128", "mix=0.5", "mix_k=tcq2"):
            with self.assertRaisesRegex(ValueError, "only calibration gives layers and heads unlike formats"):
                parse_recipe("kvant-4bit," + part)

    def test_what_is_wrong_is_said(self):
        for text, sentence in (("k=tcq4", "both k=FORMAT"), ("", "no recipe \"\""), ("uniform-5bit,prompt=flashq", "no recipe \"uniform-5bit\" \\(did you mean uniform-[234]bit or"), ("x", "no recipe \"x\": give a name"),
                               ("k=tcq4,v=tcq4,sinks=1", "\"sinks=1\" in the recipe"), ("uniform-4bit,sink", "not a key of recipes")):
            with self.assertRaisesRegex(ValueError, sentence):
                parse_recipe(text)
        for cache_type, config, sentence in (
                ("kvant", {}, "needs a recipe"), ("kvant", {"kvant": {"recipes": "x"}}, "the texts"),
                ("kvant", {"kvant": "k=tcq4"}, "the texts"), ("kvant", {"kvant": {"calibrate": "no"}}, "which is true or false"),
                ("kvant_uniform_4bit", {"kvant": {"recipe": "k=tcq4,v=tcq4"}}, "needs --kv-cache-dtype kvant, not kvant_uniform_4bit")):
            with self.assertRaisesRegex(ValueError, sentence):
                find_recipe(cache_type, config)


if __name__ == "__main__":
    unittest.main()
