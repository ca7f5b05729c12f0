"""Tests of scripts/: get_data.sh without a network, python.sh, and what all programs in Python do alike. What compare.py
says is in compare_test.py.

Standard library alone; run by ctest or by: python3 -m unittest tests/scripts_test.py
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Optional

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


class Programs(Scripts):
    NEEDS = {"sharpen": ("numpy",), "study_report": ("numpy", "scipy"), "to_tensorboard": ("tensorboard",)}

    def python(self, script: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run_command(sys.executable, ROOT / "scripts" / f"{script}.py", *arguments, env=env)

    def unread(self, script: str, *arguments: object, unbuffered: str = "") -> tuple[int, str]:
        """Exit code and stderr with a stdout that nobody reads any more."""
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, ROOT / "scripts" / f"{script}.py", *arguments]
        done = subprocess.run(command, cwd=self.dir, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}, stdout=writing,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", timeout=60)  # fmt: skip
        os.close(writing)
        return done.returncode, done.stderr

    def test_a_pipe_that_nobody_reads_ends_them_silently(self) -> None:
        for script in ("compare", "sweep", "sharpen", "study_report", "nanogpt", "to_tensorboard"):
            with self.subTest(script):
                if missing := [name for name in self.NEEDS.get(script, ()) if not importlib.util.find_spec(name)]:
                    self.skipTest(f"not installed: {', '.join(missing)}")
                self.assertEqual(self.unread(script, "--help"), (141, ""))
        self.write("run/config.json", "{}")
        self.write("run/metrics.jsonl", "")
        for unbuffered in ("", "1"):  # the fault comes at the end, or in the middle of printing
            self.assertEqual(self.unread("compare", "run", "--out", "out", unbuffered=unbuffered), (141, ""))

    def test_no_script_goes_round_the_shared_end(self) -> None:
        for path in (ROOT / "scripts").glob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "__main__" in text and path.stem != "check_includes":
                self.assertTrue(text.endswith('if __name__ == "__main__":\n    run_script(main)\n'), path)

    def test_the_reason_does_not_repeat_the_path(self) -> None:
        result = self.python("nanogpt", "config", "none/a.py")
        expected = "nanogpt.py: none/a.py: cannot be read: no such file or directory\n"
        self.assertEqual((result.returncode, result.stderr), (2, expected))

    def test_hints_name_what_a_fresh_debian_lacks(self) -> None:
        for name in ("torch", "tensorboard", "matplotlib"):
            self.write(f"without/{name}.py", f"raise ImportError('none', name='{name}')\n")
        env = {"PYTHONPATH": str(self.dir / "without")}
        self.write("run/config.json", "{}")
        self.write("run/metrics.jsonl", "")
        for script, arguments, package in (
            ("nanogpt", ["export", "run", "out"], "python3-torch"),
            ("reference", [], "python3-torch"),
            ("bench_torch", [], "python3-torch"),
            ("to_tensorboard", ["run"], ""),
            ("compare", ["run"], "python3-matplotlib"),
        ):
            with self.subTest(script):
                error = self.python(script, *arguments, **env).stderr
                self.assertIn("python3 -m venv .venv", error)
                self.assertIn("sudo apt-get install python3-venv", error)
                self.assertIn(package, error)


if __name__ == "__main__":
    unittest.main()
