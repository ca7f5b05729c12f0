"""Differences between groups of runs: by pairs of equal seed where there are such, else unpaired. Needs numpy
and scipy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

import stats
from runs import Group, Run, compared_pairs, val_loss

Value = Callable[[Run], Optional[float]]
ALPHA = 0.05


@dataclass(frozen=True)
class Finding:
    """What the final losses of a group say against those of the base."""

    label: str
    difference: stats.Difference
    sizes: tuple[int, int]  # runs of the base and of the group that have a value
    holm_p: float
    floor: float  # below which the Holm-corrected p of so many pairs and comparisons cannot go; 0 unpaired

    def reading(self) -> str:
        d = self.difference
        if d.n == 0:
            return "nothing to compare"
        if d.paired and d.mean == 0 and not d.sd > 0:
            return "equal in every pair" if d.n > 1 else "equal in the one pair"
        if d.too_few or self.floor > ALPHA:
            return "too few seeds to conclude"
        if self.holm_p < ALPHA:
            return "lower" if d.mean < 0 else "higher"
        return "no difference shown"


def difference(base: Group, other: Group, value: Value, test: bool = True) -> stats.Difference:
    both = [(value(a), value(b)) for a, b in compared_pairs(base, other)]
    if both:
        return stats.paired([b - a for a, b in both if a is not None and b is not None], test)
    return stats.unpaired(values(base, value), values(other, value))


def values(group: Group, value: Value) -> list[float]:
    return [found for found in map(value, group.used()) if found is not None]


def findings(groups: Sequence[Group], value: Value) -> list[Finding]:
    base, others = groups[0], groups[1:]
    differences = [difference(base, other, value) for other in others]
    tested = sum(not math.isnan(d.p) for d in differences)
    return [
        Finding(
            other.label,
            d,
            (len(values(base, value)), len(values(other, value))),
            holm_p,
            tested * 2.0 ** (1 - d.n) if d.paired else 0.0,
        )
        for other, d, holm_p in zip(others, differences, stats.holm([d.p for d in differences]))
    ]


def curve(base: Group, other: Group) -> tuple[list[int], list[stats.Difference]]:
    """The difference of the validation losses at every evaluation that all runs used have."""
    at = {id(run): dict(zip(*val_loss(run))) for one in (base, other) for run in one.used()}
    steps = sorted(set.intersection(*map(set, at.values())))

    def at_step(step: int) -> Value:
        def value(run: Run) -> Optional[float]:
            found = at[id(run)][step]
            return found if math.isfinite(found) else None

        return value

    return steps, [difference(base, other, at_step(step), test=False) for step in steps]
