#!/usr/bin/env python3
"""Runs a study, arms x learning rates x seeds, as plain `qkgpt train` runs side by side; then its report.

    scripts/sweep.py STUDY.json [--out DIR] [--jobs N] [--KEY=VALUE ...]

Interrupted, the same command goes on: finished runs are kept, half-finished ones resume. A run that fails or
diverges is recorded and the rest goes on; only a mistake in config or usage, which all would repeat, ends it.
DIR (default: runs/ and the name of STUDY.json) receives the runs as ARM_lrRATE_seedSEED, what each of them
printed (.log), study.csv and the report drawn from it. Results do not depend on the number of threads, so runs
of one thread each, as many as there are cores, are the quickest way.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from command import FOR_FIGURES, InputError, refuse, run_script
from runs import NOT_COMPARED, find_program, load
from study import Planned, Row, Study, best_rates, read_study, table_row, write_table

SET_BY_STUDY = {"learning_rate", "seed", "attention", "out_dir"}
STOPPED = 128 + signal.SIGTERM  # exit code of a run that was told to stop
REFUSED, DIVERGED = 2, 3  # exit codes: usage, config or text; a loss that is not finite


class Sweep:
    def __init__(self, study: Study, out: Path, program: str, overrides: dict[str, str], jobs: int) -> None:
        self.study, self.out, self.program, self.overrides, self.jobs = study, out, program, overrides, jobs
        self.processes: dict[Planned, subprocess.Popen[bytes]] = {}
        self.planned: list[Planned] = []
        self.exit_codes: dict[Planned, int] = {}  # of those that have ended
        self.missing: dict[Planned, str] = {}  # why a run that has ended has no row in the table
        self.stopping = False

    def command(self, planned: Planned) -> list[str]:
        keys = planned.keys | {"threads": 1, "out_dir": str(self.out / planned.name)} | self.overrides
        options = [f"--{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in keys.items()]
        return [self.program, "train", *map(str, self.study.configs), *options]

    def config(self, planned: Planned) -> Row:
        """The resolved config; a mistake in the study shows here, before anything starts."""
        result = subprocess.run([*self.command(planned), "--print-config"], capture_output=True, encoding="utf-8")
        if result.returncode != 0:
            raise InputError(f"{self.study.path}: {planned.name}: {result.stderr.strip()}")
        return json.loads(result.stdout)

    def check(self, planned: list[Planned]) -> None:
        """Refuses directories that hold other runs than those planned."""
        for one in planned:
            wanted, path = self.config(one), self.out / one.name / "config.json"
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else wanted
            if wanted["val_fraction"] == 0:
                raise InputError(f"{self.study.path}: val_fraction is 0; a study compares validation losses")
            for key in wanted.keys() - NOT_COMPARED:
                if found.get(key) != wanted[key]:
                    raise InputError(
                        f"{path}: {key} is {found.get(key)}, in the study {wanted[key]};"
                        " give another --out, or remove that directory"
                    )

    def finished(self, planned: Planned) -> bool:
        path = self.out / planned.name
        return (path / "metrics.jsonl").exists() and bool(load(path).final())

    def log(self, planned: Planned) -> Path:
        return self.out / f"{planned.name}.log"

    def train(self, planned: Planned) -> int:
        """Starts or resumes a run and waits for its end."""
        if self.stopping:
            return STOPPED
        directory = self.out / planned.name
        how = "--resume" if (directory / "last.safetensors").exists() else "--overwrite"
        command = [*self.command(planned), how, "--quiet"]
        with open(self.log(planned), "ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            # In a session of its own, so that Ctrl-C reaches it once, from stop().
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            self.processes[planned] = process
            if self.stopping:  # while it was started
                process.terminate()
            code = process.wait()
            del self.processes[planned]
            if code == REFUSED:
                self.stop()
        return code

    def stop(self) -> None:
        """Tells the running ones to save and end; the pool then waits for them."""
        self.stopping = True
        for process in list(self.processes.values()):
            process.terminate()

    def run(self, planned: list[Planned], total: int) -> None:
        """Runs what is not finished, `total` being the number of runs of the whole study."""
        self.planned += planned
        self.exit_codes |= {one: 0 for one in planned if self.finished(one)}
        todo = [one for one in planned if one not in self.exit_codes]
        progress = Progress(total, len(self.exit_codes))
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {one: pool.submit(self.train, one) for one in todo}
            try:
                while futures:
                    for one in [one for one, future in futures.items() if future.done()]:
                        self.exit_codes[one] = futures.pop(one).result()
                        if self.exit_codes[one] == REFUSED:
                            raise InputError(self.refusal(one))
                        progress.update(len(self.exit_codes), self.running_share())
                        if not self.stopping:
                            progress.line(f"{one.name}  {self.outcome(one)}")
                    progress.update(len(self.exit_codes), self.running_share())
                    time.sleep(0.2)
            except BaseException:
                self.stop()
                raise
            finally:
                clear_line()

    def refusal(self, planned: Planned) -> str:
        """What the run said itself, behind the last command line in its log."""
        path = self.log(planned)
        said = path.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2].splitlines()[1:]
        return "\n  ".join([f"{path}: ended with exit code {REFUSED}, as every other run would:", *said[-10:]])

    def outcome(self, planned: Planned) -> str:
        code = self.exit_codes[planned]
        loss = load(self.out / planned.name).final().get("val_loss_full") if code == 0 else None
        if loss is not None:
            return f"{loss:.4f}"
        return "diverged" if code in (0, DIVERGED) else f"FAILED with exit code {code}; {self.log(planned)} says why"

    def running_share(self) -> float:
        return sum(self.share_done(one) for one in list(self.processes))

    def share_done(self, planned: Planned) -> float:
        """How much of a running run is done, by the newest row of its metrics."""
        try:
            with open(self.out / planned.name / "metrics.jsonl", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                row = json.loads(file.read().split(b"\n")[-2])
            return row["step"] / json.loads((self.out / planned.name / "config.json").read_bytes())["max_iters"]
        except (OSError, ValueError, KeyError, IndexError, ZeroDivisionError):
            return 0.0

    def table(self) -> list[Row]:
        """In the order of the study, whichever ended first."""
        rows = []
        self.missing.clear()
        for planned in self.planned:
            try:
                rows.append(table_row(planned, load(self.out / planned.name), self.exit_codes[planned]))
            except InputError as error:  # a run that could not even start
                self.missing[planned] = str(error)
        return rows

    def failures(self) -> list[str]:
        """What to say of runs that failed or that the table lacks."""
        failed = [one for one in self.planned if self.exit_codes[one] not in (0, DIVERGED)]
        lines = [why for one, why in self.missing.items() if one not in failed]
        if failed:
            names = ", ".join(one.name for one in failed)
            lines.append(f"failed: {names}; the logs in {self.out} say why; the same command tries them again")
        if self.missing:
            lines.append(f"without results, so not in the report: {', '.join(one.name for one in self.missing)}")
        return lines


CLEAR = "\r\033[K"  # to the start of the line, and what stands there away


def clear_line() -> None:
    """Makes room on a terminal for what follows on stdout or stderr."""
    if sys.stderr.isatty():
        print(CLEAR, end="", file=sys.stderr, flush=True)


class Progress:
    """A line for each run that has ended and, on a terminal, one redrawn line with the time left."""

    def __init__(self, total: int, ended: int) -> None:
        self.total, self.ended, self.running = total, ended, 0.0
        self.first, self.began = ended, time.monotonic()

    def update(self, ended: int, running: float) -> None:
        """Runs that have ended, and the share that the running ones have done, in runs."""
        self.ended, self.running = ended, running
        if sys.stderr.isatty():
            print(f"{CLEAR}{self.state()}", end="", file=sys.stderr, flush=True)

    def state(self) -> str:
        done = self.ended + self.running
        rate = (done - self.first) / (time.monotonic() - self.began)
        left = f", {duration((self.total - done) / rate)} left" if rate > 0 and done < self.total else ""
        return f"{self.ended} of {self.total} runs, {100 * done / self.total:.0f} %{left}"

    def line(self, text: str) -> None:
        clear_line()
        print(f"{text}  ({self.state()})", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Runs a study and reports on it; the same command again goes on where it was.",
        epilog="--KEY=VALUE goes to every run, e.g. --data=FILE.",
    )
    parser.add_argument("study", type=Path, metavar="STUDY.json", help="arms, learning rates, seeds (scripts/study.py)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/ and the name of the study")
    what = "runs side by side (default: one for each core)"
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help=what)
    parser.add_argument("--qkgpt", default=find_program(), metavar="PROGRAM", help="default: build/qkgpt")
    options, rest = parser.parse_known_args(arguments)
    overrides = {}
    for word in rest:
        key, equals, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if not word.startswith("--") or not equals:
            parser.error(f"{word}: expected --KEY=VALUE")
        if key in SET_BY_STUDY:
            parser.error(f"{word}: the study sets {key}")
        overrides[key] = value
    if options.jobs < 1:
        parser.error("--jobs: expected at least 1")
    signal.signal(signal.SIGTERM, interrupt)
    try:
        study = read_study(options.study)
        out = options.out or Path("runs") / options.study.stem
        sweep = Sweep(study, out, options.qkgpt, overrides, options.jobs)
        grid = study.grid()
        total = len(grid) + len(study.confirm_arms) * len(study.confirm_seeds)
        sweep.check(grid)
        out.mkdir(parents=True, exist_ok=True)
        sweep.run(grid, total)
        fresh = study.confirmation(best_rates(sweep.table()))
        sweep.check(fresh)
        sweep.run(fresh, total)
        write_table(sweep.table(), out / "study.csv")
    except (InputError, OSError) as error:
        return refuse("sweep.py", error)
    except KeyboardInterrupt:
        clear_line()  # of ^C
        print("sweep.py: stopped, running runs saved; the same command goes on from here", file=sys.stderr)
        return 130
    code = draw_report(out) if len(sweep.missing) < len(sweep.planned) else 0
    for line in sweep.failures():
        print(f"sweep.py: {line}", file=sys.stderr)
        code = code or 1
    return code


def draw_report(out: Path) -> int:
    try:
        from study_report import report

        report(out / "study.csv", out / "study")
    except ImportError as error:
        print(f"sweep.py: {out / 'study.csv'} is written; its report needs {error.name}", file=sys.stderr)
        print(f"one of these brings it\n{FOR_FIGURES}", file=sys.stderr)
        return 2
    except (InputError, OSError) as error:
        return refuse("sweep.py", error)
    return 0


if __name__ == "__main__":
    run_script(main)
