"""Tests what calibration reads from a small random model of transformers against autograd and sums by hand. Tests of
files need the engine."""

import unittest
from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    raise unittest.SkipTest("no PyTorch or no transformers")

import itertools
import pathlib
import tempfile
import warnings

import cpu_library
import numpy as np
import torch
import transformers

from kvant import PAGE
from kvant.hf import KvantCache, calibrate, reading
from kvant.hf.cache import shape_of
from kvant.hf.channel_turns import PROBED_SHIFT, candidates, turn, turns_of_layers
from kvant.paged import checkpoint, constants
from kvant.paged.key_metrics import RANK, hadamard_matrix
from kvant.paged.recipes import calibrated, parse_recipe

if find_spec("kvant._engine") is not None:
    from kvant import Error

N_HEADS, N_KV_HEADS, D, N_LAYERS = 4, 2, 64, 2
RECIPE = "k=hadamard:tcq4,v=hadamard:tcq4,sink=1"


def small_model(kind=transformers.LlamaForCausalLM, config=transformers.LlamaConfig, **more):
    torch.manual_seed(0)
    numbers = dict(hidden_size=N_HEADS * D, num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS, vocab_size=97, head_dim=D,
                   num_hidden_layers=N_LAYERS, intermediate_size=64, initializer_range=0.1, eos_token_id=None, pad_token_id=0,
                   max_position_embeddings=4096)
    return kind(config(**numbers | more)).eval()


def queries_of(model, shift, n=24):
    found = []
    tokens = torch.randint(1, 97, (n,), generator=torch.Generator().manual_seed(3))
    with reading.reading(model):
        reading.read(model, tokens, torch.arange(n) + shift, model.config.num_hidden_layers,
                     lambda layer, q, keys, values, scale: found.append(q))
    return found


class Reading(unittest.TestCase):
    def test_computes_what_the_model_does_and_leaves_it_as_it_was(self):
        model = small_model().train()
        tokens = torch.randint(1, 97, (300,), generator=torch.Generator().manual_seed(2))
        seen = []
        with reading.reading(model):
            found = model(tokens[None], past_key_values=reading.ReadingCache(N_LAYERS, lambda *what: seen.append(what)),
                          use_cache=True).logits
        self.assertTrue(model.training and all(x.requires_grad for x in model.parameters()))
        self.assertEqual(model.config._attn_implementation, "sdpa")
        wanted = model.eval()(tokens[None], use_cache=True)
        torch.testing.assert_close(found, wanted.logits, rtol=1e-4, atol=1e-4)
        for layer, q, keys, values, scale in seen:
            self.assertEqual((q.shape, scale), ((N_HEADS, 300, D), D ** -0.5))
            torch.testing.assert_close(keys[None], wanted.past_key_values.layers[layer].keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(values[None], wanted.past_key_values.layers[layer].values, rtol=1e-4, atol=1e-5)

    def test_attention_and_what_each_query_counts_are_those_of_autograd(self):
        rng = torch.Generator().manual_seed(4)
        n, scale = 2 * PAGE + 40, 0.3
        q, keys, values = (torch.randn(heads, n, D, generator=rng, requires_grad=True) for heads in (N_HEADS, N_KV_HEADS, N_KV_HEADS))
        wide = [x.repeat_interleave(N_HEADS // N_KV_HEADS, 0) for x in (keys, values)]
        scores = q @ wide[0].transpose(1, 2) * scale
        scores.retain_grad()
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        out = scores.masked_fill(later, float("-inf")).softmax(-1) @ wide[1]
        loss = torch.randn(out.shape, generator=rng)
        wanted = torch.autograd.grad((out * loss).sum(), (q, keys, values, scores))
        counted, gradients = [], []
        found_out = reading._Attention.apply(q, keys, values, scale, lambda *what: counted.append(what),
                                             lambda *what: gradients.append(what))
        torch.testing.assert_close(found_out, out, rtol=1e-4, atol=1e-5)
        for x, y in zip(torch.autograd.grad((found_out * loss).sum(), (q, keys, values)), wanted):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
        for x, y in zip(gradients[0], (q, keys, values, loss)):
            torch.testing.assert_close(x, y)
        (seen, lengths), = counted
        torch.testing.assert_close(seen, q)
        for token in (0, 100, PAGE, n - 1):
            # `lengths` are norms of derivatives by q.k, which are `scale` times the derivatives by the scaled scores.
            sealed = scale * wanted[3][:, token, 4:token // PAGE * PAGE]
            torch.testing.assert_close(lengths[:, token], sealed.norm(dim=-1), rtol=1e-3, atol=1e-5)

    def test_turns_are_found_for_every_kind_of_rope(self):
        kinds = {"halves": small_model(), "a part of each head": small_model(transformers.PhiForCausalLM, transformers.PhiConfig,
                                                                             partial_rotary_factor=0.5),
                 "neighbours": small_model(transformers.CohereForCausalLM, transformers.CohereConfig),
                 "not in every layer": small_model(transformers.SmolLM3ForCausalLM, transformers.SmolLM3Config,
                                                   no_rope_layers=[1, 0])}
        for kind, model in kinds.items():
            with self.subTest(kind):
                turns = turns_of_layers(candidates(model, D), queries_of(model, 0), queries_of(model, PROBED_SHIFT))
                far = queries_of(model, 1000)
                for layer, (q, q_far) in enumerate(zip(queries_of(model, 0), far)):
                    error = turn(q_far, turns[layer], torch.full((q.shape[1],), -1000)) - q
                    self.assertLess(error.norm() / q.norm(), 1e-3)
                if kind == "not in every layer":
                    self.assertEqual([len(x) for x in turns], [D // 2, 0])
                if kind == "a part of each head":
                    self.assertEqual(len(turns[0]), D // 4)

    def test_scores_that_are_drawn_have_fisher_s_information_as_their_covariance(self):
        logits = torch.tensor([2.0, 0.0, -1.0, 5.0])
        p = logits.softmax(-1)
        u = reading.drawn_scores(logits.expand(200000, 4), torch.Generator().manual_seed(7))
        torch.testing.assert_close(u.mean(0), torch.zeros(4), rtol=0, atol=2e-3)
        torch.testing.assert_close(u.T @ u / len(u), p.diag() - p.outer(p), rtol=0, atol=2e-3)

    def test_unknown_turns_are_refused(self):
        model = small_model()
        queries = queries_of(model, 0)
        with self.assertRaisesRegex(NotImplementedError, "kind of RoPE"):
            turns_of_layers(candidates(model, D), queries, [torch.randn_like(q) for q in queries])


class Fingerprints(unittest.TestCase):
    def test_files_and_memory_agree_whatever_the_type_and_other_weights_differ(self):
        model = small_model()
        with tempfile.TemporaryDirectory() as folder:
            model.bfloat16().save_pretrained(folder, max_shard_size="100KB")
            self.assertGreater(len(list(pathlib.Path(folder).glob("*.safetensors"))), 1)
            in_files = checkpoint.of_files(folder, model.config)
            for kind in (torch.float32, torch.bfloat16):
                loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
                self.assertEqual(checkpoint.of_model(loaded, loaded.config), in_files)
            with torch.no_grad():
                loaded.model.layers[1].self_attn.k_proj.weight[0, 0] += 1
            self.assertNotEqual(checkpoint.of_model(loaded, loaded.config), in_files)
            self.assertTrue(in_files.startswith(checkpoint.of_config(model.config) + "-"))

    def test_another_checkpoint_is_refused_with_its_name(self):
        checkpoint.check_fingerprint("12-34", "12-34", "Other", "file")
        with self.assertRaisesRegex(ValueError, "of another checkpoint \\(Other, fingerprint 12-34, not 12-56\\)"):
            checkpoint.check_fingerprint("12-56", "12-34", "Other", "file")

    def test_a_folder_without_safetensors_is_refused(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(ValueError, "safetensors"):
            checkpoint.of_files(folder, small_model().config)


class Slices(unittest.TestCase):
    def test_ranks_have_the_heads_that_vllm_gives_them(self):
        found = {(n, ranks): [constants.heads_of_rank(n, rank, ranks) for rank in range(ranks)]
                 for n, ranks in ((8, 1), (8, 2), (2, 8))}
        self.assertEqual(found[8, 1], [slice(0, 8)])
        self.assertEqual(found[8, 2], [slice(0, 4), slice(4, 8)])
        self.assertEqual([x.start for x in found[2, 8]], [0, 0, 0, 0, 1, 1, 1, 1])
        self.assertTrue(all(x.stop == x.start + 1 for x in found[2, 8]))

    def test_hadamard_matrix_is_the_library_s(self):
        torch.testing.assert_close(hadamard_matrix(D), torch.from_numpy(cpu_library.hadamard(D)))


def calibrate_for(cls, recipe: str):
    """Prepares for a test class the model, its tokens, and the calibration file for a recipe in a folder that does not
    exist yet."""
    cls.folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(cls.folder.cleanup)
    cls.model = small_model()
    cls.tokens = torch.randint(1, 97, (5000,), generator=torch.Generator().manual_seed(5)).numpy()
    cls.path = calibrate(cls.model, cls.tokens, recipe, path=pathlib.Path(cls.folder.name) / "made" / "constants.gguf")
    cls.shape = shape_of(cls.model.config)


@unittest.skipIf(find_spec("kvant._engine") is None, "no engine")
class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        calibrate_for(cls, RECIPE)

    def constants(self, recipe=RECIPE):
        return constants.read_constants(self.path, parse_recipe(recipe), self.shape)

    def test_hold_the_directions_of_queries_before_rope(self):
        """The largest direction of a head's metric must be the largest direction of the moments of its queries. Only
        autograd adds the moments up in this test."""
        rng, sums = torch.Generator().manual_seed(0), torch.zeros(N_LAYERS, N_KV_HEADS, D, D, dtype=torch.float64)
        from kvant import _engine

        made = _engine.OutsideCalibration.make("", "", self.shape.geometry(), N_LAYERS * [[]], calibrated(parse_recipe(RECIPE)).text,
                                               "", "cpu", 0)
        # The model rotates channel i with channel i + half.
        turns = candidates(self.model, D)[1]
        for context, _ in made.query_contexts(self.tokens.astype("int32"), -1):
            seen = []
            with reading.reading(self.model):
                reading.read_back(self.model, torch.from_numpy(context).long(), 128, rng, N_LAYERS,
                                  lambda layer, q, lengths: seen.append((layer, q, lengths)))
            for layer, q, lengths in seen:
                rows = turn(q.double(), turns, -torch.arange(len(context))) * lengths.double().sqrt()[..., None]
                for head in range(N_HEADS):
                    sums[layer, head * N_KV_HEADS // N_HEADS] += rows[head].T @ rows[head]
        found = self.constants().of_model.metrics
        self.assertEqual(found.directions.shape, (N_LAYERS, N_KV_HEADS, D, RANK))
        # Channels that hardly rotate keep their moments at any distance.
        slow = torch.arange(D) % (D // 2) >= D // 4
        for layer, head in itertools.product(range(N_LAYERS), range(N_KV_HEADS)):
            v = found.directions[layer, head].double()
            m, metric = sums[layer, head][slow][:, slow], torch.eye(D).double() + v @ v.T
            probes = torch.linalg.eigh(m)[1][:, [0, -1]]
            costs = [(x @ metric[slow][:, slow] @ x).item() for x in probes.T]
            self.assertGreater(costs[1], 1.5 * costs[0])

    def test_turns_are_those_of_the_model(self):
        turns = self.constants().of_model.metrics.turns
        self.assertEqual(turns[0, :, 0].tolist(), [(i + D // 2) % D for i in range(D)])
        frequencies = self.model.model.rotary_emb.inv_freq / (2 * torch.pi)
        torch.testing.assert_close(turns[1, :D // 2, 1], frequencies)
        torch.testing.assert_close(turns[1, D // 2:, 1], -frequencies)

    def test_one_file_serves_recipes_behind_the_same_rotation(self):
        for recipe in ("uniform-4bit", "uniform-2bit", "kvant-2bit,prompt=flashq", "k=hadamard:tcq3,v=tok3g64,sink=4"):
            self.assertTrue(self.constants(recipe).recipe.is_shaped)
        with self.assertRaisesRegex(Error, "no constants"):
            self.constants("k=tcq4,v=tcq4,sink=1")
        with self.assertRaisesRegex(ValueError, "takes no constants"):
            self.constants("k=ch4g128,v=tok4g128,sink=1")

    def test_are_found_again_and_those_of_another_model_stay(self):
        before = self.path.stat().st_mtime_ns
        self.assertEqual(calibrate(self.model, self.tokens, RECIPE, path=self.path), self.path)
        self.assertEqual(self.path.stat().st_mtime_ns, before)
        with self.assertRaisesRegex(ValueError, "of another checkpoint"):
            calibrate(small_model(initializer_range=0.2), self.tokens, RECIPE, path=self.path)
        with self.assertRaisesRegex(ValueError, "give the file"):
            calibrate(self.model, self.tokens)

    def test_what_would_fail_late_or_on_the_gpu_is_refused_first(self):
        new = self.path.parent / "new.gguf"
        for tokens, message in ((self.tokens + 97, "the model's tokens are from 0 to 96, and these from"),
                                (np.full(5000, 2**40), "and these from 1099511627776"), (-self.tokens - 1, "is it the model's own")):
            with self.assertRaisesRegex(ValueError, message):
                calibrate(self.model, tokens, RECIPE, path=new)
        with self.assertRaisesRegex(OSError, "cannot write .*constants.gguf/new.gguf: .*name another file"):
            calibrate(self.model, self.tokens, RECIPE, path=self.path / "new.gguf")
        for wrong in ((self.model, None), ("model", self.tokens)):
            with self.assertRaisesRegex(TypeError, "kvant.hf.calibrate takes"):
                calibrate(*wrong, RECIPE, path=new)
        self.assertFalse(new.exists())

    def test_a_cache_takes_them_and_refuses_those_of_other_shapes(self):
        cache = KvantCache(self.model.config, RECIPE, constants=self.path, library=cpu_library.CpuLibrary())
        self.assertEqual(cache.recipe.text, RECIPE + ",encode=shaped")
        warnings.filterwarnings("ignore", message="KvantCache: the model's attention")
        self.model.generate(torch.from_numpy(self.tokens[None, :260]), past_key_values=cache, max_new_tokens=4, do_sample=False)
        seen = cache._library.metrics_seen
        # `seen` has an entry for each sealed page of keys.
        self.assertEqual(len(seen), N_LAYERS * N_KV_HEADS * 2)
        self.assertEqual({page for _, page in seen.values()}, {0, 1})
        wanted = {x.item() for x in self.constants().of_model.metrics.directions[:, :, 0, 0].flatten()}
        self.assertEqual({first for first, _ in seen.values()}, wanted)
        other = small_model(vocab_size=101).config
        with self.assertRaisesRegex(ValueError, "of another checkpoint"):
            KvantCache(other, RECIPE, constants=self.path, library=cpu_library.CpuLibrary())
        with self.assertRaisesRegex(ValueError, "are of 2 layers with 2 KV heads"):
            KvantCache(small_model(num_hidden_layers=3).config, RECIPE, constants=self.path, library=cpu_library.CpuLibrary())


@unittest.skipIf(find_spec("kvant._engine") is None, "no engine")
class Sensitivities(unittest.TestCase):
    """The model's layer 1 ignores its first KV head, and layer 0 hardly reads its second one."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path, cls.model = pathlib.Path(folder.name) / "constants.gguf", small_model()
        group = D * N_HEADS // N_KV_HEADS
        with torch.no_grad():
            cls.model.model.layers[1].self_attn.o_proj.weight[:, :group] = 0
            cls.model.model.layers[0].self_attn.o_proj.weight[:, group:] *= 0.1
        cls.tokens = torch.randint(1, 97, (5000,), generator=torch.Generator().manual_seed(5)).numpy()
        calibrate(cls.model, cls.tokens, "kvant-4bit", path=cls.path)
        cls.shape = shape_of(cls.model.config)

    def test_are_those_of_what_the_model_reads(self):
        from kvant import _engine

        found = {(layer, head, side): values for layer, head, side, name, values in
                 _engine.Calibration.read(str(self.path)).constants("kvant-4bit", self.shape.geometry()) if name.startswith("sensitivity")}
        self.assertEqual(len(found), N_LAYERS * N_KV_HEADS * 2)
        for place, values in found.items():
            self.assertTrue((np.diff(values) < 0).all(), place)
        for side in range(2):
            by_place = [found[layer, head, side][3] for layer, head in ((1, 0), (0, 1), (0, 0), (1, 1))]
            self.assertEqual(min(range(4), key=by_place.__getitem__), 0)
            # Errors that are read a tenth as strongly cost a hundredth, and every head and side gets at least 3 % of
            # the mean.
            self.assertLess(by_place[1], 0.25 * by_place[2])
        floor = [0.03 * np.mean([values[bits] for values in found.values()]) / 1.03 for bits in range(6)]
        for side in range(2):
            np.testing.assert_allclose(found[1, 0, side], floor, rtol=1e-3)

    def test_give_the_cache_its_bits_without_a_warning(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache = KvantCache(self.model.config, "kvant-4bit", constants=self.path, library=cpu_library.CpuLibrary())
        self.assertEqual(cache.recipe.name, "kvant-4bit")
        bits = {(layer, head, side): int(cache.recipe.by_head[layer][head][side][3:])
                for layer, head, side in itertools.product(range(N_LAYERS), range(N_KV_HEADS), range(2))}
        self.assertLess(max(bits[1, 0, 0], bits[1, 0, 1]), min(bits[0, 0, 0], bits[0, 0, 1]))

    def test_are_added_to_a_file_without_them_and_found_again(self):
        path = self.path.parent / "more.gguf"
        calibrate(self.model, self.tokens, "uniform-4bit", path=path)
        without = path.stat().st_size
        calibrate(self.model, self.tokens, "kvant-4bit", path=path)
        self.assertGreater(path.stat().st_size, without)
        before = path.stat().st_mtime_ns
        calibrate(self.model, self.tokens, "kvant-4bit", path=path)
        self.assertEqual(path.stat().st_mtime_ns, before)


@unittest.skipIf(find_spec("kvant._engine") is None, "no engine")
class VecInfer(unittest.TestCase):
    """Tests codebooks of 256 centroids of two channels after smoothing and a rotation."""

    @classmethod
    def setUpClass(cls):
        calibrate_for(cls, "vecinfer-4bit,window=0")
        cls.found = constants.read_constants(cls.path, parse_recipe("vecinfer-4bit,window=0"), cls.shape).of_model

    def rows(self):
        """Returns K and V of each layer, [n_kv_heads, n, d], for the tokens after the sink in the texts that
        calibration read."""
        seen = {layer: ([], []) for layer in range(N_LAYERS)}
        from kvant import _engine

        made = _engine.OutsideCalibration.make("", "", self.shape.geometry(), N_LAYERS * [[]], parse_recipe("vecinfer-4bit,window=0").text,
                                               "", "cpu", 0)
        with reading.reading(self.model):
            for sample, offset in made.samples(self.tokens.astype("int32"), -1):
                positions = torch.arange(len(sample))
                positions[reading.SINK_TOKENS:] += offset
                reading.read(self.model, torch.from_numpy(sample).long(), positions, N_LAYERS, lambda layer, q, *sides: [
                    rows.append(x[:, reading.SINK_TOKENS:]) for rows, x in zip(seen[layer], sides)])
        return [[torch.cat(rows, 1) for rows in seen[layer]] for layer in range(N_LAYERS)]

    def test_smooths_by_the_root_of_the_largest_and_has_a_codebook_for_every_head(self):
        self.assertIsNone(self.found.metrics)
        self.assertEqual(self.found.codebooks.keys.shape, (N_LAYERS, N_KV_HEADS, 512))
        for layer, (keys, values) in enumerate(self.rows()):
            roots = keys.abs().amax(1).sqrt()
            scales = self.found.key_scales.of_queries[layer]
            # Calibration keeps only a part of the tokens that it reads, in 16 bits.
            self.assertTrue((scales < 1.003 * roots).all() and (scales > 0.8 * roots).all())
            stored = (keys / scales[:, None]) @ hadamard_matrix(D)
            for rows, books in ((stored, self.found.codebooks.keys[layer]), (values, self.found.codebooks.values[layer])):
                for head in range(N_KV_HEADS):
                    pairs = rows[head].reshape(-1, 2)[::7]
                    nearest = torch.cdist(pairs, books[head].float().view(256, 2)).amin(1).square().sum()
                    self.assertLess(nearest / pairs.square().sum(), 0.02)

    def test_serves_the_cache_and_no_recipe_with_other_codebooks(self):
        cache = KvantCache(self.model.config, "vecinfer-4bit,window=0", constants=self.path, library=cpu_library.CpuLibrary())
        tokens = torch.from_numpy(self.tokens[None, :300]).long()
        self.model.set_attn_implementation("sdpa")
        wanted = self.model(tokens).logits
        warnings.filterwarnings("ignore", message="KvantCache: the model's attention")
        found = torch.cat([self.model(part, past_key_values=cache).logits for part in tokens.split([256, 1, 43], 1)], 1)
        error = ((found - wanted)[:, 260:].square().mean() / wanted[:, 260:].square().mean()).item()
        self.assertTrue(1e-6 < error < 0.2, error)
        with self.assertRaisesRegex(Error, "no constants"):
            constants.read_constants(self.path, parse_recipe("vecinfer-2bit,window=0"), self.shape)
        with self.assertRaisesRegex(ValueError, "needs constants of the model.*constants=FILE"):
            KvantCache(self.model.config, "vecinfer-4bit,window=0", library=cpu_library.CpuLibrary())


if __name__ == "__main__":
    unittest.main()
