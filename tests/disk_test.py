#!/usr/bin/env python3
"""Disks that fail, fill up or vanish cost nothing older. Standard library only."""
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from crash_test import THOROUGH, turning_points
from faults import ERRNO, SMALL, FaultCase

ENDLESS = 10**9


def wait_for(stream, text: bytes) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"no {text!r} before the end")


class FailingCalls(FaultCase):
    def checked(self, process: subprocess.CompletedProcess, reference: Path, told: bool) -> None:
        """No partial file, no leftover, exit 5 exactly if the end could not be saved, and the same weights."""
        self.assertIn(process.returncode, (0, 5), process.stderr)
        self.assertNotIn("terminate called", process.stderr)
        if told:
            self.assertTrue("WARNING" in process.stderr or process.returncode == 5, "a fault is told")
        found = self.checkpoints(self.run_dir) if self.run_dir.exists() else {}
        self.assertEqual([p.name for p in self.run_dir.glob(".*.tmp")], [])
        last = found.get("last.safetensors")
        if process.returncode == 0:
            self.assertEqual(last.step, SMALL["max_iters"])
            whole = self.checkpoints(reference)["last.safetensors"].tensors()
            self.assertEqual({k: v for k, v in last.tensors().items() if "qkgpt." not in k},
                             {k: v for k, v in whole.items() if "qkgpt." not in k})
        if last and last.best[0] >= 0:
            self.assertLessEqual(found["best.safetensors"].best[1], last.best[1])
        if process.returncode == 0:
            self.assertEqual(found["best.safetensors"].best, last.best)
        self.continue_run(self.run_dir)
        self.assertEqual(self.checkpoints(self.run_dir)["last.safetensors"].step, SMALL["max_iters"])

    def each(self, call: str, action: str, *, to_the_end: bool = False, most: int = 10,
             told: bool = True) -> list[subprocess.CompletedProcess]:
        reference, calls = self.reference(), self.calls()
        count = calls.count(call)
        self.assertGreater(count, 8)
        processes = []
        for n in range(1, count + 1, 1 if THOROUGH else max(1, count // most)):
            with self.subTest(call=call, action=action, n=n):
                shutil.rmtree(self.run_dir, ignore_errors=True)
                trace = str(self.dir / "trace")
                process = self.faulty(fault=f"{call} {n} {ENDLESS if to_the_end else n} {action}", trace=trace)
                process.trace = Path(trace).read_text().splitlines()
                self.checked(process, reference, told)
                processes.append(process)
        return processes

    def test_R3_a_failed_sync_is_final_and_the_next_save_succeeds(self) -> None:
        for process in self.each("fsync", str(ERRNO["EIO"]), most=40):
            lines = process.trace
            for i, line in enumerate(lines):
                if line.startswith("unsynced ."):
                    name = line.split(" ")[1]
                    again = [l for l in lines[i + 1:] if l in (f"sync {name}", f"create {name}", f"open {name}")]
                    self.assertFalse(again and again[0].startswith("sync"), "no second sync of one descriptor")

    def test_R3_closes_and_renames_that_fail(self) -> None:
        self.each("close", str(ERRNO["EIO"]), told=False)  # of files that were only read or are synced, nothing is lost
        self.each("rename", str(ERRNO["EIO"]), most=20)

    def test_R4_a_full_disk_at_any_write(self) -> None:
        for process in self.each("write", str(ERRNO["ENOSPC"]), most=25):
            self.assertEqual(process.stderr.count("could not save") + process.stderr.count("could not be"), 1, process.stderr)
        self.each("allocate", str(ERRNO["ENOSPC"]))

    def test_R4_a_disk_that_stays_full(self) -> None:
        for process in self.each("allocate", str(ERRNO["ENOSPC"]), to_the_end=True, most=6):
            self.assertEqual(process.returncode, 5, process.stderr)
            self.assertRegex(process.stderr.splitlines()[-1], r": could not save: .*No space left")

    def test_R4_a_row_that_could_not_be_written_comes_with_the_next(self) -> None:
        rows = self.rows(str(self.reference()))
        for n in (1, len(rows) // 2, len(rows)):
            shutil.rmtree(self.run_dir, ignore_errors=True)
            process = self.faulty(fault=f"write@metrics.jsonl {n} {n + (n < len(rows))} {ERRNO['ENOSPC']}")
            self.assertEqual((process.returncode, process.stderr.count("WARNING: metrics.jsonl: ")), (0, 1))
            self.assertEqual(self.rows(str(self.run_dir)), rows)

    def test_R6_a_quota(self) -> None:
        self.each("write", str(ERRNO["EDQUOT"]), most=6)

    def test_a_medium_that_gives_back_other_bytes(self) -> None:
        for process in self.each("pread", "flip", most=20):
            self.assertIn("does not hold what was written", process.stderr)

    def test_short_writes_go_on(self) -> None:
        reference, calls = self.reference(), self.calls()
        for n in turning_points(calls)[::1 if THOROUGH else 12]:
            if calls[n - 1] == "write":
                shutil.rmtree(self.run_dir, ignore_errors=True)
                process = self.faulty(fault=f"any {n} {n} short")
                self.assertEqual(process.returncode, 0, process.stderr)
                for name in ("last.safetensors", "best.safetensors"):
                    self.assertEqual((self.run_dir / name).read_bytes(), (reference / name).read_bytes())

    def test_no_locks_on_the_file_system(self) -> None:
        process = self.faulty(fault=f"flock 1 {ENDLESS} {ERRNO['ENOLCK']}")
        self.assertEqual(process.returncode, 0)
        self.assertIn("no locks on this file system", process.stderr)


class Limits(FaultCase):
    def limited(self, size: int, *arguments: str) -> subprocess.Popen:
        """A training whose files may have `size` bytes."""
        process = self.start("train", "tiny.json", "--out_dir=run", *arguments,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        process.out, process.err = (text.decode() for text in process.communicate(timeout=60))
        return process

    def test_R6_R8_a_file_size_limit_is_a_failed_save(self) -> None:
        self.train("run", "--max_iters=4", "--lr_decay_iters=8")
        before = self.file("run")
        process = self.limited(len(before) - 1000, "--resume", "--max_iters=8")
        self.assertEqual(process.returncode, 5, process.err)
        self.assertIn("run/last.safetensors: could not save: ", process.err)
        self.assertIn("File too large; the previous content is still there, unchanged", process.err)
        self.assertNotIn("saving checkpoint", process.out)
        self.assertEqual(before, self.file("run"))

    def test_R35_directories(self) -> None:
        (self.dir / "real").mkdir()
        (self.dir / "link").symlink_to("real")
        for name in ("a/b/c", "with space", "é\nnew line", "link", "-dash", "trailing/"):
            self.train(name)
            self.assertTrue((self.dir / name / "last.safetensors").exists())
        (self.dir / "file").write_text("")
        self.assertIn("file is a file", self.train("file/run", code=2)[1])
        self.assertIn("file: is a file", self.train("file", code=2)[1])

    def test_R35_a_directory_that_is_lost_in_mid_run(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run", "--max_iters=1000000", "--log_interval=1000")
        wait_for(process.stdout, b"saving checkpoint")
        (self.dir / "run").rename(self.dir / "elsewhere")
        wait_for(process.stderr, b"could not save")
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, 5, err)
        self.assertIn("could not save", err.splitlines()[-1])
        self.assertFalse((self.dir / "run").exists())

    def test_R15_a_sample_that_cannot_be_written(self) -> None:
        samples = len(self.reference().joinpath("samples.txt").read_text().split("=== step ")) - 1
        for n, code in ((1, 0), (samples, 5)):  # the state of that step is saved first
            shutil.rmtree(self.run_dir, ignore_errors=True)
            process = self.faulty(fault=f"write@samples.txt {n} {n} {ERRNO['EIO']}")
            self.assertEqual(process.returncode, code, process.stderr)
            self.assertIn("WARNING: step", process.stderr)
            self.assert_same(str(self.run_dir), "reference")

    def test_R39_what_is_not_ours_is_left_alone(self) -> None:
        self.train("run", "--max_iters=4", "--lr_decay_iters=8")
        run = self.dir / "run"
        whole = self.file("run")
        (run / ".last.safetensors.tmp").write_bytes(whole)
        (run / ".step_00000009.safetensors.tmp").write_bytes(b"torn")
        (run / "step_00000012.safetensors").mkdir()
        others = {"best.safetensors.bak": whole, "step_12.safetensors": whole, "empty": b"", ".mine.tmp": b"x"}
        for name, content in others.items():
            (run / name).write_bytes(content)
        self.run_program("train", "--out_dir=run", "--resume", "--max_iters=8")
        self.assertEqual({name: (run / name).read_bytes() for name in others}, others)
        self.assertTrue((run / "step_00000012.safetensors").is_dir())
        self.assertEqual([p.name for p in run.glob(".*.tmp")], [".mine.tmp"])
        shutil.rmtree(run / "step_00000012.safetensors")
        (run / "last.safetensors").write_bytes(b"")
        (run / "step_00000004.safetensors").unlink()
        _, err = self.run_program("train", "--out_dir=run", "--resume", "--max_iters=8")
        self.assertRegex(err, r"WARNING: going on from run/(best|step_00000008)\.safetensors at step 8")

    def test_R26_without_stdout_and_stderr(self) -> None:
        """No file gets their numbers and what was meant for the terminal."""
        reference = self.reference()
        for closed in ((1,), (2,), (0, 1, 2)):
            shutil.rmtree(self.dir / "run", ignore_errors=True)
            process = self.start("train", "tiny.json", "--out_dir=run", "--quiet", stdout=None, stderr=None,
                                 preexec_fn=lambda: [os.close(fd) for fd in closed])
            self.assertEqual(process.wait(60), 0)
            self.assert_same_runs(self.dir / "run", reference)
        for command in ("eval", "inspect"):
            process = self.start(command, "run", stdout=None, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1)

    def test_R26_a_reader_that_leaves(self) -> None:
        reference = self.reference()
        process = self.start("train", "tiny.json", "--out_dir=run")
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read().decode()
        process.stderr.close()
        self.assertEqual(process.wait(60), 0)
        self.assertLessEqual(err.count("stdout: cannot be written"), 1)
        self.assert_same_runs(self.dir / "run", reference)


def mounted(folder: Path, size: int) -> bool:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


class SmallDisks(FaultCase):
    def disk(self, size: int) -> Path:
        folder = self.dir / "disk"
        if not mounted(folder, size):
            self.skipTest("no file system can be mounted here; only root can")
        self.addCleanup(subprocess.run, ["umount", "-l", str(folder)], check=True)
        return folder

    def size(self) -> int:
        return (self.reference() / "last.safetensors").stat().st_size

    def test_R5_too_small_a_disk_is_refused_before_the_first_step(self) -> None:
        each = self.size()
        folder = self.disk(5 * each)
        _, err = self.train(str(folder / "run"), code=5)
        self.assertRegex(err, r"5 more checkpoints of [\d.]+ kB need [\d.]+ kB, [\d.]+ kB are free")
        self.assertEqual(list((folder / "run").iterdir()), [])
        self.train(str(folder / "run"), "--keep_interval=0", code=5 if 3 * each + 65536 > 5 * each else 0)

    def stop_between_saves(self, process: subprocess.Popen, run: Path) -> None:
        """With a temporary file there, a full disk would have room again once that has replaced the older file."""
        while True:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            if not list(run.glob(".*.tmp")):
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.001)

    def test_R4_a_disk_that_fills_up(self) -> None:
        folder = self.disk(3 * self.size() + 65536 + 32768)
        for freed in (True, False):
            run = folder / f"run_{freed}"
            process = self.start("train", "tiny.json", f"--out_dir={run}", "--keep_interval=0", "--max_iters=1000000",
                                 "--sample_length=0", "--checkpoint_interval=5", "--eval_interval=0", "--log_interval=1000")
            wait_for(process.stdout, b"saving checkpoint")
            self.stop_between_saves(process, run)
            with open(folder / "other", "wb", buffering=0) as other:
                try:
                    while other.write(bytes(4096)):
                        pass
                except OSError:
                    pass
            process.send_signal(signal.SIGCONT)
            wait_for(process.stderr, b"No space left")
            if freed:
                (folder / "other").unlink()
            process.send_signal(signal.SIGTERM)
            out, err = (text.decode() for text in process.communicate(timeout=60))
            self.assertEqual(process.returncode, 143 if freed else 5, out + err)
            found = self.checkpoints(run)
            self.assertEqual([p.name for p in run.glob(".*.tmp")], [])
            if freed:
                self.assertIn(f"stopped by SIGTERM at step {found['last.safetensors'].step}: saved", out)
                shutil.rmtree(run)

    def test_R35_a_read_only_disk(self) -> None:
        folder = self.disk(2**22)
        self.train(str(folder / "run"), "--max_iters=4", "--lr_decay_iters=8")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        for arguments in (("--resume", "--max_iters=8"), ("--overwrite",)):
            self.assertIn("Read-only", self.train(str(folder / "run"), *arguments, code=5)[1])
        self.assertIn("Read-only", self.train(str(folder / "other"), code=5)[1])
        self.assertEqual(self.inspect(str(folder / "run"))["step"], 4)
        self.run_program("sample", str(folder / "run"), "--length=3")


if __name__ == "__main__":
    unittest.main()
