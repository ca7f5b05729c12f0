#!/usr/bin/env python3
"""What people who train small GPTs reported of other programs, tried with this one. Standard library only."""
import math
import os
import resource
import subprocess
import unittest

from checkpoint_file import CheckpointFile
from faults import SMALL
from program import Case, make_text


class Texts(Case):
    def setUp(self) -> None:
        super().setUp()
        self.config(SMALL)

    def text(self, content: str | bytes, name: str = "text.txt") -> None:
        (self.dir / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def train_losses(self, run: str, *arguments: str, **options) -> list[float]:
        self.train(run, *arguments, **options)
        return [row["loss"] for row in self.rows(run, "train")]

    def test_a_byte_order_mark_is_no_character(self) -> None:  # D3
        plain = self.train_losses("a")
        self.text(b"\xef\xbb\xbf" + make_text().encode(), "bom.txt")
        out, _ = self.train("b", "--data=bom.txt")
        self.assertEqual(out.count("byte order mark dropped"), 1)
        self.assertEqual([row["loss"] for row in self.rows("b", "train")], plain)
        self.assertEqual(self.inspect("a")["vocabulary"], self.inspect("b")["vocabulary"])
        self.text("a\ufeffb" * 100, "inside.txt")
        self.train("c", "--data=inside.txt", "--max_iters=0")
        self.assertEqual(self.inspect("c")["vocab_size"], 3)

    def test_carriage_returns_are_kept_and_counted(self) -> None:  # D4
        for name, newline, count in (("lf", "\n", 0), ("crlf", "\r\n", 1), ("cr", "\r", 1)):
            text = make_text().replace("\n", newline)
            self.text(text, name)
            out, _ = self.train(f"run_{name}", f"--data={name}", "--max_iters=0")
            self.assertEqual("carriage returns among them" in out, bool(count))
            if count:
                self.assertIn(f"{text.count(chr(13)):,} carriage returns", out)
                self.assertIn("\\r", self.inspect(f"run_{name}")["vocabulary"])

    def test_the_locale_changes_nothing(self) -> None:  # D2, C5
        locales = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split()
        self.text("é" + make_text())
        first = self.train_losses("first", env={"LC_ALL": "C"})
        for name in ("C.utf8", *(l for l in locales if l.startswith(("de_DE", "en_US", "fr_FR")))):
            out, _ = self.train(f"run_{name}", env={"LC_ALL": name})
            self.assertEqual(self.file("first"), self.file(f"run_{name}"))
            self.assertNotRegex(out, r"loss \d,\d")
        self.assertEqual(len(first), 8)

    def test_fractions_of_validation(self) -> None:  # D5
        for value in ("1", "-0.1", "1.5", "nan", "inf", ""):
            _, err = self.train("run", f"--val_fraction={value}", code=2)
            self.assertIn("val_fraction", err)
        self.assertFalse((self.dir / "run").exists())
        out, _ = self.train("run", "--val_fraction=0")
        self.assertIn("no validation", out)
        self.assertFalse((self.dir / "run" / "best.safetensors").exists())
        self.assertIn("last.safetensors", self.run_program("sample", "run", "--length=3")[1])

    def test_a_text_of_other_characters_is_refused(self) -> None:  # D7, R13, R30
        self.text("abcd\n" * 200)
        self.train("run", "--max_iters=4")
        self.text("abcx\n" * 200, "other.txt")
        for arguments in (("train", "--out_dir=run", "--resume", "--max_iters=8", "--data=other.txt"), ("eval", "run", "--data=other.txt"),
                          ("train", "tiny.json", "--out_dir=new", "--init_from=run/last.safetensors", "--data=other.txt")):
            _, err = self.run_program(*arguments, code=2)
            self.assertRegex(err, r"other\.txt: 'x' \(U\+0078\) at position 4")
        (self.dir / "text.txt").unlink()
        self.assertTrue(set(self.run_program("sample", "run")[0]) <= set("abcd\n"))
        self.assertFalse((self.dir / "new").exists())

    def test_the_report_names_unit_and_vocabulary(self) -> None:  # D8
        self.text("ab\tc\x1b\n" * 200)
        out, _ = self.train("run", "--max_iters=0")
        self.assertIn("6 characters (character level)\n           " + r"\t\n\x1babc", out)

    def test_seventy_thousand_different_characters(self) -> None:  # D9
        points = [c for c in range(0x20, 0x12000) if not 0xD800 <= c < 0xE000][:70_000]
        self.text("".join(map(chr, points)) * 2)
        self.train("run", "--max_iters=1", "--n_embd=2", "--n_head=1", "--attention_stats=false", "--sample_length=0",
                   "--keep_interval=0")
        self.assertEqual(self.inspect("run")["vocab_size"], 70_000)
        prompt = chr(points[0]) + chr(points[69_999]) + chr(points[65_536])
        out, _ = self.run_program("sample", "run", f"--prompt={prompt}", "--length=20")
        self.assertTrue(out.startswith(prompt))
        self.assertEqual(len(out), 24)
        self.assertGreater(max(map(ord, out)), 0xFFFF - 0x2000)

    def test_memory_is_that_of_the_text(self) -> None:  # D10
        size = 30_000_000
        self.text("the quick brown fox\n" * (size // 20))
        peaks = []
        for iters in (10, 60):
            process = self.start("train", "tiny.json", f"--out_dir=run{iters}", "--val_fraction=0.001", f"--max_iters={iters}",
                                 "--eval_interval=0", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            peaks.append(1024 * usage.ru_maxrss)
        if "asan" not in os.environ.get("QKGPT", ""):
            self.assertLess(peaks[0], 8 * size)
            self.assertLess(abs(peaks[1] - peaks[0]), 4e6)

    def test_paths_that_are_no_text(self) -> None:  # D11
        for name, reason in ((".", "directory"), ("none", "No such file"), ("text.txt/x", "Not a directory")):
            _, err = self.train("run", f"--data={name}", code=2)
            self.assertIn(name, err)
            self.assertIn(reason, err)
        if os.geteuid() != 0:
            (self.dir / "text.txt").chmod(0)
            self.assertIn("Permission denied", self.train("run", code=2)[1])


class Samples(Case):
    def changed(self, change) -> str:
        """A copy of the last checkpoint with a change of its tensors, sealed again."""
        file = CheckpointFile(self.file("run"))
        change(file)
        (self.dir / "changed.safetensors").write_bytes(file.bytes())
        return "changed.safetensors"

    def test_weights_that_are_not_finite(self) -> None:  # S1
        self.train("run", "--max_iters=2")

        def spoil(value: float):
            def change(file: CheckpointFile) -> None:
                name = "transformer.h.1.attn.c_attn.weight"
                values = list(file.floats(name))
                values[7] = value
                file.set_floats(name, values)
            return change

        for value in (math.nan, math.inf, -math.inf):
            name = self.changed(spoil(value))
            for command in ("sample", "eval"):
                out, err = self.run_program(command, name, code=3)
                self.assertEqual(out, "")
                self.assertIn("not finite", err)
        # finite weights whose logits are not
        name = self.changed(lambda file: file.set_floats("transformer.ln_f.weight", [3e38] * 16))
        out, err = self.run_program("sample", name, code=3)
        self.assertLessEqual(len(out), 1)  # the prompt
        self.assertIn("not finite", err)

    def test_ties_let_no_more_than_k_through(self) -> None:  # S2
        self.train("run", "--max_iters=2")
        name = self.changed(lambda file: file.set_floats("transformer.ln_f.weight", [0.0] * 16))
        out, _ = self.run_program("sample", name, "--top-k=3", "--length=300")
        self.assertEqual(set(out), set(sorted(set(make_text()))[:3]))
        self.assertEqual(set(self.run_program("sample", name, "--temperature=0", "--length=20")[0]), {"\n"})

    def test_prompts(self) -> None:  # S5
        (self.dir / "text.txt").write_text(make_text() + "\\n" * 20)
        self.train("run", "--max_iters=2")
        self.assertTrue(self.run_program("sample", "run", r"--prompt=a:\n", "--length=1")[0].startswith("a:\n"))
        self.assertTrue(self.run_program("sample", "run", r"--prompt=a:\n", "--no-escape", "--length=1")[0].startswith("a:\\n"))
        (self.dir / "prompt").write_bytes(b"a\\nc\n")
        self.assertTrue(self.run_program("sample", "run", "--prompt-file=prompt", "--length=1")[0].startswith("a\\nc\n"))
        self.assertEqual(self.run_program("sample", "run", "--prompt=")[0], self.run_program("sample", "run")[0])
        (self.dir / "prompt").write_bytes(b"ac\x92")
        self.assertIn("byte 0x92 at offset 2", self.run_program("sample", "run", "--prompt-file=prompt", code=2)[1])
        self.assertIn("contradicts", self.run_program("sample", "run", "--prompt=a", "--prompt-file=prompt", code=2)[1])

    def test_a_stop_text_of_several_draws(self) -> None:  # S6
        self.train("run", "--max_iters=40")
        whole, _ = self.run_program("sample", "run", "--length=2000", "--seed=3")
        pair = next(whole[i:i + 2] for i in range(300, 2000) if whole.find(whole[i:i + 2]) > 100)
        out, _ = self.run_program("sample", "run", "--length=2000", "--seed=3", f"--stop={pair}", "--no-escape")
        self.assertEqual(out, whole[:whole.find(pair, 1) + 2] + "\n")


class Numbers(Case):
    def test_the_schedule_ends_before_the_run(self) -> None:  # N2
        self.train("run", "--lr_decay_iters=20", "--min_lr=0.0002")
        rates = [row["lr"] for row in self.rows("run", "train")]
        self.assertTrue(all(abs(rate - 0.0002) < 1e-15 for rate in rates[20:]))
        self.assertGreater(rates[18], 0.0002)

    def test_the_same_run_twice_in_one_place(self) -> None:  # N12
        self.train("run")
        (self.dir / "run").rename(self.dir / "first")
        self.train("run")
        self.assert_same("first", "run")
        lines = {self.run_program("bench", "tiny.json", "--steps=3", env={"OMP_NUM_THREADS": n})[0].splitlines()[-1]
                 for n in ("1", "2", "3", "7")}
        self.assertEqual(len(lines), 1)

    def test_sizes_beyond_the_machine_are_refused_in_gigabytes(self) -> None:  # N13
        huge = ["--n_embd=200000", "--n_head=100", "--n_layer=100"]
        self.assertRegex(self.train("run", *huge, code=2)[1], r"needs about [\d.]+ (TB|PB) and [\d.]+ GB are available")
        out, _ = self.train("run", *huge, "--dry-run", code=2)
        self.assertRegex(out, r"memory about [\d.]+ (TB|PB)")
        self.assertIn("memory", self.train("run", "--batch_size=1048576", "--block_size=1900", code=2)[1])
        self.assertFalse((self.dir / "run").exists())

    def test_without_memory_there_is_a_message(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run", "--n_embd=1024", "--block_size=256",
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28)))
        _, err = process.communicate(timeout=60)
        if "asan" not in os.environ.get("QKGPT", ""):
            self.assertIn(process.returncode, (1, 2))
            self.assertRegex(err.decode(), r"^memory: ")

    def test_as_many_updates_as_asked_for(self) -> None:  # N14, R5
        self.train("run", "--max_iters=17", "--eval_interval=5")
        self.assertEqual(len(self.rows("run", "train")), 17)
        described = self.inspect("run")
        self.assertEqual(described["step"], 17)
        self.assertEqual(described["config"]["seed"], 1)
        self.assertEqual(described["best_val_loss"], min(row["val_loss"] for row in self.rows("run", "eval")))
        names = {t["name"] for t in described["tensors"]}
        for name in ("transformer.wte.weight", "adamw.exp_avg.transformer.wte.weight", "adamw.exp_avg_sq.transformer.wte.weight"):
            self.assertIn(name, names)

    def test_the_first_loss_is_near_ln_v(self) -> None:  # N11
        self.train("run", "--max_iters=1")
        self.assertAlmostEqual(self.rows("run", "train")[0]["loss"], math.log(self.inspect("run")["vocab_size"]), delta=0.1)

    def test_scales_in_the_rows(self) -> None:  # N10
        for kind, size, expected in (("standard", 16, 1 / math.sqrt(8)), ("qk_norm", 64, 11.977), ("qk_norm", 256, 15.994)):
            run = f"{kind}{size}"
            self.train(run, f"--attention={kind}", f"--block_size={size}", "--max_iters=0")
            for row in self.rows(run, "attention"):
                self.assertAlmostEqual(row["scale"], expected, delta=1e-3)

    def test_config_values_on_both_ways(self) -> None:  # C2, C6, C7
        (self.dir / "bad.json").write_text('{"n_layer": 1.5, "n_head": "8", "block_size": 1e10, "batch_size": -4, "bias": null,\n'
                                           '"learning_rate": true, "n_embd": null}')
        _, err = self.run_program("train", "bad.json", "--data=text.txt", code=2)
        for key in ("n_layer", "n_head", "block_size", "batch_size", "bias", "learning_rate", "n_embd"):
            self.assertRegex(err, rf"(?m)^bad\.json:\d:\d+: {key}: ")
        _, err = self.train("run", "--n_embd=130", "--n_head=4", code=2)
        self.assertRegex(err, r"130.*4.*1, 2, 5, 10, 13")
        for key in ("n_head=0", "n_layer=0", "block_size=0", "batch_size=0", "dropout=1.0", "dropout=-0.1", "beta1=1.0",
                    "beta2=1.0", "eval_iters=0"):
            self.assertIn(key.split("=")[0], self.train("run", f"--{key}", code=2)[1])
        for key in ("eval_interval", "log_interval", "keep_interval", "sample_length", "patience", "warmup_iters", "grad_clip"):
            self.train(f"zero_{key}", f"--{key}=0", "--max_iters=3")
            self.assertEqual(self.inspect(f"zero_{key}")["step"], 3)


if __name__ == "__main__":
    unittest.main()
