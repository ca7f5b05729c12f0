"""Tests of scripts/stats.py and differences.py against scipy called directly, enumerations and worked examples."""

from __future__ import annotations

import itertools
import math
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from runs import Group, Run

try:
    import numpy as np
    from scipy import stats as scipy_stats

    import differences
    import stats
except ImportError:
    print("skipped: numpy or scipy is missing", file=sys.stderr)
    sys.exit(0)

A = [1.93, 1.91, 1.95, 1.90, 1.92, 1.94, 1.89]
B = [1.86, 1.88, 1.85, 1.87, 1.80, 1.91, 1.84]


def run(loss: float, seed: int, **start: str) -> Run:
    hashes = {"text_sha256": "t", "version": "1", "init_crc": f"i{seed}", "windows_crc": f"w{seed}", **start}
    final = {"kind": "final", "step": 9, "val_loss_full": loss}
    rows = {"start": [hashes], "eval": [{"step": 9, "val_loss": loss}], "final": [final]}
    return Run(Path(f"run{seed}"), {"seed": seed}, rows)


def group(losses: list[float], first_seed: int = 1, label: str = "", **start: str) -> Group:
    return Group([run(loss, seed, **start) for seed, loss in enumerate(losses, first_seed)], label)


def loss(run: Run) -> float:
    return run.final()["val_loss_full"]


class Statistics(unittest.TestCase):
    def test_a_paired_interval_is_scipys(self) -> None:
        d = stats.paired([b - a for a, b in zip(A, B)])
        reference = scipy_stats.ttest_rel(B, A).confidence_interval(0.95)
        self.assertAlmostEqual(d.low, reference.low, 12)
        self.assertAlmostEqual(d.high, reference.high, 12)
        self.assertAlmostEqual(d.mean, np.mean(B) - np.mean(A), 12)
        self.assertTrue(math.isnan(stats.paired([0.1, 0.2], test=False).p))

    def test_the_p_of_sign_flips_is_the_share_of_all_flips(self) -> None:
        for values in ([0.3, 0.1, 0.2, 0.4, 0.5, 0.6], [0.3, -0.1, 0.25, 0.4, -0.05, 0.6, 0.01], [-0.1, 0.2, 0.3]):
            flips = [abs(sum(s * v for s, v in zip(signs, values))) for signs in itertools.product((1, -1), repeat=len(values))]
            share = sum(flip >= abs(sum(values)) - 1e-12 for flip in flips) / len(flips)
            self.assertAlmostEqual(stats.paired(values).p, share, 12)

    def test_five_pairs_cannot_reach_five_percent_and_six_can(self) -> None:
        self.assertEqual(stats.paired([1.0, 1.1, 1.2, 1.3, 1.4]).p, 0.0625)
        self.assertEqual(stats.paired([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]).p, 0.03125)
        self.assertEqual((stats.paired([1.0] * 5).too_few, stats.paired([1.0] * 6).too_few), (True, False))

    def test_many_pairs_are_flipped_at_random_from_a_fixed_seed(self) -> None:
        values = np.random.default_rng(4).normal(0.3, 1, 20)
        self.assertEqual(stats.paired(values).p, stats.paired(values).p)
        self.assertAlmostEqual(stats.paired(values).p, scipy_stats.ttest_1samp(values, 0).pvalue, delta=0.02)

    def test_equal_values_differ_by_exactly_nothing(self) -> None:
        for d in (stats.paired([0.0] * 6), stats.unpaired([2.0] * 6, [2.0] * 6)):
            self.assertEqual((d.mean, d.low, d.high, d.p), (0, 0, 0, 1))
            self.assertTrue(math.isnan(d.detectable()))

    def test_without_pairs_it_is_welchs_test(self) -> None:
        d, reference = stats.unpaired(A, B[:5]), scipy_stats.ttest_ind(B[:5], A, equal_var=False)
        self.assertAlmostEqual(d.p, reference.pvalue, 12)
        if hasattr(reference, "confidence_interval"):  # scipy 1.11 or later
            self.assertAlmostEqual(d.low, reference.confidence_interval().low, 12)
            self.assertAlmostEqual(d.high, reference.confidence_interval().high, 12)
        self.assertEqual((d.paired, d.n), (False, 5))

    def test_one_value_has_no_interval(self) -> None:
        for d in (stats.paired([0.5]), stats.unpaired([1.0], [1.5, 1.5]), stats.paired([])):
            self.assertTrue(all(map(math.isnan, (d.low, d.high, d.p))))

    def test_holm_as_worked_out_by_hand(self) -> None:
        # In order 0.005 * 4, 0.01 * 3, then 0.03 * 2 and 0.04 * 1, which may not be below the one before.
        found = stats.holm([0.01, 0.04, 0.03, 0.005])
        for value, expected in zip(found, [0.03, 0.06, 0.06, 0.02]):
            self.assertAlmostEqual(value, expected, 12)
        self.assertEqual(stats.holm([0.6, 0.7]), [1.0, 1.0])
        found = stats.holm([0.02, math.nan, 0.5])
        self.assertEqual((found[0], math.isnan(found[1]), found[2]), (0.04, True, 0.5))

    def test_the_detectable_difference_is_that_of_cohens_tables(self) -> None:
        # Two-sided 0.05, power 0.8: 34 pairs find 0.5 SD and 33 do not; for two groups it is 64 and 17 in each
        # that find 0.5 and 1.0 SD, and 63 and 16 do not.
        def of(n: int, paired: bool) -> float:
            values = scipy_stats.zscore(np.arange(n), ddof=1)
            return (stats.paired(values, test=False) if paired else stats.unpaired(values, values)).detectable()

        for n, effect, paired in ((34, 0.5, True), (64, 0.5, False), (17, 1.0, False)):
            self.assertLess(of(n, paired), effect)
            self.assertGreater(of(n - 1, paired), effect)


class Findings(unittest.TestCase):
    def test_equal_seeds_are_paired_and_the_numbers_are_scipys(self) -> None:
        shuffled = Group(group(B).runs[::-1])
        f = differences.findings([group(A), shuffled], loss)[0]
        self.assertEqual((f.difference.paired, f.difference.n, f.sizes), (True, 7, (7, 7)))
        self.assertAlmostEqual(f.difference.low, scipy_stats.ttest_rel(B, A).confidence_interval(0.95).low, 12)
        self.assertEqual(f.reading(), "lower")
        self.assertEqual(differences.findings([group(B), group(A)], loss)[0].reading(), "higher")

    def test_other_seeds_are_not_paired(self) -> None:
        f = differences.findings([group(A), group(B, first_seed=101)], loss)[0]
        self.assertAlmostEqual(f.difference.p, scipy_stats.ttest_ind(B, A, equal_var=False).pvalue, 12)
        self.assertEqual((f.difference.paired, f.reading()), (False, "lower"))

    def test_equal_seeds_with_other_batches_are_not_paired(self) -> None:
        f = differences.findings([group(A), group(B, windows_crc="other")], loss)[0]
        self.assertFalse(f.difference.paired)

    def test_a_group_against_itself_is_equal(self) -> None:
        f = differences.findings([group(A), group(A)], loss)[0]
        self.assertEqual((f.difference.mean, f.difference.low, f.difference.high, f.holm_p), (0, 0, 0, 1))
        self.assertEqual(f.reading(), "equal in every pair")

    def test_one_arm_split_in_two_is_seldom_called_different(self) -> None:
        """Final losses of one arm with twelve seeds (normal, SD 0.01), split into halves in all 462 ways."""
        losses = np.random.default_rng(1).normal(1.9, 0.01, 12).tolist()
        called = 0
        halves = [half for half in itertools.combinations(range(12), 6) if 0 in half]
        for half in halves:
            rest = [losses[i] for i in range(12) if i not in half]
            f = differences.findings([group([losses[i] for i in half]), group(rest, first_seed=101)], loss)[0]
            called += f.reading() in ("lower", "higher")
        self.assertEqual(len(halves), 462)
        self.assertLessEqual(called / 462, 0.06)
        self.assertGreater(called, 0)
        f = differences.findings([group(losses[:6]), group(losses[6:], first_seed=101)], loss)[0]
        self.assertEqual(f.reading(), "no difference shown")

    def test_few_seeds_do_not_conclude_however_large_the_difference(self) -> None:
        for n in (2, 5):
            for first in (1, 101):
                f = differences.findings([group(A[:n]), group([a - 1 for a in A[:n]], first_seed=first)], loss)[0]
                self.assertEqual(f.reading(), "too few seeds to conclude")

    def test_six_pairs_and_two_comparisons_cannot_conclude(self) -> None:
        far = [group([a - k - 0.001 * i for i, a in enumerate(A[:6])]) for k in (1, 2)]
        found = differences.findings([group(A[:6]), *far], loss)
        self.assertEqual([f.holm_p for f in found], [0.0625, 0.0625])
        self.assertEqual([f.reading() for f in found], ["too few seeds to conclude"] * 2)
        self.assertEqual(differences.findings([group(A[:6]), far[0]], loss)[0].reading(), "lower")

    def test_the_curve_has_the_interval_of_each_evaluation(self) -> None:
        steps, found = differences.curve(group(A), group(B))
        self.assertEqual(steps, [9])
        self.assertAlmostEqual(found[0].high, scipy_stats.ttest_rel(B, A).confidence_interval(0.95).high, 12)


if __name__ == "__main__":
    unittest.main()
