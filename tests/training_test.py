#!/usr/bin/env python3
"""Whole trainings, tried as a user would. Standard library only."""
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from program import TINY, Case


class Training(Case):
    def test_files_rows_and_lines_are_as_documented(self) -> None:
        out, _ = self.train("run", "--sample_length=20", "--keep_interval=20")
        names = sorted(p.name for p in (self.dir / "run").iterdir())
        self.assertEqual(names, ["best.safetensors", "config.json", "last.safetensors", "metrics.jsonl", "samples.txt",
                                 "step_00000020.safetensors", "step_00000040.safetensors"])
        self.assertRegex(out, r"(?m)^step 10: train loss \d\.\d{4}, val loss \d\.\d{4}$")
        self.assertRegex(out, r"(?m)^iter 7: loss \d\.\d{4}, time [\d.]+ms, [\d.]+k? tok/s$")
        self.assertIn("saving checkpoint to run\n", out)
        kinds = [row["kind"] for row in self.rows("run")]
        self.assertEqual(kinds[0], "start")
        self.assertEqual([row["step"] for row in self.rows("run", "train")], list(range(1, 41)))
        self.assertEqual([row["step"] for row in self.rows("run", "eval")], [0, 10, 20, 30, 40])
        self.assertEqual(len(self.rows("run", "attention")), 5 * 2)
        self.assertEqual([row["step"] for row in self.rows("run", "final")], [40])
        tokens = 4 * 2 * 16
        self.assertTrue(all(row["tokens"] == row["step"] * tokens for row in self.rows("run", "train")))
        start = self.rows("run", "start")[0]
        self.assertEqual(start["text_sha256"], hashlib.sha256((self.dir / "text.txt").read_bytes()).hexdigest())
        for key, value in TINY.items():
            self.assertEqual(json.loads((self.dir / "run" / "config.json").read_text())[key], value)

    def test_the_saved_config_reproduces_the_run(self) -> None:
        self.train("a")
        config = json.loads((self.dir / "a" / "config.json").read_text())
        (self.dir / "again.json").write_text(json.dumps(config | {"out_dir": "b"}))
        self.run_program("train", "again.json")
        self.assert_same("a", "b")

    def test_stops_and_resumes_leave_no_trace(self) -> None:
        for attention in ("standard", "qk_norm"):
            with self.subTest(attention):
                self.train(f"{attention}_a", f"--attention={attention}")
                run = f"{attention}_b"
                self.stop_after_row(run, 13, signal.SIGINT, f"--attention={attention}")
                self.stop_after_row(run, 22, signal.SIGTERM, "--resume")
                self.run_program("train", "--resume", f"--out_dir={run}")
                self.assert_same(f"{attention}_a", run)

    def test_hangup_stops_and_nohup_does_not(self) -> None:
        self.stop_after_row("a", 5, signal.SIGHUP)
        ignored = self.start("train", "tiny.json", "--out_dir=b", stderr=subprocess.DEVNULL,
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        for line in ignored.stdout:
            if line.startswith(b"iter 5:"):
                ignored.send_signal(signal.SIGHUP)
        ignored.stdout.close()
        self.assertEqual(ignored.wait(60), 0)

    @unittest.skipUnless(sys.platform == "linux", "the system shows no names of processes there")
    def test_the_system_knows_it_by_its_name(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run", "--max_iters=1000000", stderr=subprocess.DEVNULL)
        process.stdout.readline()
        self.assertEqual(Path(f"/proc/{process.pid}/comm").read_text(), "qkgpt\n")  # for pkill and top
        process.kill()
        process.stdout.close()
        process.wait()

    def test_a_save_on_request_goes_on(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run", stderr=subprocess.DEVNULL)
        saves = 0
        for line in process.stdout:
            if line.startswith(b"iter 3:"):
                process.send_signal(signal.SIGUSR1)
            saves += line.startswith(b"saving checkpoint")
        process.stdout.close()
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(saves, 6)  # five evaluations and the request
        self.train("plain")
        self.assert_same("run", "plain")

    def test_the_number_of_threads_changes_no_bit(self) -> None:
        for attention in ("standard", "standard_temperature", "softcap", "qk_norm", "qk_norm_fixed", "qk_rmsnorm",
                          "qk_rmsnorm_full", "qk_layernorm"):
            for threads in (1, 2, 3):
                self.train(f"{attention}{threads}", f"--attention={attention}", "--block_size=37", "--n_embd=36",
                           "--max_iters=6", "--eval_interval=3", env={"OMP_NUM_THREADS": str(threads)})
            self.assert_same(f"{attention}1", f"{attention}2")
            self.assert_same(f"{attention}1", f"{attention}3")

    def test_R17_however_the_threads_are_given(self) -> None:
        keys = ["tiny.json", "--attention=qk_norm", "--block_size=37", "--n_embd=36", "--max_iters=6", "--eval_interval=3"]
        core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        self.run_program("train", *keys, "--out_dir=1")
        for i, (threads, arguments, env, pin) in enumerate((
                ("4", [], {"OMP_NUM_THREADS": "4"}, False), ("7", [], {"OMP_NUM_THREADS": "7"}, False),
                ("4", [], {"OMP_NUM_THREADS": "4", "OMP_DYNAMIC": "true"}, False), ("2", ["--threads=2"], {}, False),
                ("3", [], {"OMP_NUM_THREADS": "3"}, True))):
            if (pin and core is None) or (arguments and (os.cpu_count() or 1) < 2):
                continue
            process = self.start("train", *keys, f"--out_dir=run{i}", *arguments, env=env,
                                 preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if pin else None)
            out, err = (text.decode() for text in process.communicate(timeout=120))
            self.assertEqual(process.returncode, 0, err)
            if "built without OpenMP" not in out:
                self.assertIn(f" {threads} threads", out)
            self.assert_same("1", f"run{i}")

    def test_runs_that_differ_in_attention_start_equal_and_see_equal_batches(self) -> None:
        self.train("a")
        self.train("b", "--attention=qk_norm")
        a, b = self.rows("a", "start")[0], self.rows("b", "start")[0]
        for key in ("text_sha256", "init_crc", "windows_crc"):
            self.assertEqual(a[key], b[key])
        self.train("c", "--seed=2")
        self.assertNotEqual(a["init_crc"], self.rows("c", "start")[0]["init_crc"])
        self.assertNotEqual(a["windows_crc"], self.rows("c", "start")[0]["windows_crc"])

    def test_watching_changes_nothing(self) -> None:
        self.train("a")
        self.train("b", "--eval_interval=7", "--eval_iters=5", "--log_interval=3", "--sample_length=30",
                   "--attention_stats=false")
        a, b = self.rows("a", "train"), self.rows("b", "train")
        self.assertEqual([row for row in a if row["step"] % 3 == 0], b)

    def test_zero_updates_evaluate_once_and_save(self) -> None:
        self.train("run", "--max_iters=0")
        self.assertEqual(self.inspect("run")["step"], 0)
        self.assertEqual([row["step"] for row in self.rows("run", "eval")], [0])

    def test_intervals_of_zero_mean_off(self) -> None:
        self.train("run", "--eval_interval=0", "--log_interval=0", "--keep_interval=0", "--sample_length=0", "--patience=0")
        self.assertEqual([row["step"] for row in self.rows("run", "eval")], [0, 40])
        self.assertEqual(self.rows("run", "train"), [])

    def test_the_learning_rate_of_every_update_is_the_formula(self) -> None:
        self.train("run", "--warmup_iters=5", "--lr_decay_iters=30", "--learning_rate=0.002", "--min_lr=0.0005")
        for row in self.rows("run", "train"):
            i = row["step"] - 1
            cosine = 0.0005 + 0.5 * (1 + math.cos(math.pi * (i - 5) / 25)) * 0.0015
            expected = 0.002 * (i + 1) / 6 if i < 5 else 0.0005 if i > 30 else cosine
            self.assertAlmostEqual(row["lr"], expected, delta=1e-15)

    def test_it_learns_and_patience_stops_it(self) -> None:
        out, _ = self.train("run", "--max_iters=3000", "--learning_rate=0.01", "--dropout=0", "--patience=2",
                            "--eval_interval=100", "--eval_iters=20", "--log_interval=100")
        self.assertIn("stopping early: 2 evaluations in a row without a new best", out)
        evals = self.rows("run", "eval")
        self.assertLess(min(row["val_loss"] for row in evals), 1.6)
        best = max(row["step"] for row in evals if row["best"])
        self.assertEqual(self.inspect("run/best.safetensors")["step"], best)
        self.assertEqual(self.inspect("run")["step"], best + 200)
        out, _ = self.run_program("train", "--resume", "--out_dir=run")
        self.assertIn("stopped early", out)

    def test_divergence_leaves_the_last_finite_state(self) -> None:
        _, err = self.train("run", "--learning_rate=1e6", "--grad_clip=0", "--weight_decay=0", "--max_iters=400", code=3)
        self.assertRegex(err, r"update \d+: the (loss|gradient) is not finite \(loss \S+, gradient norm \S+, learning rate \S+\); ")
        last = self.rows("run", "train")[-1]
        self.assertIn(last["nonfinite"], ("nan", "inf"))
        self.assertEqual(self.inspect("run")["step"], last["step"] - 1)
        self.run_program("sample", "run/last.safetensors", "--length=5")

    def test_no_validation_means_no_best(self) -> None:
        self.train("run", "--val_fraction=0")
        self.assertFalse((self.dir / "run" / "best.safetensors").exists())
        out, err = self.run_program("sample", "run", "--length=5")
        self.assertIn("no best.safetensors", err)
        self.run_program("eval", "run", code=2)
        self.run_program("eval", "run", "--split=train")

    def test_start_weights_come_from_another_run(self) -> None:
        self.train("a")
        self.train("b", "--init_from=a/best.safetensors", "--max_iters=0")
        self.assertAlmostEqual(self.rows("b", "eval")[0]["val_loss"], self.inspect("a/best.safetensors")["best_val_loss"])
        _, err = self.train("c", "--init_from=a/best.safetensors", "--attention=qk_norm", code=2)
        self.assertIn('attention: "standard" in a/best.safetensors, "qk_norm" asked for', err)
        self.assertFalse((self.dir / "c").exists())

    def test_dry_run_and_print_config_write_nothing(self) -> None:
        out, _ = self.train("run", "--dry-run")
        self.assertRegex(out, r"time +about \d+:\d\d ")
        self.assertIn("128 tokens (2 x 4 x 16)", out)
        printed, _ = self.train("run", "--print-config", "--n_layer=3")
        (self.dir / "printed.json").write_text(printed)
        self.assertEqual(self.run_program("train", "printed.json", "--print-config")[0], printed)
        self.assertEqual(json.loads(printed)["n_layer"], 3)
        self.assertFalse((self.dir / "run").exists())


if __name__ == "__main__":
    unittest.main()
