"""The statistics of compare.py and sweep.py: differences between two groups of runs, and how sure they are.

All distributions and tests are scipy's. Losses are in nats per character; a difference is other minus base.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np
from scipy import optimize
from scipy import stats as scipy_stats

EXACT_UP_TO = 16  # pairs: 2^16 flips; beyond that flips are drawn at random, from a fixed seed
FEWEST = 6  # pairs: with five the smallest two-sided p of a sign-flip test is 2/2^5 = 0.0625


@dataclass(frozen=True)
class Difference:
    """A mean difference: `n` pairs, or the runs of the smaller group where there are no pairs."""

    paired: bool
    n: int
    mean: float
    sd: float  # of the differences; of one run where there are no pairs
    low: float  # 95 % t interval; NaN where there are fewer than two
    high: float
    p: float  # two-sided: exact sign flips of pairs, Welch's t where there are none; NaN as above

    @property
    def too_few(self) -> bool:
        return self.n < FEWEST

    def detectable(self, power: float = 0.8, alpha: float = 0.05) -> float:
        """The smallest true difference that n such pairs, or groups of n, show with this power, by the noncentral
        t distribution."""
        if self.n < 2 or not self.sd > 0:
            return math.nan
        freedom, size = (self.n - 1, self.n) if self.paired else (2 * (self.n - 1), self.n / 2)
        critical = scipy_stats.t.ppf(1 - alpha / 2, freedom)

        def lacking(effect: float) -> float:
            return scipy_stats.nct.sf(critical, freedom, effect * math.sqrt(size)) - power

        with np.errstate(divide="ignore"):  # scipy 1.10 (Debian 12) warns where the power is 1
            return self.sd * optimize.brentq(lacking, 1e-3, 100)


def sign_flip_p(differences: np.ndarray) -> float:
    """Two-sided p of the mean when the sign of each difference is as likely one as the other."""
    exact = len(differences) <= EXACT_UP_TO
    test = scipy_stats.permutation_test(
        (differences,),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf if exact else 99_999,
        random_state=None if exact else np.random.default_rng(0),
    )
    return float(test.pvalue)


def paired(differences: Sequence[float], test: bool = True) -> Difference:
    """Of pairs of runs, each of one seed. Without the test, which takes its time, p is NaN."""
    d = np.asarray(differences, dtype=float)
    n = len(d)
    mean = float(np.mean(d)) if n else math.nan
    if n < 2:
        return Difference(True, n, mean, math.nan, math.nan, math.nan, math.nan)
    sd = float(np.std(d, ddof=1))
    half = float(scipy_stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    return Difference(True, n, mean, sd, mean - half, mean + half, sign_flip_p(d) if test else math.nan)


def unpaired(base: Sequence[float], other: Sequence[float]) -> Difference:
    """Of two groups of runs with other seeds: Welch's t interval and test."""
    a, b = np.asarray(base, dtype=float), np.asarray(other, dtype=float)
    n = min(len(a), len(b))
    mean = float(np.mean(b) - np.mean(a)) if n else math.nan
    if n < 2:
        return Difference(False, n, mean, math.nan, math.nan, math.nan, math.nan)
    parts = [float(np.var(group, ddof=1)) / len(group) for group in (a, b)]
    error = math.sqrt(sum(parts))
    sd = math.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    if error == 0:
        return Difference(False, n, mean, 0.0, mean, mean, 1.0 if mean == 0 else 0.0)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, (a, b)))
    half = float(scipy_stats.t.ppf(0.975, freedom)) * error
    p = float(scipy_stats.ttest_ind(b, a, equal_var=False).pvalue)
    return Difference(False, n, mean, sd, mean - half, mean + half, p)


def bootstrap_interval(statistic: Callable[[np.ndarray], np.ndarray], n: int) -> tuple[float, float]:
    """95 % percentile interval over n seeds drawn with replacement. `statistic` takes their indices, (..., n)."""
    result = scipy_stats.bootstrap(
        (np.arange(n),),
        lambda seeds, axis: statistic(np.moveaxis(seeds, axis, -1)),
        n_resamples=9_999,
        vectorized=True,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p values that may be compared with alpha together. NaN stays, uncounted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, highest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = highest
    return adjusted
