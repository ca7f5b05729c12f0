"""The figures of compare.py: losses over the updates and how far the others are from the first; and the attention
diagnostics, layer by layer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any, Callable, Optional, Sequence, Tuple

import matplotlib

matplotlib.use("Agg")  # no display needed
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from runs import Group, Points, Run, mean_difference, val_loss

try:
    import differences  # needs scipy
except ImportError:
    differences = None

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


# Field of the attention rows, how heads become one number, axis label.
DIAGNOSTICS = [
    ("logit_max", max, "largest logit\n(no unit)"),
    ("entropy", mean, "entropy\n(share of ln length)"),
    ("p_max", mean, "largest weight\nof a row, mean"),
    ("q_norm", mean, "norm of q\n(no unit)"),
    ("k_norm", mean, "norm of k\n(no unit)"),
    ("scale", mean, "scale of q\u00b7k\n(no unit)"),
]
MOST_LAYERS = 4  # columns of the figure of diagnostics


def finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]


def diverged(group: Group) -> bool:
    values = group.mean_points(val_loss)[1] or group.mean_points(train_loss)[1]
    return bool(values) and not values[-1] <= values[0]


def train_loss(run: Run) -> Points:
    return run.points("train", "loss")


def late(group: Group, points: Points) -> list[float]:
    """The values after the first twentieth, whose steep fall would flatten the rest."""
    return finite([value for step, value in zip(*points) if step >= group.last_step() / 20])


def styled(groups: Sequence[Group]) -> list[tuple[Group, Style]]:
    return list(zip(groups, STYLES * len(groups)))


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


def plot_curve(axes: Axes, points: Points, style: Style, width: float = 1.8) -> Optional[tuple[int, float]]:
    """Draws a curve with markers; returns its last point that is finite."""
    colour, dashes, marker = style
    every, size = max(1, len(points[0]) // 20), 2.5 * width
    axes.plot(*points, color=colour, ls=dashes, lw=width, marker=marker, markersize=size, markevery=every)
    return next(((step, value) for step, value in zip(*map(reversed, points)) if value == value), None)


def end_label(group: Group, groups: Sequence[Group], last: tuple[int, float], sign: str = "") -> tuple[float, str]:
    """Where the label of a curve stands, and the label: name, last value, and its step if it ends before others."""
    step, value = last
    early = step < max(max(other.mean_points(val_loss)[0], default=0) for other in groups)
    text = f"{group.label}  {value:{sign}.3f}" + (f" at {step}" if early else "")
    return value, text.replace("  -", "  \N{MINUS SIGN}")


def plot_band(axes: Axes, steps: list[int], low: list[float], high: list[float], style: Style) -> None:
    axes.fill_between(steps, low, high, color=style[0], alpha=0.16, lw=0)
    for edge in (low, high):
        axes.plot(steps, edge, color=style[0], ls=style[1], lw=0.5)


def draw_losses(axes: Axes, groups: Sequence[Group]) -> None:
    framed = [g for g in groups if g.last_step() and not diverged(g)] or groups  # what diverged may leave it
    alone = all(len(group.runs) == 1 for group in groups)
    ends, inside = [], []
    for group, style in styled(groups):
        points = group.mean_points(val_loss)
        if alone:
            axes.plot(*train_loss(group.runs[0]), color=style[0], lw=0.6, alpha=0.45)
        elif len(group.used()) > 1:
            values = group.over_seeds(val_loss)
            low, high = [min(v) for v in values.values()], [max(v) for v in values.values()]
            plot_band(axes, list(values), low, high, style)
            if group in framed:
                inside += late(group, (list(values), low)) + late(group, (list(values), high))
        for run in group.runs:
            if run not in group.used():
                axes.plot(*val_loss(run), color=style[0], ls=style[1], lw=0.8, alpha=0.6)
        last = plot_curve(axes, points, style)
        if last is not None:
            ends.append((*end_label(group, groups, last), style[0]))
        if group in framed:
            batches = sorted(late(group, train_loss(group.runs[0]))) if alone else []
            spikes = len(batches) // 50
            inside += late(group, points) + batches[spikes : len(batches) - spikes]
    set_limits(axes, inside)
    label_ends(axes, ends, lines=17)
    axes.set_ylabel("loss (nats per character)")
    axes.set_title(title(groups))
    axes.legend(handles=legend_of_losses(groups, alone))


def legend_of_losses(groups: Sequence[Group], alone: bool) -> list[Any]:
    grey = "#444444"
    what = "validation" if alone else "validation, mean over seeds"
    handles: list[Any] = [Line2D([], [], color=grey, lw=1.8, marker="o", markersize=4.5, label=what)]
    if alone:
        return [*handles, Line2D([], [], color=grey, lw=0.6, alpha=0.7, label="training, batch by batch")]
    handles.append(Patch(color=grey, alpha=0.25, lw=0, label="lowest to highest seed"))
    if any(len(group.used()) < len(group.runs) for group in groups):
        handles.append(Line2D([], [], color=grey, lw=0.8, alpha=0.6, label="run not in the mean"))
    return handles


def draw_differences(axes: Axes, groups: Sequence[Group]) -> None:
    """Validation loss less that of the first group, where all were evaluated."""
    axes.axhline(0, color=STYLES[0][0], lw=1.2)
    ends, inside, band = [], [0.0], False
    for group, style in styled(groups)[1:]:
        points, low, high = difference_curve(groups[0], group)
        if finite(low):
            band = True
            plot_band(axes, points[0], low, high, style)
        last = plot_curve(axes, points, style)
        if last is not None:
            ends.append((*end_label(group, groups, last, "+"), style[0]))
        if not diverged(group):
            inside += late(group, points) + [v for edge in (low, high) for v in late(group, (points[0], edge))]
    set_limits(axes, inside)
    label_ends(axes, ends, lines=6)
    axes.set_ylabel("difference (nats)")
    what = "; band: 95 % t interval at each evaluation" if band else ""
    axes.set_title(f"validation loss less that of {groups[0].label}: below zero is better{what}", fontsize=9.5)


def difference_curve(base: Group, other: Group) -> tuple[Points, list[float], list[float]]:
    """Mean difference and the ends of its interval (NaN where there is none)."""
    if differences and max(len(base.runs), len(other.runs)) > 1:
        steps, found = differences.curve(base, other)
        return (steps, [d.mean for d in found]), [d.low for d in found], [d.high for d in found]
    steps = sorted(set(base.over_seeds(val_loss)) & set(other.over_seeds(val_loss)))
    at = {id(run): dict(zip(*val_loss(run))) for group in (base, other) for run in group.used()}
    means = [mean_difference(base, other, lambda run: at[id(run)][step]) for step in steps]
    nothing = [float("nan")] * len(steps)
    return (steps, means), nothing, nothing


def draw_diagnostics(groups: Sequence[Group]) -> Optional[Figure]:
    """A row a diagnostic, a column a layer; means over heads (logit: the largest) and seeds."""
    layers = sorted({layer for group in groups for run in group.runs for layer in run.layers()})
    if not layers:
        return None
    count = min(len(layers), MOST_LAYERS)
    chosen = [layers[round(i * (len(layers) - 1) / max(1, count - 1))] for i in range(count)]
    figure, panels = pyplot.subplots(
        len(DIAGNOSTICS), count, sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    figure.set_size_inches(max(4.5, 1.4 + 1.9 * count), 9.6)
    for row, (field, over_heads, label) in zip(panels, DIAGNOSTICS):
        values = []
        for axes, layer in zip(row, chosen):
            for group, style in styled(groups):
                points = group.mean_points(lambda run: run.attention(field, layer, over_heads))
                plot_curve(axes, points, style, width=1.3)
                values += finite(points[1])
        if values and min(values) > 0 and max(values) > 30 * min(values):
            row[0].set_yscale("log")  # shared by the row
            row[0].yaxis.set_major_formatter("{x:g}")
        row[0].set_ylabel(label, fontsize=8.5)
    for axes, layer in zip(panels[0], chosen):
        axes.set_title(f"layer {layer}", fontsize=9.5)
    panels[0][0].set_xlim(0, max(1, *(group.last_step() for group in groups)))
    for axes in panels.flat:
        axes.tick_params(labelsize=8)
        axes.locator_params(axis="x", nbins=3)
    figure.supxlabel("updates\nmeans over heads and seeds; logit: largest of the heads", fontsize=9.5)
    handles = [
        Line2D([], [], color=colour, ls=dashes, lw=1.3, marker=marker, markersize=3.3, label=group.label)
        for group, (colour, dashes, marker) in styled(groups)
    ]
    columns = min(len(groups), count)
    lines = -(-len(groups) // columns)
    # matplotlib 3.6 (Debian 12) cannot put a legend outside of the panels: room is left for it.
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - 0.012 - 0.019 * lines))
    figure.legend(handles=handles, loc="upper left", ncols=columns, fontsize=9)
    return figure


def title(groups: Sequence[Group]) -> str:
    """What all runs share: the text, the shape of the model."""
    configs = [run.config for group in groups for run in group.runs]
    shape = "{n_layer} layers, {n_head} heads, {n_embd} channels, context {block_size}"
    texts = {Path(str(config.get("data"))).name for config in configs}
    shapes = {shape.format_map(defaultdict(str, config)) for config in configs}
    return ": ".join(found.pop() for found in (texts, shapes) if len(found) == 1)


def draw_curves(groups: Sequence[Group]) -> Figure:
    panels = 2 if len(groups) > 1 else 1
    shares = {"height_ratios": [3, 1.15][:panels]}
    figure, columns = pyplot.subplots(
        panels, 1, sharex=True, squeeze=False, layout="constrained", gridspec_kw=shares
    )
    axes = columns[:, 0]
    figure.set_size_inches(8, 3.6 if panels == 1 else 5.3)
    draw_losses(axes[0], groups)
    if panels == 2:
        draw_differences(axes[1], groups)
    figure.align_ylabels()
    axes[-1].set_xlabel("updates")
    axes[-1].set_xlim(0, max(1, *(group.last_step() for group in groups)))
    return figure


def draw(groups: Sequence[Group], prefix: Path) -> list[Path]:
    """Writes PREFIX.png and .svg, and PREFIX_attention.png and .svg where diagnostics were recorded."""
    written = []
    drawings: dict[str, Callable[[Sequence[Group]], Optional[Figure]]] = {
        "": draw_curves,
        "_attention": draw_diagnostics,
    }
    with matplotlib.rc_context(RC):
        for end, drawing in drawings.items():
            figure = drawing(groups)
            if figure is None:
                continue
            png, svg = (prefix.with_name(f"{prefix.name}{end}{kind}") for kind in (".png", ".svg"))
            figure.savefig(png, dpi=150, metadata={"Software": None})
            figure.savefig(svg, metadata={"Date": None})
            pyplot.close(figure)
            written += [png, svg]
    return written
