"""Tests of scripts/compare.py on runs made up here: tables, warnings, figures and the page.

Standard library alone (what needs numpy, scipy or matplotlib is skipped without them); run by ctest or by:
python3 -m unittest tests/compare_test.py
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import unittest
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from scripts_test import ROOT, Scripts

sys.path.insert(0, str(ROOT / "scripts"))
import compare

try:
    import curves  # matplotlib
    import differences  # numpy and scipy
except ImportError:
    curves = differences = None

NEEDS_ALL = unittest.skipIf(curves is None, "numpy, scipy or matplotlib is missing")


class Case(Scripts):
    CONFIG = {"data": "text.txt", "out_dir": "runs/a", "threads": 1, "attention": "standard", "n_layer": 4, "n_head": 4,
              "n_embd": 128, "block_size": 64, "learning_rate": 0.001, "seed": 1337}  # fmt: skip
    START = {"kind": "start", "step": 0, "version": "0.1.0", "text_sha256": "aa", "init_crc": "01", "windows_crc": "02"}

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
            end = {"val_loss": losses[-1], "val_loss_full": losses[-1], "bits_per_char": 2.5}
            rows.append({"kind": "final", "step": 10 * len(losses) - 10, **end})
        self.write(f"{name}/config.json", json.dumps({**self.CONFIG, "out_dir": name, **config}))
        self.write(f"{name}/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + tail)
        return self.dir / name

    def make_group(self, name: str, losses: list[float], first_seed: int = 1, **config: Any) -> list[Path]:
        """Runs of following seeds that end at these losses; hashes depend on the seed."""
        return [
            self.make_run(f"{name}_{seed}", [4.0, loss + 1, loss], start=self.hashes(seed), seed=seed, **config)
            for seed, loss in enumerate(losses, first_seed)
        ]

    def hashes(self, seed: int) -> dict[str, Any]:
        return {"init_crc": f"{seed:08x}", "windows_crc": f"{seed + 1:08x}"}

    def compare(
        self, *arguments: object, without: tuple[str, ...] = ("matplotlib",)
    ) -> subprocess.CompletedProcess[str]:
        """Runs it in this process as if some modules were not installed."""
        out, err = io.StringIO(), io.StringIO()
        hidden = {name: None for name in without}
        with mock.patch.dict(sys.modules, hidden), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            for name in ("curves", "differences", "stats") if without else ():
                sys.modules.pop(name, None)
            code = compare.main([*map(str, arguments), "--out", str(self.dir / "out")])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def page(self) -> str:
        return (self.dir / "out.html").read_text(encoding="utf-8")

    def line(self, output: str, start: str) -> list[str]:
        return self.lines(output, start)[0]

    def lines(self, output: str, start: str) -> list[list[str]]:
        return [line.split() for line in output.splitlines() if line.startswith(start)]


class OneRunEach(Case):
    def test_losses_stand_side_by_side_with_their_difference(self) -> None:
        a = self.make_run("a", [4.0, 2.5, 2.0])
        b = self.make_run("b", [4.125, 2.25, 1.75], attention="qk_norm", threads=2)
        result = self.compare(a, b)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.line(result.stdout, "0 "), ["0", "4.0000", "4.0000", "4.1250", "4.1250", "+0.1250"])
        self.assertEqual(self.line(result.stdout, "20 "), ["20", "2.0000", "2.0000", "1.7500", "1.7500", "-0.2500"])
        ends = ["qk_norm", "20", "1.7500", "at", "20", "1.7500", "-0.2500"]
        self.assertEqual(self.lines(result.stdout, "qk_norm")[-1][:7], ends)

    def test_speed_is_the_median_of_the_train_rows(self) -> None:
        result = self.compare(self.make_run("a", [4.0, 2.5, 2.0]))
        self.assertEqual(self.lines(result.stdout, "standard ")[-1][-2:], ["2.00", "384000"])

    def test_runs_that_differ_in_attention_alone_give_no_warning(self) -> None:
        a, b = self.make_run("a", [4.0, 3.0]), self.make_run("b", [4.0, 3.0], attention="qk_norm", threads=8)
        result = self.compare(a, b)
        self.assertNotIn("WARNING", result.stdout)
        self.assertIn("checked, equal in all runs: text, initial shared weights, batches", result.stdout)
        self.assertEqual(self.line(result.stdout, "attention"), ["attention", '"standard"', '"qk_norm"'])
        self.assertFalse(self.lines(result.stdout, "threads"))

    def test_another_differing_key_is_listed_and_warned_about(self) -> None:
        a = self.make_run("a", [4.0, 3.0])
        b = self.make_run("b", [4.0, 3.0], attention="qk_norm", learning_rate=0.003)
        result = self.compare(a, b)
        self.assertEqual(self.line(result.stdout, "learning_rate"), ["learning_rate", "0.001", "0.003"])
        self.assertIn("WARNING: more than the attention differs: learning_rate\n", result.stdout)

    def test_different_text_weights_or_batches_are_warned_about(self) -> None:
        a = self.make_run("a", [4.0, 3.0])
        fields = {"text_sha256": "text", "init_crc": "initial shared weights", "windows_crc": "batches"}
        for field, what in fields.items():
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

    def test_sentences_stay_within_80_columns(self) -> None:
        rows = [{"kind": "attention", "step": 20, "layer": 0, "logit_max": [3.0], "entropy": [0.5], "p_max": [0.5]}]
        tail = "".join(json.dumps(row) + "\n" for row in rows)
        ours = [self.make_run(f"a{s}", [4.0, 3.0, 2.0], self.hashes(s), tail, seed=s) for s in range(1, 7)]
        theirs = [self.make_run(f"b{s}", [4.0, 2.5, 1.5], self.hashes(s), tail, seed=s, attention="qk_norm", n_embd=64)
                  for s in range(1, 7)]  # fmt: skip
        for runs in ([ours[0], theirs[0]], [*ours, *theirs]):
            result = self.compare(*runs)
            self.assertIn("to target: updates to val 2.0000,", result.stdout)
            self.assertIn("checked, equal in all runs", result.stdout)
            sentences = [line for line in result.stdout.splitlines() if "  " not in line.lstrip()]
            self.assertGreater(len(sentences), 5)
            self.assertEqual([line for line in sentences if len(line) > 80], [])

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

    @NEEDS_ALL
    def test_figures_are_the_same_bytes_every_time(self) -> None:
        runs = (
            self.make_run("a", [4.0, 2.5, 2.0]),
            self.make_run("b", [4.1, None, 1.8], attention="qk_norm", tail="{"),
        )
        for name in ("one/figure", "two"):
            done = self.run_command(sys.executable, ROOT / "scripts" / "compare.py", *runs, "--out", name)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        for end in (".svg", ".png"):
            one, two = (self.dir / f"{name}{end}" for name in ("one/figure", "two"))
            self.assertGreater(one.stat().st_size, 5000)
            self.assertEqual(one.read_bytes(), two.read_bytes())


class Groups(Case):
    BASE = [2.0, 2.03, 1.99, 2.01, 2.02, 2.0, 1.98, 2.04]

    def test_runs_are_grouped_by_all_but_seed_place_and_threads(self) -> None:
        a, b = self.make_group("a", self.BASE[:3]), self.make_group("b", self.BASE[:3], attention="qk_norm", threads=4)
        result = self.compare(a[0], b[0], *a[1:], *b[1:])
        self.assertEqual(self.line(result.stdout, "standard")[:5], ["standard", "3", "1,", "2,", "3"])
        self.assertEqual(self.line(result.stdout, "qk_norm")[:5], ["qk_norm", "3", "1,", "2,", "3"])
        self.assertNotIn("WARNING", result.stdout)

    def test_labels_are_the_differing_keys_where_the_attention_does_not_tell(self) -> None:
        a, b = self.make_group("a", self.BASE[:2]), self.make_group("b", self.BASE[:2], learning_rate=0.003)
        result = self.compare(*a, *b)
        self.assertTrue(self.lines(result.stdout, "lr 0.001  2") and self.lines(result.stdout, "lr 0.003  2"))
        self.assertIn("WARNING: more than the attention differs: learning_rate", result.stdout)

    def test_keys_of_the_attention_kind_may_differ(self) -> None:
        kinds = ({"attention": "qk_norm", "qk_scale_init": 5.66}, {"attention": "qk_norm", "qk_scale_init": None})
        result = self.compare(*self.make_group("a", [2.0], **kinds[0]), *self.make_group("b", [2.0], **kinds[1]))
        self.assertTrue(self.lines(result.stdout, "qk_scale_init 5.66  ") and self.lines(result.stdout, "qk_scale_init null  "))
        self.assertNotIn("WARNING", result.stdout)

    def test_seeds_given_again_are_compared_and_equal_to_the_last_digit(self) -> None:
        a, again = self.make_group("a", self.BASE[:6]), self.make_group("again", self.BASE[:6])
        for runs in ([*a, *a], [*a, *again], ["one:", *a, "other:", *again]):
            result = self.compare(*runs)
            self.assertEqual(result.returncode, 0, result.stderr)
            if differences:
                self.assertRegex(result.stdout, r"6 pairs  \+0.0000  0.0000  \+0.0000 to \+0.0000  1.0000 .*equal in every pair")

    def test_a_colon_starts_a_group_with_or_without_a_name(self) -> None:
        a = self.make_group("a", self.BASE[:4])
        result = self.compare("first:", *a[:2], "second:", *a[2:])
        self.assertEqual([line[1] for line in self.lines(result.stdout, "first")][0], "2")
        self.assertTrue(self.lines(result.stdout, "second"))
        self.assertEqual(self.compare(*a[:2], ":", *a[2:]).returncode, 0)
        self.assertIn("no runs", self.compare("first:", "second:", a[0]).stderr)
        twice = self.compare("first:", a[0], a[0])
        self.assertEqual((twice.returncode, "2 runs with seed 1" in twice.stderr), (2, True))

    def test_keys_that_differ_inside_a_group_put_together_are_warned_about(self) -> None:
        a, b = self.make_group("a", [2.0]), self.make_group("b", [2.0], first_seed=2, learning_rate=0.1)
        result = self.compare("first:", *a, *b, "second:", *self.make_group("c", [2.0]))
        self.assertIn("WARNING: more than the attention differs: learning_rate", result.stdout)
        self.assertEqual(self.line(result.stdout, "learning_rate")[1], "varies")

    def test_a_pair_whose_hashes_disagree_is_named_and_not_used(self) -> None:
        a, b = self.make_group("a", self.BASE[:7]), self.make_group("b", self.BASE[:7], attention="qk_norm")
        self.make_run("b_3", [4.0, 9.0], start={**self.hashes(3), "windows_crc": "ff"}, seed=3, attention="qk_norm")
        result = self.compare(*a, *b)
        self.assertIn("WARNING: seed 3: different batches (windows_crc of the start rows)", result.stdout)
        self.assertIn("00000004 / ff DIFFER", result.stdout)
        self.assertEqual(self.lines(result.stdout, "3   ")[-1][-1], "-")
        if differences:
            self.assertRegex(result.stdout, r"qk_norm +6 pairs +\+0.0000")

    def test_hashes_that_are_missing_make_no_pair(self) -> None:
        a = self.make_group("a", self.BASE[:2])
        b = [self.make_run(f"b{s}", [4.0, 2.0], start={"init_crc": None}, seed=s, attention="qk_norm") for s in (1, 2)]
        result = self.compare(*a, *b)
        self.assertIn("WARNING: not recorded in every run, so not checked: initial shared weights", result.stdout)
        if differences:
            self.assertIn("unpaired, 2 and 2", result.stdout)

    def test_another_text_is_warned_about_and_gives_no_statistics(self) -> None:
        b = [self.make_run(f"b{s}", [4.0, 2.0], start={"text_sha256": "bb"}, seed=s, data="b") for s in (8, 9)]
        result = self.compare(*self.make_group("a", self.BASE[:2]), *b)
        self.assertIn("WARNING: different text (text_sha256", result.stdout)
        self.assertIn("WARNING: no statistics: the texts differ", result.stdout)
        self.assertNotIn("95 % interval", result.stdout)

    def test_diverged_and_unfinished_runs_are_left_out_and_named(self) -> None:
        a, b = self.make_group("a", self.BASE[:4]), self.make_group("b", self.BASE[:4], attention="qk_norm")
        lost = json.dumps({"kind": "train", "step": 11, "loss": None, "nonfinite": "nan"}) + "\n"
        on = {"seed": 2, "start": self.hashes(2), "attention": "qk_norm", "finished": False}
        self.make_run("b_2", [4.0, 3.0], tail=lost, **on)
        self.make_run("b_4", [4.0, 3.0], tail='{"kind":', **{**on, "seed": 4, "start": self.hashes(4)})
        result = self.compare(*a, *b)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("WARNING: qk_norm: 1 of 4 runs diverged (seed 2)", result.stdout)
        self.assertIn("favours this group", result.stdout)
        self.assertIn("WARNING: qk_norm: 1 of 4 runs have not finished (seed 4)", result.stdout)
        self.assertIn("2 of 4", result.stdout)
        self.assertEqual(self.lines(result.stdout, "2   ")[-1][2:4], ["11,", "diverged"])
        # By pairs: the loss of seeds 1 and 3 is the same in both, whatever the means of other seeds.
        self.assertEqual(self.line(result.stdout, "20 ")[-1], "+0.0000")

    def test_updates_to_the_target_lie_on_the_line_between_evaluations(self) -> None:
        rows = [{"kind": "attention", "step": 20, "layer": i, "logit_max": [3.0, 1.0], "entropy": [0.5, 0.25],
                 "p_max": [0.5, 0.5], "q_norm": [1, 1], "k_norm": [1, 1], "scale": i + 2.0} for i in (0, 1)]
        tail = "".join(json.dumps(row) + "\n" for row in rows)
        a = self.make_run("a", [4.0, 3.0, 2.0], tail=tail)
        b = self.make_run("b", [4.0, 2.5, 1.5], tail=tail, attention="qk_norm")
        result = self.compare(a, b)
        self.assertIn("to target: updates to val 2.0000,", result.stdout)
        self.assertTrue(self.lines(result.stdout, "standard         20       3.00    0.375  0.500  2.00 3.00"), result.stdout)
        self.assertTrue(self.lines(result.stdout, "qk_norm          15       3.00    0.375  0.500  2.00 3.00"), result.stdout)


class Page(HTMLParser):
    """Collects what a page refers to and what it says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, Optional[str]]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.references.append(value or "")
            else:
                self.references += re.findall(r"url\((.*?)\)", value or "")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("td", "th"):
            self.cells.append(data)


class Report(Case):
    EVIL = '<script>alert("x")</script>&'

    def test_the_page_holds_the_tables_and_escapes_all_text(self) -> None:
        a = self.make_group("a", [2.0, 2.1])
        b = self.make_group("b&<i>", [2.0, 2.2], attention=self.EVIL, data='"><b>')
        result = self.compare(*a, *b)
        self.assertEqual(result.returncode, 0, result.stderr)
        page = Page(self.page())
        self.assertFalse({"script", "i", "b"} & set(page.tags))
        self.assertIn(f'"{json.dumps(self.EVIL)[1:-1]}"', page.cells)
        for cell in self.line(result.stdout, "20 "):
            self.assertIn(cell, page.cells)
        for text in ("more than the attention differs: data", "build/qkgpt train base.json", "--seed=2", "compare.py"):
            self.assertIn(text, self.page())

    @NEEDS_ALL
    def test_the_page_needs_nothing_else_and_the_figures_are_there(self) -> None:
        rows = [{"kind": "attention", "step": step, "layer": 0, "logit_max": [3.0, 40.0 + step], "entropy": [0.5, None],
                 "p_max": [0.5, 0.5], "q_norm": [1, 1], "k_norm": [1, 1], "scale": 2.0} for step in (0, 20)]
        tail = "".join(json.dumps(row) + "\n" for row in rows)
        runs = [self.make_run(f"{kind}{seed}", [4.0, 3.0, 2.0 + seed / 9], seed=seed, attention=kind, tail=tail)
                for kind in ("standard", "qk_norm") for seed in (1, 2, 3)]
        result = self.compare(*runs, without=())
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for end in (".png", ".svg", "_attention.png", "_attention.svg"):
            self.assertGreater((self.dir / f"out{end}").stat().st_size, 5000)
            self.assertIn(f"wrote {self.dir / 'out'}{end}\n", result.stdout)
        page = Page(self.page())
        self.assertEqual(page.tags.count("svg"), 2)
        self.assertEqual(len(page.ids), len(set(page.ids)))
        self.assertGreater(len(page.references), 20)
        for reference in page.references:
            self.assertTrue(reference.startswith("#") and reference[1:] in page.ids, reference)
        self.assertFalse({"script", "link", "iframe", "img", "object"} & set(page.tags))
        for word in ("@import", "http:", "https:"):
            self.assertNotIn(word, self.page())

    def test_without_scipy_the_tables_are_all_there_and_it_is_said(self) -> None:
        a, b = self.make_group("a", [2.0, 2.1]), self.make_group("b", [2.5, 2.2], attention="qk_norm")
        result = self.compare(*a, *b, without=("matplotlib", "scipy", "numpy"))
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"no statistics: (numpy|scipy) is missing")
        self.assertIn("no figures: matplotlib is missing", result.stderr)
        self.assertIn("pip install numpy scipy matplotlib", result.stderr)
        self.assertEqual(self.lines(result.stdout, "2   ")[-1], ["2", "2.1000", "2.2000", "+0.1000"])
        self.assertRegex(self.page(), "no statistics: (numpy|scipy) is missing")

    @NEEDS_ALL
    def test_without_scipy_there_are_figures(self) -> None:
        a, b = self.make_group("a", [2.0, 2.1]), self.make_group("b", [2.5, 2.2], attention="qk_norm")
        result = self.compare(*a, *b, without=("scipy",))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("no statistics: scipy is missing", result.stderr)
        self.assertTrue((self.dir / "out.png").exists())


if __name__ == "__main__":
    unittest.main()
