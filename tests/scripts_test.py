"""Tests of scripts/: the tables and figures of compare.py, and get_data.sh without a network.

Standard library alone; run by ctest or by: python3 -m unittest tests/scripts_test.py
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parent.parent
SHAKESPEARE = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


class Scripts(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.dir = Path(self.directory.name)

    def run_command(
        self, *command: object, env: Optional[dict[str, str]] = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.dir,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path


class Compare(Scripts):
    CONFIG = {
        "data": "text.txt",
        "out_dir": "runs/a",
        "threads": 1,
        "attention": "standard",
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "learning_rate": 0.001,
        "seed": 1337,
    }
    START = {
        "kind": "start",
        "step": 0,
        "version": "0.1.0",
        "text_sha256": "aa",
        "init_crc": "01",
        "windows_crc": "02",
    }

    def make_run(
        self,
        name: str,
        losses: list[Optional[float]],
        start: Optional[dict[str, Any]] = None,
        tail: str = "",
        finished: bool = True,
        **config: Any,
    ) -> Path:
        """A run evaluated every 10 steps."""
        rows: list[dict[str, Any]] = [{**self.START, **(start or {})}]
        for i, loss in enumerate(losses):
            rows.append(
                {"kind": "eval", "step": 10 * i, "train_loss": loss, "val_loss": loss, "best": True, "ms": 5.0}
            )
            if loss is None:
                rows[-1]["nonfinite"] = "nan"
            for ms in (1.0, 2.0, 9.0) if i + 1 < len(losses) else ():
                rows.append({"kind": "train", "step": 10 * i + 5, "loss": 3.0, "ms": ms, "tok_per_s": 768000 / ms})
        if finished:
            rows.append(
                {
                    "kind": "final",
                    "step": 10 * len(losses) - 10,
                    "val_loss": losses[-1],
                    "val_loss_full": losses[-1],
                    "bits_per_char": 2.5,
                }
            )
        self.write(f"{name}/config.json", json.dumps({**self.CONFIG, "out_dir": name, **config}))
        self.write(f"{name}/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + tail)
        return self.dir / name

    def compare(self, *arguments: object, plots: bool = False) -> subprocess.CompletedProcess[str]:
        env = {}
        if not plots:
            self.write("without/matplotlib.py", "raise ImportError\n")
            env["PYTHONPATH"] = str(self.dir / "without")
        return self.run_command(sys.executable, ROOT / "scripts" / "compare.py", *arguments, env=env)

    def line(self, output: str, start: str) -> list[str]:
        return next(line.split() for line in output.splitlines() if line.startswith(start))

    def test_losses_stand_side_by_side_with_their_difference(self) -> None:
        a = self.make_run("a", [4.0, 2.5, 2.0])
        b = self.make_run("b", [4.125, 2.25, 1.75], attention="qk_norm", threads=2)
        result = self.compare(a, b)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.line(result.stdout, "0 "), ["0", "4.0000", "4.0000", "4.1250", "4.1250", "+0.1250"])
        self.assertEqual(self.line(result.stdout, "20 "), ["20", "2.0000", "2.0000", "1.7500", "1.7500", "-0.2500"])
        self.assertEqual(
            result.stdout.splitlines()[-2].split()[:7], ["qk_norm", "20", "1.7500", "at", "20", "1.7500", "-0.2500"]
        )

    def test_speed_is_the_median_of_the_train_rows(self) -> None:
        result = self.compare(self.make_run("a", [4.0, 2.5, 2.0]))
        self.assertEqual(result.stdout.splitlines()[-2].split()[-2:], ["2.00", "384000"])

    def test_runs_that_differ_in_attention_alone_give_no_warning(self) -> None:
        a, b = self.make_run("a", [4.0, 3.0]), self.make_run("b", [4.0, 3.0], attention="qk_norm", threads=8)
        result = self.compare(a, b)
        self.assertNotIn("WARNING", result.stdout)
        self.assertIn("checked, equal in all runs: text, initial shared weights, batches", result.stdout)
        self.assertEqual(self.line(result.stdout, "attention"), ["attention", '"standard"', '"qk_norm"'])
        self.assertNotIn("threads", result.stdout)

    def test_another_differing_key_is_listed_and_warned_about(self) -> None:
        a, b = (
            self.make_run("a", [4.0, 3.0]),
            self.make_run("b", [4.0, 3.0], attention="qk_norm", learning_rate=0.003),
        )
        result = self.compare(a, b)
        self.assertEqual(self.line(result.stdout, "learning_rate"), ["learning_rate", "0.001", "0.003"])
        self.assertIn("WARNING: more than the attention differs: learning_rate\n", result.stdout)

    def test_different_text_weights_or_batches_are_warned_about(self) -> None:
        a = self.make_run("a", [4.0, 3.0])
        for field, what in (
            ("text_sha256", "text"),
            ("init_crc", "initial shared weights"),
            ("windows_crc", "batches"),
        ):
            result = self.compare(a, self.make_run("b", [4.0, 3.0], start={field: "ff"}, attention="qk_norm"))
            self.assertIn(f"WARNING: different {what} ({field}", result.stdout)

    def test_losses_that_are_not_finite_are_gaps(self) -> None:
        result = self.compare(
            self.make_run("a", [4.0, 3.0, 2.0]), self.make_run("b", [4.0, None, 2.0], attention="qk_norm")
        )
        self.assertEqual(self.line(result.stdout, "10 "), ["10", "3.0000", "3.0000", "nan", "nan", "-"])

    def test_an_unfinished_run_with_a_torn_last_line_is_read(self) -> None:
        a = self.make_run("a", [4.0, 3.0, 2.0])
        b = self.make_run(
            "b", [4.0, 3.0], attention="qk_norm", finished=False, tail='{"kind":"eval","step":20,"val'
        )
        result = self.compare(a, b)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.line(result.stdout, "20 "), ["20", "2.0000", "2.0000", "-", "-", "-"])
        self.assertIn("10, not finished", result.stdout)

    def test_a_final_row_before_a_continuation_does_not_count(self) -> None:
        a = self.make_run(
            "a",
            [4.0, 3.0],
            tail=json.dumps({"kind": "eval", "step": 20, "train_loss": 2.0, "val_loss": 2.0}) + "\n",
        )
        self.assertIn("20, not finished", self.compare(a).stdout)

    def test_a_broken_line_in_the_middle_is_an_error(self) -> None:
        a = self.make_run("a", [4.0, 3.0], tail="{oops\n{}\n")
        result = self.compare(a)
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, r"^compare.py: .*a/metrics.jsonl:\d+: not a row of metrics\n$")

    def test_a_missing_file_is_a_one_line_error(self) -> None:
        a = self.make_run("a", [4.0, 3.0])
        (a / "metrics.jsonl").unlink()
        for path in (a, self.dir / "nowhere"):
            result = self.compare(path)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertRegex(result.stderr, r"^compare.py: .*: no such file or directory; [^\n]*\n$")

    def test_without_matplotlib_the_table_comes_with_advice(self) -> None:
        result = self.compare(self.make_run("a", [4.0, 3.0]))
        self.assertEqual(result.returncode, 0)
        self.assertIn("pip install numpy scipy matplotlib", result.stderr)
        self.assertIn("apt-get install", result.stderr)

    def test_figures_are_the_same_bytes_every_time(self) -> None:
        runs = (
            self.make_run("a", [4.0, 2.5, 2.0]),
            self.make_run("b", [4.1, None, 1.8], attention="qk_norm", tail="{"),
        )
        first = self.compare(*runs, "--out", "one/figure", plots=True)
        if "matplotlib is missing" in first.stderr:
            self.skipTest("no matplotlib")
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        self.assertEqual(self.compare(*runs, "--out", "two", plots=True).returncode, 0)
        for end in (".svg", ".png"):
            one, two = (self.dir / f"{name}{end}" for name in ("one/figure", "two"))
            self.assertGreater(one.stat().st_size, 5000)
            self.assertEqual(one.read_bytes(), two.read_bytes())


class GetData(Scripts):
    def get_data(self, curl: str = "exit 6", digest: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Runs it with a `curl` made of the shell commands given ($out is the file asked for) and, if a digest is
        given, with that as the sha256 of every file."""
        self.write(
            "bin/curl",
            f'#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = --output ] && out=$2; shift; done\n{curl}\n',
            0o755,
        )
        if digest:
            self.write("bin/sha256sum", f"#!/bin/sh\ncat >/dev/null\necho '{digest}  -'\n", 0o755)
        path = f"{self.dir / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return self.run_command(
            ROOT / "scripts" / "get_data.sh",
            self.dir / "data",
            env={"QKGPT_TINYSHAKESPEARE": "", **env, "PATH": path},
        )

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.dir / "data").iterdir())

    def test_a_right_download_is_kept_and_not_repeated(self) -> None:
        text = self.dir / "data" / "tinyshakespeare.txt"
        result = self.get_data(curl='echo "First Citizen:" > "$out"', digest=SHAKESPEARE)
        self.assertEqual((result.returncode, result.stdout), (0, f"{text}\n"), result.stderr)
        self.assertEqual(text.read_text(encoding="utf-8"), "First Citizen:\n")
        result = self.get_data(curl="exit 99", digest=SHAKESPEARE)
        self.assertEqual((result.returncode, result.stdout), (0, f"{text}\n"))
        self.assertIn("is there already", result.stderr)

    def test_a_page_instead_of_the_text_is_refused_and_deleted(self) -> None:
        page = "<html>Please log in</html>"
        result = self.get_data(curl=f"echo '{page}' > \"$out\"")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(hashlib.sha256(f"{page}\n".encode()).hexdigest(), result.stderr)
        self.assertIn(SHAKESPEARE, result.stderr)
        self.assertEqual(self.files(), [])

    def test_a_wrong_file_that_is_there_is_refused_and_left_alone(self) -> None:
        text = self.write("data/tinyshakespeare.txt", "mine\n")
        result = self.get_data()
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn(SHAKESPEARE, result.stderr)
        self.assertEqual(text.read_text(encoding="utf-8"), "mine\n")

    def test_without_a_network_the_sources_become_the_text(self) -> None:
        result = self.get_data(curl='echo half > "$out"; exit 28')
        sources = self.dir / "data" / "sources.txt"
        self.assertEqual((result.returncode, result.stdout), (0, f"{sources}\n"), result.stderr)
        self.assertIn("own sources", result.stderr)
        self.assertEqual(self.files(), ["sources.txt"])
        text = sources.read_text(encoding="utf-8")
        self.assertIn((ROOT / "src" / "main.cpp").read_text(encoding="utf-8"), text)
        self.assertGreater(len(text), 20000)

        sources.write_text("kept\n", encoding="utf-8")
        self.assertEqual(self.get_data().stdout, f"{sources}\n")
        self.assertEqual(sources.read_text(encoding="utf-8"), "kept\n")

    def test_a_copy_at_hand_is_checked_like_a_download(self) -> None:
        copy = self.write("copy.txt", "not it\n")
        result = self.get_data(curl="exit 99", QKGPT_TINYSHAKESPEARE=str(copy))
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertEqual((self.files(), copy.exists()), ([], True))
        result = self.get_data(curl="exit 99", digest=SHAKESPEARE, QKGPT_TINYSHAKESPEARE=str(copy))
        self.assertEqual((result.returncode, self.files()), (0, ["tinyshakespeare.txt"]))


class FindPython(Scripts):
    def test_an_interpreter_that_lacks_the_modules_is_passed_over(self) -> None:
        lame = self.write("lame", "#!/bin/sh\nexit 1\n", 0o755)
        self.write("bin/python3", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', 0o755)
        env = {"PYTHON": str(lame), "PATH": f"{self.dir / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        self.assertNotIn("lame", self.run_command(ROOT / "scripts" / "python.sh", "json", env=env).stdout)
        env["PYTHON"] = sys.executable
        self.assertEqual(
            self.run_command(ROOT / "scripts" / "python.sh", "json", env=env).stdout, f"{sys.executable}\n"
        )
        self.assertEqual(self.run_command(ROOT / "scripts" / "python.sh", "no_such_module", env=env).returncode, 1)


if __name__ == "__main__":
    unittest.main()
