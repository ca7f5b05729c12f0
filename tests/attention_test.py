#!/usr/bin/env python3
"""Trainings with every kind of attention, above all where other programs went wrong. Standard library only."""
import collections
import hashlib
import json
import math
import struct
import unittest
from pathlib import Path

from program import Case, make_text

KINDS = ("standard", "standard_temperature", "softcap", "qk_norm", "qk_norm_fixed", "qk_rmsnorm", "qk_rmsnorm_full",
         "qk_layernorm")
GAINS = ("q_norm.weight", "k_norm.weight")
LEARNED = {"standard_temperature": ("temperature",), "qk_norm": ("qk_scale",), "qk_rmsnorm": GAINS,
           "qk_rmsnorm_full": GAINS, "qk_layernorm": GAINS}  # in each layer


class Checkpoint:
    """A checkpoint's header and data, to look into and to write again changed, with a right checksum."""

    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        self.header, self.data = json.loads(raw[8:8 + size]), bytearray(raw[8 + size:])

    def names(self) -> list[str]:
        """Of the weights."""
        return sorted(name for name in self.header if name.startswith("transformer."))

    def floats(self, name: str) -> tuple[float, ...]:
        begin, end = self.header[name]["data_offsets"]
        return struct.unpack(f"<{(end - begin) // 4}f", self.data[begin:end])

    def put(self, name: str, value: float) -> None:
        begin, end = self.header[name]["data_offsets"]
        self.data[begin:end] = struct.pack("<f", value) * ((end - begin) // 4)

    def rename(self, old: str, new: str) -> None:
        self.header = json.loads(json.dumps(self.header).replace(old, new))

    def write(self, path: Path) -> None:
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        raw = len(header).to_bytes(8, "little") + header + bytes(self.data[:-32])
        path.write_bytes(raw + hashlib.sha256(raw).digest())


class Attention(Case):
    def checkpoint(self, run: str) -> Checkpoint:
        return Checkpoint(self.dir / run / "last.safetensors")

    def assert_finite(self, run: str) -> None:
        for row in self.rows(run):
            self.assertNotIn("nonfinite", row)
            for value in row.values():
                for number in value if isinstance(value, list) else [value]:
                    self.assertTrue(not isinstance(number, float) or math.isfinite(number), row)
        for name in self.checkpoint(run).names():
            self.assertTrue(all(map(math.isfinite, self.checkpoint(run).floats(name))), name)

    def test_every_kind_learns_what_the_last_character_does_not_tell(self) -> None:
        # NVIDIA/Megatron-LM#1130: with a gain shared by the heads training was said not to converge
        text = make_text()
        held_out = text[len(text) * 9 // 10:]
        pairs, firsts = collections.Counter(zip(held_out, held_out[1:])), collections.Counter(held_out[:-1])
        of_pairs = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / (len(held_out) - 1)
        for kind in KINDS:
            with self.subTest(kind):
                self.assertLess(self.learn(f"--attention={kind}"), of_pairs)
        # karpathy/nanochat#362: a cap on final logits taken for one on attention scores. Under a cap of 0.01 on final
        # logits no loss could leave ln V.
        self.assertLess(self.learn("--attention=softcap", "--softcap=0.01"), math.log(len(set(text))) - 0.5)
        for row in self.rows("run", "attention"):
            self.assertLessEqual(max(row["logit_max"]), 0.01)
        self.assertRegex(self.run_program("train", "--help")[0], r"--softcap=50 .*\n +bound of the attention scores")

    def learn(self, *arguments: str) -> float:
        """Validation loss after 200 updates of a small model."""
        self.train("run", "--overwrite", "--block_size=32", "--n_embd=32", "--n_head=4", "--dropout=0",
                   "--batch_size=8", "--gradient_accumulation_steps=1", "--max_iters=200", "--eval_interval=100",
                   "--learning_rate=1e-2", *arguments)
        return self.rows("run", "final")[0]["val_loss_full"]

    def test_kinds_start_from_equal_weights_and_from_their_own_at_one(self) -> None:
        # kekzl/imp#459: an offset of 1 was added to gains that had it
        shared = None
        losses = {}
        for kind in KINDS:
            with self.subTest(kind):
                self.train(kind, f"--attention={kind}", "--max_iters=0", "--qk_norm_eps=1e-12",
                           f"--qk_scale_init={math.sqrt(8)!r}")
                found = self.checkpoint(kind)
                own = {f"transformer.h.{layer}.attn.{name}" for layer in range(2) for name in LEARNED.get(kind, ())}
                for name in own:
                    start = 2.8284270763397217 if name.endswith("qk_scale") else 1.0  # sqrt(8) in float32
                    self.assertEqual(set(found.floats(name)), {start}, name)
                others = {name: found.floats(name) for name in found.names() if name not in own}
                shared = shared or others
                self.assertEqual(others, shared)
                losses[kind] = self.rows(kind, "eval")[0]["val_loss"]
        # gains of 1 and 1 / sqrt(d) are a scale of sqrt(d)
        self.assertAlmostEqual(losses["qk_rmsnorm"], losses["qk_norm_fixed"], delta=1e-7)
        self.assertAlmostEqual(losses["qk_norm"], losses["qk_norm_fixed"], delta=1e-7)
        self.assertAlmostEqual(losses["standard_temperature"], losses["standard"], delta=1e-7)
        for kind in ("standard", "qk_rmsnorm_full", "qk_layernorm"):
            self.assertGreater(abs(losses[kind] - losses["qk_norm_fixed"]), 1e-6)

    def test_only_matrices_and_embeddings_decay(self) -> None:
        # ServiceNow/Fast-LLM#542: gains were decayed after a refactoring. Gradients clipped to nothing leave the decay.
        for kind in KINDS:
            with self.subTest(kind):
                options = [f"--attention={kind}", "--weight_decay=0.5", "--learning_rate=0.1"]
                self.train(f"{kind}0", *options, "--max_iters=0")
                self.train(kind, *options, "--max_iters=3", "--grad_clip=1e-30", "--decay_lr=false")
                before, after = self.checkpoint(f"{kind}0"), self.checkpoint(kind)
                for name in after.names():
                    factor = 0.95**3 if len(after.header[name]["shape"]) == 2 else 1.0
                    for was, now in zip(before.floats(name), after.floats(name)):
                        error = abs(now - factor * was)
                        self.assertLessEqual(error, 0.0 if factor == 1.0 else 1e-6 * abs(was), name)

    def test_huge_scales_stay_finite(self) -> None:
        # openai/CLIP#46: a learned scale grew until exp overflowed
        for kind in ("qk_norm", "qk_norm_fixed"):
            with self.subTest(kind):
                self.train(kind, f"--attention={kind}", "--qk_scale_init=200", "--max_iters=10")
                self.assert_finite(kind)
                for row in self.rows(kind, "attention"):
                    self.assertLessEqual(max(row["logit_max"]), row["scale"] * (1 + 1e-6))
                    self.assertGreater(max(row["logit_max"]), 100)
        options = ["--attention=standard_temperature", "--max_iters=10"]
        self.train("start", *options)
        changed = self.checkpoint("start")
        for name in changed.names():
            if name.endswith("attn.temperature"):
                changed.put(name, 1e4)
        changed.write(self.dir / "huge.safetensors")
        self.train("temperature", *options, "--init_from=huge.safetensors")
        self.assert_finite("temperature")
        self.assertGreater(self.rows("temperature", "attention")[0]["scale"], 9999)

    def test_weights_of_one_kind_are_not_taken_for_another(self) -> None:
        # ByteDance-Seed/Bagel#22: q and k normalised with weights trained without; the loss jumped to 12
        for kind in KINDS:
            self.train(kind, f"--attention={kind}", "--max_iters=1")
        for kind, other in zip(KINDS, KINDS[1:] + KINDS[:1]):
            with self.subTest(kind):
                for arguments in ((f"--out_dir={kind}", "--resume", "--max_iters=2"),
                                  ("tiny.json", "--out_dir=other", f"--init_from={kind}/last.safetensors")):
                    _, err = self.run_program("train", *arguments, f"--attention={other}", code=2)
                    self.assertIn(f'attention: "{kind}" in {kind}/last.safetensors, "{other}" asked for', err)
        self.assertFalse((self.dir / "other").exists())

    def test_gains_of_another_name_or_shape_are_refused(self) -> None:
        # vllm-project/vllm-metal#659: a norm was left out because its weights had another name
        for kind, own in LEARNED.items():
            self.train(kind, f"--attention={kind}", "--max_iters=1")
            for name in own:
                with self.subTest(f"{kind} {name}"):
                    changed = self.checkpoint(kind)
                    changed.rename(f"h.1.attn.{name}", f"h.1.attn.other_{name}")
                    changed.write(self.dir / "other.safetensors")
                    for command in (("eval", "other.safetensors"), ("sample", "other.safetensors"),
                                    ("train", "--resume=other.safetensors", "--out_dir=resumed", "--max_iters=2")):
                        _, err = self.run_program(*command, code=4)
                        self.assertIn(f'other.safetensors: tensor "transformer.h.1.attn.{name}" is missing', err)
        # lablup/mlxcel#316: gains for all channels and gains for one head's mixed up
        for kind, other, size in (("qk_rmsnorm", "qk_rmsnorm_full", 8), ("qk_rmsnorm_full", "qk_rmsnorm", 16)):
            changed = self.checkpoint(kind)
            self.assertEqual(changed.header["transformer.h.0.attn.q_norm.weight"]["shape"], [size])
            changed.rename(f'\\"{kind}\\"', f'\\"{other}\\"')
            changed.write(self.dir / "other.safetensors")
            _, err = self.run_program("eval", "other.safetensors", code=4)
            self.assertIn('.attn.q_norm.weight" has another type or shape', err)
        # a surplus one
        changed = self.checkpoint("qk_norm")
        changed.rename('\\"qk_norm\\"', '\\"qk_norm_fixed\\"')
        changed.write(self.dir / "other.safetensors")
        _, err = self.run_program("eval", "other.safetensors", code=4)
        self.assertIn('qk_scale" is none that its config asks for', err)

    def test_interrupted_runs_of_every_kind_go_on_as_if_nothing_had_been(self) -> None:
        for kind in KINDS:
            with self.subTest(kind):
                options = [f"--attention={kind}", "--lr_decay_iters=12", "--eval_interval=6"]
                self.train("a", *options, "--max_iters=12", "--overwrite")
                self.train("b", *options, "--max_iters=6", "--overwrite")
                self.run_program("train", "--resume", "--out_dir=b", "--max_iters=12")
                a, b = self.checkpoint("a"), self.checkpoint("b")
                self.assertEqual(a.names(), b.names())
                for name in a.names():
                    self.assertEqual(a.floats(name), b.floats(name), name)


if __name__ == "__main__":
    unittest.main()
