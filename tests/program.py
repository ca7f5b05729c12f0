"""What tests of the whole program share: a small text and config, and ways to run it. QKGPT names the program."""
import array
import hashlib
import json
import os
import signal
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = str(Path(os.environ.get("QKGPT", Path(__file__).resolve().parent.parent / "build" / "qkgpt")).resolve())

TINY = {"seed": 1, "n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "batch_size": 4, "dropout": 0.1,
        "gradient_accumulation_steps": 2, "max_iters": 40, "warmup_iters": 5, "eval_interval": 10, "eval_iters": 2,
        "log_interval": 1}


def make_text(size: int = 20000) -> str:
    """Words of a small vocabulary in an order that a hash decides."""
    words = "the king and queen of a land far away spoke to me, saying: come home!\nBut O, not so? I said. ".split(" ")
    out, i = [], 0
    while sum(map(len, out)) + len(out) < size:
        out.append(words[hashlib.sha256(str(i).encode()).digest()[0] % len(words)])
        i += 1
    return " ".join(out)


def read_safetensors(path: Path) -> tuple[dict, dict]:
    """Metadata, and by name: shape and numbers (F32 only)."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + size]), content[8 + size:]
    metadata = header.pop("__metadata__")
    return metadata, {name: (t["shape"], array.array("f", data[t["data_offsets"][0]:t["data_offsets"][1]]))
                      for name, t in header.items() if t["dtype"] == "F32"}


class Case(unittest.TestCase):
    command = [PROGRAM]

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        (self.dir / "text.txt").write_text(make_text(), encoding="utf-8")
        self.config(TINY)

    def config(self, keys: dict, name: str = "tiny.json") -> None:
        (self.dir / name).write_text(json.dumps({"data": "text.txt"} | keys), encoding="utf-8")

    def start(self, *arguments: str, env: dict | None = None, **options) -> subprocess.Popen:
        process = subprocess.Popen([*self.command, *arguments], cwd=self.dir, stdin=subprocess.DEVNULL,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
                                   **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options))
        self.addCleanup(process.kill)  # of a test that fails before it has stopped it
        return process

    def run_program(self, *arguments: str, code: int = 0, env: dict | None = None) -> tuple[str, str]:
        process = self.start(*arguments, env=env)
        out, err = (stream.decode("utf-8") for stream in process.communicate(timeout=120))
        self.assertEqual(process.returncode, code, f"{arguments}\n{out}\n{err}")
        return out, err

    def train(self, run: str, *arguments: str, **options) -> tuple[str, str]:
        return self.run_program("train", "tiny.json", f"--out_dir={run}", *arguments, **options)

    def rows(self, run: str, kind: str | None = None) -> list[dict]:
        rows = [json.loads(line) for line in (self.dir / run / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in row.items() if k not in ("ms", "tok_per_s")} for row in rows
                if kind in (None, row["kind"])]

    def file(self, run: str, name: str = "last.safetensors") -> bytes:
        return (self.dir / run / name).read_bytes()

    def assert_same(self, a: str, b: str) -> None:
        for name in ("last.safetensors", "best.safetensors"):
            self.assertEqual(self.file(a, name), self.file(b, name), name)
        self.assertEqual(self.rows(a), self.rows(b))

    def stop_after_row(self, run: str, row: int, number: signal.Signals, *arguments: str) -> None:
        process = self.start("train", "tiny.json", f"--out_dir={run}", *arguments, stderr=subprocess.DEVNULL)
        for line in process.stdout:
            if line.startswith(f"iter {row}:".encode()):
                process.send_signal(number)
                break
        rest = process.stdout.read().decode()
        process.stdout.close()
        self.assertEqual(process.wait(60), 128 + number, rest)
        self.assertRegex(rest, rf"stopped by {number.name} at step \d+: saved to {run}/last.safetensors")
        self.assertGreaterEqual(self.inspect(run)["step"], row)
        self.assertLess(self.inspect(run)["step"], 40)

    def inspect(self, name: str) -> dict:
        return json.loads(self.run_program("inspect", name, "--json")[0])
