"""Reads runs for compare.py and sweep.py (config.json and metrics.jsonl of a run directory), and groups them:
runs that differ in nothing but the seed are one group."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

from command import InputError, reason

Row = dict[str, Any]
Points = Tuple[List[int], List[float]]  # steps and values, NaN for a gap

NOT_COMPARED = {"out_dir", "threads"}  # where and on how many cores: no influence on results
OF_ATTENTION = {"attention", "qk_scale_init", "qk_scale_lr_mult", "qk_norm_eps", "softcap"}
LONGEST_LABEL = 40

# What the start rows of two runs must have in common before a difference may be put down to their configs.
SAME_START = {
    "text_sha256": "text",
    "init_crc": "initial shared weights",
    "windows_crc": "batches",
    "version": "program version",
}


@dataclass
class Run:
    path: Path
    config: Row
    rows: dict[str, list[Row]]  # by kind

    def start(self) -> Row:
        return self.rows.get("start", [{}])[0]

    def seed(self) -> Optional[int]:
        return self.config.get("seed")

    def last_step(self) -> int:
        return max((row["step"] for kind in ("train", "eval") for row in self.rows.get(kind, [])), default=0)

    def final(self) -> Row:
        """The final row; empty for a run that has not finished or that goes on after an earlier end."""
        row = self.rows.get("final", [{}])[-1]
        return row if row.get("step") == self.last_step() else {}

    def diverged(self) -> bool:
        """Whether it ended in an update that could not be made or in a loss that is not finite."""
        return any("nonfinite" in row for row in [self.final(), *self.rows.get("train", [])[-1:]])

    def usable(self) -> bool:
        return bool(self.final()) and not self.diverged()

    def evals(self) -> dict[int, Row]:
        return {row["step"]: row for row in self.rows.get("eval", [])}

    def points(self, kind: str, field: str) -> Points:
        """Steps and values, NaN where the run had no finite value, so that a curve has a gap there."""
        rows = [row for row in self.rows.get(kind, []) if field in row]
        return [row["step"] for row in rows], [float("nan") if row[field] is None else row[field] for row in rows]

    def attention(self, field: str, layer: Optional[int], over_heads: Callable[[List[float]], float]) -> Points:
        """A diagnostic of one layer, or of all (None), over the steps; NaN where a head had no finite value."""
        heads: dict[int, list[Any]] = {}
        for row in self.rows.get("attention", []):
            if field in row and layer in (None, row.get("layer")):
                values = row[field] if isinstance(row[field], list) else [row[field]]
                heads.setdefault(row["step"], []).extend(values)
        points = [math.nan if None in values or not values else over_heads(values) for values in heads.values()]
        return list(heads), points

    def layers(self) -> list[int]:
        return sorted({row["layer"] for row in self.rows.get("attention", []) if "layer" in row})

    def median(self, field: str) -> Optional[float]:
        values = [row[field] for row in self.rows.get("train", []) if row.get(field) is not None]
        return statistics.median(values) if values else None


def find_program() -> str:
    """The program built beside these scripts or, where they are installed, the one on the path."""
    built = Path(__file__).resolve().parent.parent / "build" / "qkgpt"
    return str(built) if built.exists() else "qkgpt"


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}; a run directory holds config.json and metrics.jsonl")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}")


def load(path: Path) -> Run:
    try:
        config = json.loads(read_text(path / "config.json"))
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise InputError(f"{path / 'config.json'}: not a config: {error}")
    rows: dict[str, list[Row]] = {}
    lines = read_text(path / "metrics.jsonl").split("\n")
    for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is a row still being written
        try:
            row = json.loads(line)
            rows.setdefault(row["kind"], []).append(row)
            if row["kind"] in ("train", "eval", "attention"):
                int(row["step"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path / 'metrics.jsonl'}:{number}: not a row of metrics")
    return Run(path, config, rows)


def check_starts(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The fields of SAME_START in which these runs differ, and those that not every run has recorded."""
    found = {field: {run.start().get(field) for run in runs} for field in SAME_START}
    missing = [field for field, values in found.items() if None in values]
    return [field for field, values in found.items() if len(values) > 1 and field not in missing], missing


@dataclass
class Group:
    runs: list[Run]
    label: str = ""

    def used(self) -> list[Run]:
        """The runs that means are taken over: those that came to a finite end, or all where none has."""
        return [run for run in self.runs if run.usable()] or self.runs

    def last_step(self) -> int:
        return max(run.last_step() for run in self.runs)

    def over_seeds(self, points: Callable[[Run], Points]) -> dict[int, list[float]]:
        """Step to the values of the runs used; only the steps that all of them have."""
        found = [dict(zip(*points(run))) for run in self.used()]
        return {step: [at[step] for at in found] for step in sorted(set.intersection(*map(set, found)))}

    def mean_points(self, points: Callable[[Run], Points]) -> Points:
        values = self.over_seeds(points)
        return list(values), [math.fsum(v) / len(v) for v in values.values()]


def val_loss(run: Run) -> Points:
    return run.points("eval", "val_loss")


def pairs(base: Group, other: Group) -> list[tuple[Run, Run]]:
    """The runs used of equal seed whose start hashes were recorded and agree."""
    by_seed = {run.seed(): run for run in base.used()}
    both = [(by_seed[run.seed()], run) for run in other.used() if run.seed() in by_seed]
    return [pair for pair in both if check_starts(pair) == ([], [])]


def compared_pairs(base: Group, other: Group) -> list[tuple[Run, Run]]:
    """The pairs that a difference is the mean of; none where too few runs are paired, so that it is the
    difference of the means."""
    found = pairs(base, other)
    alone = min(len(base.used()), len(other.used())) == 1
    return found if len(found) > 1 or alone else []


def mean_difference(base: Group, other: Group, value: Callable[[Run], Optional[float]]) -> Optional[float]:
    """Other less base; None where a run that it takes has no value."""
    both = compared_pairs(base, other)
    ours = [value(run) for run in ([b for _, b in both] or other.used())]
    theirs = [value(run) for run in ([a for a, _ in both] or base.used())]
    if None in ours or None in theirs:
        return None
    return math.fsum(ours) / len(ours) - math.fsum(theirs) / len(theirs)


def read_groups(words: Sequence[str]) -> list[Group]:
    """Groups from the command line: `RUN ...` sorted into groups by their configs, or as they were put together
    behind words that end in a colon, `NAME: RUN ... NAME: RUN ...`, where the names may be missing."""
    if not any(word.endswith(":") for word in words):
        groups = group([load(Path(word)) for word in words])
    else:
        groups = []
        for word in words:
            if word.endswith(":"):
                groups.append(Group([], word[:-1]))
                continue
            if not groups:
                groups.append(Group([]))
            groups[-1].runs.append(load(Path(word)))
    for number, one in enumerate(groups, 1):
        name = f"group {one.label or number}"
        if not one.runs:
            raise InputError(f"{name}: no runs; at least one directory has to follow the colon")
        for seed, times in Counter(run.seed() for run in one.runs).items():
            if times > 1:
                raise InputError(f"{name}: {times} runs with seed {seed}; a seed counts once in a group")
    name_groups(groups)
    return groups


def group(runs: Sequence[Run]) -> list[Group]:
    """By everything in the config but the seed, in order of appearance. A seed that a group has already goes to
    a further group: the same run again, to compare a thing with itself."""
    found: list[tuple[Row, Group]] = []
    for run in runs:
        key = {k: v for k, v in run.config.items() if k not in NOT_COMPARED and k != "seed"}
        for other, one in found:
            if other == key and run.seed() not in [r.seed() for r in one.runs]:
                one.runs.append(run)
                break
        else:
            found.append((key, Group([run])))
    return [one for _, one in found]


def differing_keys(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Key to its value in each group as JSON, for the keys that are not the same everywhere. The seed is one of
    them only where every group is one run."""
    keys = dict.fromkeys(key for one in groups for run in one.runs for key in run.config)
    seeds = any(len(one.runs) > 1 for one in groups)
    values = {}
    for key in keys:
        if key in NOT_COMPARED or (key == "seed" and seeds):
            continue
        cells = []
        for one in groups:
            of_runs = {json.dumps(run.config[key]) if key in run.config else "(absent)" for run in one.runs}
            cells.append(of_runs.pop() if len(of_runs) == 1 else "varies")
        if len(set(cells)) > 1 or "varies" in cells:
            values[key] = cells
    return values


def name_groups(groups: Sequence[Group]) -> None:
    """Names given; else the attention kinds where they tell the groups apart, else the keys that differ, else
    what their directory names have in common, else paths."""
    keys = differing_keys(groups)
    attention = [str(one.runs[0].config.get("attention")) for one in groups]
    short = {"attention": "", "learning_rate": "lr "}
    by_key = [
        " ".join(short.get(key, f"{key} ") + values[i].strip('"') for key, values in keys.items())
        for i in range(len(groups))
    ]
    by_directory = [
        os.path.commonprefix([run.path.resolve().name for run in one.runs]).rstrip("_-. ") for one in groups
    ]
    by_path = [str(one.runs[0].path) for one in groups]
    for names in (attention, by_key, by_directory, by_path):
        if len(set(names)) == len(groups) and all(0 < len(name) <= LONGEST_LABEL for name in names):
            break
    taken = Counter(one.label or name for one, name in zip(groups, names))
    for number, (one, name) in enumerate(zip(groups, names), 1):
        one.label = one.label or name
        if taken[one.label] > 1:
            one.label += f" ({number})"
