#!/usr/bin/env python3
"""Stopped, resumed, changed and watched: what must stay the same does. Standard library only."""
import json
import math
import os
import shutil
import signal
import subprocess
import time
import unittest

from checkpoint_file import CheckpointFile
from faults import SMALL, FaultCase
from program import TINY

KINDS = ("standard", "standard_temperature", "softcap", "qk_norm", "qk_norm_fixed", "qk_rmsnorm", "qk_rmsnorm_full",
         "qk_layernorm")


class Resuming(FaultCase):
    def stop_at_write(self, n: int, *arguments: str) -> None:
        process = self.faulty(*arguments, fault=f"write@metrics.jsonl {n} {n} TERM")
        self.assertEqual(process.returncode, 143, process.stderr)

    def test_R13_stopped_at_every_row(self) -> None:
        reference = self.reference()
        rows = len((reference / "metrics.jsonl").read_text().splitlines())
        for n in range(1, rows + 1):
            with self.subTest(row=n):
                shutil.rmtree(self.run_dir, ignore_errors=True)
                self.stop_at_write(n)
                self.continue_run(self.run_dir)
                self.assert_same_runs(self.run_dir, reference)

    def test_R14_R15_stopped_three_times_with_every_kind_of_attention(self) -> None:
        self.config(SMALL | {"dropout": 0.2, "gradient_accumulation_steps": 3})
        for kind in KINDS:
            keys = [f"--attention={kind}"]
            with self.subTest(kind):
                self.train(f"{kind}_a", *keys)
                self.run_dir = self.dir / f"{kind}_b"
                self.stop_at_write(4, *keys)  # off the grid of evaluations
                self.stop_at_write(2, "--resume")
                self.stop_at_write(2, "--resume")
                steps = [row["step"] for row in self.rows(f"{kind}_b", "train")]
                self.assertEqual(steps, list(range(1, len(steps) + 1)))
                self.continue_run(self.run_dir)
                self.assert_same_runs(self.run_dir, self.dir / f"{kind}_a")
                tokens = 2 * 3 * 8
                self.assertTrue(all(row["tokens"] == row["step"] * tokens for row in self.rows(f"{kind}_b", "train")))

    def test_R14_stopped_after_any_update(self) -> None:
        self.config(TINY | {"n_layer": 1, "dropout": 0.2, "gradient_accumulation_steps": 3, "eval_interval": 7, "sample_length": 3,
                            "attention_stats": False})
        for kind in KINDS:
            whole = self.dir / kind
            self.train(kind, f"--attention={kind}")
            rows = [(row["kind"], row["step"]) for row in self.rows(kind) if "step" in row]
            for k in range(1, 40) if kind in ("standard", "qk_norm") else (2, 7, 39):
                with self.subTest(kind, update=k):
                    shutil.rmtree(self.run_dir, ignore_errors=True)
                    self.stop_at_write(2 + rows.index(("train", k)), f"--attention={kind}")
                    self.assertEqual(CheckpointFile.of(self.run_dir / "last.safetensors").step, k)
                    self.continue_run(self.run_dir)
                    self.assert_same_runs(self.run_dir, whole)

    def test_R16_watching_changes_no_weight_and_no_moment(self) -> None:
        self.train("plain")
        whole = CheckpointFile(self.file("plain")).tensors()
        for i, keys in enumerate((["--eval_interval=1"], ["--eval_interval=1000"], ["--eval_iters=50"], ["--sample_length=0"],
                                  ["--sample_length=200"], ["--log_interval=10"], ["--attention_stats=false"],
                                  ["--keep_interval=1", "--checkpoint_interval=1"])):
            self.train(f"watched{i}", *keys)
            seen = CheckpointFile(self.file(f"watched{i}")).tensors()
            for name in whole:
                if not name.startswith("qkgpt."):
                    self.assertEqual(seen[name], whole[name], f"{keys} {name}")

    def test_R7_a_resumed_run_saves_its_end(self) -> None:
        self.train("run", "--max_iters=5")
        self.run_program("train", "--out_dir=run", "--resume", "--max_iters=17", "--checkpoint_interval=5")
        self.assertEqual(self.inspect("run")["step"], 17)
        self.assertEqual([row["step"] for row in self.rows("run", "train")], list(range(1, 18)))

    def test_R29_what_may_change_is_printed_and_followed(self) -> None:
        self.train("run", "--max_iters=4", "--lr_decay_iters=8")
        (self.dir / "moved.txt").write_bytes((self.dir / "text.txt").read_bytes())
        out, _ = self.run_program("train", "--out_dir=run", "--resume", "--max_iters=12", "--learning_rate=0.02",
                                  "--lr_decay_iters=12", "--eval_interval=5", "--data=moved.txt")
        for line in ('changed: data "text.txt" -> "moved.txt"', "changed: max_iters 4 -> 12",
                     "changed: learning_rate 0.01 -> 0.02", "changed: eval_interval 3 -> 5"):
            self.assertIn(line, out)
        for row in self.rows("run", "train")[4:]:
            i = row["step"] - 1
            self.assertAlmostEqual(row["lr"], 0.002 + 0.5 * (1 + math.cos(math.pi * (i - 2) / 10)) * 0.018, delta=1e-12)
        self.assertEqual([row["step"] for row in self.rows("run", "eval")], [0, 3, 4, 5, 10, 12])

    def test_R21_R10_a_worse_best_never_replaces_a_better_one(self) -> None:
        (self.dir / "text.txt").write_text((words := "to be or not to be, that is the question: " * 4) + words[::-1])
        keys = ["--val_fraction=0.5", "--learning_rate=0.05", "--dropout=0", "--lr_decay_iters=400", "--eval_interval=20",
                "--eval_iters=8", "--keep_interval=0", "--checkpoint_interval=7"]
        self.train("reference", *keys, "--max_iters=300")
        best = CheckpointFile(self.file("reference", "best.safetensors"))
        self.assertLess(best.step, 200)
        evaluations = {row["step"]: row["val_loss"] for row in self.rows("reference", "eval")}
        self.assertEqual(best.best, (best.step, min(evaluations.values())))
        n = 25 + best.step + 5 * (best.step // 20)  # a row well after the best
        process = self.faulty(*keys, "--max_iters=300", fault=f"write@metrics.jsonl {n} {n} kill")
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertGreater(CheckpointFile.of(self.run_dir / "last.safetensors").step, best.step)
        self.run_program("train", f"--out_dir={self.run_dir}", "--resume")
        self.assert_same(str(self.run_dir), "reference")
        self.run_program("train", f"--out_dir={self.run_dir}", "--resume", "--max_iters=350")
        self.assertEqual(CheckpointFile.of(self.run_dir / "best.safetensors").best, best.best)
        _, err = self.run_program("sample", str(self.run_dir), "--length=5")
        self.assertEqual(json.loads(self.run_program("eval", str(self.run_dir), "--json")[0])["step"], best.step)

    def test_a_best_of_updates_that_are_made_again_stays(self) -> None:
        reference = self.reference()
        process = self.faulty(fault="rename@last.safetensors 2 1000000000 5")
        self.assertEqual(process.returncode, 5, process.stderr)
        found = self.checkpoints(self.run_dir)
        best = found["best.safetensors"]
        self.assertEqual(found["last.safetensors"].step, 0)
        self.assertGreater(best.step, 3)
        self.assertLess(best.best[1], {row["step"]: row["val_loss"] for row in self.rows("reference", "eval")}[3])
        self.faulty("--resume", fault="write@metrics.jsonl 8 8 kill")  # after the evaluation of step 3
        self.assertEqual(self.checkpoints(self.run_dir)["best.safetensors"].best, best.best)
        self.continue_run(self.run_dir)
        self.assert_same_runs(self.run_dir, reference)

    def test_a_best_that_is_lost_is_said_and_made_anew(self) -> None:
        for content in (None, b"", b"x" * 5000):
            self.train("run", "--max_iters=4", "--lr_decay_iters=12", "--overwrite")
            lost = self.dir / "run" / "best.safetensors"
            if content is None:
                lost.unlink()
            else:
                lost.write_bytes(content)
            _, err = self.run_program("train", "--out_dir=run", "--resume", "--max_iters=12")
            self.assertIn("WARNING: best.safetensors: ", err)
            best, last = (CheckpointFile(self.file("run", f"{name}.safetensors")) for name in ("best", "last"))
            self.assertEqual(best.best, last.best)
            self.assertEqual(best.step, best.best[0])

    def test_R27_a_leftover_lock_and_a_copy(self) -> None:
        self.train("run", "--max_iters=4", "--lr_decay_iters=8")
        for text in ("", "process 1 on host since then\n", "\xff" * 5000):
            (self.dir / "run" / ".lock").write_text(text)
            shutil.rmtree(self.dir / "copy", ignore_errors=True)
            shutil.copytree(self.dir / "run", self.dir / "copy")
            self.run_program("train", "--out_dir=copy", "--resume", "--max_iters=8")
            self.assertEqual(self.inspect("copy")["step"], 8)
        self.run_program("train", "--out_dir=run", "--resume", "--max_iters=8")
        self.assertFalse((self.dir / "run" / ".lock").exists())

    def test_R34_clocks_that_jump_or_stand_still(self) -> None:
        reference = self.reference()
        for mode in ("jump", "stop"):
            shutil.rmtree(self.run_dir, ignore_errors=True)
            process = self.faulty("--progress=always", env={"QKGPT_CLOCK": mode})
            self.assertEqual(process.returncode, 0, process.stderr)
            self.assertNotRegex(process.stdout + process.stderr, r"(time -|\binf\b|\bnan\b|-\d[\d.:]* (left|tok/s|ms))")
            self.assertNotIn("nonfinite", (self.run_dir / "metrics.jsonl").read_text())
            self.assert_same_runs(self.run_dir, reference)

    def test_R28_after_divergence_everything_saved_is_finite(self) -> None:
        self.config(TINY)
        for rate in ("1e30", "1e12", "1e6"):
            process = self.start("train", "tiny.json", f"--out_dir=run{rate}", f"--learning_rate={rate}", "--grad_clip=0",
                                 "--weight_decay=0", "--max_iters=400", "--keep_interval=0")
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3, err)
            row = self.rows(f"run{rate}", "train")[-1]
            self.assertIn(row["nonfinite"], ("nan", "inf"))
            for name in ("last", "best"):
                file = CheckpointFile(self.file(f"run{rate}", f"{name}.safetensors"))
                self.assertTrue(file.step == row["step"] - 1 or name == "best")
                for tensor in file.tensors():
                    if not tensor.startswith("qkgpt."):
                        self.assertTrue(all(map(math.isfinite, file.floats(tensor))), f"{name} {tensor}")


class Stops(FaultCase):
    def stopped(self, process: subprocess.Popen, number: signal.Signals = signal.SIGTERM) -> str:
        begin = time.monotonic()
        process.send_signal(number)
        out, err = (text.decode() for text in process.communicate(timeout=60))
        self.assertEqual(process.returncode, 128 + number, out + err)
        self.assertLess(time.monotonic() - begin, 8)  # 2 s on a machine with nothing else to do
        return out

    def test_while_a_text_is_awaited(self) -> None:
        os.mkfifo(self.dir / "pipe")
        process = self.start("train", "tiny.json", "--data=pipe", "--out_dir=run")
        time.sleep(0.5)
        self.assertIn("stopped by SIGTERM before the first update", self.stopped(process))
        process = self.start("train", "tiny.json", "--data=pipe", "--out_dir=run")
        with open(self.dir / "pipe", "wb") as pipe:
            pipe.write(b"some text")
            pipe.flush()
            time.sleep(0.3)
            self.assertIn("stopped by SIGINT before the first update", self.stopped(process, signal.SIGINT))
        self.assertFalse((self.dir / "run").exists())

    def test_while_it_evaluates_validates_and_samples(self) -> None:
        (self.dir / "text.txt").write_text("abcdefg hijklmn\n" * 40_000)
        for keys, sign in ((["--eval_iters=300000"], b"evaluating train loss"),
                           (["--val_fraction=0.9", "--max_iters=0", "--n_embd=64"], b"the whole validation"),
                           (["--sample_length=1000000000"], b"evaluating")):
            process = self.start("train", "tiny.json", "--out_dir=run", "--progress=always", "--overwrite", *keys)
            seen = b""
            while sign not in seen:
                piece = process.stderr.read1(4096)
                self.assertTrue(piece, seen[-500:])
                seen += piece
            time.sleep(1.0 if sign == b"evaluating" else 0.0)  # sampling shows nothing
            self.assertIn("stopped by SIGTERM at step 0: saved", self.stopped(process))
            self.assertEqual(self.inspect("run")["step"], 0)
            self.assertEqual(self.rows("run", "eval"), [])


if __name__ == "__main__":
    unittest.main()
