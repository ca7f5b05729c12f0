#!/usr/bin/env python3
"""Killed and interrupted at any instant, a run is never damaged and goes on to the same bytes. Standard library only.
QKGPT_KILLS=200 makes it thorough: 200 random kills and one at every single call."""
import os
import random
import shutil
import signal
import time
import unittest

from faults import FaultCase, last_reported
from program import TINY

KILLS = int(os.environ.get("QKGPT_KILLS", "12"))
THOROUGH = KILLS >= 200


def turning_points(calls: list[str]) -> list[int]:
    """Places in a list of calls, counted from 1: all, or without the inner ones of long rows of writes and reads."""
    dull = ("write", "pread")
    return [n for n in range(1, len(calls) + 1)
            if THOROUGH or calls[n - 1] not in dull or calls[n - 2:n - 1] + calls[n:n + 1] != [calls[n - 1]] * 2]


class RandomKills(FaultCase):
    keys = TINY | {"max_iters": 300, "eval_interval": 4, "keep_interval": 50, "checkpoint_interval": 1,
                   "sample_length": 5}

    def test_R1_killed_at_random_times(self) -> None:
        reference = self.reference()
        chance = random.Random(seed := int(os.environ.get("QKGPT_SEED", time.time_ns() % 10**6)))
        finished = 0
        for round_number in range(KILLS):
            resume = ["--resume"] if list(self.run_dir.glob("[!.]*.safetensors")) else []
            process = self.start("train", "tiny.json", f"--out_dir={self.run_dir}", *resume)
            time.sleep(chance.uniform(0.005, 0.3))
            process.kill()
            out = process.communicate()[0].decode()
            type(self).injected += 1
            with self.subTest(round=round_number, seed=seed):
                last = self.checkpoints(self.run_dir).get("last.safetensors")
                self.assertGreaterEqual(last.step if last else -1, last_reported(out))
                self.assertLessEqual(len(list(self.run_dir.glob(".*.tmp"))), 1)
            if process.returncode == 0:
                self.assert_same_runs(self.run_dir, reference)
                shutil.rmtree(self.run_dir)
                finished += 1
        if self.run_dir.exists():
            self.assert_safe(self.run_dir, reference)


class Crashes(FaultCase):
    def after(self, fault: str, *arguments: str, start=None) -> tuple[int, str, str]:
        """A run with this fault, in an empty directory or in a copy of one."""
        shutil.rmtree(self.run_dir, ignore_errors=True)
        if start:
            shutil.copytree(start, self.run_dir)
        process = self.faulty(*arguments, fault=fault)
        return process.returncode, process.stdout, process.stderr

    def test_R2_killed_before_every_call(self) -> None:
        reference, calls = self.reference(), self.calls()
        self.assertGreater(calls.count("rename"), 8)
        for n in turning_points(calls):
            with self.subTest(call=n, name=calls[n - 1]):
                code, out, err = self.after(f"any {n} {n} kill")
                self.assertEqual(code, -signal.SIGKILL, err)
                self.assert_safe(self.run_dir, reference, last_reported(out))
        print(f"R2: {len(self.seen)} different directories were left and resumed")

    def test_R2_killed_once_more_while_it_resumes(self) -> None:
        reference, calls = self.reference(), self.calls()
        middle = [n for n, name in enumerate(calls, 1) if name == "rename"][6]
        self.after(f"any {middle} {middle} kill")
        half = self.dir / "half"
        shutil.copytree(self.run_dir, half)
        for n in turning_points(calls):
            with self.subTest(call=n):
                code, out, err = self.after(f"any {n} {n} kill", "--resume", start=half)
                if code == 0:  # there are no more calls
                    break
                self.assertEqual(code, -signal.SIGKILL, err)
                self.assert_safe(self.run_dir, reference, last_reported(out))
        self.assertGreater(n, 20)

    def test_R23_interrupted_at_any_call(self) -> None:
        reference, calls = self.reference(), self.calls()
        every = 1 if THOROUGH else max(1, len(calls) // 20)
        numbers = {"INT": 130, "TERM": 143, "HUP": 129}
        for i, n in enumerate(range(1, len(calls) + 1, every)):
            name = list(numbers)[i % 3]
            with self.subTest(call=n, name=calls[n - 1], signal=name):
                code, out, err = self.after(f"any {n} {n} {name}")
                if code == 0:  # too late: all is done
                    self.assert_same_runs(self.run_dir, reference)
                    self.assertGreater(n, len(calls) - 8)
                    continue
                self.assertEqual(code, numbers[name], out + err)
                self.assertIn(f"stopped by SIG{name}", out)
                self.assert_safe(self.run_dir, reference, last_reported(out))

    def test_R23_the_second_interrupt_ends_at_once(self) -> None:
        reference, calls = self.reference(), self.calls()
        every = 1 if THOROUGH else max(1, len(calls) // 8)
        for n in range(1, len(calls), every):
            with self.subTest(call=n):
                code, out, err = self.after(f"any {n} {n + 1} INT")
                self.assertEqual(code, -signal.SIGINT, out + err)
                self.assert_safe(self.run_dir, reference, last_reported(out))

    def test_R25_a_request_to_save_at_any_call_changes_nothing(self) -> None:
        reference, calls = self.reference(), self.calls()
        every = 1 if THOROUGH else max(1, len(calls) // 8)
        for n in range(1, len(calls) + 1, every):
            with self.subTest(call=n):
                self.assertEqual(self.after(f"any {n} {n} USR1")[0], 0)
                self.assert_same_runs(self.run_dir, reference)

    def test_killed_between_best_and_last_with_another_course_afterwards(self) -> None:
        """The better best of updates that are not made again stays, and last speaks of it."""
        reference, calls = self.reference(), self.calls()
        for n in [n for n, name in enumerate(calls, 1) if name == "rename"]:
            self.after(f"any {n} {n} kill")
            found = self.checkpoints(self.run_dir)
            if "last.safetensors" not in found or found["best.safetensors"].step <= found["last.safetensors"].step:
                continue
            best = found["best.safetensors"]
            self.continue_with(best, "--learning_rate=0")
            return
        self.fail("no crash came between best and last")

    def continue_with(self, best, *changes: str) -> None:
        half = self.dir / "half"
        shutil.copytree(self.run_dir, half)
        self.run_program("train", "tiny.json", f"--out_dir={self.run_dir}", "--resume", *changes)
        found = self.checkpoints(self.run_dir)
        self.assertLessEqual(found["best.safetensors"].best[1], best.best[1])
        self.assertEqual(found["best.safetensors"].best, found["last.safetensors"].best)


if __name__ == "__main__":
    unittest.main()
