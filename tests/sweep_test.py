#!/usr/bin/env python3
"""Tests of scripts/sweep.py with the real program, and of the report of a study with numbers made up here."""
import contextlib
import csv
import importlib.util
import json
import math
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from program import PROGRAM, TINY, Case

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
MISSING = [name for name in ("numpy", "scipy", "matplotlib") if not importlib.util.find_spec(name)]
sys.path.insert(0, str(SCRIPTS))
if not MISSING:
    from command import InputError
    from study import read_study, read_table
    from study_report import describe
STUDY = {"configs": ["tiny.json"], "keys": {"warmup_iters": 2}, "learning_rates": [1e-3, 1e-2], "seeds": [1, 2],
         "arms": {"standard": {"attention": "standard"}, "qk_norm": {"attention": "qk_norm", "qk_scale_init": 4.0}},
         "confirm": {"arms": ["standard", "qk_norm"], "seeds": [11, 12]}}


class Scripted(Case):
    def setUp(self) -> None:
        super().setUp()
        self.config(TINY | {"max_iters": 12, "eval_interval": 4})
        self.study(STUDY)

    def study(self, study: dict) -> None:
        (self.dir / "study.json").write_text(json.dumps(study))

    def sweep(self, *arguments: str, code: int = 0, program: str = PROGRAM, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, str(SCRIPTS / "sweep.py"), "study.json", "--qkgpt", program, *arguments]
        done = subprocess.run(command, cwd=self.dir, capture_output=True, text=True, timeout=120, **options)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def table(self) -> dict[tuple[str, float, int], dict[str, str]]:
        with open(self.dir / "runs" / "study" / "study.csv", newline="") as file:
            return {(r["arm"], float(r["learning_rate"]), int(r["seed"])): r for r in csv.DictReader(file)}


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Sweep(Scripted):
    def test_every_run_is_a_plain_training(self) -> None:
        done = self.sweep("--jobs=2")
        table = self.table()
        self.assertEqual(len(table), 12)
        self.assertEqual({row["status"] for row in table.values()}, {"finished"})
        self.assertIn("12 of 12 runs, 100 %", done.stderr)
        self.assertIn("12 runs, 0 diverged, 0 failed", done.stdout)
        for suffix in ("rates", "logits", "confirm"):
            self.assertGreater((self.dir / "runs" / "study" / f"study_{suffix}.svg").stat().st_size, 5000)
        self.train("alone", "--warmup_iters=2", "--attention=qk_norm", "--qk_scale_init=4", "--learning_rate=0.01", "--seed=2")
        self.assert_same("alone", "runs/study/qk_norm_lr0.01_seed2")
        final = self.rows("alone", "final")[0]["val_loss_full"]
        self.assertAlmostEqual(float(table["qk_norm", 0.01, 2]["val_loss_full"]), final, delta=1e-5 * final)
        best = min(self.rows("alone", "eval"), key=lambda row: row["val_loss"])
        self.assertAlmostEqual(float(table["qk_norm", 0.01, 2][f"val_{best['step']}"]), best["val_loss"], delta=1e-4)

    def test_an_interrupted_study_goes_on(self) -> None:
        self.config(TINY | {"max_iters": 160, "eval_interval": 20, "n_embd": 32})
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "sweep.py"), "study.json", "--qkgpt", PROGRAM, "--jobs=2"],
            cwd=self.dir, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)  # fmt: skip
        assert process.stderr
        first = process.stderr.readline().split()[0]
        out = self.dir / "runs" / "study"
        running = re.compile(r"--out_dir=runs/study/(\w+_lr[\d.]+_seed\d+)")
        deadline = time.monotonic() + 60  # until a run that has not ended has saved something
        while time.monotonic() < deadline and not any(
            '"step":20' in path.read_text() and '"final"' not in path.read_text() for path in out.glob("*/metrics.jsonl")
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.wait(60), 130, rest)
        self.assertIn("goes on from here", rest)
        self.assertFalse([path for path in out.glob("*/.lock") if self.is_running(path)])
        before = (out / first / "metrics.jsonl").stat().st_mtime_ns

        self.config(TINY | {"max_iters": 160, "eval_interval": 20, "n_embd": 32})
        self.sweep("--jobs=2")
        self.assertEqual((out / first / "metrics.jsonl").stat().st_mtime_ns, before)
        logs = {path.stem: path.read_text() for path in out.glob("*.log")}
        self.assertEqual(logs[first].count("$ "), 1)
        resumed = [name for name in sorted(logs) if "--resume" in logs[name]]
        self.assertTrue(resumed)
        self.assertTrue(all(running.search(text) for text in logs.values()))
        arm, rate, seed = re.fullmatch(r"(\w+?)_lr([\d.]+)_seed(\d+)", resumed[0]).groups()
        extra = ["--qk_scale_init=4"] if arm == "qk_norm" else []
        self.train("alone", "--warmup_iters=2", f"--attention={arm}", f"--learning_rate={rate}", f"--seed={seed}", *extra)
        self.assert_same("alone", f"runs/study/{resumed[0]}")

    @staticmethod
    def is_running(lock: Path) -> bool:
        try:
            os.kill(int(re.search(r"\d+", lock.read_text()).group()), 0)
            return True
        except (OSError, AttributeError):
            return False

    def test_a_run_that_fails_is_recorded_and_tried_again(self) -> None:
        wrapper = self.dir / "flaky"
        wrapper.write_text(f'#!/bin/sh\ncase "$*" in *print-config*) ;; *seed=2*) exit 5;; esac\nexec {PROGRAM} "$@"\n')
        wrapper.chmod(0o755)
        done = self.sweep(program=str(wrapper), code=1)
        self.assertRegex(done.stderr, r"standard_lr0\.001_seed2  FAILED with exit code 5; runs/study/standard_lr0\.001_seed2\.log")
        self.assertRegex(done.stderr, r"sweep\.py: failed: standard_lr0\.001_seed2, .*; the same command tries them again")
        names = [f"{arm}_lr{rate}_seed2" for rate in (0.001, 0.01) for arm in ("standard", "qk_norm")]
        self.assertEqual(done.stderr.count(f"without results, so not in the report: {', '.join(names)}\n"), 1)
        self.assertNotIn("no such file", done.stderr)
        self.assertEqual(len(self.table()), 8)
        self.sweep()
        self.assertEqual({row["status"] for row in self.table().values()}, {"finished"})
        self.assertEqual(len(self.table()), 12)

    def test_a_mistake_that_all_runs_would_repeat_ends_the_sweep(self) -> None:
        (self.dir / "text.txt").rename(self.dir / "elsewhere.txt")
        done = self.sweep("--jobs=1", code=2)
        log = "runs/study/standard_lr0.001_seed1.log"
        self.assertRegex(done.stderr, rf"(?m)\Asweep\.py: {re.escape(log)}: .*exit code 2.*\n  text\.txt: cannot be read: .*\n\Z")
        self.assertEqual([str(path.relative_to(self.dir)) for path in self.dir.glob("runs/study/*")], [log])
        (self.dir / "elsewhere.txt").rename(self.dir / "text.txt")
        self.sweep()

    def test_a_study_whose_runs_all_fail_has_no_report(self) -> None:
        wrapper = self.dir / "failing"
        wrapper.write_text(f'#!/bin/sh\ncase "$*" in *print-config*) exec {PROGRAM} "$@";; esac\nexit 5\n')
        wrapper.chmod(0o755)
        done = self.sweep(program=str(wrapper), code=1)
        self.assertEqual((done.stdout, done.stderr.count("FAILED")), ("", 8))
        self.assertNotIn("not the table of a study", done.stderr)

    def test_a_reader_that_leaves_stops_it_and_it_goes_on_later(self) -> None:
        self.config(TINY | {"max_iters": 400, "eval_interval": 20, "n_embd": 32})
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "sweep.py"), "study.json", "--qkgpt", PROGRAM, "--jobs=2"],
            cwd=self.dir, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)  # fmt: skip
        process.stdout.readline()
        process.stdout.close()  # as `2>&1 | head -1` does
        self.assertEqual(process.wait(60), 141)
        out = self.dir / "runs" / "study"
        self.assertFalse([path for path in out.glob("*/.lock") if self.is_running(path)])
        self.assertLess(len(list(out.glob("*.log"))), 12)
        self.assertFalse((out / "study.csv").exists())
        self.sweep("--jobs=2")
        self.assertTrue([path for path in out.glob("*.log") if "--resume" in path.read_text()])
        self.assertEqual(len(self.table()), 12)

    def on_terminal(self, *arguments: str) -> list[str]:
        """The lines that a terminal shows in the end."""
        try:
            terminal, theirs = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminals here: {error}")
        process = subprocess.Popen([sys.executable, str(SCRIPTS / "sweep.py"), "study.json", "--qkgpt", PROGRAM, *arguments],
                                   cwd=self.dir, stdin=theirs, stdout=theirs, stderr=theirs)  # fmt: skip
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # its other end is closed
            while part := os.read(terminal, 4096):
                shown += part
        os.close(terminal)
        process.wait(60)
        self.assertIn(b"\r\x1b[K", shown)
        return [line.rpartition("\r\x1b[K")[2] for line in shown.decode().split("\r\n")]

    def test_the_line_of_progress_gives_way_to_what_follows(self) -> None:
        self.study({key: value for key, value in STUDY.items() if key != "confirm"} | {"seeds": [1]})
        lines = self.on_terminal()
        self.assertEqual(len([line for line in lines if line.startswith("4 runs, 0 diverged, 0 failed; ")]), 1, lines)
        (self.dir / "text.txt").unlink()
        lines = self.on_terminal("--out=again")
        self.assertRegex(lines[0], r"^sweep\.py: again/\w+_lr\S+_seed1\.log: ")  # whichever ends first

    def test_studies_may_hold_comments_as_configs_do(self) -> None:
        text = json.dumps(STUDY | {"about": 'see "http://a/b" /* not this */'}, indent=1)
        (self.dir / "study.json").write_text(f"// a study\n{text[:-1]} /* its\nend */ }} // here")
        self.assertEqual(read_study(self.dir / "study.json").seeds, [1, 2])
        (self.dir / "study.json").write_text('/* two\nlines */\n{"arms": // comment\n  oops}')
        self.assertIn("sweep.py: study.json:4:3: not JSON: Expecting value\n", self.sweep(code=2).stderr)

    def test_a_config_is_no_study(self) -> None:
        self.config({"n_layer": 2}, "study.json")
        self.assertIn("study.json: a training config, not a study; a study has configs, arms, ", self.sweep(code=2).stderr)

    def test_a_diverged_run_counts_as_a_uniform_guess(self) -> None:
        self.study(STUDY | {"learning_rates": [1e-2, 1e30]})
        for _ in range(2):
            done = self.sweep()
            self.assertEqual(self.table()["standard", 1e30, 1]["status"], "diverged")
            self.assertIn("4 diverged, 0 failed", done.stdout)
            vocabulary = int(self.table()["standard", 1e30, 1]["vocabulary"])
            self.assertIn(f"{math.log(vocabulary):.3f} ± 0.000 (2 diverged)", done.stdout)
        self.assertEqual(vocabulary, len(set((self.dir / "text.txt").read_text())))

    def test_the_first_arm_is_the_baseline_whichever_ends_first(self) -> None:
        slow = self.dir / "slow"
        slow.write_text(f'#!/bin/sh\ncase "$*" in *print-config*) ;; *attention=standard*) sleep 0.4;; esac\nexec {PROGRAM} "$@"\n')
        slow.chmod(0o755)
        done = self.sweep("--jobs=4", program=str(slow))
        self.assertTrue(done.stderr.startswith("qk_norm_"), done.stderr)  # the case in point
        self.assertEqual([row[0] for row in self.table()][:2], ["standard", "qk_norm"])
        self.assertIn("sensitivity of `qk_norm` less that of `standard`", done.stdout)

    def test_a_last_loss_that_is_not_finite_is_divergence(self) -> None:
        self.sweep()
        metrics = self.dir / "runs" / "study" / "qk_norm_lr0.001_seed1" / "metrics.jsonl"
        *rows, final = metrics.read_text().splitlines()
        final = json.loads(final) | {"val_loss_full": None, "bits_per_char": None, "nonfinite": "inf"}
        metrics.write_text("\n".join([*rows, json.dumps(final)]) + "\n")
        self.assertIn("1 diverged, 0 failed", self.sweep().stdout)
        self.assertEqual(self.table()["qk_norm", 1e-3, 1]["status"], "diverged")

    def test_a_directory_of_another_study_is_refused(self) -> None:
        self.sweep()
        self.study(STUDY | {"keys": {"warmup_iters": 3}})
        self.assertRegex(self.sweep(code=2).stderr, r"config\.json: warmup_iters is 2, in the study 3; give another --out")

    def test_mistakes_are_named(self) -> None:
        for change, words in (
            ({"seed": [1]}, "unknown: seed; known: "),
            ({"seeds": []}, "seeds: expected a list of numbers"),
            ({"seeds": [1, 1]}, "seeds: one of them twice"),
            ({"learning_rates": ["1e-3"]}, "learning_rates: expected a list of numbers"),
            ({"arms": {"a/b": {}}}, "expected letters, digits"),
            ({"confirm": {"arms": ["none"], "seeds": [9]}}, "confirm: arms: expected some of standard, qk_norm"),
            ({"confirm": {"arms": [], "seeds": [2]}}, "confirm: seeds: expected other seeds than the grid's"),
            ({"keys": {"n_layr": 2}}, "did you mean"),
            ({"keys": {"val_fraction": 0}}, "val_fraction is 0; a study compares validation losses"),
        ):
            with self.subTest(change):
                self.study(STUDY | change)
                self.assertIn(words, self.sweep(code=2).stderr)
        self.study(STUDY)
        for argument, words in (("--seed=3", "the study sets seed"), ("stray", "expected --KEY=VALUE")):
            self.assertIn(words, self.sweep(argument, code=2).stderr)
        self.assertFalse((self.dir / "runs").exists())


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Report(Scripted):
    RATES, SEEDS, FRESH = (1e-3, 1e-2, 1e-1), (1, 2, 3), tuple(range(11, 19))

    def write(self, loss, **changed) -> None:
        """A table with the losses loss(stage, arm, rate, seed); `changed` maps a column to a function of the row."""
        cells = [("grid", arm, r, s) for arm in ("standard", "qk_norm") for r in self.RATES for s in self.SEEDS]
        cells += [("confirm", arm, 1e-2, s) for arm in ("standard", "qk_norm") for s in self.FRESH]
        rows = []
        for stage, arm, rate, seed in cells:
            row = {"stage": stage, "arm": arm, "learning_rate": rate, "seed": seed, "status": "finished", "updates": 20,
                   "val_loss_full": loss(stage, arm, rate, seed), "val_loss_best": 1, "train_loss_highest": 2,
                   "logit_max": 5, "entropy": 0.5, "scale": "1 1", "ms": 1, "vocabulary": 65, "version": "1",
                   "text_sha256": "aa", "init_crc": f"{seed:02}", "windows_crc": "cc", "val_0": 4.2,
                   "val_10": loss(stage, arm, rate, seed), "val_20": loss(stage, arm, rate, seed)}  # fmt: skip
            rows.append(row | {column: change(row) for column, change in changed.items()})
        with open(self.dir / "table.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def report(self) -> str:
        return describe(read_table(self.dir / "table.csv"))[0]

    def error(self) -> str:
        with self.assertRaises(InputError) as caught:
            self.report()
        return str(caught.exception)

    @staticmethod
    def losses(effect: float, spread: float = 0.02, slope: float = 1.0):
        """standard is worse at the edges of the grid by `slope`; qk_norm differs by `effect` at the best rate."""
        def loss(stage: str, arm: str, rate: float, seed: int) -> float:
            edge = abs(math.log10(rate) + 2) * (slope if arm == "standard" else 0.1)
            noise = random.Random(f"{arm} {rate} {seed}").gauss(0, spread) + random.Random(seed).gauss(0, 0.1)
            return round(2 + edge + noise + (effect if arm == "qk_norm" else 0), 5)
        return loss

    def test_numbers_agree_with_scipy(self) -> None:
        from scipy import stats
        loss = self.losses(-0.1)
        self.write(loss)
        d = [loss("confirm", "qk_norm", 1e-2, s) - loss("confirm", "standard", 1e-2, s) for s in self.FRESH]
        low, high = stats.t.interval(0.95, len(d) - 1, sum(d) / len(d), stats.sem(d))
        flips = [sum(x if i >> k & 1 else -x for k, x in enumerate(d)) for i in range(2 ** len(d))]
        p = sum(abs(x) >= abs(sum(d)) - 1e-12 for x in flips) / len(flips)
        text = self.report().replace("−", "-")
        self.assertIn(f"| {sum(d) / len(d):+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} |", text)

        def sensitivity(arm: str, seeds: tuple[int, ...]) -> float:
            means = [sum(loss("grid", arm, r, s) for s in seeds) / len(seeds) for r in self.RATES]
            return sum(min(m, math.log(65)) for m in means) / len(means) - min(means)

        self.assertIn(f"| `standard` | 0.01 | {self.mean(loss, 'standard', 1e-2):.4f} | 0.01 |"
                      f" {sensitivity('standard', self.SEEDS):.3f} [", text)  # fmt: skip
        single = [sensitivity("qk_norm", (s,)) - sensitivity("standard", (s,)) for s in self.SEEDS]
        p1 = stats.ttest_1samp(single, 0).pvalue
        p1, p2 = (min(1, 2 * p1), max(p, 2 * p1)) if p1 < p else (max(p1, 2 * p), 2 * p)  # Holm, two claims
        self.assertIn(f"p {p1:.4f} after Holm", text)
        self.assertIn(f"sign-flip p {p2:.4f} after Holm, 8 pairs", text)
        self.assertIn("H1 holds", text)
        self.assertIn("`qk_norm` is better", text)

    def mean(self, loss, arm: str, rate: float) -> float:
        return sum(loss("grid", arm, rate, seed) for seed in self.SEEDS) / len(self.SEEDS)

    def test_no_effect_is_a_tie_and_no_proof(self) -> None:
        self.write(self.losses(0.0, slope=0.1))
        text = self.report()
        self.assertIn("H1 is not shown", text)
        self.assertRegex(text, r"H2: a tie, smaller than the 0\.0\d+ that could be detected")

    def test_an_arm_compared_with_itself_differs_by_nothing(self) -> None:
        loss = self.losses(0.0)
        self.write(lambda stage, arm, rate, seed: loss(stage, "standard", rate, seed))
        text = self.report()
        self.assertIn("+0.000 [+0.000, +0.000]", text)
        self.assertIn("+0.0000 [+0.0000, +0.0000]", text)
        self.assertNotIn("holds", text)
        self.assertNotIn("better:", text)

    def test_runs_from_different_starts_are_refused(self) -> None:
        for column in ("init_crc", "windows_crc", "text_sha256", "version"):
            self.write(self.losses(0), **{column: lambda row: "x" if row["arm"] == "qk_norm" else "y"})
            self.assertRegex(self.error(), rf"seed 1: {column} of standard at 0\.001 and of qk_norm at 0\.001 differ")

    def test_few_pairs_decide_nothing(self) -> None:
        self.write(self.losses(-0.5), status=lambda row: "failed" if row["seed"] > 15 else "finished")
        self.assertRegex(self.report(), r"H2 cannot be decided: .* 5 pairs; fewer than six pairs")

    def test_the_report_can_be_drawn_from_the_table_alone(self) -> None:
        self.write(self.losses(-0.1))
        command = [sys.executable, str(SCRIPTS / "study_report.py"), "table.csv", "--out", "out/r"]
        done = subprocess.run(command, cwd=self.dir, capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout[: done.stdout.index("wrote")].rstrip(), self.report().rstrip())
        self.assertEqual((self.dir / "out" / "r.md").read_text(), self.report())
        names = {f"r_{figure}.{kind}" for figure in ("rates", "logits", "confirm") for kind in ("png", "svg")}
        self.assertEqual({path.name for path in (self.dir / "out").iterdir()}, names | {"r.md"})

    def test_an_edge_of_the_grid_is_no_best_rate(self) -> None:
        self.write(lambda stage, arm, rate, seed: 2 - rate + 0.001 * seed)
        self.assertIn("The best rate of `standard` lies at the edge of the grid: extend it.", self.report())

    def test_a_table_that_is_none_is_named(self) -> None:
        (self.dir / "table.csv").write_text("a,b\n1,2\n")
        self.assertIn("table.csv: not the table of a study: expected the columns stage, arm", self.error())


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class Sharpen(Scripted):
    def test_scores_grow_in_standard_attention_and_nothing_moves_in_qk_norm(self) -> None:
        self.config(TINY | {"max_iters": 60, "eval_interval": 30, "dropout": 0.0, "bias": True, "learning_rate": 0.02})
        for kind in ("standard", "qk_norm"):
            self.train(kind, f"--attention={kind}")
        command = [sys.executable, str(SCRIPTS / "sharpen.py"), "standard", "qk_norm", "--qkgpt", PROGRAM, "--out", "out/s"]
        done = subprocess.run(command, cwd=self.dir, capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        standard, normalised = (
            [[float(cell) for cell in line.split()] for line in part.splitlines() if re.match(r" *\d+ ", line)]
            for part in done.stdout.split("qk_norm (qk_norm)")
        )
        self.assertEqual([row[0] for row in standard], [4**i for i in range(8)])
        for kind, rows in (("standard", standard), ("qk_norm", normalised)):
            best = json.loads(self.run_program("eval", kind, "--json")[0])
            self.assertAlmostEqual(rows[0][1], best["loss"], delta=1e-4)  # kappa 1 is the model itself
        for (_, _, score, entropy), (_, _, higher, lower) in zip(standard, standard[1:]):
            self.assertAlmostEqual(higher / score, 4, delta=0.3)
            self.assertLess(lower, entropy)
        self.assertEqual(len({tuple(row[1:]) for row in normalised}), 1)
        self.assertEqual(done.stdout.count("the same bits for every kappa"), 1)
        self.assertGreater((self.dir / "out" / "s.svg").stat().st_size, 5000)


class Without(Scripted):
    def test_what_is_missing_is_said(self) -> None:
        (self.dir / "without").mkdir()
        (self.dir / "without" / "scipy.py").write_text("raise ImportError('No module named scipy', name='scipy')\n")
        done = self.sweep(code=2, env=os.environ | {"PYTHONPATH": str(self.dir / "without")})
        self.assertIn("study.csv is written; its report needs scipy", done.stderr)
        self.assertIn("pip install", done.stderr)
        self.assertEqual(len(self.table()), 12)


if __name__ == "__main__":
    unittest.main()
