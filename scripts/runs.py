"""Reads runs for compare.py and sweep.py: a run directory's config.json and metrics.jsonl."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Sequence

Row = dict[str, Any]

# What the start rows of two runs must have in common before a difference may be put down to their configs.
SAME_START = {
    "text_sha256": "text",
    "init_crc": "initial shared weights",
    "windows_crc": "batches",
    "version": "program version",
}


class InputError(Exception):
    pass


@dataclass
class Run:
    path: Path
    config: Row
    rows: dict[str, list[Row]]  # by kind
    label: str = ""

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

    def points(self, kind: str, field: str) -> tuple[list[int], list[float]]:
        """Steps and values, NaN where the run had no finite value, so that a curve has a gap there."""
        rows = [row for row in self.rows.get(kind, []) if field in row]
        return [row["step"] for row in rows], [float("nan") if row[field] is None else row[field] for row in rows]

    def median(self, field: str) -> Optional[float]:
        values = [row[field] for row in self.rows.get("train", []) if row.get(field) is not None]
        return statistics.median(values) if values else None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path}: {(error.strerror or str(error)).lower()}; a run directory holds config.json and metrics.jsonl"
        )
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
