#!/usr/bin/env python3
"""Samples, evaluations and output, tried as a user would. Standard library only."""
import json
import subprocess
import time
import unittest
from pathlib import Path

from program import Case, make_text


class Results(Case):
    def test_eval_agrees_with_the_final_row(self) -> None:
        self.train("run")
        final = self.rows("run", "final")[0]
        for threads in ("1", "3"):
            row = json.loads(self.run_program("eval", "run/last.safetensors", "--json",
                                              env={"OMP_NUM_THREADS": str(threads)})[0])
            self.assertEqual(row["loss"], final["val_loss_full"])
        self.assertAlmostEqual(row["bits_per_char"], final["bits_per_char"])

    def test_samples_follow_their_rules(self) -> None:
        self.train("run", "--max_iters=20")
        one, _ = self.run_program("sample", "run", "--length=60", "--seed=5")
        self.assertEqual(one, self.run_program("sample", "run", "--length=60", "--seed=5",
                                               env={"OMP_NUM_THREADS": "3"})[0])
        three = self.run_program("sample", "run", "--length=60", "--seed=5", "--num-samples=3")[0].split("\n---------------\n")
        self.assertEqual(len(three), 3)
        self.assertEqual(three[0] + "\n", one)
        self.assertNotEqual(three[0], three[1])
        self.assertEqual(len(one), 1 + 60 + 1)
        prompt = make_text()[:64]
        long = self.run_program("sample", "run", f"--prompt={prompt}", "--length=40")[0]
        short = self.run_program("sample", "run", f"--prompt={prompt[-16:]}", "--length=40")[0]
        self.assertEqual(long[64:], short[16:])
        self.assertEqual(self.run_program("sample", "run", "--top-k=1000")[0], self.run_program("sample", "run")[0])
        greedy = self.run_program("sample", "run", "--temperature=0", "--seed=1")[0]
        self.assertEqual(greedy, self.run_program("sample", "run", "--top-k=1", "--seed=2")[0])
        stopped = self.run_program("sample", "run", "--stop=e", "--length=500")[0].rstrip("\n")
        self.assertEqual(stopped.find("e"), len(stopped) - 1)
        escaped = self.run_program("sample", "run", r"--prompt=a\na", "--length=3")[0]
        self.assertTrue(escaped.startswith("a\na"))
        _, err = self.run_program("sample", "run", "--prompt=aé", code=2)
        self.assertRegex(err, r"'é' \(U\+00E9\) at position 2")
        self.run_program("sample", "run", "--top-k=-3", code=2)

    def test_samples_side_by_side_are_those_of_one_at_a_time(self) -> None:
        self.train("run", "--max_iters=40")
        line = "\n---------------\n"
        for options in (["--length=30"], ["--length=40", "--prompt=the king and queen", "--temperature=1.5"],
                        ["--length=60", "--stop=e"], ["--length=0", "--prompt=a"]):
            many = self.run_program("sample", "run", "--num-samples=19", *options)[0]  # more than go side by side
            for threads in ("2", "3", "8"):
                other = self.run_program("sample", "run", "--num-samples=19", *options,
                                         env={"OMP_NUM_THREADS": str(threads)})[0]
                self.assertEqual(other, many)
            few = self.run_program("sample", "run", "--num-samples=2", *options)[0]
            self.assertEqual(many[:-1].split(line)[:2], few[:-1].split(line))
            self.assertEqual(len(many[:-1].split(line)), 19)

    def test_a_stop_text_ends_every_sample_by_itself(self) -> None:
        self.train("run", "--max_iters=40")
        line = "\n---------------\n"
        options = ["--num-samples=9", "--length=80", "--prompt=a"]
        whole = self.run_program("sample", "run", *options)[0][:-1].split(line)
        stopped = self.run_program("sample", "run", *options, "--stop=e", "--threads=2")[0]
        cut = [text[:text.find("e") + 1] if "e" in text else text for text in whole]
        self.assertEqual(stopped[:-1].split(line), cut)
        self.assertGreater(len({len(text) for text in stopped.split(line)}), 2)

    def test_a_text_without_newline_has_its_first_character_as_prompt(self) -> None:
        (self.dir / "text.txt").write_text("abc" * 2000)
        self.train("run", "--max_iters=2")
        out, err = self.run_program("sample", "run", "--length=5")
        self.assertTrue(out.startswith("a"))
        self.assertIn("no newline", err)

    def test_text_streams_and_a_closed_pipe_ends_it_quietly(self) -> None:
        self.train("run", "--max_iters=2")
        for options in ([], ["--num-samples=20", "--threads=2"]):
            process = self.start("sample", "run", "--length=200000", *options)
            begin = time.monotonic()
            self.assertEqual(len(process.stdout.read(10)), 10)
            self.assertIsNone(process.poll(), "the first characters come long before the last")
            process.stdout.close()
            err = process.stderr.read()
            process.stderr.close()
            self.assertEqual((process.wait(60), err), (0, b""))
            self.assertLess(time.monotonic() - begin, 30)

    def test_output_that_is_no_terminal_has_whole_lines_only(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run")
        out, err = process.communicate(timeout=60)
        self.assertNotIn(b"\r", out + err)
        self.assertNotIn(b"\x1b", out + err)

    @unittest.skipUnless(Path("/dev/full").exists(), "no /dev/full")
    def test_results_that_cannot_be_written_are_an_error_but_training_goes_on(self) -> None:
        with open("/dev/full", "wb") as full:
            training = self.start("train", "tiny.json", "--out_dir=run", stdout=full)
            _, err = training.communicate(timeout=60)
            self.assertEqual(training.returncode, 0)
            self.assertEqual(err.decode().count("stdout: cannot be written"), 1)
            for command in (["eval", "run"], ["inspect", "run"], ["sample", "run"], ["bench", "tiny.json", "--steps=1"]):
                process = self.start(*command, stdout=full)
                _, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1, command)
                self.assertIn("stdout: the result could not be written", err.decode())
        self.assertEqual(len(self.rows("run", "train")), 40)

    def test_names_with_spaces_and_accents(self) -> None:
        (self.dir / "my text é.txt").write_text(make_text(), encoding="utf-8")
        self.train("my run é/deep", "--data=my text é.txt", "--max_iters=2")
        self.assertTrue((self.dir / "my run é" / "deep" / "last.safetensors").exists())

    def test_nanogpts_cpu_run_has_the_published_size(self) -> None:
        alphabet = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
        (self.dir / "text.txt").write_text(alphabet * 20)
        out, _ = self.run_program("train", "--data=text.txt", "--dry-run")
        for part in ("804,096 parameters, 795,904 without positions", "decayed: 18 tensors, 802,944 parameters",
                     "not decayed: 9 tensors, 1,152 parameters"):
            self.assertIn(part, out)


if __name__ == "__main__":
    unittest.main()
