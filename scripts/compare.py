#!/usr/bin/env python3
"""Compares runs: what differs in their configs, their losses side by side, and their curves.

    scripts/compare.py RUN [RUN ...] [--out PREFIX]

The tables go to stdout and need Python alone. PREFIX.png and PREFIX.svg (default: `compare` beside the first
run) need matplotlib; where it is missing this says how to get it. The first run is the one compared against.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Iterable

from runs import SAME_START, InputError, Row, Run, check_starts, load

NOT_COMPARED = {"out_dir", "threads"}  # where and on how many cores: no influence on results
NO_MATPLOTLIB = """\
no figures: matplotlib is missing; one of these brings it
  python3 -m venv .venv && .venv/bin/pip install numpy scipy matplotlib
  sudo apt-get install python3-numpy python3-scipy python3-matplotlib"""


def name_runs(runs: list[Run]) -> None:
    """The attention kinds where they tell the runs apart, else directory names, else paths."""
    for names in (
        [str(run.config.get("attention")) for run in runs],
        [run.path.resolve().name for run in runs],
        [str(run.path) for run in runs],
    ):
        if len(set(names)) == len(runs):
            break
    for run, name in zip(runs, names):
        run.label = name


def loss_cell(row: Row, field: str) -> str:
    """A loss; `nan` or `inf` where there was one, `-` where there is nothing."""
    return row.get("nonfinite", "-") if row.get(field) is None else f"{row[field]:.4f}"


def difference(row: Row, base: Row, field: str) -> str:
    ours, theirs = row.get(field), base.get(field)
    return "-" if ours is None or theirs is None else f"{ours - theirs:+.4f}"


def print_table(head: list[str], body: Iterable[list[str]], left: int = 1) -> None:
    """Columns two blanks apart, the first `left` of them flush left."""
    table = [head, *body]
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    for line in table:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())
    print()


def print_configs(runs: list[Run]) -> None:
    """The keys that differ, and warnings where the runs are not a fair comparison of attention kinds."""
    print_table(["run", "directory"], ([run.label, str(run.path)] for run in runs), left=2)
    if len(runs) == 1:
        return
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in NOT_COMPARED)
    values = {
        key: [json.dumps(run.config[key]) if key in run.config else "(absent)" for run in runs] for key in keys
    }
    differing = [key for key in keys if len(set(values[key])) > 1]
    if differing:
        head = ["config", *(run.label for run in runs)]
        print_table(head, ([key, *values[key]] for key in differing), left=len(head))
    else:
        print("configs: no difference\n")

    warnings = []
    if others := [key for key in differing if key != "attention"]:
        warnings.append(f"more than the attention differs: {', '.join(others)}")
    different, missing = check_starts(runs)
    warnings += [f"different {SAME_START[field]} ({field} of the start rows)" for field in different]
    unknown = [SAME_START[field] for field in missing]
    agreed = [what for field, what in SAME_START.items() if field not in different + missing]
    if unknown:
        warnings.append(f"not recorded in every run, so not checked: {', '.join(unknown)}")
    if agreed:
        print(f"checked, equal in all runs: {', '.join(agreed)}")
    for warning in warnings:
        print(f"WARNING: {warning}")
    print()


def print_losses(runs: list[Run]) -> None:
    tables = [run.evals() for run in runs]
    head = ["step"]
    for run in runs:
        head += [f"{run.label}: train", "val"] + (["val diff"] if run is not runs[0] else [])
    body = []
    for step in sorted(set().union(*tables)):
        line = [str(step)]
        for table in tables:
            row = table.get(step, {})
            line += [loss_cell(row, "train_loss"), loss_cell(row, "val_loss")]
            if table is not tables[0]:
                line.append(difference(row, tables[0].get(step, {}), "val_loss"))
        body.append(line)
    print("loss, nats per character" + (f"; val diff: val minus that of {runs[0].label}" if len(runs) > 1 else ""))
    print_table(head, body)


def print_ends(runs: list[Run]) -> None:
    """How each run ended: loss over the whole validation split, and speed."""
    body = []
    for run in runs:
        final, step = run.final(), run.last_step()
        losses = {at: row["val_loss"] for at, row in run.evals().items() if row.get("val_loss") is not None}
        best = min(losses, key=losses.__getitem__, default=None)
        body.append(
            [
                run.label,
                str(step) if final else f"{step}, not finished",
                "-" if best is None else f"{losses[best]:.4f} at {best}",
                loss_cell(final, "val_loss_full"),
                difference(final, runs[0].final(), "val_loss_full"),
                loss_cell(final, "bits_per_char"),
                "-" if (ms := run.median("ms")) is None else f"{ms:.2f}",
                "-" if (rate := run.median("tok_per_s")) is None else f"{rate:.0f}",
            ]
        )
    print("at the end; full val: loss over the whole validation split; speed: medians")
    print_table(["run", "updates", "best val", "full val", "diff", "bits/char", "ms/update", "tok/s"], body)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Compares training runs: configs, losses, curves.")
    what = "a run directory; the first is the one compared against"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=what)
    what = "write PREFIX.png and PREFIX.svg (default: compare, beside the first run)"
    parser.add_argument("--out", type=Path, metavar="PREFIX", help=what)
    options = parser.parse_args(arguments)
    try:
        runs = [load(path) for path in options.runs]
    except InputError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    name_runs(runs)
    print_configs(runs)
    print_losses(runs)
    print_ends(runs)
    try:
        from curves import draw
    except ImportError:
        print(NO_MATPLOTLIB, file=sys.stderr)
        return 0
    try:
        for path in draw(runs, options.out or runs[0].path.resolve().parent / "compare"):
            print(f"wrote {path}")
    except OSError as error:
        print(f"compare.py: {error.filename}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
