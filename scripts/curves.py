"""The figure of compare.py: losses of runs over their updates, and how far the others are from the first."""

from __future__ import annotations

from collections import defaultdict
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Tuple

import matplotlib

matplotlib.use("Agg")  # no display needed
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

if TYPE_CHECKING:
    from runs import Run

Points = Tuple[List[int], List[float]]  # steps and values, NaN for a gap
Style = Tuple[str, Any, str]  # colour, dashes, marker

# Different in colour, in brightness and in dashes: legible in grey and by the colour-blind.
STYLES = [
    ("#16447c", "-", "o"),
    ("#c4620f", "--", "s"),
    ("#2f8f5b", "-.", "^"),
    ("#8e4585", ":", "D"),
    ("#5a5a5a", (0, (5, 1, 1, 1, 1, 1)), "v"),
]
RC = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "qkgpt",
}


def finite(values: list[float]) -> list[float]:
    return [value for value in values if value == value]


def diverged(run: Run) -> bool:
    values = run.points("eval", "val_loss")[1] or run.points("train", "loss")[1]
    return bool(values) and not values[-1] <= values[0]


def late(run: Run, points: tuple[list[int], list[float]]) -> list[float]:
    """The values after the first twentieth, whose steep fall would flatten the rest."""
    return finite([value for step, value in zip(*points) if step >= run.last_step() / 20])


def set_limits(axes: Axes, values: list[float]) -> None:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.06 * (high - low) or 0.05
    axes.set_ylim(low - margin, high + margin)


def label_ends(axes: Axes, ends: list[tuple[float, str, str]], lines: int) -> None:
    """Writes (height, text, colour) at the right edge, which has room for `lines` texts, without overlap."""
    low, high = axes.get_ylim()
    gap, y = (high - low) / lines, low - 1
    for height, text, colour in sorted(ends):
        y = max(min(max(height, low), high), y + gap)
        axes.text(1.02, y, text, color=colour, va="center", transform=axes.get_yaxis_transform())


def plot_validation(axes: Axes, points: Points, style: Style) -> float | None:
    """Draws a curve with markers; returns its last finite value."""
    colour, dashes, marker = style
    every = max(1, len(points[0]) // 20)
    axes.plot(*points, color=colour, ls=dashes, lw=1.8, marker=marker, markersize=4.5, markevery=every)
    return next(reversed(finite(points[1])), None)


def draw_losses(axes: Axes, runs: list[Run]) -> None:
    framed = [
        run for run in runs if run.last_step() and not diverged(run)
    ] or runs  # a diverged run may leave the frame
    ends, inside = [], []
    for run, style in zip(runs, STYLES * len(runs)):
        axes.plot(*run.points("train", "loss"), color=style[0], lw=0.6, alpha=0.45)
        last = plot_validation(axes, run.points("eval", "val_loss"), style)
        if last is not None:
            ends.append((last, f"{run.label}  {last:.3f}", style[0]))
        if run in framed:
            batches = sorted(late(run, run.points("train", "loss")))
            spikes = len(batches) // 50
            inside += late(run, run.points("eval", "val_loss")) + batches[spikes : len(batches) - spikes]
    set_limits(axes, inside)
    label_ends(axes, ends, lines=17)
    axes.set_ylabel("loss (nats per character)")
    axes.set_title(title(runs))
    thick = Line2D([], [], color="#444444", lw=1.8, marker="o", markersize=4.5, label="validation")
    thin = Line2D([], [], color="#444444", lw=0.6, alpha=0.7, label="training, batch by batch")
    axes.legend(handles=[thick, thin])


def draw_differences(axes: Axes, runs: list[Run]) -> None:
    """Validation loss less that of the first run, where both were evaluated."""
    base = dict(zip(*runs[0].points("eval", "val_loss")))
    axes.axhline(0, color=STYLES[0][0], lw=1.2)
    ends, inside = [], [0.0]
    for run, style in list(zip(runs, STYLES * len(runs)))[1:]:
        steps, values = run.points("eval", "val_loss")
        both = [step in base for step in steps]
        points = (list(compress(steps, both)), [v - base[s] for s, v in compress(zip(steps, values), both)])
        last = plot_validation(axes, points, style)
        if last is not None:
            ends.append((last, f"{run.label}  {last:+.3f}".replace("-", "\N{MINUS SIGN}"), style[0]))
        if not diverged(run):
            inside += late(run, points)
    set_limits(axes, inside)
    label_ends(axes, ends, lines=6)
    axes.set_ylabel("difference (nats)")
    axes.set_title(f"validation loss less that of {runs[0].label}: below zero is better", fontsize=9.5)


def title(runs: list[Run]) -> str:
    """What all runs share: the text, the shape of the model."""
    shape = "{n_layer} layers, {n_head} heads, {n_embd} channels, context {block_size}"
    texts = {Path(str(run.config.get("data"))).name for run in runs}
    shapes = {shape.format_map(defaultdict(str, run.config)) for run in runs}
    return ": ".join(found.pop() for found in (texts, shapes) if len(found) == 1)


def draw(runs: list[Run], prefix: Path) -> list[Path]:
    """Writes PREFIX.png and PREFIX.svg."""
    panels = 2 if len(runs) > 1 else 1
    shares = {"height_ratios": [3, 1.15][:panels]}
    with matplotlib.rc_context(RC):
        figure, columns = pyplot.subplots(
            panels, 1, sharex=True, squeeze=False, layout="constrained", gridspec_kw=shares
        )
        axes = columns[:, 0]
        figure.set_size_inches(8, 3.6 if panels == 1 else 5.3)
        draw_losses(axes[0], runs)
        if panels == 2:
            draw_differences(axes[1], runs)
        figure.align_ylabels()
        axes[-1].set_xlabel("updates")
        axes[-1].set_xlim(0, max(1, *(run.last_step() for run in runs)))
        prefix.parent.mkdir(parents=True, exist_ok=True)
        png, svg = prefix.with_name(prefix.name + ".png"), prefix.with_name(prefix.name + ".svg")
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None})
        pyplot.close(figure)
    return [png, svg]
