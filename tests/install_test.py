#!/usr/bin/env python3
"""Installs the program from its build directory and packs it; tests what the shells and `man` get. QKGPT names the
program, in the build directory."""
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from program import PROGRAM

BUILD = Path(PROGRAM).parent
BASH = shutil.which("bash")


def run(*command: object, **options) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options).stdout


def printed(what: str) -> str:
    return run(PROGRAM, "completion", what)


class Completion(unittest.TestCase):
    def complete(self, line: str, breaks: str = "=") -> list[str]:
        """What bash would offer behind a line, its cursor at the end."""
        script = printed("bash") + f"""
COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDBREAKS='{breaks}'
COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
[ "${{COMP_LINE: -1}}" = " " ] && COMP_CWORD=$((COMP_CWORD + 1))
_qkgpt
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
        return run(BASH, "-c", script).split()

    @unittest.skipUnless(BASH, "no bash")
    def test_bash_completes_commands_options_and_values(self) -> None:
        commands = re.findall(r"(?m)^  (\w+)  +\w", run(PROGRAM, "--help"))
        self.assertEqual(self.complete("qkgpt "), commands)
        self.assertEqual(self.complete("qkgpt ev"), ["eval"])
        self.assertEqual(self.complete("qkgpt train --max"), ["--max_iters="])
        self.assertEqual(self.complete("qkgpt train --res"), ["--resume", "--resume="])
        self.assertEqual(self.complete("qkgpt eval --max"), [])
        self.assertEqual(self.complete("qkgpt train --attention=qk_rms"), ["qk_rmsnorm", "qk_rmsnorm_full"])
        self.assertEqual(self.complete("qkgpt train --attention=soft", breaks=" "), ["--attention=softcap"])
        self.assertEqual(self.complete("qkgpt bench --bias=t"), ["true"])
        self.assertEqual(self.complete("qkgpt completion z"), ["zsh"])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "speech.txt").touch()
            self.assertEqual(self.complete(f"qkgpt train --data={folder}/sp"), [f"{folder}/speech.txt"])
            self.assertEqual(self.complete(f"qkgpt sample {folder}/sp"), [f"{folder}/speech.txt"])

    @unittest.skipUnless(BASH, "no bash")
    def test_every_option_of_the_help_is_completed(self) -> None:
        for command in ("train", "sample", "eval", "inspect", "bench", "export", "completion"):
            known = set(re.findall(r"(?m)^  --([\w-]+)", run(PROGRAM, command, "--help")))
            offered = {word.strip("-=") for word in self.complete(f"qkgpt {command} --")}
            self.assertEqual(offered, known, command)

    @unittest.skipUnless(shutil.which("zsh"), "no zsh")
    def test_zsh_takes_its_completions(self) -> None:
        script = f"autoload -U compinit; compinit -D -u\n{printed('zsh')}\n_arguments() {{ print -l -- $@ }}\n"
        out = run("zsh", "-f", "-c", script + "words=(qkgpt train --at) CURRENT=3 _qkgpt")
        self.assertIn("--attention=[how scores are made from q and k; see below]:VALUE:(standard standard_temperature", out)

    @unittest.skipUnless(shutil.which("groff"), "no groff")
    def test_the_man_page_is_clean(self) -> None:
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-P-cbou"], input=printed("man"), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--top-p=P", done.stdout)
        self.assertIn("qk_scale_lr_mult 1", done.stdout)
        self.assertIn("understood", done.stdout)

    def test_what_is_unknown_is_named(self) -> None:
        done = subprocess.run([PROGRAM, "completion", "fish"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (2, "completion: 'fish' is unknown; expected bash, zsh or man\n"))


class Install(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    FILES = ["bin/qkgpt", "share/qkgpt/configs/quickstart.json", "share/qkgpt/scripts/compare.py", "share/man/man1/qkgpt.1.gz",
             "share/bash-completion/completions/qkgpt", "share/zsh/site-functions/_qkgpt", "share/zsh/vendor-completions/_qkgpt", "share/doc/qkgpt/README.md",
             "share/doc/qkgpt/tutorial.md", "share/doc/qkgpt/copyright"]  # fmt: skip

    @unittest.skipUnless((BUILD / "CMakeCache.txt").exists(), "not in a build directory")
    def test_what_is_installed_works(self) -> None:
        run("cmake", "--install", BUILD, "--prefix", self.dir)
        for name in self.FILES:
            self.assertGreater((self.dir / name).stat().st_size, 100, name)
        self.assertFalse(list(self.dir.rglob("__pycache__")))
        self.assertEqual(run(self.dir / "bin" / "qkgpt", "--version"), run(PROGRAM, "--version"))
        config = self.dir / "share" / "qkgpt" / "configs" / "quickstart.json"
        self.assertIn('"max_iters": 600', run(self.dir / "bin" / "qkgpt", "train", config, "--data=x", "--print-config"))

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("file") and (BUILD / "CPackConfig.cmake").exists(), "no tools for packages")
    def test_the_package_holds_the_same_and_names_what_it_needs(self) -> None:
        run("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", self.dir, cwd=self.dir)
        (package,) = self.dir.glob("qkgpt_*.deb")
        run("dpkg-deb", "-x", package, self.dir / "root")
        for name in self.FILES:
            self.assertTrue((self.dir / "root" / "usr" / name).exists(), name)
        fields = run("dpkg-deb", "-f", package)
        self.assertRegex(fields, r"(?m)^Depends: .*libc6")
        native = "built for native" in run(PROGRAM, "--version")
        version = run(PROGRAM, "--version").split()[1] + ("-native" if native else "")
        self.assertRegex(fields, rf"(?m)^Version: {re.escape(version)}$")


if __name__ == "__main__":
    unittest.main()
