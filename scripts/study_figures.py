"""The figures of study_report.py: loss and largest logit against the learning rate, and the fresh seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")  # no display needed
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from curves import RC, STYLES
from stats import paired
from study import Row, judged_loss

if TYPE_CHECKING:
    from study_report import Arm


def save(figure: Figure, prefix: Path, suffix: str) -> list[Path]:
    png, svg = (prefix.with_name(f"{prefix.name}_{suffix}.{kind}") for kind in ("png", "svg"))
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None})
    pyplot.close(figure)
    return [png, svg]


def against_rate(axes: Axes, arms: list[Arm]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_xticks(arms[0].rates, [f"{rate:g}" for rate in arms[0].rates])
    axes.minorticks_off()


def draw_rates(arms: list[Arm]) -> Figure:
    """Means as lines, every seed as a mark, so that nothing hides behind a mean."""
    figure, axes = pyplot.subplots(figsize=(8, 4.4), layout="constrained")
    ceiling = arms[0].ceiling
    for arm, (colour, dashes, marker) in zip(arms, STYLES * len(arms)):
        axes.plot(arm.rates, arm.means, color=colour, ls=dashes, lw=1.8, label=f"{arm.name}, best {arm.means.min():.3f}")
        for losses in arm.losses.T:
            axes.plot(arm.rates, losses, marker, color=colour, markersize=4.5, markerfacecolor="none", alpha=0.8)
    highest = max(float(arm.losses.max()) for arm in arms)
    if highest > 0.9 * ceiling:
        axes.axhline(ceiling, color="#777777", lw=0.9, ls=(0, (1, 2)))
        axes.annotate("uniform guess", (arms[0].rates[0], ceiling), xytext=(0, -11), textcoords="offset points", fontsize=8.5)
    against_rate(axes, arms)
    axes.set_ylabel("validation loss (nats per character)")
    axes.set_title(f"Loss after training, each seed a mark ({len(arms[0].seeds)} seeds), lines through their means")
    axes.legend()
    return figure


def draw_logits(rows: list[Row], arms: list[Arm]) -> Figure:
    figure, axes = pyplot.subplots(figsize=(8, 3.8), layout="constrained")
    for arm, (colour, dashes, marker) in zip(arms, STYLES * len(arms)):
        points = [(r["learning_rate"], r["logit_max"]) for r in rows if r["arm"] == arm.name and r["stage"] == "grid" and "logit_max" in r]
        means = [np.mean([y for x, y in points if x == rate]) for rate in arm.rates]
        axes.plot(arm.rates, means, color=colour, ls=dashes, lw=1.8, label=arm.name)
        axes.plot(*zip(*points), marker, color=colour, markersize=4.5, markerfacecolor="none", alpha=0.8)
    against_rate(axes, arms)
    axes.set_yscale("log")
    axes.set_ylabel("largest attention score")
    axes.set_title("Largest attention score q·k (scaled, before softmax) at any evaluation, over layers and heads")
    axes.legend()
    return figure


def draw_confirm(rows: list[Row], arms: list[Arm]) -> Figure:
    """Curves of the fresh seeds with their range, and beneath the paired difference with its 95 % interval."""
    steps = sorted(int(name[4:]) for name in {name for row in rows for name in row} if name.startswith("val_") and name[4:].isdigit())
    steps = [step for step in steps if step > 0]
    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5.6), layout="constrained", gridspec_kw={"height_ratios": [2, 1.4]}
    )
    curves: dict[str, dict[int, np.ndarray]] = {}
    for row in rows:
        if row["stage"] == "confirm" and all(f"val_{step}" in row for step in steps):
            curves.setdefault(row["arm"], {})[row["seed"]] = np.array([row[f"val_{step}"] for step in steps])
    named = [(arm.name, arm.best, style) for arm, style in zip(arms, STYLES * len(arms)) if arm.name in curves]
    for name, rate, (colour, dashes, marker) in named:
        values = np.array(list(curves[name].values()))
        upper.plot(steps, values.mean(axis=0), color=colour, ls=dashes, marker=marker, markersize=4.5, label=f"{name} at {rate:g}")
        upper.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, lw=0)
    upper.set_ylabel("validation loss (nats)")
    upper.set_title("Fresh seeds: mean and range of the estimates during training")
    upper.legend()
    base = named[0][0]
    lower.axhline(0, color="#333333", lw=1)
    for name, _, (colour, dashes, marker) in named[1:]:
        seeds = sorted(set(curves[name]) & set(curves[base]))
        differences = np.array([curves[name][seed] - curves[base][seed] for seed in seeds])
        found = [paired(column) for column in differences.T]
        lower.plot(steps, [d.mean for d in found], color=colour, ls=dashes, marker=marker, markersize=4.5)
        lower.fill_between(steps, [d.low for d in found], [d.high for d in found], color=colour, alpha=0.25, lw=0)
        lower.set_title(f"{name} less {base}, paired by seed ({len(seeds)} pairs), with 95 % interval: below zero is better")
    lower.set_ylabel("difference (nats)")
    lower.set_xlabel("updates")
    figure.align_ylabels()
    return figure


def draw(rows: list[Row], arms: list[Arm], prefix: Path) -> list[Path]:
    with matplotlib.rc_context(RC):
        written = save(draw_rates(arms), prefix, "rates")
        if any("logit_max" in row for row in rows):
            written += save(draw_logits(rows, arms), prefix, "logits")
        if len({row["arm"] for row in rows if row["stage"] == "confirm"}) > 1:
            written += save(draw_confirm(rows, arms), prefix, "confirm")
    return written
