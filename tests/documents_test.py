#!/usr/bin/env python3
"""Holds what the README and docs/ say of keys, commands, options, exit codes, environment variables, files and metrics
against the program, in both directions: what one has and the other lacks is a failure."""
import json
import re
import signal
import unittest
from pathlib import Path

from program import Case

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = {p.name: p.read_text(encoding="utf-8") for p in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]}


def section(title: str) -> str:
    return re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README)[1]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def table(text: str) -> list[list[str]]:
    """The cells of the rows whose first cell is quoted."""
    return [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| `")]


class Documents(Case):
    maxDiff = None

    def help(self, command: str) -> str:
        return self.run_program(command, "--help")[0]

    def commands(self) -> dict[str, str]:
        """What each does, by name."""
        return dict(re.findall(r"(?m)^  (\w+) +(\S.*)$", self.run_program("--help")[0]))

    def options(self, command: str) -> list[str]:
        return [o for o in re.findall(r"(?m)^  (--\S+)", self.help(command).split("\nKeys, in")[0]) if o != "--help"]

    def test_commands_and_options(self) -> None:
        said = {}
        for usage, brief, options in re.findall(r"(?m)^- `qkgpt (.+?)`: (.*?)\. (.*)$", section("Commands")):
            said[usage.split()[0]] = (usage, brief, quoted(options))
        has = {}
        for name, brief in self.commands().items():
            usage = re.sub(r"\s+", " ", re.search(r"(?s)^usage: qkgpt (.*?)\n\n", self.help(name))[1])
            has[name] = (usage, brief, self.options(name))
        self.assertGreater(len(has), 5)
        self.assertEqual(said, has)

    def test_keys_with_default_range_and_meaning(self) -> None:
        helped = self.help("train")
        kinds = re.findall(r"(?m)^  (\w+) ", helped.split("\nKinds of attention:\n")[1])
        helped = helped[helped.index("\n  --", helped.index("Keys, in a config")):helped.index("\nKinds of attention")]
        has = {}
        for entry in helped.split("\n  --")[1:]:
            head, meaning = re.sub(r"\n {10,}", " ", entry).split("\n", 1)
            name, default, accepts = re.fullmatch(r"(\w+)=(\S+) +(.*?)(?: \(train needs one\))?", head).groups()
            if default == "PATH":
                default = {"data": "required", "out_dir": "runs/..."}[name]
            if name == "attention":
                accepts = "one of " + ", ".join(f'"{kind}"' for kind in kinds)
            has[name] = [default, re.sub(r"\s+", " ", meaning).strip().removesuffix("; see below"), accepts]
        said = {cells[0].strip("`"): [cells[1].strip("`"), *cells[2:]] for cells in table(section("Keys"))}
        self.assertGreater(len(has), 30)
        self.assertEqual(said, has)
        self.assertEqual([quoted(cells[0])[0] for cells in table(section("The kinds of attention"))[1:]], kinds)
        self.assertEqual(set(json.loads((ROOT / "configs" / "schema.json").read_text())["properties"]) - {"$schema"}, set(has))

    def test_exit_codes(self) -> None:
        source = (ROOT / "src" / "base" / "check.h").read_text(encoding="utf-8")
        has = {0, *(int(n) for n in re.findall(r"(?m)^  \w+ = (\d),", source)),
               *(128 + s for s in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))}  # fmt: skip
        said = re.search(r"(?m)^Exit codes: (.*)\.$", README)[1]
        self.assertEqual({int(n) for n in re.findall(r"\b\d+\b", said)}, has)
        for name, text in DOCUMENTS.items():
            for number in re.findall(r"exit code (\d+)", text):
                self.assertIn(int(number), has, name)

    def test_environment_variables(self) -> None:
        said = {name for cells in table(section("Files and settings of a run").split("| variable |")[1]) for name in quoted(cells[0])}
        program = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "src").rglob("*.[ch]*"))
        read = set(re.findall(r'getenv\("(\w+)"\)', program)) | set(re.findall(r'"((?:GOMP|OMP)_\w+)"', program))
        shell = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "scripts").glob("*.sh"))
        read |= set(re.findall(r"\$\{(QKGPT_\w+|PYTHON|CXX):", shell))
        self.assertIn("OMP_NUM_THREADS", read)
        self.assertEqual(said - {"NO_COLOR"}, read)
        self.assertNotRegex(program, r"\\(033|x1b|e)\[[0-9;]*m")  # colours, which NO_COLOR would have to take away

    def test_metrics_and_files_of_a_run(self) -> None:
        self.train("run", "--keep_interval=20", "--sample_length=3")
        has = {}
        for line in (self.dir / "run" / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            has.setdefault(row.pop("kind"), list(row))
        rows = table(section("Files and settings of a run").split("| variable |")[0])
        self.assertEqual({quoted(cells[0])[0]: quoted(cells[2]) for cells in rows}, has)
        sentence = re.search(r"(?m)^A run directory holds .*$", README)[0]
        said = {name for name in quoted(sentence) if re.search(r"\.\w+$", name)}
        files = {re.sub(r"^step_\d{8}", "step_XXXXXXXX", p.name) for p in (self.dir / "run").iterdir()}
        self.assertEqual(said, files)
        self.assertTrue(set(has) <= set(quoted(sentence)))

    def test_every_option_named_anywhere_is_known(self) -> None:
        others = ("preset", "build", "install", "prefix", "config", "target",  # of cmake and cpack
                  "hostfile", "map-by", "bind-to", "mca")  # of mpirun
        known = {o.split("=")[0].strip("[") for name in self.commands() for o in self.options(name)}
        known |= {"--KEY", "--help", "--version", *(f"--{name}" for name in others)}
        known |= {f"--{cells[0].strip('`')}" for cells in table(section("Keys"))}
        for script in (ROOT / "scripts").glob("*"):
            if script.is_file():
                known |= set(re.findall(r"--[a-z][\w-]+", script.read_text(encoding="utf-8")))
        for name, text in DOCUMENTS.items():
            for option in re.findall(r"(?<![\w-])(--[A-Za-z][\w-]*)", text):
                self.assertIn(option.replace("top_k", "top-k"), known, name)


if __name__ == "__main__":
    unittest.main()
