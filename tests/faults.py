"""What tests of survival share: a tiny run, a way to disturb its system calls (faults.c), and what SAFE means."""
import atexit
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from checkpoint_file import CheckpointFile
from program import Case

# Every kind of file and save within a tenth of a second.
SMALL = {"seed": 1, "n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 8, "batch_size": 2, "dropout": 0.1,
         "max_iters": 8, "warmup_iters": 2, "eval_interval": 3, "eval_iters": 1, "log_interval": 1,
         "checkpoint_interval": 2, "keep_interval": 4, "sample_length": 4, "learning_rate": 0.01}

ERRNO = {"EIO": 5, "EFBIG": 27, "ENOSPC": 28, "ENOLCK": 37, "EDQUOT": 122}


def build_shim() -> str | None:
    """The path of the library to preload, or None with the reason printed where there can be none."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or not compiler:
        print("no faults can be injected: needs Linux and a C compiler", file=sys.stderr)
        return None
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    library = str(Path(folder, "faults.so"))
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(Path(__file__).with_name("faults.c")), "-o", library,
                    "-ldl"], check=True)
    return library


SHIM = build_shim()


class FaultCase(Case):
    """Runs are named by absolute paths, as the shim wants them."""
    keys: dict = SMALL
    injected = 0

    def setUp(self) -> None:
        super().setUp()
        self.config(self.keys)
        self.seen: set[str] = set()
        self.run_dir = self.dir / "run"

    @classmethod
    def tearDownClass(cls) -> None:
        print(f"{cls.__name__}: {cls.injected} faults injected", file=sys.stderr)

    def reference(self) -> Path:
        if not (self.dir / "reference").exists():
            self.train("reference")
        return self.dir / "reference"

    def faulty(self, *arguments: str, fault: str = "", trace: str = "", run: Path | None = None,
               env: dict | None = None) -> subprocess.CompletedProcess:
        """A training with a fault, or with its calls written to a file."""
        if not SHIM:
            raise unittest.SkipTest("no faults can be injected here")
        type(self).injected += bool(fault)
        run = run or self.run_dir
        added = {"LD_PRELOAD": SHIM, "QKGPT_FAULT_DIR": str(run), "ASAN_OPTIONS": "verify_asan_link_order=0"}
        added |= {"QKGPT_FAULT": fault} if fault else {}
        added |= {"QKGPT_TRACE": trace} if trace else {}
        process = self.start("train", "tiny.json", f"--out_dir={run}", *arguments, env=added | (env or {}))
        out, err = (text.decode() for text in process.communicate(timeout=120))
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def calls(self, *arguments: str) -> list[str]:
        """The names of all calls that an undisturbed run makes, in order."""
        trace = str(self.dir / "trace")
        run = self.dir / "traced"
        self.assertEqual(self.faulty(*arguments, trace=trace, run=run).returncode, 0)
        shutil.rmtree(run)
        return [line.split(" ")[1] for line in Path(trace).read_text().splitlines() if line.startswith("> ")]

    def checkpoints(self, run: Path) -> dict[str, CheckpointFile]:
        """Every file under a final name; each must be whole."""
        found = {}
        for path in sorted(run.glob("*.safetensors")):
            if not path.name.startswith("."):
                try:
                    found[path.name] = CheckpointFile.of(path)
                except (ValueError, KeyError) as error:
                    self.fail(f"{path.name}: {error}")
        return found

    def continue_run(self, run: Path) -> tuple[str, str]:
        resume = ["--resume"] if list(run.glob("[!.]*.safetensors")) else []
        return self.run_program("train", "tiny.json", f"--out_dir={run}", *resume)

    def assert_same_runs(self, run: Path, reference: Path) -> None:
        self.assert_same(str(run), str(reference))
        for name in ("samples.txt", *(p.name for p in reference.glob("step_*"))):
            self.assertEqual((run / name).read_bytes(), (reference / name).read_bytes(), name)
        self.assertFalse([p.name for p in run.iterdir() if p.name.startswith(".")], "temporary files and locks are gone")

    def assert_safe(self, run: Path, reference: Path, reported: int = -1) -> None:
        """Whatever happened: final names hold whole files, nothing reported as saved is lost, best is the one that last
        speaks of or a better one, and the run goes on to the same bytes. Equal directories are tried once."""
        found = self.checkpoints(run)
        last = found.get("last.safetensors")
        self.assertGreaterEqual(last.step if last else -1, reported)
        if last and last.best[0] >= 0:
            best = found["best.safetensors"]
            self.assertEqual(best.best[0], best.step)
            self.assertLessEqual(best.best[1], last.best[1])
        state = self.state_of(run)
        if state not in self.seen:
            self.seen.add(state)
            self.continue_run(run)
            self.assert_same_runs(run, reference)

    @staticmethod
    def state_of(run: Path) -> str:
        """Equal for directories that a start cannot tell apart, but for the times in metrics."""
        digest = hashlib.sha256()
        for path in sorted(run.iterdir()) if run.exists() else []:
            content = path.read_bytes()
            if path.name == "metrics.jsonl":
                content = re.sub(rb'"(ms|tok_per_s)":[^,}]*', b"", content)
            if not path.name.startswith("."):
                digest.update(f"{path.name} {len(content)} ".encode() + content)
        return digest.hexdigest()


def last_reported(output: str) -> int:
    """The step of the last save that was said to be one; -1: none."""
    step = reported = -1
    for line in output.splitlines():
        if match := re.match(r"(?:iter|step) (\d+):", line):
            step = int(match[1])
        if line.startswith("saving checkpoint to "):
            reported = step
    return reported
