#!/usr/bin/env python3
"""The report of a study, from its table alone: the claims, the tables (Markdown) and three figures.

    scripts/study_report.py TABLE.csv [--out PREFIX]

Writes PREFIX.md and PREFIX_rates, PREFIX_logits, PREFIX_confirm as .svg and .png; sweep.py calls it at its end.
The claims and the rules for them are in docs/study.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Optional, Sequence

import numpy as np
from scipy import stats as scipy_stats

from command import InputError, refuse, run_script
from stats import Difference, bootstrap_interval, holm, paired
from study import Row, best_rates, grid_losses, judged_loss, read_table

STABLE_WITHIN = 0.1  # nats above an arm's lowest loss
EQUAL_STARTS = ("version", "text_sha256", "init_crc", "windows_crc")
Losses = dict[float, dict[int, float]]  # learning rate -> seed -> loss


def check_starts(rows: list[Row]) -> None:
    """Runs of one seed must have started from the same weights, batches, text and program."""
    first: dict[int, Row] = {}
    for row in rows:
        base = first.setdefault(row["seed"], row)
        for field in EQUAL_STARTS:
            if row.get(field) != base.get(field):
                names = [f"{r['arm']} at {r['learning_rate']:g}" for r in (base, row)]
                raise InputError(f"seed {row['seed']}: {field} of {' and of '.join(names)} differ: not comparable")


def common_seeds(losses: Losses) -> list[int]:
    return sorted(set.intersection(*(set(by_seed) for by_seed in losses.values())))


def sensitivity(losses: np.ndarray, ceiling: float) -> np.ndarray:
    """Wortsman et al. 2023 (arXiv 2309.14322): mean over learning rates, along axis 0, of min(loss, ceiling) less
    the lowest."""
    return np.mean(np.minimum(losses, ceiling), axis=0) - np.min(losses, axis=0)


class Arm:
    """An arm's grid as an array (rate, seed), and what is said about it."""

    def __init__(self, name: str, losses: Losses, ceiling: float) -> None:
        self.name, self.ceiling, self.rates = name, ceiling, sorted(losses)
        self.seeds = common_seeds(losses)
        self.losses = np.array([[losses[rate][seed] for seed in self.seeds] for rate in self.rates])
        self.means = self.losses.mean(axis=1)
        self.best = self.rates[int(np.argmin(self.means))]
        stable = [rate for rate, mean in zip(self.rates, self.means) if mean < self.means.min() + STABLE_WITHIN]
        self.largest_stable = max(stable)

    def of_seeds(self, seeds: np.ndarray) -> np.ndarray:
        """Sensitivity of the means over seeds, given by their indices, (..., seeds)."""
        return sensitivity(self.losses[:, seeds].mean(axis=-1), self.ceiling)

    def of_all(self) -> float:
        return float(self.of_seeds(np.arange(len(self.seeds))))


def number(value: Optional[float], digits: int = 4, sign: str = "") -> str:
    text = "–" if value is None or math.isnan(value) else f"{value:{sign}.{digits}f}"
    return text.replace("-", "−")


def interval(low: float, high: float, digits: int = 4, sign: str = "") -> str:
    return "–" if math.isnan(low) else f"[{number(low, digits, sign)}, {number(high, digits, sign)}]"


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


def rates_table(rows: list[Row], arms: list[Arm]) -> str:
    diverged = {(row["arm"], row["learning_rate"], row["seed"]) for row in rows if row["status"] == "diverged"}
    body = []
    for arm in arms:
        cells = []
        for rate, losses in zip(arm.rates, arm.losses):
            lost = sum((arm.name, rate, seed) in diverged for seed in arm.seeds)
            spread = f" ± {np.std(losses, ddof=1):.3f}" if len(losses) > 1 else ""
            cells.append(f"{np.mean(losses):.3f}{spread}" + (f" ({lost} diverged)" if lost else ""))
        body.append([f"`{arm.name}`", *cells])
    return markdown(["learning rate", *(f"{rate:g}" for rate in arms[0].rates)], body)


def arms_table(arms: list[Arm]) -> str:
    base, body = arms[0], []
    for arm in arms:
        n = len(arm.seeds)
        own = interval(*bootstrap_interval(arm.of_seeds, n), digits=3) if n > 1 else "–"
        cells = [f"`{arm.name}`", f"{arm.best:g}", number(arm.means.min()), f"{arm.largest_stable:g}"]
        cells += [f"{arm.of_all():.3f} {own}"]
        body.append([*cells, "" if arm is base else sensitivity_difference(base, arm)[0]])
    head = ["arm", "best rate", "its mean loss", "largest stable rate", "sensitivity", f"less that of `{base.name}`"]
    return markdown(head, body)


def sensitivity_difference(base: Arm, arm: Arm) -> tuple[str, float, bool]:
    """As text, with the p value of claim H1, and whether the interval lies below zero."""
    n = len(base.seeds)
    value = arm.of_all() - base.of_all()
    if n < 2 or arm.seeds != base.seeds:
        return number(value, 3, "+"), math.nan, False
    low, high = bootstrap_interval(lambda seeds: arm.of_seeds(seeds) - base.of_seeds(seeds), n)
    each = np.arange(n)[:, None]  # every seed by itself
    single = arm.of_seeds(each) - base.of_seeds(each)
    p = float(scipy_stats.ttest_1samp(single, 0).pvalue) if np.ptp(single) else math.nan
    return f"{number(value, 3, '+')} {interval(low, high, 3, '+')}", p, high < 0


def confirmation(rows: list[Row], arms: list[Arm]) -> tuple[str, Optional[Difference]]:
    """The table of the fresh seeds and the paired difference of the second arm to the first."""
    by_arm: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["stage"] == "confirm" and row["status"] != "failed":
            by_arm.setdefault(row["arm"], {})[row["seed"]] = judged_loss(row)
    names = [arm.name for arm in arms if arm.name in by_arm]
    if len(names) < 2:
        return "", None
    seeds = sorted(set.intersection(*(set(by_arm[name]) for name in names)))
    body, difference = [], None
    for name in names:
        losses = [by_arm[name][seed] for seed in seeds]
        cells = [f"`{name}`", f"{best_rates(rows)[name]:g}", str(len(seeds)), number(statistics.fmean(losses))]
        cells.append(number(statistics.stdev(losses)) if len(seeds) > 1 else "–")
        if name != names[0]:
            d = paired([by_arm[name][seed] - by_arm[names[0]][seed] for seed in seeds])
            difference = difference or d
            cells += [f"{number(d.mean, 4, '+')} {interval(d.low, d.high, 4, '+')}", number(d.p), number(d.detectable())]
        body.append(cells)
    head = ["arm", "rate", "seeds", "mean loss", "SD", f"less `{names[0]}`, paired", "sign-flip p", "detectable"]
    return markdown(head, [cells + [""] * (len(head) - len(cells)) for cells in body]), difference


def logits_table(rows: list[Row], arms: list[Arm]) -> str:
    largest: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if row["stage"] == "grid" and "logit_max" in row:
            largest.setdefault((row["arm"], row["learning_rate"]), []).append(row["logit_max"])
    rates = arms[0].rates
    body = [[f"`{a.name}`", *(number(max(largest.get((a.name, r), [math.nan])), 1) for r in rates)] for a in arms]
    return markdown(["learning rate", *(f"{rate:g}" for rate in rates)], body)


def verdicts(arms: list[Arm], difference: Optional[Difference]) -> list[str]:
    """What became of H1 and H2, in words."""
    base, other = arms[0], arms[1]
    text, p1, below = sensitivity_difference(base, other)
    p2 = difference.p if difference else math.nan
    p1, p2 = holm([p1, p2])
    held = "holds" if below and p1 < 0.05 else "is not shown"
    lines = [f"H1 {held}: sensitivity of `{other.name}` less that of `{base.name}` {text}, p {number(p1)} after Holm."]
    if difference is None:
        return [*lines, "H2: no fresh seeds were run."]
    text = f"{number(difference.mean, 4, '+')} {interval(difference.low, difference.high, 4, '+')} nats"
    text += f", sign-flip p {number(p2)} after Holm, {difference.n} pairs"
    if difference.too_few:
        lines.append(f"H2 cannot be decided: {text}; fewer than six pairs.")
    elif p2 < 0.05:
        better = other.name if difference.mean < 0 else base.name
        lines.append(f"H2: each at its best rate, `{better}` is better: difference {text}.")
    else:
        lines.append(f"H2: a tie, smaller than the {number(difference.detectable())} that could be detected: {text}.")
    for arm in arms:
        if arm.best in (arm.rates[0], arm.rates[-1]):
            lines.append(f"The best rate of `{arm.name}` lies at the edge of the grid: extend it.")
    return lines


def describe(rows: list[Row]) -> tuple[str, list[Arm]]:
    """The report's text, and the arms as their figures need them."""
    check_starts(rows)
    ceiling = math.log(rows[0]["vocabulary"])
    arms = [Arm(name, losses, ceiling) for name, losses in grid_losses(rows).items()]
    if len({tuple(arm.rates) for arm in arms}) > 1 or any(not arm.seeds for arm in arms):
        raise InputError("not every arm has every learning rate; run the study to its end first")
    count = {status: sum(row["status"] == status for row in rows) for status in ("diverged", "failed")}
    parts = [f"{len(rows)} runs, {count['diverged']} diverged, {count['failed']} failed; within each seed, text,"]
    parts += [" program, initial shared weights and batches are equal by their hashes.\n\n"]
    fresh, difference = confirmation(rows, arms)
    if len(arms) > 1:
        parts += ["".join(f"- {line}\n" for line in verdicts(arms, difference)) + "\n"]
    parts += ["Loss over the whole validation split, mean ± SD over the seeds of the grid:\n\n", rates_table(rows, arms)]
    parts += ["Learning-rate sensitivity, with 95 % bootstrap interval over seeds:\n\n", arms_table(arms)]
    if fresh:
        parts += ["Fresh seeds, each arm at its best rate:\n\n", fresh]
    parts += ["Largest attention score at any evaluation, of all seeds:\n\n", logits_table(rows, arms)]
    return "".join(parts).rstrip() + "\n", arms


def report(table: Path, prefix: Path) -> None:
    rows = read_table(table)
    try:
        text, arms = describe(rows)
    except InputError as error:
        raise InputError(f"{table}: {error}")
    print(text)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".md").write_text(text, encoding="utf-8")
    from study_figures import draw

    for path in draw(rows, arms, prefix):
        print(f"wrote {path}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Draws and writes the report of a study from its table.")
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="as sweep.py writes it")
    parser.add_argument("--out", type=Path, metavar="PREFIX", help="default: TABLE without .csv")
    options = parser.parse_args(arguments)
    try:
        report(options.table, options.out or options.table.with_suffix(""))
    except (InputError, OSError) as error:
        return refuse("study_report.py", error)
    return 0


if __name__ == "__main__":
    run_script(main)
