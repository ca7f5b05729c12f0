#!/usr/bin/env python3
"""Files of `qkgpt export`: what is in them, and which directories it takes. Standard library only; that Hugging Face's
own programs agree about them is in interop_test.py."""
import array
import json
import unittest

from program import Case, make_text, read_safetensors

CHARACTERS = "\n\té “日本”\U0001f600\"\\"
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def transposed(rows: int, columns: int, numbers: array.array) -> array.array:
    return array.array("f", [numbers[r * columns + c] for c in range(columns) for r in range(rows)])


class Export(Case):
    def setUp(self) -> None:
        super().setUp()
        (self.dir / "text.txt").write_text(make_text() + CHARACTERS * 3, encoding="utf-8")

    def names(self, folder: str = "hf") -> list[str]:
        return sorted(p.name for p in (self.dir / folder).iterdir())

    def test_weights_lie_as_gpt2_wants_them(self) -> None:
        for bias in ("true", "false"):
            self.train("run", f"--bias={bias}", "--max_iters=8", "--overwrite")
            self.run_program("export", "run", "hf")
            self.assertEqual(self.names(), FILES)
            _, ours = read_safetensors(self.dir / "run" / "best.safetensors")
            metadata, theirs = read_safetensors(self.dir / "hf" / "model.safetensors")
            self.assertEqual(metadata["format"], "pt")
            expected = {"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"}
            expected |= {f"transformer.h.{i}.{layer}.{part}" for i in (0, 1) for part in ("weight", "bias") for layer in
                         ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
            self.assertEqual(set(theirs), expected)
            for name, (shape, numbers) in theirs.items():
                if name not in ours:
                    self.assertEqual((bias, name[-5:], set(numbers)), ("false", ".bias", {0.0}), name)
                    self.assertEqual(shape, ours[name[:-4] + "weight"][0][:1], name)
                elif ".h." in name and len(shape) == 2:
                    self.assertEqual(shape, ours[name][0][::-1], name)
                    self.assertEqual(numbers, transposed(*ours[name][0], ours[name][1]), name)
                else:
                    self.assertEqual((shape, numbers), ours[name], name)

    def test_config_and_tokenizer_say_what_the_model_is(self) -> None:
        self.train("run", "--max_iters=0")
        self.run_program("export", "run", "hf")
        config, tokenizer, about = (json.loads((self.dir / "hf" / name).read_text(encoding="utf-8")) for name in
                                    ("config.json", "tokenizer.json", "tokenizer_config.json"))
        characters = sorted(set(make_text() + CHARACTERS))
        for key, value in {"vocab_size": len(characters), "n_positions": 16, "n_ctx": 16, "n_embd": 16, "n_layer": 2,
                           "n_head": 2, "n_inner": None, "activation_function": "gelu", "layer_norm_epsilon": 1e-5,
                           "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "model_type": "gpt2",
                           "architectures": ["GPT2LMHeadModel"], "bos_token_id": None, "eos_token_id": None,
                           "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
                           "tie_word_embeddings": True}.items():
            self.assertEqual(config[key], value, key)
        self.assertEqual(tokenizer["model"]["vocab"], {c: i for i, c in enumerate(characters)})
        self.assertEqual((tokenizer["model"]["merges"], tokenizer["decoder"]), ([], {"type": "Fuse"}))
        self.assertEqual([tokenizer[key] for key in ("normalizer", "pre_tokenizer", "post_processor")], [None] * 3)
        self.assertEqual((about["model_max_length"], about["clean_up_tokenization_spaces"]), (16, False))

    def test_what_gpt2_cannot_express_is_refused_with_the_reason(self) -> None:
        for kind, reason in {"qk_norm": "normalised q and k", "qk_rmsnorm_full": "normalised q and k",
                             "qk_norm_fixed": "normalised q and k", "qk_rmsnorm": "normalised q and k",
                             "qk_layernorm": "normalised q and k", "softcap": "a cap on the scores",
                             "standard_temperature": "a learned scale of the scores"}.items():
            self.train("run", f"--attention={kind}", "--max_iters=0", "--overwrite")
            _, err = self.run_program("export", "run", "hf", code=2)
            self.assertRegex(err, rf'^attention: "{kind}" in run/.*no place for {reason}; only "standard" can\n$')
            self.assertFalse((self.dir / "hf").exists())

    def test_an_export_is_replaced_and_nothing_else(self) -> None:
        self.train("run", "--max_iters=4")
        self.run_program("export", "run/last.safetensors", "deep/hf")
        first = {name: self.file("deep/hf", name) for name in FILES}
        self.run_program("export", "run/last.safetensors", "deep/hf")
        self.assertEqual({name: self.file("deep/hf", name) for name in self.names("deep/hf")}, first)
        self.train("run", "--resume", "--max_iters=8")
        out, _ = self.run_program("export", "run/last.safetensors", "deep/hf")
        self.assertEqual(out, "exported run/last.safetensors (step 8) to deep/hf\n")
        self.assertNotEqual(self.file("deep/hf", "model.safetensors"), first["model.safetensors"])

        (self.dir / "hf" / ".git").mkdir(parents=True)  # hidden: still an empty directory
        self.run_program("export", "run", "hf")
        (self.dir / "mine").mkdir()
        for name, content in {"config.json": b"{}", "model.safetensors": self.file("run"), "note.txt": b"keep"}.items():
            (self.dir / "mine" / name).write_bytes(content)
        _, err = self.run_program("export", "run", "mine", code=2)
        self.assertRegex(err, "^mine: is not empty .*--overwrite")
        self.assertEqual((self.names("mine"), self.file("mine", "config.json")),
                         (["config.json", "model.safetensors", "note.txt"], b"{}"))
        self.run_program("export", "run", "mine", "--overwrite")
        self.assertEqual(self.file("mine", "note.txt"), b"keep")
        self.assertEqual(self.file("mine", "model.safetensors"), self.file("hf", "model.safetensors"))

    def test_other_places_and_damage_are_refused(self) -> None:
        self.train("run", "--max_iters=2")
        before = {name: self.file("run", name) for name in self.names("run")}
        for options in ([], ["--overwrite"]):
            _, err = self.run_program("export", "run", "run", *options, code=2)
            self.assertIn("run: holds a run", err)
        self.assertEqual({name: self.file("run", name) for name in self.names("run")}, before)
        self.run_program("export", "run", "text.txt", code=2)
        self.run_program("export", "run", code=2)
        self.run_program("export", "nosuch", "hf", code=2)
        (self.dir / "cut.safetensors").write_bytes(self.file("run")[:-1])
        self.run_program("export", "cut.safetensors", "hf", code=4)
        self.assertFalse((self.dir / "hf").exists())


if __name__ == "__main__":
    unittest.main()
