"""What compare.py has to say, as tables and notes that do not know whether they go to a terminal or a page."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Iterable, List, Optional, Sequence, Union

from runs import (
    NOT_COMPARED,
    OF_ATTENTION,
    SAME_START,
    Group,
    Row,
    Run,
    check_starts,
    differing_keys,
    mean_difference,
    pairs,
    val_loss,
)

FULL = "val_loss_full"


@dataclass
class Table:
    title: str
    head: list[str]
    body: list[list[str]]
    left: int = 1  # so many columns of words; the others hold numbers
    words_last: bool = False  # the last column too

    def is_words(self, column: int) -> bool:
        return column < self.left or (self.words_last and column == len(self.head) - 1)


@dataclass
class Note:
    text: str
    warning: bool = False


@dataclass
class Code:
    title: str
    text: str


Block = Union[Table, Note, Code]
Blocks = List[Block]


def number(value: Optional[float], digits: int, sign: str = "") -> str:
    return "-" if value is None or math.isnan(value) else f"{value:{sign}.{digits}f}"


def p_value(p: float) -> str:
    return "-" if math.isnan(p) else "<0.0001" if p < 0.0001 else f"{p:.4f}"


def loss_cell(row: Row, field: str) -> str:
    """A loss; `nan` or `inf` where there was one, `-` where there is nothing."""
    return row.get("nonfinite", "-") if row.get(field) is None else f"{row[field]:.4f}"


def difference(ours: Optional[float], theirs: Optional[float]) -> str:
    return "-" if ours is None or theirs is None else f"{ours - theirs:+.4f}"


def present(values: Iterable[Optional[float]]) -> list[float]:
    return [value for value in values if value is not None]


def mean_of(values: Iterable[Optional[float]]) -> Optional[float]:
    found = present(values)
    return mean(found) if found else None


def many(groups: Sequence[Group]) -> bool:
    return any(len(group.runs) > 1 for group in groups)


def seeds(runs: Iterable[Run]) -> str:
    return ", ".join(str(run.seed()) for run in runs)


def ended(run: Run) -> str:
    how = "" if run.usable() else ", diverged" if run.diverged() else ", not finished"
    return f"{run.last_step()}{how}"


def full_loss(run: Run) -> Optional[float]:
    """The loss that runs are judged by: over the whole validation split, at the end."""
    return run.final().get(FULL)


def best(run: Run) -> Optional[tuple[float, int]]:
    """The lowest validation loss and its step."""
    found = {at: row["val_loss"] for at, row in run.evals().items() if row.get("val_loss") is not None}
    return min(((loss, at) for at, loss in found.items()), default=None)


def about_groups(groups: Sequence[Group]) -> Blocks:
    """Which runs there are, and the keys that differ."""
    if many(groups):
        body = [[g.label, str(len(g.runs)), seeds(g.runs), directories(g)] for g in groups]
        blocks: Blocks = [Table("", ["group", "runs", "seeds", "directories"], body, left=4)]
    else:
        blocks = [Table("", ["run", "directory"], [[g.label, directories(g)] for g in groups], left=2)]
    if len(groups) == 1:
        return blocks
    differing = differing_keys(groups)
    if differing:
        head = ["config", *(group.label for group in groups)]
        blocks.append(Table("", head, [[key, *cells] for key, cells in differing.items()], left=len(head)))
    else:
        blocks.append(Note("configs: no difference"))
    if others := [key for key in differing if key not in OF_ATTENTION]:
        blocks.append(Note(f"more than the attention differs: {', '.join(others)}", warning=True))
    return blocks


def directories(group: Group) -> str:
    """Its one directory, or the first and the last."""
    paths = [str(run.path) for run in group.runs]
    return paths[0] if len(paths) == 1 else f"{paths[0]} ... {paths[-1]}" if len(paths) > 2 else ", ".join(paths)


def about_starts(groups: Sequence[Group]) -> Blocks:
    """The hashes at step 0 of the runs that share a seed, and whether they agree."""
    blocks: Blocks = []
    runs = [run for group in groups for run in group.runs]
    if len(groups) == 1:
        return blocks
    by_seed: dict[Optional[int], list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.seed(), []).append(run)
    shared = {seed: found for seed, found in by_seed.items() if len(found) > 1}
    body, different, missing = [], {}, {}
    for seed, found in shared.items():
        cells = []
        unlike, unknown = check_starts(found)
        for field in SAME_START:
            values = dict.fromkeys(str(run.start().get(field, "-"))[:12] for run in found)
            cells.append(" / ".join(values) + (" DIFFER" if field in unlike else ""))
            if field in unlike:
                different.setdefault(field, []).append(seed)
            if field in unknown:
                missing.setdefault(field, []).append(seed)
        body.append([str(seed), str(len(found)), *cells])
    if body:
        title = "recorded at step 0 by runs of equal seed (text_sha256: its first 12 digits)"
        blocks.append(Table(title, ["seed", "runs", *SAME_START], body, left=6))
        checked = [what for field, what in SAME_START.items() if field not in different and field not in missing]
        if checked:
            every = "all runs" if len(shared) == len(by_seed) == 1 else "all runs of equal seed"
            blocks.append(Note(f"checked, equal in {every}: {', '.join(checked)}"))
    elsewhere = [field for field in check_starts(runs)[0] if field in ("text_sha256", "version")]
    for field in SAME_START:
        if field in different:
            where = f"seed {', '.join(map(str, different[field]))}: " if many(groups) else ""
            rest = "; these runs are not used as pairs" if many(groups) else ""
            blocks.append(Note(f"{where}different {SAME_START[field]} ({field} of the start rows){rest}", warning=True))
        elif field in elsewhere:
            blocks.append(Note(f"different {SAME_START[field]} ({field} of the start rows)", warning=True))
    if missing:
        names = ", ".join(SAME_START[field] for field in missing)
        blocks.append(Note(f"not recorded in every run, so not checked: {names}", warning=True))
    return blocks


def about_losses(groups: Sequence[Group]) -> Blocks:
    """Losses at every evaluation, of runs or as means over seeds."""
    head, tables = ["step"], []
    for group in groups:
        head += [f"{group.label}: train", "val"] + (["val diff"] if group is not groups[0] else [])
        tables.append([run.evals() for run in group.used()])
    body = []
    for step in sorted(set().union(*(evals for table in tables for evals in table))):
        line = [str(step)]
        for group, table in zip(groups, tables):
            rows = [evals.get(step, {}) for evals in table]
            for field in ("train_loss", "val_loss"):
                bad = next((row for row in rows if row.get(field) is None), None)
                line.append(f"{mean(row[field] for row in rows):.4f}" if bad is None else loss_cell(bad, field))
            if group is not groups[0]:
                at_step = mean_difference(groups[0], group, lambda run: run.evals().get(step, {}).get("val_loss"))
                line.append(number(at_step, 4, "+"))
        body.append(line)
    means = ", means over seeds" if many(groups) else ""
    less = f"; val diff: val minus that of {groups[0].label}" if len(groups) > 1 else ""
    less += ", by pairs of equal seed where there are such" if less and many(groups) else ""
    return [Table(f"loss, nats per character{means}{less}", head, body)]


def about_missing(groups: Sequence[Group]) -> Blocks:
    blocks: Blocks = []
    for group in groups:
        lost = [run for run in group.runs if run.diverged()]
        unfinished = [run for run in group.runs if not run.usable() and run not in lost]
        for runs, what in ((lost, "diverged"), (unfinished, "have not finished")):
            if runs and len(group.runs) > 1:
                left_out = "" if len(runs) == len(group.runs) else "; means and statistics leave them out"
                favours = ", which favours this group" if what == "diverged" and left_out else ""
                text = f"{group.label}: {len(runs)} of {len(group.runs)} runs {what} (seed {seeds(runs)})"
                blocks.append(Note(text + left_out + favours, warning=True))
    return blocks


def about_ends(groups: Sequence[Group]) -> Blocks:
    """How the runs ended: loss over the whole validation split, and speed."""
    body = []
    for g in groups:
        used = g.used()
        lowest = [found for run in used if (found := best(run))]
        speeds = [present(run.median(field) for run in used) for field in ("ms", "tok_per_s")]
        ms, rate = (median(found) if found else None for found in speeds)
        bits = mean_of(run.final().get("bits_per_char") for run in used)
        if many(groups):
            full = present(map(full_loss, used))
            line = [g.label, f"{sum(run.usable() for run in g.runs)} of {len(g.runs)}"]
            line += [number(mean_of(loss for loss, _ in lowest), 4), number(mean_of(full), 4)]
            line += [number(stdev(full), 4) if len(full) > 1 else "-"]
        else:
            line = [g.label, ended(used[0]), "-" if not lowest else f"{lowest[0][0]:.4f} at {lowest[0][1]}"]
            line += [loss_cell(used[0].final(), FULL)]
        less_base = mean_difference(groups[0], g, full_loss)
        line += [number(less_base, 4, "+"), number(bits, 4), number(ms, 2), number(rate, 0)]
        body.append(line)
    end = ["diff", "bits/char", "ms/update", "tok/s"]
    title = "at the end; full val: loss over the whole validation split; speed: medians"
    if not many(groups):
        return [Table(title, ["run", "updates", "best val", "full val", *end], body)]
    title = title.replace("at the end", "at the end, means over the runs that finished; SD: over seeds")
    return [Table(title, ["group", "finished", "best val", "full val", "SD", *end], body), *about_seeds(groups)]


def about_seeds(groups: Sequence[Group]) -> Blocks:
    """The final loss of every run, and the differences of the pairs."""
    head = ["seed"]
    paired = []
    for g in groups:
        head += [g.label] + (["diff"] if g is not groups[0] else [])
        paired.append({b.seed() for _, b in pairs(groups[0], g)})
    order = dict.fromkeys(run.seed() for g in groups for run in g.runs)
    body = []
    for seed in order:
        line = [str(seed)]
        found = [next((run for run in g.runs if run.seed() == seed), None) for g in groups]
        for i, run in enumerate(found):
            usable = run is not None and run.usable()
            line.append("-" if run is None else loss_cell(run.final(), FULL) if usable else ended(run))
            if i > 0:
                both = seed in paired[i] and usable
                line.append(difference(full_loss(run), full_loss(found[0])) if both else "-")
        body.append(line)
    title = f"full val of every seed; diff: less the run of {groups[0].label} with this seed"
    return [Table(title if len(groups) > 1 else "full val of every seed", head, body)]


def reached(points: tuple[list[int], list[float]], target: float) -> Optional[float]:
    """Where a curve first comes down to the target, linear between evaluations."""
    previous = None
    for step, value in zip(*points):
        if value <= target:
            if previous is None or not math.isfinite(previous[1]):
                return float(step)
            return previous[0] + (step - previous[0]) * (previous[1] - target) / (previous[1] - value)
        previous = step, value
    return None


def about_attention(groups: Sequence[Group]) -> Blocks:
    """Updates to a common loss, and the diagnostics of the last evaluation."""
    curves = [group.mean_points(val_loss) for group in groups]
    finished = [any(run.usable() for run in group.runs) for group in groups]
    ends = [values[-1] for (_, values), done in zip(curves, finished) if values and (done or not any(finished))]
    target = max(filter(math.isfinite, ends), default=None)
    body = []
    for group, points in zip(groups, curves):
        to_target = None if target is None else reached(points, target)
        line = [group.label, number(to_target, 0)]
        for field, over, digits in (("logit_max", max, 2), ("entropy", mean, 3), ("p_max", mean, 3)):
            at_end = [values[-1] for run in group.used() if (values := run.attention(field, None, over)[1])]
            line.append(number(over(at_end), digits) if at_end else "-")
        by_layer = [
            mean_of(v[-1] for run in group.used() if (v := run.attention("scale", layer, max)[1]))
            for layer in group.runs[0].layers()
        ]
        line.append(" ".join(number(scale, 2) for scale in by_layer) or "-")
        body.append(line)
    if all(set(line[1:]) == {"-"} for line in body):
        return []
    over = ", means over seeds (logit: the largest)" if many(groups) else ""
    title = f"attention at the last evaluation{over}; scale: by layer"
    head = ["group" if many(groups) else "run", "to target", "max logit", "entropy", "p_max", "scale"]
    if target is not None and len(groups) > 1:
        title += f"\nto target: updates to val {target:.4f}, the highest of the last evaluations; "
        title += "linear between evaluations"
    else:
        head.pop(1)
        body = [line[:1] + line[2:] for line in body]
    return [Table(title, head, body)]


def about_repeating(groups: Sequence[Group], command: Sequence[str]) -> Blocks:
    """The config of the first run, and command lines for all runs and for the comparison."""
    base = groups[0].runs[0].config
    own = NOT_COMPARED | {"seed"}
    lines = []
    for run in (run for group in groups for run in group.runs):
        keys = [key for key, value in run.config.items() if key not in own and value != base.get(key)]
        keys += [key for key in ("seed", "out_dir") if key in run.config]
        options = [f"--{key}={as_option(run.config[key])}" for key in keys]
        lines.append(shlex.join(["build/qkgpt", "train", "base.json", *options]))
    lines.append(shlex.join(["python3", "scripts/compare.py", *command]))
    shared = {key: value for key, value in base.items() if key not in own}
    return [
        Code("base.json", json.dumps(shared, indent=2, ensure_ascii=False)),
        Code("commands", "\n".join(lines)),
    ]


def as_option(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def about_statistics(groups: Sequence[Group]) -> Blocks:
    """Differences of the final losses with intervals and tests. Needs numpy and scipy."""
    if len(groups) < 2 or not many(groups):
        return []
    if "text_sha256" in check_starts([run for group in groups for run in group.runs])[0]:
        return [Note("no statistics: the texts differ, so the losses are not of one thing", warning=True)]
    from differences import findings

    base, body, notes = groups[0].label, [], []
    found = findings(groups, full_loss)
    tested = sum(not math.isnan(f.difference.p) for f in found)
    for f in found:
        d = f.difference
        how = f"{d.n} pair{'s' * (d.n != 1)}" if d.paired else f"unpaired, {f.sizes[0]} and {f.sizes[1]}"
        interval = "-" if math.isnan(d.low) else f"{d.low:+.4f} to {d.high:+.4f}"
        line = [f.label, how, number(d.mean, 4, "+"), number(d.sd, 4), interval, p_value(d.p), p_value(f.holm_p)]
        body.append([*line, number(d.detectable(), 4), f.reading()])
        if d.n == 0:
            notes.append(Note(f"{f.label}: no run to compare"))
        elif d.too_few:
            what = f"{d.n} pair{'s' * (d.n != 1)} of seeds" if d.paired else f"{d.n} seeds in a group"
            lowest = f"; the p of {d.n} pairs cannot go below {2.0 ** (1 - d.n):.4g}" if d.paired and d.n > 1 else ""
            notes.append(Note(f"{f.label}: {what}: too few to conclude, at least 6 are needed{lowest}"))
        elif f.floor > 0.05:
            least = f"with {d.n} pairs and {tested} comparisons the corrected p cannot go below {f.floor:.4g}"
            notes.append(Note(f"{f.label}: too few to conclude: {least}"))
    head = [f"less {base}", "by", "mean", "SD", "95 % interval", "p", "Holm p", "detectable", "reading"]
    title = f"full val less that of {base}, nats per character: below zero is better"
    if tested:
        text = (
            "interval: Student's t. p: exact sign flips of the pairs, Welch's t test where there are none. Holm p: "
            f"corrected for {tested} comparison{'s' * (tested != 1)}, decides at 0.05. detectable: the difference "
            "that so many seeds of this SD show with a power of 0.8; where no difference is shown, it may still be "
            "as large as that."
        )
        notes.append(Note(text))
    return [Table(title, head, body, left=2, words_last=True), *notes]
