#!/usr/bin/env python3
"""Tests lab/kvtc/learn-kvtc.py. The tests are skipped without numpy."""
import importlib.util
import pathlib
import unittest
from unittest import mock

try:
    import numpy as np

    SPEC = importlib.util.spec_from_file_location("learn_kvtc", pathlib.Path(__file__).with_name("learn-kvtc.py"))
    learn_kvtc = importlib.util.module_from_spec(SPEC)
    SPEC.loader.exec_module(learn_kvtc)
except ModuleNotFoundError:
    np = None

HALF = 16  # components in half of a row, and in the larger group


def least_error(errors, budget):
    """Tries all sums of bits for two halves, each of which is one group of 16 or 16 groups of one. Returns the smallest
    error within the budget."""
    halves = []
    for first in (0, HALF):
        single = {0: 0.0}
        for component in range(first, first + HALF):
            longer = {}
            for spent, error in single.items():
                for bits in learn_kvtc.BITS:
                    cost, sum_ = spent + learn_kvtc.cost_of(1, bits), error + errors[component, 1, bits]
                    if cost <= budget and sum_ < longer.get(cost, np.inf):
                        longer[cost] = sum_
            single = longer
        whole = [(learn_kvtc.cost_of(HALF, bits), errors[first, HALF, bits]) for bits in learn_kvtc.BITS]
        halves.append(list(single.items()) + whole)
    return min(a + b for spent, a in halves[0] for more, b in halves[1] if spent + more <= budget)


def error_of(components, errors, groups):
    first, error = 0, 0.0
    for size, bits in groups:
        error += errors[first, size, bits]
        first += size
    return error + float(np.square(components[:, first:], dtype=np.float64).sum())


@unittest.skipIf(np is None, "numpy is not installed")
class LearnKvtc(unittest.TestCase):
    def test_groups_have_the_least_error_of_all(self):
        deviations = np.exp(-np.arange(2 * HALF) / 3)
        components = (np.random.default_rng(1).normal(size=(60, 2 * HALF)) * deviations).astype(np.float32)
        budgets = [40, 64, 100, 160, 224, 300, 420]
        with mock.patch.multiple(learn_kvtc, SIZES=(1, HALF), BEHIND=(0,)):
            errors = learn_kvtc.group_errors(components)
            found = learn_kvtc.best_groups(errors, 2 * HALF, budgets)
        for budget, groups in found.items():
            self.assertLessEqual(sum(learn_kvtc.cost_of(*group) for group in groups), budget)
            self.assertAlmostEqual(error_of(components, errors, groups) / least_error(errors, budget), 1, places=9)

    def test_groups_that_begin_elsewhere_are_found_where_they_are_better(self):
        deviations = np.where(np.arange(2 * HALF) < 2, 50, 1)
        components = (np.random.default_rng(3).normal(size=(60, 2 * HALF)) * deviations).astype(np.float32)
        with mock.patch.multiple(learn_kvtc, SIZES=(1, HALF)):
            errors = learn_kvtc.group_errors(components)
            groups = learn_kvtc.best_groups(errors, 2 * HALF, [180])[180]
        self.assertEqual(groups[:3], [(1, 2), (1, 2), (HALF, 4)])

    def test_directions_make_components_uncorrelated_the_largest_first(self):
        random = np.random.default_rng(2)
        rows = (random.normal(size=(5000, 12)) @ random.normal(size=(12, 12)) + 3).astype(np.float32)
        mean, directions = learn_kvtc.principal_directions(rows)
        covariance = np.cov(((rows - mean) @ directions.T).T)
        variances = np.diag(covariance)
        self.assertTrue(np.all(np.diff(variances) <= 0))
        self.assertLess(np.abs(covariance - np.diag(variances)).max(), 1e-3 * variances[0])
        self.assertLess(np.abs(directions @ directions.T - np.eye(12)).max(), 1e-5)

    def test_numbers_of_e4m3(self):
        numbers = [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)] + [m * 2.0**-9 for m in range(8)]
        numbers = np.array(sorted(x for x in numbers if x <= 448), dtype=np.float32)
        self.assertEqual(learn_kvtc.e4m3(numbers).tolist(), numbers.tolist())
        middles = (numbers[1:] + numbers[:-1]) / 2
        self.assertEqual(learn_kvtc.e4m3(middles * np.float32(1.0001)).tolist(), numbers[1:].tolist())
        self.assertEqual(learn_kvtc.e4m3(-middles * np.float32(0.9999)).tolist(), (-numbers[:-1]).tolist())

    def test_groups_as_text(self):
        self.assertEqual(learn_kvtc.merged([(1, 8), (16, 0), (1, 0), (64, 2)]), "1x8 17x0 64x2")


if __name__ == "__main__":
    unittest.main()
