#!/usr/bin/env python3
"""Shows runs in TensorBoard: writes the numbers of their metrics.jsonl as event files.

    scripts/to_tensorboard.py RUN [RUN ...] [--logdir DIR]

Each run gets a directory of its name in DIR (default: `tensorboard` beside the first run), then
`tensorboard --logdir DIR` draws them. A second call replaces the files of the first. Needs the package tensorboard.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Iterator

from command import InputError, how_to_install, refuse, run_script
from runs import Run, load

try:
    from tensorboard.summary import Writer
except ImportError:
    HOW = how_to_install("tensorboard", script="to_tensorboard.py")
    sys.exit(f"to_tensorboard.py: the package tensorboard is missing; one way to get it\n{HOW}")

PLACES = {"kind", "step", "layer"}  # where a number belongs, not numbers to draw


def numbers(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Tags and values of a row; a value that is not finite is null there and leaves a gap."""
    place = row["kind"] + (f"/layer {row['layer']}" if "layer" in row else "")
    for name in row.keys() - PLACES:
        values = row[name] if isinstance(row[name], list) else [row[name]]
        for head, value in enumerate(values):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield f"{place}/{name}" + (f" head {head}" if values is row[name] else ""), value


def write(run: Run, folder: Path) -> int:
    """Writes one event file, NAME.qkgpt, in place of an earlier one; returns how many numbers."""
    before = set(folder.glob("events.out.tfevents.*"))
    rows = [row for kind, rows in run.rows.items() if kind != "start" for row in rows]
    rows.sort(key=lambda row: row["step"])
    writer = Writer(str(folder))
    time, last, count = (run.path / "config.json").stat().st_mtime, 0, 0  # the clock of training: from its start
    for row in rows:
        if row["kind"] == "train" and row.get("ms"):
            time += row["ms"] / 1000 * (row["step"] - last)
            last = row["step"]
        for tag, value in numbers(row):
            writer.add_scalar(tag, value, row["step"], wall_time=time)
            count += 1
    writer.close()
    for path in set(folder.glob("events.out.tfevents.*")) - before:
        path.rename(f"{path}.qkgpt")
    for path in before:
        if path.suffix == ".qkgpt":
            path.unlink()
    return count


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes the metrics of runs as event files of TensorBoard.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    what = "where to write, a directory for each run (default: tensorboard, beside the first run)"
    parser.add_argument("--logdir", type=Path, metavar="DIR", help=what)
    options = parser.parse_args(arguments)
    logdir = options.logdir or options.runs[0].resolve().parent / "tensorboard"
    names = [path.resolve().name for path in options.runs]
    try:
        if len(set(names)) < len(names):
            raise InputError("two runs have the same name; write them to different --logdir")
        for path, name in zip(options.runs, names):
            print(f"wrote {logdir / name}: {write(load(path), logdir / name)} numbers")
    except (InputError, OSError) as error:
        return refuse("to_tensorboard.py", error)
    print(f"tensorboard --logdir {logdir} shows them")
    return 0


if __name__ == "__main__":
    run_script(main)
