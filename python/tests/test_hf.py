"""Tests KvantCache with a small random model of transformers on a CPU."""

import copy
import unittest
import warnings
from importlib.util import find_spec

if find_spec("torch") is None or find_spec("transformers") is None:
    raise unittest.SkipTest("no PyTorch or no transformers")

import cpu_library
import numpy as np
import torch
import transformers

from kvant.hf import KvantCache, varlen_attention
from kvant.paged import step_rules
from kvant.torch import TorchLibrary

RECIPE = "k=hadamard:tok4g64,v=hadamard:tok4g64,sink=1"
N_HEADS, N_KV_HEADS, D = 4, 2, 64


class Pieces(unittest.TestCase):
    """Compares turns of rows and earlier pages with one attention that has a page table."""

    def test_attend_to_what_the_plan_says(self):
        for computed, lens in (([0], [1]), ([0, 0], [128, 700]), ([100, 0, 256], [29, 513, 384]), ([5], [1200])):
            plan = step_rules.plan_prefill(np.array(computed), np.array(lens))
            rng = torch.Generator().manual_seed(1)
            q = torch.randn(sum(lens), N_HEADS, D, generator=rng).bfloat16()
            keys, values = torch.randn(2, len(plan.seen) + plan.n_pieces, 128, N_KV_HEADS, D, generator=rng).bfloat16()
            what = dict(cu_seqlens_q=torch.tensor(plan.first_rows), max_seqlen_q=int(plan.n_rows.max()),
                        seqused_k=torch.tensor(plan.n_visible_tokens), max_seqlen_k=int(plan.n_visible_tokens.max()),
                        block_table=torch.tensor(plan.visible), softmax_scale=0.2, causal=True, return_softmax_lse=True)
            wanted, wanted_lse = cpu_library.varlen_attention(q, keys, values, **what)
            out = torch.empty_like(q)
            _, lse = varlen_attention.PieceAttention(plan, torch.device("cpu"))(q, keys, values, out=out, **what)
            self.assertLess((out.float() - wanted.float()).abs().max(), 0.02)
            self.assertLess((lse - wanted_lse).abs().max(), 1e-3)


class Generation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(hidden_size=N_HEADS * D, num_attention_heads=N_HEADS, num_key_value_heads=N_KV_HEADS,
                                          num_hidden_layers=2, intermediate_size=64, vocab_size=97, head_dim=D,
                                          initializer_range=0.1, eos_token_id=None, pad_token_id=0)
        cls.model = transformers.LlamaForCausalLM(config).bfloat16().eval()

    def setUp(self):
        self.model.set_attn_implementation("kvant")
        self.prompt = torch.randint(1, 97, (2, 300), generator=torch.Generator().manual_seed(2))

    def cache(self, recipe=RECIPE, library=None, **options):
        return KvantCache(self.model.config, recipe, library=library or cpu_library.CpuLibrary(), **options)

    @torch.no_grad()
    def logits(self, tokens, cache, steps=(), **more):
        """Returns the logits, F32 [batch, tokens, vocabulary], with the tokens cut into steps."""
        parts = torch.split(tokens, [*steps, tokens.shape[1] - sum(steps)], dim=1)
        return torch.cat([self.model(part, past_key_values=cache, **more).logits for part in parts], 1).float()

    def test_any_cut_of_a_prompt_and_decoding_give_the_same(self):
        whole = self.logits(self.prompt, self.cache())
        for steps in ([128, 100], [250] + 10 * [1], [1, 130]):
            cut = self.logits(self.prompt, self.cache(), steps)
            self.assertLess((cut - whole).square().mean() / whole.square().mean(), 1e-3, steps)

    def test_is_near_to_an_unquantized_cache_and_not_equal(self):
        found = self.logits(self.prompt, self.cache())
        self.model.set_attn_implementation("sdpa")
        wanted = self.logits(self.prompt, transformers.DynamicCache(config=self.model.config))
        own_page, later = ((found[:, tokens] - wanted[:, tokens]).square().mean() / wanted.square().mean()
                           for tokens in (slice(0, 128), slice(128, None)))
        # A token's own page is unquantized.
        self.assertLess(own_page, 1e-3)
        self.assertTrue(own_page < later < 0.2, (own_page, later))

    def test_single_tokens_give_their_queries_in_f32(self):
        """The comparison attends to BF16 keys and values, as the tail stores them, without any other rounding."""

        class Rounded(transformers.DynamicCache):
            def update(self, keys, values, *args, **kwargs):
                return super().update(keys.bfloat16().float(), values.bfloat16().float(), *args, **kwargs)

        model = copy.deepcopy(self.model).float()
        found = []
        for kind, cache in (("kvant", self.cache("k=tok4g64,v=tok4g64")), ("sdpa", Rounded(config=model.config))):
            model.set_attn_implementation(kind)
            with torch.no_grad():
                steps = [model(self.prompt[:, i:i + 1], past_key_values=cache).logits for i in range(40)]
            found.append(torch.cat(steps, 1))
        error = (found[0] - found[1]).square().mean() / found[1].square().mean()
        self.assertLess(error, 1e-9)

    def test_prompts_in_integers_are_near_and_decoding_is_exact(self):
        whole = self.logits(self.prompt, self.cache())
        library = cpu_library.CpuLibrary()
        cache = self.cache(RECIPE + ",prompt=flashq", library)
        found = self.logits(self.prompt, cache, [128, 160])
        self.assertEqual(library.prompts_in_bytes, 3 * len(cache.layers))
        self.assertLess((found - whole).square().mean() / whole.square().mean(), 0.02)
        self.logits(self.prompt[:, :2], cache, [1])
        self.assertEqual(library.prompts_in_bytes, 3 * len(cache.layers))

    def test_other_attention_gets_dequantized_rows_and_a_warning(self):
        wanted = self.logits(self.prompt, self.cache(), [128, 100])
        self.model.set_attn_implementation("sdpa")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = self.logits(self.prompt, self.cache(), [128, 100, 28] + 10 * [1])
        self.assertTrue(any("dequantized" in str(warning.message) for warning in warned))
        self.assertLess((found - wanted).square().mean() / wanted.square().mean(), 0.02)

    def test_padding_at_the_left_changes_nothing(self):
        short = self.prompt[:1, :200]
        padded = torch.cat([torch.cat([torch.zeros(1, 100, dtype=torch.long), short], 1), self.prompt[1:]])
        mask = torch.ones_like(padded)
        mask[0, :100] = 0
        options = dict(max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True)
        cache = self.cache()
        both = self.model.generate(padded, attention_mask=mask, past_key_values=cache, **options)
        self.assertEqual(cache.lengths, [205, 305])
        for row, tokens in enumerate((short, self.prompt[1:])):
            alone = self.model.generate(tokens, past_key_values=self.cache(), **options)
            self.assertLess((both.logits[0][row] - alone.logits[0][0]).abs().max(), 0.1)

    def test_takes_the_bytes_that_it_plans(self):
        cache = self.cache(max_tokens=512)
        self.model.generate(self.prompt, past_key_values=cache, max_new_tokens=4, do_sample=False)
        self.assertEqual(cache.bytes, cache.planned_bytes(2, 512))

    def test_grows_and_starts_anew(self):
        cache = self.cache()
        first = self.logits(self.prompt[:, :3], cache)
        self.logits(self.prompt, cache, [200])
        cache.reset()
        self.assertEqual(cache.get_seq_length(), 0)
        torch.testing.assert_close(self.logits(self.prompt[:, :3], cache), first)

    def test_refusals_say_why(self):
        for wrong in ("kvant-5bit", "k=tcq4"):
            with self.assertRaises(ValueError):
                KvantCache(self.model.config, wrong, library=cpu_library.CpuLibrary())
        with self.assertRaisesRegex(ValueError, "KvantCache"):
            self.model(self.prompt, use_cache=False)
        with self.assertRaisesRegex(NotImplementedError, "beams"):
            self.model.generate(self.prompt, past_key_values=self.cache(), num_beams=2, max_new_tokens=2, do_sample=False)
        config = transformers.MistralConfig(sliding_window=64)
        with self.assertRaisesRegex(NotImplementedError, "sliding"):
            KvantCache(config, RECIPE, library=cpu_library.CpuLibrary())
        for config, message in ((transformers.T5Config(), "encoder"), (transformers.MambaConfig(), "without attention heads")):
            with self.assertRaisesRegex(NotImplementedError, message):
                KvantCache(config, RECIPE, library=cpu_library.CpuLibrary())

    def test_another_model_and_other_masks_and_copies_are_refused(self):
        config = transformers.LlamaConfig(**{**self.model.config.to_dict(), "num_key_value_heads": 1})
        with self.assertRaisesRegex(ValueError, "for 4 query heads and 1 KV heads of 64 channels, and this model has 4 and 2 of"):
            self.logits(self.prompt, KvantCache(config, RECIPE, library=cpu_library.CpuLibrary()))
        n = self.prompt.shape[1]
        with self.assertRaisesRegex(NotImplementedError, "not one of 4 dimensions"):
            self.logits(self.prompt, self.cache(), attention_mask=torch.ones(2, 1, n, n))
        with self.assertRaisesRegex(NotImplementedError, "cannot be copied"):
            copy.deepcopy(self.cache())

    def test_wrong_arguments_are_named(self):
        config = self.model.config
        for error, message, arguments in ((TypeError, "model.config, not a LlamaForCausalLM", dict(config=self.model)),
                                          (TypeError, "a recipe must be a text", dict(config=config, kv=[RECIPE])),
                                          (ValueError, "max_tokens is -1", dict(config=config, max_tokens=-1))):
            with self.assertRaisesRegex(error, message):
                KvantCache(**arguments, library=cpu_library.CpuLibrary())

    def test_a_model_that_is_not_on_one_gpu_is_refused_before_anything_is_launched(self):
        # __new__ makes the object without loading the library's file.
        of_gpus = TorchLibrary.__new__(TorchLibrary)
        cache = self.cache()
        cache._library = of_gpus
        with self.assertRaisesRegex(ValueError, "its library is for cuda, but the model is on cpu"):
            self.logits(self.prompt, cache)
        cache = self.cache()
        cache._device = torch.device("cuda:1")
        with self.assertRaisesRegex(NotImplementedError, "some on cuda:1 and some on cpu"):
            self.logits(self.prompt, cache)


if __name__ == "__main__":
    unittest.main()
