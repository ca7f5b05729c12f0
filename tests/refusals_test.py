#!/usr/bin/env python3
"""What the program refuses, and that a refusal costs nothing. Standard library only."""
import signal
import subprocess
import unittest

from program import PROGRAM, Case, make_text


class Refusals(Case):
    def refused(self, *arguments: str, code: int = 2) -> str:
        _, err = self.run_program(*arguments, code=code)
        self.assertTrue(err.strip(), "a refusal says why")
        self.assertNotIn("terminate called", err)
        return err

    def text(self, content: bytes) -> str:
        (self.dir / "bad.txt").write_bytes(content)
        err = self.refused("train", "tiny.json", "--data=bad.txt", "--out_dir=run")
        self.assertFalse((self.dir / "run").exists())
        return err

    def test_texts_that_cannot_be_used(self) -> None:
        self.assertIn("empty", self.text(b""))
        self.assertRegex(self.text(b"a" * 100 + b"\x92" + b"b" * 1000), r"bad\.txt: .*byte 0x92 at offset 100")
        self.assertRegex(self.text(b"abcdefgh" * 2), r"(14|2) .*17")  # block_size + 1
        self.assertRegex(self.refused("train", "tiny.json", "--data=.", "--out_dir=run"), "directory")
        self.assertRegex(self.refused("train", "tiny.json", "--data=nosuch.txt", "--out_dir=run"), r"nosuch\.txt: .*[Nn]o such file")

    def test_config_faults_come_all_at_once_with_their_places(self) -> None:
        (self.dir / "bad.json").write_text('{\n  "n_layr": 2,\n  "dropout": 1.5,\n  "bias": 1\n}')
        err = self.refused("train", "bad.json", "--batch_size=0", "--data=text.txt")
        for part in ("bad.json:2:3: n_layr: ", "did you mean n_layer?", "bad.json:3:14: dropout: ", "bad.json:4:11: bias: ",
                     "--batch_size: "):
            self.assertIn(part, err)

    def test_a_directory_that_holds_a_run_needs_a_word(self) -> None:
        self.train("run", "--max_iters=2")
        before = self.file("run")
        self.assertIn("--resume", self.refused("train", "tiny.json", "--out_dir=run"))
        self.assertEqual(before, self.file("run"))
        self.train("run", "--max_iters=3", "--overwrite")
        self.assertNotEqual(before, self.file("run"))

    def test_resume_refuses_what_does_not_agree(self) -> None:
        self.train("run", "--max_iters=4")
        before = {p.name: p.read_bytes() for p in (self.dir / "run").iterdir()}
        for key, value in {"n_layer": 3, "n_embd": 32, "attention": "qk_norm", "seed": 2, "batch_size": 5, "bias": True,
                           "block_size": 8, "gradient_accumulation_steps": 1, "val_fraction": 0.2}.items():
            given = str(value).lower() if isinstance(value, bool) else value
            err = self.refused("train", "--out_dir=run", "--resume", "--max_iters=8", f"--{key}={given}")
            self.assertRegex(err, rf"{key}: .* in run/last\.safetensors, .* asked for")
        (self.dir / "text.txt").write_text(make_text() + "?")
        self.assertIn("sha256", self.refused("train", "--out_dir=run", "--resume", "--max_iters=8"))
        (self.dir / "text.txt").write_text(make_text() + "Z")
        self.assertIn("'Z' (U+005A)", self.refused("train", "--out_dir=run", "--resume", "--max_iters=8"))
        self.assertEqual(before, {p.name: p.read_bytes() for p in (self.dir / "run").iterdir()})

    def test_nothing_to_resume(self) -> None:
        self.assertIn("none/last.safetensors", self.refused("train", "tiny.json", "--out_dir=none", "--resume"))
        self.assertFalse((self.dir / "none").exists())
        self.assertIn("nosuch.safetensors", self.refused("train", "--resume=nosuch.safetensors"))

    def test_a_finished_run_is_left_alone_and_can_be_extended(self) -> None:
        self.train("run", "--max_iters=4")
        files = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (self.dir / "run").iterdir()}
        for extra, why in ((), ""), (("--max_iters=3",), r" \(max_iters 3\)"):
            out, _ = self.run_program("train", "--resume", "--out_dir=run", *extra)
            self.assertRegex(out, rf"finished after 4 updates{why}; .*--max_iters=N")
        self.assertEqual(files, {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in (self.dir / "run").iterdir()})
        out, _ = self.run_program("train", "--resume=run/last.safetensors", "--max_iters=6")
        self.assertIn("changed: max_iters 4 -> 6", out)
        self.assertIn("decays until update 6, before 4", out)
        self.assertEqual([row["step"] for row in self.rows("run", "train")], [1, 2, 3, 4, 5, 6])

    def test_a_run_directory_stands_for_its_checkpoint(self) -> None:
        self.train("run", "--max_iters=4", "--eval_interval=2", "--learning_rate=0.3")
        self.run_program("train", "--resume=run", "--max_iters=6")
        self.assertEqual(self.inspect("run/last.safetensors")["step"], 6)
        self.run_program("train", "--resume=run", "--out_dir=other", "--max_iters=8")
        self.assertEqual([self.inspect(f"{run}/last.safetensors")["step"] for run in ("run", "other")], [6, 8])
        best = self.inspect("run/best.safetensors")["step"]
        _, err = self.run_program("train", "tiny.json", "--out_dir=next", "--init_from=run", "--max_iters=0")
        self.assertNotIn("no best", err)
        for key in ("train_loss", "val_loss"):
            self.assertEqual(self.rows("next", "eval")[0][key], next(r[key] for r in self.rows("run", "eval") if r["step"] == best))
        (self.dir / "empty").mkdir()
        for command in (("sample", "empty"), ("train", "--resume=empty", "--out_dir=o"),
                        ("train", "tiny.json", "--init_from=empty", "--out_dir=o")):
            self.assertIn("give a run directory or a checkpoint file", self.refused(*command))
        for command in (("sample", "none"), ("eval", "none"), ("inspect", "none"), ("export", "none", "x")):
            self.assertRegex(self.refused(*command), "^none: cannot be read: .*; give a run directory or a checkpoint file$")
        self.assertIn("--resume=run goes on with a run", self.refused("train", "run", "--out_dir=o"))

    def test_a_missing_text_is_told_with_its_key_and_where_it_was_looked_for(self) -> None:
        self.train("run", "--max_iters=0")
        elsewhere = self.dir / "elsewhere"
        elsewhere.mkdir()
        for command in (["eval", "../run"], ["train", "--resume=../run", "--max_iters=9"], ["train", "../tiny.json", "--out_dir=o"]):
            done = subprocess.run([PROGRAM, *command], cwd=elsewhere, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, rf"text.txt: cannot be read: .*as --data=FILE \(looked for in .*elsewhere\)$")

    def test_damaged_checkpoints_are_named_and_never_used(self) -> None:
        self.train("run", "--max_iters=30")
        whole = self.file("run")
        for name, content in {"cut": whole[:-1], "half": whole[:len(whole) // 2], "nothing": b"", "pickle": b"\x80\x02" + whole,
                              "flipped": whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:],
                              "header": (2**60).to_bytes(8, "little") + whole[8:]}.items():
            (self.dir / f"{name}.safetensors").write_bytes(content)
            for command in (["inspect"], ["sample"], ["eval"]):
                self.assertIn(f"{name}.safetensors", self.refused(*command, f"{name}.safetensors", code=4))
            self.refused("train", f"--resume={name}.safetensors", "--out_dir=run", code=4)
        best = self.inspect("run/best.safetensors")["step"]
        (self.dir / "run" / "last.safetensors").write_bytes(whole[:-1])
        out, err = self.run_program("train", "--resume", "--out_dir=run", "--max_iters=40")
        self.assertIn("WARNING", err)
        self.assertIn(f"going on from run/best.safetensors at step {best}", err)
        self.train("straight", "--max_iters=40", "--lr_decay_iters=40")
        self.assertEqual(self.inspect("run")["step"], 40)

    def test_a_second_process_is_kept_out(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run", "--max_iters=100000", stdout=subprocess.PIPE)
        for line in process.stdout:
            if line.startswith(b"iter 1:"):
                break
        for arguments in (("--overwrite",), (), ("--resume",)):
            err = self.refused("train", "tiny.json", "--out_dir=run", *arguments, code=6)
            self.assertIn(f"process {process.pid} on ", err)
        process.kill()
        process.communicate()
        self.train("run", "--resume", "--max_iters=2")  # the kernel freed the lock

    def test_commands_and_options(self) -> None:
        self.assertIn("did you mean train?", self.refused("trian"))
        self.assertIn("--help", self.refused())
        self.assertIn("did you mean", self.refused("sample", "run", "--temprature=1"))
        self.refused("sample", "run", "--length=5", "--length=6")
        self.refused("inspect", "run", "more")
        for command in ("train", "sample", "eval", "inspect", "export"):
            out, _ = self.run_program(command, "--help")
            self.assertTrue(out.startswith("usage"), out[:60])
        out, _ = self.run_program("--version")
        self.assertRegex(out, r"^qkgpt \d+\.\d+\.\d+ ")


if __name__ == "__main__":
    unittest.main()
