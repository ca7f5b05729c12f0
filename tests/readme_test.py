#!/usr/bin/env python3
"""Runs the commands of the README and of docs/ in their order, on a small text and smaller models, and holds the
README's table of keys against the program. The two commands at its top are left to .ci/run."""
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from program import PROGRAM, make_text

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "batch_size": 2, "max_iters": 30, "eval_interval": 15,
           "eval_iters": 1, "warmup_iters": 5}
PLOTS = ["numpy", "scipy", "matplotlib"]
NEEDS = {"bench_torch": ["torch"], "nanogpt.py export": ["torch", "numpy"], "nanogpt.py import": ["torch", "numpy"],
         "to_tensorboard": ["tensorboard"], "sweep.py": PLOTS, "study_report.py": PLOTS, "sharpen.py": PLOTS}  # packages that not every machine has


class Readme(unittest.TestCase):
    def test_commands_work_as_written(self) -> None:
        texts = [README] + [p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs").glob("*.md"))]
        commands = [line for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.S)
                    for line in block.splitlines()]
        self.assertEqual(commands[:2], ["scripts/quickstart.sh", "scripts/test.sh"])
        self.assertGreater(len(commands), 6)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(ROOT / "configs", folder / "configs")
            for name in ("shakespeare_char_cpu", "quickstart"):
                config = (folder / "configs" / f"{name}.json").read_text(encoding="utf-8")
                config = json.loads(re.sub(r"(?m)^\s*//.*$", "", config)) | SMALLER
                (folder / "configs" / f"{name}.json").write_text(json.dumps(config))
            for name in ("study", "study_quick"):
                study = json.loads((folder / "configs" / f"{name}.json").read_text(encoding="utf-8"))
                study |= {"learning_rates": [1e-3, 1e-2], "seeds": [1, 2], "keys": {}}
                study["confirm"]["seeds"] = [101, 102]
                (folder / "configs" / f"{name}.json").write_text(json.dumps(study))
            (folder / "data").mkdir()
            (folder / "data" / "tinyshakespeare.txt").write_text(make_text() + "ROMEO:\n" * 9)
            (folder / "nanoGPT" / "config").mkdir(parents=True)
            (folder / "nanoGPT" / "config" / "train_shakespeare_char.py").write_text("dataset = 'shakespeare_char'\n")
            (folder / "README.md").write_text(README, encoding="utf-8")
            (folder / "build").symlink_to(Path(PROGRAM).parent)
            for name in ("scripts", "docs"):
                (folder / name).symlink_to(ROOT / name)
            for command in commands[2:]:
                with self.subTest(command):
                    missing = [name for script, names in NEEDS.items() if script in command
                               for name in names if not importlib.util.find_spec(name)]
                    if missing:
                        print(f"skipped, {' and '.join(missing)} not installed: {command}", file=sys.stderr)
                        continue
                    command = re.sub(r"^python3 ", f"'{sys.executable}' ", command)
                    command = command.replace("--data=README.md", "--data=README.md --n_embd=16 --batch_size=2")
                    command = command.replace("--rounds=5", "--rounds=1 --seconds=0.1 --n_embd=16 --batch_size=2")
                    done = subprocess.run(command, shell=True, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                                          text=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "1"})
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_table_of_keys_is_whole(self) -> None:
        help_text = subprocess.run([PROGRAM, "train", "--help"], capture_output=True, text=True, check=True).stdout
        keys = re.findall(r"(?m)^  --(\w+)=", help_text[help_text.index("Keys, in a config"):])
        self.assertGreater(len(keys), 30)
        section = README[README.index("\n## Keys"):]
        self.assertEqual(re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", section), keys)

    def test_the_map_names_every_room(self) -> None:
        rooms = re.findall(r"(?m)^\| `(\w+)/` \|", README)
        self.assertEqual(sorted(rooms), sorted(p.name for p in (ROOT / "src").iterdir() if p.is_dir()))
        for file in re.findall(r"`((?:\w+/)+\w+\.(?:h|cpp))`", README):
            self.assertTrue((ROOT / "src" / file).exists() or (ROOT / file).exists(), file)


if __name__ == "__main__":
    unittest.main()
