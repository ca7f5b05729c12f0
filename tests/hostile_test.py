#!/usr/bin/env python3
"""Damaged, foreign and hostile files under a limit of memory. Standard library only."""
import json
import os
import random
import resource
import signal
import subprocess
import time
import unittest
from pathlib import Path

from checkpoint_file import CheckpointFile, seal
from faults import SMALL, FaultCase
from program import make_text

THOROUGH = int(os.environ.get("QKGPT_KILLS", "12")) >= 200
SANITIZED = "asan" in os.environ.get("QKGPT", "")  # its shadow alone is beyond the limit


def of(header: bytes, data: bytes = b"") -> bytes:
    """A file with this header and a right checksum behind the data."""
    return seal(len(header).to_bytes(8, "little") + header + data + bytes(32))


class Hostile(FaultCase):
    tried = 0

    @classmethod
    def tearDownClass(cls) -> None:
        print(f"{cls.__name__}: {cls.tried} bad files tried")

    def refused(self, content: bytes, *words: str, commands=(("inspect",),)) -> str:
        (self.dir / "bad.safetensors").write_bytes(content)
        for command in commands:
            type(self).tried += 1
            begin = time.monotonic()
            process = self.start(*command, *(() if "bad.safetensors" in " ".join(command) else ("bad.safetensors",)),
                                 preexec_fn=None if SANITIZED else self.limit)
            out, err = (text.decode() for text in process.communicate(timeout=60))
            self.assertEqual((process.returncode, out), (4, ""), err)
            self.assertIn("bad.safetensors", err)
            self.assertLess(time.monotonic() - begin, 10)  # 0.2 s on a machine with nothing else to do
            for word in words:
                self.assertIn(word, err)
        return err

    @staticmethod
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))

    def test_R10_headers_that_lie(self) -> None:
        self.train("run")
        whole = self.file("run")
        good = CheckpointFile(whole)
        name = "transformer.wte.weight"

        def with_entry(**fields) -> bytes:
            changed = CheckpointFile(whole)
            changed.header[name] |= fields
            return changed.bytes()

        begin, end = good.header[name]["data_offsets"]
        lengths = [2**64 - 1, 2**63, len(whole), 0, 100_000_001, 2**60]
        bad = [seal(n.to_bytes(8, "little") + whole[8:]) for n in lengths]
        bad += [of(h) for h in (b"", b"[]", b"7", b"null", b"{", b"\xff\xfe{}", b"{}{}", b'{"a":' + b"[" * 100_000, b"{" * 100_000,
                                b'{"a":' * 50_000, b'{"' + b"x" * 10_000_000 + b'":{}}')]
        bad += [with_entry(shape=[2**62]), with_entry(shape=[2**32, 2**32]), with_entry(shape=[2**63 - 1, 2]), with_entry(shape=[-1]),
                with_entry(shape=[1.5]), with_entry(shape="x"), with_entry(dtype="F31"), with_entry(dtype=3),
                with_entry(data_offsets=[end, begin]), with_entry(data_offsets=[begin, end + 4]),
                with_entry(data_offsets=[begin, 2**62]), with_entry(data_offsets=[begin + 4, end]), with_entry(data_offsets=[]),
                with_entry(dtype="I32"), with_entry(shape=[end - begin], dtype="U8")]
        text = json.dumps({f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(1_000_000)})
        bad += [of(text.encode()), of(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
                of(b'{"__metadata__":{"a":1}}'), whole[:-32] + b"\0" + whole[-32:], seal(whole[:-32] + b"\0" + bytes(32))]
        for content in bad:
            self.refused(content)

    def test_a_right_checksum_saves_no_lie_about_the_run(self) -> None:
        self.train("run")
        whole = self.file("run")

        def with_metadata(key: str, value: str) -> bytes:
            changed = CheckpointFile(whole)
            changed.metadata[key] = value
            return changed.bytes()

        def with_config(**keys) -> bytes:
            config = json.loads(CheckpointFile(whole).metadata["qkgpt.config"])
            return with_metadata("qkgpt.config", json.dumps(config | keys))

        bad = [with_config(n_layer=2), with_config(n_layer=2**31 - 1, n_embd=2, n_head=1), with_config(n_embd=2**20, n_head=1),
               with_config(block_size=2**31 - 1), with_config(n_layer="1"), with_config(attention="qk_norm"),
               with_config(attention="none"), with_config(bias=True), with_config(mine=1), with_metadata("qkgpt.config", "{"),
               with_metadata("qkgpt.config", "[" * 100_000), with_metadata("qkgpt.vocab", "[]"), with_metadata("qkgpt.vocab", "{}"),
               with_metadata("qkgpt.vocab", '["b","a"]'), with_metadata("qkgpt.vocab", '["ab"]'), with_metadata("qkgpt.vocab", "[" * 100_000),
               with_metadata("qkgpt.vocab", json.dumps(["a", "b"]))]
        for key in ("qkgpt.config", "qkgpt.vocab", "qkgpt.text_sha256", "qkgpt.format_version"):
            changed = CheckpointFile(whole)
            del changed.metadata[key]
            bad.append(changed.bytes())
        for name, value in {"step": -1, "best_step": -2, "evals_since_best": -1, "last_eval_step": 9}.items():
            changed = CheckpointFile(whole)
            changed.body[changed.place("qkgpt." + name)] = value.to_bytes(8, "little", signed=True)
            bad.append(changed.bytes())
        for content in bad:
            self.refused(content, commands=(("inspect",), ("train", "--resume=bad.safetensors")))

    def test_R40_versions(self) -> None:
        self.train("run", "--max_iters=0")
        for version, word in (("99", "update qkgpt"), ("2", "update qkgpt"), ("0", "foreign"), ("x", "foreign"), ("", "foreign")):
            changed = CheckpointFile(self.file("run"))
            changed.metadata["qkgpt.format_version"] = version
            self.refused(changed.bytes(), f"'{version}'", "'1'", word, commands=(("inspect",), ("sample",), ("eval",)))

    def test_R12_files_of_other_programs(self) -> None:
        self.train("run", "--max_iters=0")
        whole = self.file("run")
        commands = (("sample",), ("eval",), ("inspect",), ("train", "--resume=bad.safetensors"),
                    ("train", "tiny.json", "--out_dir=new", "--init_from=bad.safetensors"),
                    ("export", "bad.safetensors", "new"))
        for content in (b"PK\x03\x04" + bytes(2000), b"\x80\x02}q\x00X" + bytes(2000), b"\x80\x05\x95" + bytes(2000)):
            self.refused(content, "PyTorch pickle files are not read", commands=commands)
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8:8 + size])
        weights = {k: v for k, v in header.items() if k.startswith("transformer.")}
        data, at = b"", 0
        for entry in weights.values():
            a, b = entry["data_offsets"]
            data += whole[8 + size + a:8 + size + b]
            entry["data_offsets"], at = [at, at + b - a], at + b - a
        text = json.dumps(weights).encode()
        self.refused(len(text).to_bytes(8, "little") + text + data, "not a checkpoint of qkgpt", commands=commands)
        self.assertFalse((self.dir / "new").exists())

    def test_R8_R9_cuts_and_flips_by_the_program(self) -> None:
        self.train("run")
        whole = self.file("run")
        size = int.from_bytes(whole[:8], "little")
        chance = random.Random(8)
        cuts = {0, 1, 7, 8, 9, size, 8 + size, len(whole) // 2, len(whole) - 33, len(whole) - 32, len(whole) - 1}
        cuts |= set(chance.sample(range(len(whole)), 200 if THOROUGH else 15))
        for n in sorted(cuts):
            self.refused(whole[:n], "damaged")
        for bit in chance.sample(range(8 * len(whole)), 500 if THOROUGH else 25):
            bad = bytearray(whole)
            bad[bit // 8] ^= 1 << bit % 8
            self.refused(bytes(bad))
        for content in (b"", whole[:-1], whole[:9]):
            (self.dir / "run" / "last.safetensors").write_bytes(content)
            self.assertIn("WARNING", self.run_program("train", "--resume", "--out_dir=run")[1])
            self.assertEqual(self.file("run"), content, "a finished run is left alone")
        for name in ("best.safetensors", "step_00000004.safetensors", "step_00000008.safetensors"):
            (self.dir / "run" / name).write_bytes(b"x")
        _, err = self.run_program("train", "--resume", "--out_dir=run", code=4)
        for name in ("best", "last", "step_00000004", "step_00000008"):
            self.assertIn(f"run/{name}.safetensors: damaged", err)
        self.run_program("sample", "run", code=4)

    def test_R19_the_fallback_is_the_highest_step_whatever_the_times(self) -> None:
        self.train("run", "--keep_interval=1", "--max_iters=101", "--eval_interval=50", "--checkpoint_interval=25")
        run = self.dir / "run"
        self.assertEqual(sorted(p.name for p in run.glob("step_*")), [f"step_{n:08}.safetensors" for n in range(1, 102)])
        chance = random.Random(1)
        for path in run.iterdir():
            os.utime(path, (chance.randrange(2**31),) * 2)
        for name in ("last", "best"):
            (run / f"{name}.safetensors").write_bytes(b"")
        (run / "step_00000101.safetensors").write_bytes(b"\0" * 100)
        _, err = self.run_program("train", "--resume", "--out_dir=run")
        self.assertIn("WARNING: going on from run/step_00000100.safetensors at step 100", err)
        self.train("straight", "--keep_interval=1", "--max_iters=101", "--eval_interval=50", "--checkpoint_interval=25")
        self.assertEqual(self.file("run"), self.file("straight"))

    def test_R40_a_file_of_version_1_gives_the_loss_it_gave(self) -> None:
        folder = Path(__file__).parent / "golden"
        expected = json.loads((folder / "version_1.json").read_text())
        (self.dir / "text.txt").write_text(make_text(2000))
        out, _ = self.run_program("eval", str(folder / "version_1.safetensors"), "--data=text.txt", "--json")
        self.assertAlmostEqual(json.loads(out)["loss"], expected["loss"], delta=1e-6)  # CPUs differ in the last digits
        described = self.inspect(str(folder / "version_1.safetensors"))
        self.assertEqual((described["step"], described["format_version"]), (expected["step"], "1"))

    def test_R38_readers_beside_a_run_that_saves_see_whole_files(self) -> None:
        process = self.start("train", "tiny.json", "--out_dir=run", "--max_iters=1000000", "--checkpoint_interval=1",
                             "--keep_interval=0", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (self.dir / "run" / "last.safetensors").exists():
                time.sleep(0.01)
            steps = []
            for _ in range(100 if THOROUGH else 10):
                steps.append(self.inspect("run")["step"])
                self.run_program("sample", "run/last.safetensors", "--length=3")
                self.run_program("eval", "run/last.safetensors")
                self.run_program("export", "run/last.safetensors", "hf")
                CheckpointFile(self.file("run"))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.assertEqual(steps, sorted(steps))
        self.assertGreater(steps[-1], steps[0])

    def test_R38_starting_afresh_over_the_weights_one_starts_from(self) -> None:
        self.train("run", "--max_iters=8")
        old = CheckpointFile(self.file("run", "best.safetensors"))
        self.train("run", "--init_from=run/best.safetensors", "--overwrite", "--max_iters=0")
        new = CheckpointFile(self.file("run"))
        for name in old.tensors():
            if name.startswith("transformer."):
                self.assertEqual(new.tensors()[name], old.tensors()[name])


if __name__ == "__main__":
    unittest.main()
