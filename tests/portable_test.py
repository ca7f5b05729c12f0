#!/usr/bin/env python3
"""Builds for other CPUs, under QEMU's user-mode emulation: what the program says on a CPU that lacks something, and
the AArch64 build by a cross compiler. Debian: apt-get install qemu-user g++-aarch64-linux-gnu"""
import platform
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from program import PROGRAM, Case

ROOT = Path(__file__).resolve().parent.parent
COMPILER = "aarch64-linux-gnu-g++"


def need(*tools: str):
    missing = [tool for tool in tools if not shutil.which(tool)]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


@need("qemu-x86_64")
@unittest.skipUnless(sys.platform == "linux" and platform.machine() == "x86_64", "the program is for another kind of CPU")
class OldCpu(Case):
    # With GOMP_SPINCOUNT the program does not start itself once more, which would leave the emulation.
    EMULATOR = ["qemu-x86_64", "-E", "GOMP_SPINCOUNT=3000", "-cpu"]

    def test_what_a_cpu_lacks_is_said(self) -> None:
        if "baseline" in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout:
            self.skipTest("the program needs nothing that a CPU could lack")
        self.command = [*self.EMULATOR, "Nehalem", PROGRAM]  # of 2008
        for arguments in (["--version"], ["train", "tiny.json", "--out_dir=run"]):
            out, err = self.run_program(*arguments, code=1)
            self.assertEqual(out, "")
            self.assertRegex(err, r"(?m)^qkgpt: this build needs (AVX-512F, )?AVX2, FMA, AVX.* and \S+, which this CPU lacks; "
                                  r"build it here with: cmake --preset release && cmake --build build$")
        self.assertFalse((self.dir / "run").exists())

    def test_nothing_else_is_refused(self) -> None:
        self.command = [*self.EMULATOR, "max", PROGRAM]
        process = self.start("--version")
        out, err = (stream.decode() for stream in process.communicate(timeout=60))
        if process.returncode == 1 and "AVX-512F" in err:
            self.skipTest("QEMU knows no AVX-512")
        self.assertEqual((process.returncode, out[:6]), (0, "qkgpt "), err)


@need("qemu-aarch64", COMPILER, "cmake")
class AArch64(Case):
    @classmethod
    def setUpClass(cls) -> None:
        build = Path(PROGRAM).parent / "aarch64"  # stays, so that the next time only what changed is compiled
        for command in (["cmake", "--preset", "aarch64", "-B", str(build)],
                        ["cmake", "--build", str(build), "--target", "qkgpt", "-j", "2"]):
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise RuntimeError(f"{command}\n{done.stdout}")
        libc = subprocess.run([COMPILER, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True).stdout
        cls.command = ["qemu-aarch64", "-L", str(Path(libc.strip()).resolve().parent.parent), str(build / "qkgpt")]

    def test_it_names_its_vectors(self) -> None:
        self.assertRegex(self.run_program("--version")[0], r"\(NEON, built for armv8-a\)")

    def test_any_number_of_threads_and_a_stop_give_the_same_bytes(self) -> None:
        for attention in ("standard", "qk_norm"):
            with self.subTest(attention):
                keys = (f"--attention={attention}", "--block_size=37", "--n_embd=36", "--n_layer=1",
                        "--gradient_accumulation_steps=1")
                one, two = f"{attention}_1", f"{attention}_2"
                self.train(one, *keys, "--threads=1")
                self.stop_after_row(two, 13, signal.SIGINT, *keys, "--threads=2")
                self.run_program("train", "--resume", f"--out_dir={two}", env={"OMP_NUM_THREADS": "2"})
                self.assert_same(one, two)
                losses = [row["loss"] for row in self.rows(one, "train")]
                self.assertLess(losses[-1], losses[0])
                samples = [self.run_program("sample", run, "--length=60", "--seed=5", f"--threads={threads}")[0]
                           for run, threads in ((one, 1), (two, 2))]
                self.assertEqual(samples[0], samples[1])
                self.assertEqual(len(samples[0]), 1 + 60 + 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
