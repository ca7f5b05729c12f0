"""What a study is: arms, learning rates, seeds; which runs it takes; and its table, one line a run.

STUDY.json holds
    configs              config files, relative to STUDY.json
    keys                 keys for all runs
    arms                 name -> keys; the first is the baseline, the second what it is compared with
    learning_rates       the grid
    seeds                of the grid
    confirm              arms and fresh seeds, run at each arm's best rate (optional)
Comments, // and /* */, are allowed as in configs.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Optional

from command import InputError, reason
from runs import Run

Row = dict[str, Any]
SMOOTHED = 50  # updates over which the training loss is averaged to see whether a run has diverged
COLUMNS = {  # of the table, and how a cell is read back; after these a column `val_STEP` for each evaluation
    "stage": str,  # grid or confirm
    "arm": str,
    "learning_rate": float,
    "seed": int,
    "status": str,  # finished, diverged, failed
    "updates": int,
    "val_loss_full": float,
    "val_loss_best": float,
    "train_loss_highest": float,  # of averages over SMOOTHED updates after the warm-up
    "logit_max": float,  # the largest attention score at any evaluation
    "entropy": float,  # at the end, mean over layers and heads
    "scale": str,  # at the end, of each layer
    "ms": float,
    "vocabulary": int,
    "version": str,
    "text_sha256": str,
    "init_crc": str,
    "windows_crc": str,
}


@dataclass(frozen=True)
class Planned:
    stage: str
    arm: str
    learning_rate: float
    seed: int
    keys: Row = field(compare=False)

    @property
    def name(self) -> str:
        return f"{self.arm}_lr{self.learning_rate:g}_seed{self.seed}"


@dataclass(frozen=True)
class Study:
    path: Path
    configs: list[Path]
    keys: Row
    arms: dict[str, Row]
    learning_rates: list[float]
    seeds: list[int]
    confirm_arms: list[str]
    confirm_seeds: list[int]

    def planned(self, stage: str, arm: str, rate: float, seed: int) -> Planned:
        keys = {**self.keys, **self.arms[arm], "learning_rate": rate, "seed": seed}
        return Planned(stage, arm, rate, seed, keys)

    def grid(self) -> list[Planned]:
        """Seed by seed, so that an early look covers the whole grid."""
        cells = ((arm, rate, seed) for seed in self.seeds for rate in self.learning_rates for arm in self.arms)
        return [self.planned("grid", *cell) for cell in cells]

    def confirmation(self, rates: dict[str, float]) -> list[Planned]:
        """Arm beside arm for each seed: pairs are complete early."""
        cells = ((arm, rates[arm], seed) for seed in self.confirm_seeds for arm in self.confirm_arms if arm in rates)
        return [self.planned("confirm", *cell) for cell in cells]


def without_comments(text: str) -> str:
    """Blanks in place of comments, as many, so that a fault keeps its line and column."""
    def kept(part: re.Match[str]) -> str:
        return part[0] if part[0].startswith('"') else re.sub(r"[^\r\n]", " ", part[0])

    return re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\r\n]*|/\*.*?\*/', kept, text, flags=re.DOTALL)  # or a string


def read_study(path: Path) -> Study:
    def need(good: bool, what: str) -> None:
        if not good:
            raise InputError(f"{path}: {what}")

    def numbers(value: Any, kind: Any) -> bool:
        return isinstance(value, list) and all(isinstance(x, kind) and not isinstance(x, bool) for x in value)

    try:
        study = json.loads(without_comments(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}")
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}")
    need(isinstance(study, dict), "not an object")
    known = {"about", "configs", "keys", "arms", "learning_rates", "seeds", "confirm"}
    is_study = known >= set(study) or not {"configs", "arms", "learning_rates"}.isdisjoint(study)
    has = "configs, arms, learning_rates and seeds, as configs/study_quick.json does"
    need(is_study, f"a training config, not a study; a study has {has}")
    need(known >= set(study), f"unknown: {', '.join(sorted(set(study) - known))}; known: {', '.join(sorted(known))}")
    arms, confirm = study.get("arms"), study.get("confirm", {"arms": [], "seeds": []})
    need(isinstance(arms, dict) and len(arms) > 0, "arms: expected an object of names and their keys")
    for arm, keys in arms.items():
        need(isinstance(keys, dict), f"arms: {arm}: expected an object of keys")
        need(arm.replace("_", "").replace("-", "").isalnum(), f"arms: {arm!r}: expected letters, digits, - and _")
    for field, kind in (("learning_rates", (int, float)), ("seeds", int)):
        need(numbers(study.get(field), kind) and len(study[field]) > 0, f"{field}: expected a list of numbers")
        need(len(set(study[field])) == len(study[field]), f"{field}: one of them twice")
    need(isinstance(confirm, dict) and set(confirm) == {"arms", "seeds"}, "confirm: expected arms and seeds")
    need(numbers(confirm["seeds"], int), "confirm: seeds: expected a list of numbers")
    need(not set(confirm["seeds"]) & set(study["seeds"]), "confirm: seeds: expected other seeds than the grid's")
    need(set(confirm["arms"]) <= set(arms), f"confirm: arms: expected some of {', '.join(arms)}")
    return Study(
        path,
        [path.parent / name for name in study.get("configs", [])],
        study.get("keys", {}),
        arms,
        [float(rate) for rate in study["learning_rates"]],
        study["seeds"],
        list(confirm["arms"]),
        confirm["seeds"],
    )


def judged_loss(row: Row) -> float:
    """The loss that a run counts with; ln(vocabulary), that of a uniform guess, where it has diverged."""
    return math.log(row["vocabulary"]) if row["status"] == "diverged" else row["val_loss_full"]


def grid_losses(rows: list[Row]) -> dict[str, dict[float, dict[int, float]]]:
    """arm -> learning rate -> seed -> loss, of the grid."""
    losses: dict[str, dict[float, dict[int, float]]] = {}
    for row in rows:
        if row["stage"] == "grid" and row["status"] != "failed":
            losses.setdefault(row["arm"], {}).setdefault(row["learning_rate"], {})[row["seed"]] = judged_loss(row)
    return losses


def best_rates(rows: list[Row]) -> dict[str, float]:
    """The rate of each arm with the lowest mean loss over the grid's seeds."""
    means = {arm: {r: statistics.fmean(by.values()) for r, by in rates.items()} for arm, rates in grid_losses(rows).items()}
    return {arm: min(sorted(rates), key=rates.__getitem__) for arm, rates in means.items()}


def highest_smoothed(run: Run) -> Optional[float]:
    """The highest mean of the train losses of SMOOTHED updates in a row, after the warm-up; None without any."""
    warmup, every = run.config.get("warmup_iters", 0), run.config.get("log_interval", 10) or 1
    losses = [x for step, x in zip(*run.points("train", "loss")) if step > warmup]
    window = max(1, SMOOTHED // every)
    means = [statistics.fmean(losses[i : i + window]) for i in range(len(losses) - window + 1)]
    return math.inf if any(math.isnan(mean) for mean in means) else max(means, default=None)


@functools.lru_cache
def count_characters(text: Path) -> int:
    with open(text, encoding="utf-8-sig", newline="") as file:
        return len(set(file.read()))


def table_row(planned: Planned, run: Run, exit_code: int) -> Row:
    """What the table keeps of a run that ended with this exit code."""
    vocabulary = count_characters(Path(run.config["data"]))
    final, attention = run.final(), run.rows.get("attention", [])
    last = [row for row in attention if row["step"] == run.last_step()]
    evals = {step: row["val_loss"] for step, row in run.evals().items() if row.get("val_loss") is not None}
    row: Row = {
        "stage": planned.stage,
        "arm": planned.arm,
        "learning_rate": planned.learning_rate,
        "seed": planned.seed,
        "status": "finished" if exit_code == 0 else "diverged" if exit_code == 3 else "failed",
        "updates": run.last_step(),
        "val_loss_full": final.get("val_loss_full"),
        "val_loss_best": min(evals.values(), default=None),
        "train_loss_highest": highest_smoothed(run),
        "logit_max": max((x for row in attention for x in row["logit_max"] if x is not None), default=None),
        "entropy": mean_of(x for row in last for x in row["entropy"]),
        "scale": " ".join(f"{row['scale']:.4g}" for row in last if row["scale"] is not None),
        "ms": run.median("ms"),
        "vocabulary": vocabulary,
        **{field: run.start().get(field, "") for field in ("version", "text_sha256", "init_crc", "windows_crc")},
    }
    loss, highest = row["val_loss_full"], row["train_loss_highest"] or 0.0
    if row["status"] == "finished" and (loss is None or not max(loss, highest) <= math.log(vocabulary)):
        row["status"] = "diverged"  # None: the last loss was not finite
    return row | {f"val_{step}": loss for step, loss in evals.items()}


def mean_of(values: Iterable[Optional[float]]) -> Optional[float]:
    known = [x for x in values if x is not None]
    return statistics.fmean(known) if known else None


def write_table(rows: list[Row], path: Path) -> None:
    steps = sorted({name for row in rows for name in row if name not in COLUMNS}, key=lambda name: int(name[4:]))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *steps], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def read_table(path: Path) -> list[Row]:
    """The rows as `table_row` made them, numbers to six digits; an empty cell is left out of its row."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if not lines or not set(COLUMNS) <= set(lines[0]):
            raise ValueError(f"expected the columns {', '.join(COLUMNS)}")
        return [{k: COLUMNS.get(k, float)(v) for k, v in line.items() if v not in ("", None)} for line in lines]
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}")
    except (ValueError, KeyError) as error:
        raise InputError(f"{path}: not the table of a study: {error}")
