"""Runs a small random model with calibrated bits by layer, head and side in blocks that hold all layers, as vLLM 0.33
has them. The predictions are compared with those of the engine, which reads the same weights and constants."""

import pathlib
import re
import tempfile
import unittest
from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    raise unittest.SkipTest("no PyTorch or no transformers")
if find_spec("kvant._engine") is None:
    raise unittest.SkipTest("no engine")

import calibration_file
import cpu_library  # noqa: F401, before NumPy
import numpy as np
import paged_server
import tiny_gguf
import torch
import transformers
from test_calibrated_recipe import constants_of, turns_in_halves

import kvant
from kvant.hf.cache import shape_of
from kvant.paged import checkpoint
from kvant.paged.constants import read_constants
from kvant.paged.recipes import parse_recipe
from kvant.vllm.constants import calibrate

PAGE = kvant.PAGE


class Served:
    """Holds what a request of the model needs from the server: rows of layers, which the model's attention fills in."""

    def __init__(self, tokens):
        self.tokens, self.computed, self.blocks, self.tail = tokens, 0, [], []
        self.logprobs = np.full(len(tokens), np.nan)


class ModelServer:
    """Runs steps of several requests through transformers' model, with the attention of the plug-in's own code."""

    serving = None

    def __init__(self, model, recipe, constants, n_blocks=64):
        self.model, self.server = model, paged_server.Server(recipe, constants=constants, n_blocks=n_blocks, has_arenas=True)
        # The first of the server's layers is the first of the model's.
        transformers.AttentionInterface.register("paged_server", self._attend)
        transformers.AttentionMaskInterface.register("paged_server", lambda *args, **kwargs: None)
        model.set_attn_implementation("paged_server")

    def _attend(self, module, query, key, value, attention_mask, **_):
        rows = [x[0].transpose(0, 1).contiguous() for x in (query, key, value)]
        out = torch.empty_like(rows[0])
        self.server.attend(self._step, self.server.state.layers[module.layer_idx], *rows, out)
        return out[None], None

    def step(self, work):
        """Runs a step. `work` lists requests and their numbers of new tokens."""
        server = self.server
        for request, n in work:
            request.tail = request.tail or server.take(server.layout.own_blocks)
            request.blocks += server.take(-(-(request.computed + n) // PAGE) - len(request.blocks))
        begins = torch.tensor(np.concatenate(([0], np.cumsum([n for _, n in work]))), dtype=torch.int32)
        lens = torch.tensor([request.computed + n for request, n in work], dtype=torch.int32)
        common = dict(num_reqs=len(work), num_actual_tokens=int(begins[-1]), query_start_loc_cpu=begins, query_start_loc=begins,
                      seq_lens=lens, seq_lens_cpu_upper_bound=lens)
        for kind, blocks in (("sealed", [r.blocks for r, _ in work]), ("tail", [r.tail for r, _ in work])):
            self._step = server.describe(kind, block_table_tensor=server._table(blocks), **common)
        tokens = np.concatenate([request.tokens[request.computed:request.computed + n] for request, n in work])
        positions = np.concatenate([np.arange(request.computed, request.computed + n) for request, n in work])
        with torch.no_grad():
            logits = self.model(torch.from_numpy(tokens)[None], position_ids=torch.from_numpy(positions)[None], use_cache=False).logits[0]
        logprobs, row = logits.double().log_softmax(-1).numpy(), 0
        for request, n in work:
            for i in range(n):
                at = request.computed + i
                if at + 1 < len(request.tokens):
                    request.logprobs[at] = logprobs[row + i, request.tokens[at + 1]]
            request.computed, row = request.computed + n, row + n


class Calibrated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder, rng = pathlib.Path(folder.name), np.random.default_rng(1)
        weights = tiny_gguf.weights(rng)
        cls.gguf = cls.folder / "tiny.gguf"
        tiny_gguf.write(cls.gguf, weights)
        cls.model, cls.tokens = tiny_gguf.of_transformers(weights), rng.integers(0, tiny_gguf.N_VOCAB, (2, 420))
        _, _, cls.constants = constants_of(rng, turns_in_halves)
        cls.path = cls.folder / "constants.gguf"
        calibration_file.write(cls.path, cls.constants)
        with cls().assertRaisesRegex(kvant.Error, "of another model") as refused:
            cls.engine("kvant-2bit")
        calibration_file.write(cls.path, cls.constants, re.search("not ([0-9a-f]+)", str(refused.exception))[1])

    @classmethod
    def engine(cls, kv):
        return kvant.Model(cls.gguf, kv, calibration=cls.path if kv.startswith("kvant") else "", threads=1)

    def served(self, kv, n_blocks=64):
        found = read_constants(self.path, parse_recipe(kv), shape_of(self.model.config), serves_by_head=True)
        self.assertGreater(len(found.recipe.formats), 2)
        self.assertIsNotNone(found.of_model.metrics)
        return ModelServer(self.model, found.recipe, found.of_model, n_blocks)

    def test_predictions_are_the_engine_s(self):
        """Two requests run at once, in chunks that end within pages, and then token by token across a page's end."""
        unquantized = [self.engine("bf16").score(x) for x in self.tokens]
        for kv in ("kvant-4bit", "kvant-2bit"):
            server, requests, engine = self.served(kv), [Served(x) for x in self.tokens], self.engine(kv)
            a, b = requests
            for work in ([(a, 100)], [(a, 180), (b, 130)], [(b, 110), (a, 1)], *20 * [[(a, 1), (b, 1)]], [(b, 100), (a, 100)]):
                server.step(work)
            for request, tokens, bf16 in zip(requests, self.tokens, unquantized):
                mine, theirs, bf16 = (x[:request.computed - 1] for x in (request.logprobs, engine.score(tokens), bf16))
                loss = np.square(theirs - bf16).mean()
                self.assertGreater(loss, 0.01)
                # Without metrics of keys, or in other formats, the difference would be about as large as the loss.
                self.assertLess(np.square(mine - theirs).mean(), 0.1 * loss, kv)

    def test_chunks_hits_forks_and_preemption_change_nothing(self):
        for kv in ("kvant-4bit", "kvant-2bit"):
            server, whole = self.served(kv), Served(self.tokens[0])
            server.step([(whole, 400)])
            # A prefix hit, and a fork: two requests go on with one request's blocks.
            hit, fork = Served(self.tokens[0]), Served(np.concatenate([self.tokens[0][:256], self.tokens[1][:164]]))
            for request in (hit, fork):
                server.server.share(whole, request, 2)
            server.step([(hit, 144), (fork, 100)])
            np.testing.assert_allclose(hit.logprobs[256:399], whole.logprobs[256:399], atol=0.05)
            alone = Served(fork.tokens)
            for n in (128, 128, 50, 50):
                server.step([(alone, n)])
            np.testing.assert_allclose(fork.logprobs[256:355], alone.logprobs[256:355], atol=0.05)
            # A preempted request loses its blocks, and another request overwrites these blocks.
            server.server.preempt(alone)
            other = Served(self.tokens[1])
            server.step([(other, 380)])
            before = alone.logprobs.copy()
            for n in (300, 56):
                server.step([(alone, n)])
            np.testing.assert_allclose(alone.logprobs[:355], before[:355], atol=0.05)
            for work in 3 * [[(whole, 1), (hit, 1)]]:
                server.step(work)
            np.testing.assert_allclose(hit.logprobs[399:402], whole.logprobs[399:402], atol=0.05)

    def test_each_rank_has_the_whole_budget_for_its_heads(self):
        shape, bits = shape_of(self.model.config), {}
        for n_ranks in (1, 2, 4):
            recipe = read_constants(self.path, parse_recipe("kvant-4bit"), shape, serves_by_head=True, n_ranks=n_ranks).recipe
            self.assertEqual([len(layer) for layer in recipe.by_head], shape.n_layers * [shape.n_kv_heads])
            bits[n_ranks] = np.array([[[int(format[3:]) for format in pair] for pair in layer] for layer in recipe.by_head])
            self.assertLessEqual(bits[n_ranks].mean(), 4.5)
        # One budget for all heads gives the two heads unlike numbers of bits.
        of_heads = {n_ranks: x.mean((0, 2)) for n_ranks, x in bits.items()}
        self.assertGreater(np.ptp(of_heads[1]), np.ptp(of_heads[2]))
        self.assertLessEqual(of_heads[2].max(), 4.5)
        # Two of four ranks share a head.
        np.testing.assert_array_equal(bits[4], bits[2])

    def test_the_command_calibrates_a_folder_as_vllm_s_first_start_does(self):
        import tokenizers

        # Each character of the text is a token.
        vocabulary = {"<unknown>": 0} | {chr(31 + i): i for i in range(1, tiny_gguf.N_VOCAB)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unknown>"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
        folder, path = self.folder / "checkpoint", self.folder / "made.gguf"
        self.model.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        calibrate(str(folder), "kvant-4bit", path)
        found = read_constants(path, parse_recipe("kvant-4bit"), shape_of(self.model.config), serves_by_head=True)
        self.assertEqual((found.recipe.name, found.is_of_gguf), ("kvant-4bit", False))
        self.assertEqual(len(found.recipe.by_head), tiny_gguf.N_LAYERS)
        self.assertEqual(found.fingerprint, checkpoint.of_files(folder, self.model.config))
        with self.assertRaisesRegex(RuntimeError, "calibration failed \\(.*nothing"):
            calibrate(str(self.folder / "nothing"), "kvant-4bit", path)


if __name__ == "__main__":
    unittest.main()
