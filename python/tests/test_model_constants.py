"""Tests codebooks and scales of keys in the form that the library reads."""

import unittest
from importlib.util import find_spec

if find_spec("torch") is None:
    raise unittest.SkipTest("no PyTorch")

import numpy as np
import torch

from kvant.paged.codebooks import Codebooks, stacked
from kvant.paged.key_scales import smoothing
from kvant.paged.model_constants import ModelConstants


class CodebookArrays(unittest.TestCase):
    def test_are_half_precision_and_begin_at_multiples_of_128_numbers(self):
        books = np.random.default_rng(1).standard_normal((3, 2, 130)).astype(np.float32)
        found = stacked(books)
        self.assertEqual((found.shape, found.dtype), ((3, 2, 256), torch.float16))
        np.testing.assert_array_equal(found[:, :, :130].numpy(), books.astype(np.float16))
        members = Codebooks(found, None).of_layer(2)
        self.assertEqual(sorted(members), ["key_codebook_stride", "key_codebooks"])
        self.assertEqual((members["key_codebook_stride"], members["key_codebooks"].data_ptr()), (256, found[2].data_ptr()))

    def test_what_half_precision_can_t_hold_is_refused(self):
        for number in (7e4, float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "centroids beyond 65504"):
                stacked([[np.array([1.0, number])]])

    def test_heads_of_a_rank_lie_side_by_side(self):
        books = stacked(np.arange(2 * 4 * 128).reshape(2, 4, 128))
        part = ModelConstants(codebooks=Codebooks(books, books), key_scales=smoothing(books.float().numpy() + 1)).of_heads(slice(2, 4))
        self.assertTrue(part.codebooks.values.is_contiguous() and torch.equal(part.codebooks.values, books[:, 2:]))
        self.assertTrue(part.key_scales.of_keys.is_contiguous())
        self.assertEqual((part.n_layers, part.metrics), (2, None))


class Smoothing(unittest.TestCase):
    def test_keys_are_divided_and_queries_multiplied(self):
        scales = smoothing([[np.array([4.0, 0.5])]])
        self.assertEqual(scales.of_queries[0, 0].tolist(), [4, 0.5])
        self.assertEqual(scales.of_keys[0, 0].tolist(), [0.25, 2])

    def test_dead_channels_are_not_blown_up(self):
        scales = smoothing([[np.array([2.0, 0.0]), np.zeros(2)]])
        np.testing.assert_allclose(scales.of_queries[0], [[2, 0.002], [1, 1]], rtol=1e-6)
        self.assertTrue(torch.isfinite(scales.of_keys).all())


if __name__ == "__main__":
    unittest.main()
