"""Tests recipes with bits by layer, KV head and side, on a small random model with libkvant_cpu."""

import itertools
import unittest
import warnings
from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    raise unittest.SkipTest("no PyTorch or no transformers")
if find_spec("kvant._engine") is None:
    raise unittest.SkipTest("no engine")

import pathlib
import tempfile

import calibration_file
import cpu_library
import numpy as np
import torch
import transformers

from kvant import PAGE
from kvant.hf import KvantCache
from kvant.hf.cache import shape_of
from kvant.hf.channel_turns import turn
from kvant.paged.constants import read_constants
from kvant.paged.key_metrics import RANK
from kvant.paged.recipes import parse_recipe

N_LAYERS, N_HEADS, N_KV_HEADS, D, SINK = 2, 4, 2, 64, 4
LADDER = [f"tcq{bits}" for bits in range(1, 7)]
SENSITIVITY, METRIC = "hadamard:sensitivity/" + "+".join(LADDER), "hadamard:page-metric"
# BUDGET is the budget of kvant-4bit.
BUDGET = 4.49
PLACES = list(itertools.product(range(N_LAYERS), range(N_KV_HEADS), range(2)))
# Each pair of channels rotates by its share of a whole turn per token.
SHARES = 10.0 ** -np.arange(1, D // 2 + 1, dtype=np.float64) / 7


def model_of(**more):
    torch.manual_seed(0)
    numbers = dict(hidden_size=N_HEADS * D, num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, vocab_size=97, head_dim=D,
                   num_hidden_layers=N_LAYERS, intermediate_size=64, initializer_range=0.1, eos_token_id=None, pad_token_id=0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**numbers | more)).bfloat16().eval()


def turns_in_halves():
    """Returns turns [D, 2] in the order of checkpoints, and of GGUF models of Qwen's kind."""
    numbers = turns_in_pairs()[np.r_[0:D:2, 1:D:2]]
    numbers[:, 0] = (np.arange(D) + D // 2) % D
    return numbers


def turns_in_pairs():
    """Returns turns [D, 2] in the order of GGUF models of Llama's kind."""
    numbers = np.zeros((D, 2))
    numbers[0::2, 0], numbers[1::2, 0] = np.arange(1, D, 2), np.arange(0, D, 2)
    numbers[0::2, 1], numbers[1::2, 1] = SHARES, -SHARES
    return numbers


def constants_of(rng, turns=turns_in_pairs):
    """Makes sensitivities for errors that fall to a quarter with each bit, and random directions."""
    weights = {place: 10 ** rng.uniform(-2, 2) for place in PLACES}
    directions = {(layer, head): rng.standard_normal((D, RANK)) for layer, head, side in PLACES if side == 0}
    constants = {(*place, SENSITIVITY): [weight * 4.0 ** -bits for bits in range(1, 7)] for place, weight in weights.items()}
    constants |= {(*place, 0, METRIC): np.concatenate([x.reshape(-1), turns().reshape(-1)]) for place, x in directions.items()}
    return weights, directions, constants


def best_bits(weights):
    """Returns the choice of whole bits with the smallest error within the budget, by trying all choices. Each format
    takes 1 bit more than the previous format."""
    # A page has less than 1 bit per value in addition to its codes.
    overhead = BUDGET - np.floor(BUDGET)
    most = int(np.floor((BUDGET - overhead) * len(weights) + 1e-9))
    least, chosen = np.inf, None
    for bits in itertools.product(range(1, 7), repeat=len(weights)):
        if sum(bits) <= most:
            error = sum(w * 4.0 ** -b for w, b in zip(weights, bits))
            if error < least:
                least, chosen = error, bits
    return chosen


class Calibrated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name) / "of-gguf.gguf"
        cls.weights, cls.directions, cls.constants = constants_of(np.random.default_rng(1))
        calibration_file.write(cls.path, cls.constants)
        cls.model = model_of()

    def cache(self, kv="kvant-4bit", **options):
        with warnings.catch_warnings(record=True) as self.warned:
            warnings.simplefilter("always")
            return KvantCache(self.model.config, kv, constants=options.pop("constants", self.path), library=cpu_library.CpuLibrary(), **options)

    def test_bits_are_those_of_least_error_within_the_budget(self):
        recipe = self.cache().recipe
        self.assertEqual(recipe.name, "kvant-4bit")
        found = [int(recipe.by_head[layer][head][side][3:]) for layer, head, side in PLACES]
        self.assertTrue(set(recipe.formats) <= set(LADDER) and len(recipe.formats) > 2)
        wanted = self.errors(best_bits(list(self.weights.values())))
        self.assertLessEqual(self.errors(found), 1.0001 * wanted)
        self.assertLess(np.mean(found), BUDGET)

    def errors(self, bits):
        return sum(w * 4.0 ** -b for w, b in zip(self.weights.values(), bits))

    def rows(self, cache, steps):
        """Records what another attention receives for each layer in the last step, and what the model has stored so
        far. The two results are (keys, values), [2, heads, n, d]."""
        given, got = {}, {}
        original = cache.rows_for_other_attention

        def watched(layer, keys, values):
            at = cache.layers.index(layer)
            given.setdefault(at, []).append(torch.stack([keys, values]))
            rows = original(layer, keys, values)
            got[at] = torch.stack(rows)
            return rows

        cache.rows_for_other_attention = watched
        self.model.set_attn_implementation("sdpa")
        tokens = torch.randint(1, 97, (2, sum(steps)), generator=torch.Generator().manual_seed(2))
        warnings.filterwarnings("ignore", message="KvantCache: the model's attention")
        with torch.no_grad():
            for part in torch.split(tokens, steps, 1):
                self.model(part, past_key_values=cache)
        return {layer: torch.cat(x, 3) for layer, x in given.items()}, got

    def test_pages_of_each_head_and_side_are_in_its_format(self):
        """A prompt fills two pages and decoding fills one. A second run has keys that the engine multiplies by factors.
        """
        factors = {(layer, head): 2.0 ** np.random.default_rng(layer + 2 * head).integers(-3, 4, D // 2).repeat(2)
                   for layer, head in self.directions}
        path = self.path.parent / "factors.gguf"
        calibration_file.write(path, self.constants | {(*place, 0, "key-factors"): x for place, x in factors.items()})
        for kv, sink, constants in (("kvant-4bit", SINK, self.path), ("kvant-4bit,sink=1", 1, self.path), ("kvant-4bit", SINK, path)):
            cache = self.cache(kv, constants=constants)
            given, got = self.rows(cache, [300, *86 * [1]])
            for layer, head, side in PLACES:
                format, h = cache.recipe.by_head[layer][head][side], torch.from_numpy(cpu_library.hadamard(D))
                for sequence, page in itertools.product(range(2), range(3)):
                    tokens = slice(page * PAGE, page * PAGE + PAGE)
                    rows, found = (x[layer][side, sequence, head, tokens].float() for x in (given, got))
                    unquantized, factor = sink if page == 0 else 0, torch.ones(D)
                    if constants == path and side == 0:
                        factor = torch.from_numpy(factors[layer, head][np.r_[0:D:2, 1:D:2]]).float()
                    stored = (rows * factor @ h).bfloat16().float().numpy()
                    wanted = cpu_library.coded(stored, format, unquantized)
                    wanted = torch.from_numpy(wanted) @ h / factor
                    error, quantization, whole = ((x - y).square().sum() / rows.square().sum()
                                                  for x, y in ((found, wanted), (wanted, rows), (found, rows)))
                    where = (kv, layer, head, side, page)
                    # The metric moves errors of keys. Each further bit would change their sum by a factor of 4.
                    if side == 0:
                        self.assertTrue(quantization / 2 < whole + 1e-4 and whole < 2 * quantization + 1e-4, (where, whole, quantization))
                    else:
                        self.assertLess(error, 1e-4 + 0.02 * quantization, where)
                    if format in ("tcq1", "tcq2", "tcq3"):
                        self.assertGreater(quantization, 1e-3)

    def test_any_cut_and_both_attentions_give_the_same_and_bytes_are_as_planned(self):
        tokens = torch.randint(1, 97, (2, 300), generator=torch.Generator().manual_seed(3))
        found = []
        warnings.filterwarnings("ignore", message="KvantCache: the model's attention")
        for kind, steps in (("kvant", [300]), ("kvant", [250, *50 * [1]]), ("sdpa", [*300 * [1]])):
            self.model.set_attn_implementation(kind)
            cache = self.cache(max_tokens=384)
            with torch.no_grad():
                found.append(torch.cat([self.model(part, past_key_values=cache).logits for part in torch.split(tokens, steps, 1)], 1))
            self.assertEqual(cache.bytes, cache.planned_bytes(2, 384))
        pages = sum(cache._library.page_bytes(x, D) for layer in cache.recipe.by_head for pair in layer for x in pair)
        self.assertEqual(cache.planned_bytes(2, 1024) - cache.planned_bytes(2, 384), 5 * 2 * pages)
        for other in found[1:]:
            self.assertLess((other - found[0]).square().mean() / found[0].square().mean(), 0.01)

    def test_metrics_are_those_of_the_gguf_file_in_the_checkpoint_s_order_of_channels(self):
        metrics = read_constants(self.path, parse_recipe("kvant-4bit"), shape_of(self.model.config)).of_model.metrics
        rows = torch.randn(5, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        in_halves = torch.cat([rows[:, 0::2], rows[:, 1::2]], 1)
        places = torch.tensor([0, 64, 640, 12800, 3])
        pairs = [(2 * i, 2 * i + 1, share) for i, share in enumerate(SHARES)]
        for layer, head in self.directions:
            turns = metrics.turns[layer].double()
            halves = [(i, int(turns[i, 0]), float(turns[i, 1])) for i in range(D // 2)]
            self.assertEqual([x[1] for x in halves], [i + D // 2 for i in range(D // 2)])
            torch.testing.assert_close(turns[D // 2:, 1], -turns[:D // 2, 1])
            wanted = turn(rows, pairs, places) @ torch.from_numpy(self.directions[layer, head])
            found = turn(in_halves, halves, places) @ metrics.directions[layer, head].double()
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)

    def test_constants_are_on_the_cpu_if_another_device_is_the_default(self):
        shape = shape_of(self.model.config)
        with torch.device("meta"):
            found = read_constants(self.path, parse_recipe("kvant-4bit"), shape, serves_by_head=True).of_model.metrics
        expected = read_constants(self.path, parse_recipe("kvant-4bit"), shape, serves_by_head=True).of_model.metrics
        self.assertTrue(torch.equal(found.turns, expected.turns))

    def test_the_order_stays_where_both_have_the_same(self):
        constants = {key: x if key[3] != METRIC else np.concatenate([x[:D * RANK], turns_in_halves().reshape(-1)])
                     for key, x in self.constants.items()}
        path = self.path.parent / "halves.gguf"
        calibration_file.write(path, constants)
        found = read_constants(path, parse_recipe("kvant-4bit"), shape_of(self.model.config)).of_model.metrics
        torch.testing.assert_close(found.directions[1, 0], torch.from_numpy(self.directions[1, 0]).float())

    def test_says_what_is_not_checked_and_what_serves(self):
        cache = self.cache()
        self.assertEqual([str(x.message) for x in self.warned],
                         [f"kvant: the constants '{self.path}' were made from a GGUF file (a tiny model); kvant does not check that this "
                          "checkpoint has the same weights"])
        self.assertEqual(cache.recipe.formats, {x for layer in cache.recipe.by_head for pair in layer for x in pair})
        self.assertEqual(self.cache("uniform-3bit").recipe.by_head, ())
        path = self.path.parent / "metrics.gguf"
        calibration_file.write(path, {key: x for key, x in self.constants.items() if key[3] == METRIC})
        self.assertEqual(self.cache(constants=path).recipe.name, "uniform-4bit,encode=shaped")
        self.assertIn("is used in place of kvant-4bit, because the constants have no bits by layer and head: kvant.hf.calibrate(model, "
                      'tokenizer, "kvant-4bit")',
                      str(self.warned[-1].message))

    def test_prompts_in_integers_have_the_same_pages(self):
        self.model.set_attn_implementation("kvant")
        cache = self.cache("kvant-4bit,prompt=flashq")
        with torch.no_grad():
            self.model(torch.full((1, 260), 5), past_key_values=cache)
        self.assertEqual(cache._library.prompts_in_bytes, N_LAYERS)
        self.assertEqual(cache._library.formats_sealed,
                         {(pair[side], "KV"[side]) for layer in cache.recipe.by_head for pair in layer for side in range(2)})

    def test_files_that_do_not_fit_are_refused(self):
        from kvant import Error

        with self.assertRaisesRegex(ValueError, "are of 2 layers with 2 KV heads .*, and this model has 3 with 2"):
            KvantCache(model_of(num_hidden_layers=3).config, "kvant-4bit", constants=self.path, library=cpu_library.CpuLibrary())
        path = self.path.parent / "less.gguf"
        calibration_file.write(path, {key: x for key, x in self.constants.items() if key != (1, 1, 1, SENSITIVITY)})
        with self.assertRaisesRegex(Error, "no constants 'hadamard:sensitivity.*layer 1 KV head 1"):
            self.cache(constants=path)
        books = {(*place, ":codebook/vq-d2b8" if place[2] else "smooth+hadamard:codebook/vq-d2b8"): np.ones(512) for place in PLACES}
        calibration_file.write(path, books | {(*place, "smooth"): np.ones(D) for place in PLACES if place[2] == 0})
        with self.assertRaisesRegex(ValueError, "codebooks and scales of keys for a checkpoint must be made by kvant.hf.calibrate"):
            self.cache("vecinfer-4bit,window=0", constants=path)


if __name__ == "__main__":
    unittest.main()
