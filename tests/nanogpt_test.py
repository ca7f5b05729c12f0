#!/usr/bin/env python3
"""scripts/nanogpt.py. Configs and vocabularies need Python alone; checkpoints need PyTorch and numpy: their proof is that
a small model of nanoGPT's architecture, written here in PyTorch, has the same loss on the same windows both ways."""
import importlib.util
import io
import json
import math
import os
import pickle
import subprocess
import sys
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from program import Case, make_text, read_safetensors

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "nanogpt.py"
sys.path.insert(0, str(SCRIPT.parent))
import nanogpt  # noqa: E402
from nanogpt_files import InputError, read_vocabulary  # noqa: E402

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "numpy"))
SHAKESPEARE = '''"""A config in the manner of nanoGPT."""
# comments are fine
import time
out_dir = 'out-char'
wandb_log = False
wandb_run_name = 'mini-' + str(time.time())
dataset = 'shakespeare_char'
gradient_accumulation_steps = 5 * 8
block_size: int = 2 ** 6
learning_rate = 1e-3
min_lr = learning_rate / 10
max_iters = 2000
lr_decay_iters = max_iters  # as usual
bias = True
device = 'cpu'
'''


class Script(Case):
    def script(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """In this process, since PyTorch takes seconds to load; as a command it is run by readme_test.py."""
        out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
        os.chdir(self.dir)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                done = nanogpt.main([str(part) for part in arguments])
        finally:
            os.chdir(before)
        self.assertEqual(done, code, out.getvalue() + err.getvalue())
        return out.getvalue(), err.getvalue()


class Configs(Script):
    def test_a_config_becomes_one_that_qkgpt_takes(self) -> None:
        (self.dir / "char.py").write_text(SHAKESPEARE)
        out, err = self.script("config", "char.py", "--n_layer=2", "--dropout=0.2")
        config = json.loads(out)
        for key, value in {"data": "data/shakespeare_char/input.txt", "out_dir": "out-char", "block_size": 64, "bias": True,
                           "gradient_accumulation_steps": 40, "learning_rate": 1e-3, "min_lr": 1e-4, "lr_decay_iters": 2000,
                           "n_layer": 2, "dropout": 0.2, "n_embd": 768, "beta2": 0.95, "warmup_iters": 2000}.items():
            self.assertEqual(config[key], value, key)
        self.assertIn("left out: device, wandb_log, wandb_run_name\n", err)
        (self.dir / "out.json").write_text(out)
        resolved = json.loads(self.run_program("train", "out.json", "--print-config")[0])
        self.assertEqual({key: resolved[key] for key in config}, config)
        self.assertEqual(json.loads(self.script("config", "char.py", "--data=text.txt")[0])["data"], "text.txt")

    def test_nothing_is_executed(self) -> None:
        for line in ("__import__('os').mkdir('made')", "max_iters = __import__('os').mkdir('made')", "exec('x = 1')",
                     "if True:\n  max_iters = 3", "max_iters += 3", "max_iters = 9 ** 9 ** 9", "max_iters = [1][0]",
                     "dataset = 'a' * 10**9", "max_iters = 1 // 0", "max_iters = other", "max_iters, n_layer = 1, 2"):
            (self.dir / "bad.py").write_text("n_layer = 2\n" + line + "\n")
            out, err = self.script("config", "bad.py", code=2)
            self.assertRegex(err, r"^nanogpt\.py: bad\.py:2: .*\n$")
            self.assertEqual((out, (self.dir / "made").exists()), ("", False), line)
        (self.dir / "bad.py").write_text("max_iters = = 3")
        self.assertIn("bad.py:1: not Python", self.script("config", "bad.py", code=2)[1])
        self.assertIn("nosuch.py", self.script("config", "nosuch.py", code=2)[1])

    def test_a_vocabulary_is_plain_values(self) -> None:
        class Evil:
            def __reduce__(self) -> tuple:
                return os.mkdir, (str(made),)

        made, path = self.dir / "made", self.dir / "meta.pkl"
        for content, words in {pickle.dumps({"stoi": Evil()}): r"asks for posix\.mkdir.*nothing was executed",
                               pickle.dumps(["a"]): "no itos or stoi", b"no pickle": "not a meta.pkl", b"": "not a meta.pkl",
                               pickle.dumps({"itos": {0: "a", 1: "bc"}}): "'bc' is not one character",
                               pickle.dumps({"itos": {0: "a", 2: "b"}}): "numbers characters from 0",
                               pickle.dumps({"itos": {0: "a"}, "stoi": {"b": 0}}): "contradict"}.items():
            path.write_bytes(content)
            with self.assertRaisesRegex(InputError, rf"meta\.pkl: .*{words}"):
                read_vocabulary(str(path))
        self.assertFalse(made.exists())
        for meta in ({"itos": {1: "a", 0: "b"}}, {"itos": ["b", "a"]}, {"stoi": {"a": 1, "b": 0}, "vocab_size": 2}):
            path.write_bytes(pickle.dumps(meta))
            self.assertEqual(read_vocabulary(str(path)), ["b", "a"])

    def test_without_pytorch_it_says_what_to_install(self) -> None:
        (self.dir / "torch.py").write_text("raise ImportError")
        for arguments in (["import", "ckpt.pt", "meta.pkl", "out"], ["export", "run", "out"]):
            done = subprocess.run([sys.executable, SCRIPT, *arguments], cwd=self.dir, capture_output=True, text=True,
                                  env=os.environ | {"PYTHONPATH": str(self.dir)})
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^nanogpt\.py: PyTorch and numpy are needed.*\n.*pip install numpy torch")


def make_gpt(sizes: dict):
    """nanoGPT's architecture and names, in eval mode."""
    import torch
    from torch import nn
    from torch.nn import functional as F
    C, T, H, bias = sizes["n_embd"], sizes["block_size"], sizes["n_head"], sizes["bias"]

    def attend(attn: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (H, -1)).transpose(1, 2) for t in attn["c_attn"](x).split(C, 2))
        return attn["c_proj"](F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            linear, norm = (lambda i, o: nn.Linear(i, o, bias=bias)), (lambda: nn.LayerNorm(C, bias=bias))
            blocks = [nn.ModuleDict({
                "ln_1": norm(), "attn": nn.ModuleDict({"c_attn": linear(C, 3 * C), "c_proj": linear(C, C)}),
                "ln_2": norm(), "mlp": nn.ModuleDict({"c_fc": linear(C, 4 * C), "c_proj": linear(4 * C, C)})})
                for _ in range(sizes["n_layer"])]
            self.transformer = nn.ModuleDict({"wte": nn.Embedding(sizes["vocab_size"], C), "wpe": nn.Embedding(T, C),
                                              "h": nn.ModuleList(blocks), "ln_f": norm()})
            self.lm_head = nn.Linear(C, sizes["vocab_size"], bias=False)
            self.transformer["wte"].weight = nn.init.normal_(self.lm_head.weight, std=0.02)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.transformer["wte"](ids) + self.transformer["wpe"](torch.arange(ids.shape[1]))
            for block in self.transformer["h"]:
                x = x + attend(block["attn"], block["ln_1"](x))
                x = x + block["mlp"]["c_proj"](F.gelu(block["mlp"]["c_fc"](block["ln_2"](x))))
            return self.lm_head(self.transformer["ln_f"](x))

        def loss(self, ids: list[int]) -> torch.Tensor:
            """Mean over a text, in windows of block_size as `qkgpt eval` has them."""
            losses = [F.cross_entropy(self(torch.tensor([ids[i:i + T]]))[0][:len(ids) - 1 - i],
                                      torch.tensor(ids[i + 1:i + T + 1]), reduction="none")
                      for i in range(0, len(ids) - 1, T)]
            return torch.cat(losses).mean()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    return Gpt()


@unittest.skipUnless(HAS_TORCH, "not installed: torch or numpy")
class Checkpoints(Script):
    SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "dropout": 0.0}

    def setUp(self) -> None:
        super().setUp()
        self.text = make_text(4000) + "é“\n" * 5
        (self.dir / "text.txt").write_text(self.text, encoding="utf-8")
        self.characters = sorted(set(self.text))
        self.write_meta(self.characters)

    def write_meta(self, characters: list[str]) -> None:
        meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)),
                "stoi": {c: i for i, c in enumerate(characters)}}
        (self.dir / "meta.pkl").write_bytes(pickle.dumps(meta))

    def make_ckpt(self, bias: bool, **changes: object) -> tuple:
        """A model after some updates, its file, and the config keys that make qkgpt take it."""
        import torch
        sizes = self.SIZES | {"bias": bias, "vocab_size": len(self.characters)}
        model = make_gpt(sizes)
        optimiser = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]},
                                       {"params": [p for p in model.parameters() if p.dim() < 2]}], lr=0.01)
        ids = self.ids(self.text)
        for i in range(20):
            optimiser.zero_grad()
            model.loss(ids[50 * i:50 * i + 200]).backward()
            optimiser.step()
        state = {f"_orig_mod.{k}": v for k, v in model.state_dict().items()}
        state |= {f"_orig_mod.transformer.h.{i}.attn.bias": torch.ones(1, 1, 16, 16).tril() for i in range(2)}
        ckpt = {"model": state, "optimizer": optimiser.state_dict(), "model_args": sizes, "iter_num": 20,
                "best_val_loss": torch.tensor(2.5), "config": {"dataset": "mine", "beta2": 0.99, "device": "cpu", "max_iters": 50}}
        torch.save(ckpt | changes, self.dir / "ckpt.pt")
        return model, ckpt

    def ids(self, text: str) -> list[int]:
        return [self.characters.index(c) for c in text]

    def eval(self, name: str) -> float:
        return json.loads(self.run_program("eval", name, "--data=text.txt", "--json")[0])["loss"]

    def val(self) -> str:
        return self.text[int(0.9 * len(self.text)):]

    def test_a_checkpoint_of_nanogpt_has_the_same_loss_in_qkgpt(self) -> None:
        for bias in (True, False):
            model, _ = self.make_ckpt(bias)
            out, _ = self.script("import", "ckpt.pt", "meta.pkl", "in.safetensors", "--data=text.txt", "--overwrite")
            self.assertIn("step 20", out)
            expected = model.loss(self.ids(self.val())).item()
            self.assertLess(expected, math.log(len(self.characters)) - 0.3, "the model has learned something")
            self.assertAlmostEqual(self.eval("in.safetensors"), expected, delta=1e-5)
            inside = self.inspect("in.safetensors")
            self.assertEqual((inside["best_val_loss"], inside["config"]["beta2"], inside["config"]["max_iters"]), (2.5, 0.99, 50))
            sample, _ = self.run_program("sample", "in.safetensors", "--length=20", "--prompt=the é")
            self.assertEqual(len(sample), 26)
            self.config(self.SIZES | {"bias": bias, "max_iters": 0, "init_from": "in.safetensors"})
            self.train("fine", "--overwrite")
            self.assertAlmostEqual(self.rows("fine", "final")[0]["val_loss_full"], expected, delta=1e-5)
        self.run_program("train", "--resume=in.safetensors", "--out_dir=more", "--max_iters=25")  # its AdamW state came too
        self.assertEqual([row["step"] for row in self.rows("more", "final")], [25])

    def test_a_checkpoint_of_qkgpt_has_the_same_loss_in_nanogpt(self) -> None:
        import torch
        for bias in ("true", "false"):
            self.train("run", f"--bias={bias}", "--dropout=0", "--overwrite")
            self.script("export", "run/last.safetensors", "out", "--dataset=mine", "--overwrite")
            ckpt = torch.load(self.dir / "out" / "ckpt.pt", weights_only=True)
            self.assertEqual((ckpt["iter_num"], ckpt["config"]["dataset"], ckpt["config"]["max_iters"]), (40, "mine", 40))
            model = make_gpt(ckpt["model_args"])
            model.load_state_dict(ckpt["model"])
            meta = pickle.loads((self.dir / "out" / "meta.pkl").read_bytes())
            loss = model.loss([meta["stoi"][c] for c in self.val()]).item()
            self.assertAlmostEqual(loss, self.eval("run/last.safetensors"), delta=1e-5)
            optimiser = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]},
                                           {"params": [p for p in model.parameters() if p.dim() < 2]}])
            optimiser.load_state_dict(ckpt["optimizer"])  # as nanoGPT does to resume
            self.assertEqual({optimiser.state[p]["step"].item() for p in model.parameters()}, {40.0})
            self.script("import", "out/ckpt.pt", "out/meta.pkl", "back.safetensors", "--data=text.txt", "--overwrite")
            self.assert_same_tensors("run/last.safetensors", "back.safetensors")

    def assert_same_tensors(self, a: str, b: str) -> None:
        one, two = (read_safetensors(self.dir / name)[1] for name in (a, b))
        names = [name for name in one if name.startswith(("transformer.", "adamw."))]
        self.assertGreater(len(names), 3 * 14)
        for name in names:
            self.assertEqual(one[name], two[name], name)

    def test_a_vocabulary_in_another_order_is_put_in_order(self) -> None:
        self.characters = self.characters[::-1]
        self.write_meta(self.characters)
        model, _ = self.make_ckpt(False)
        self.script("import", "ckpt.pt", "meta.pkl", "in.safetensors", "--data=text.txt")
        self.assertAlmostEqual(self.eval("in.safetensors"), model.loss(self.ids(self.val())).item(), delta=1e-5)

    def test_checkpoints_that_do_not_fit_are_refused(self) -> None:
        import torch
        _, ckpt = self.make_ckpt(False)
        wte, head = "_orig_mod.transformer.wte.weight", "_orig_mod.lm_head.weight"
        norm = "_orig_mod.transformer.ln_f.weight"
        for changes, words in (({"model": {norm: ckpt["model"][norm]}}, "missing; expected"),
                               ({"model": ckpt["model"] | {"other": torch.ones(2)}}, r"other: \(2,\); expected no such tensor"),
                               ({"model": ckpt["model"] | {head: ckpt["model"][wte] + 1}}, "not tied"),
                               ({"model": ckpt["model"] | {norm: torch.full((16,), float("nan"))}}, "not finite"),
                               ({"model_args": {}}, "not a ckpt.pt"), ({"model": {"a": 1}}, "more than tensors"),
                               ({"model": print}, "not a ckpt.pt")):
            torch.save(ckpt | changes, self.dir / "bad.pt")
            _, err = self.script("import", "bad.pt", "meta.pkl", "in.safetensors", code=2)
            self.assertRegex(err, rf"^nanogpt\.py: bad\.pt: .*{words}")
        self.assertFalse((self.dir / "in.safetensors").exists())
        self.make_ckpt(False, optimizer={})
        out, err = self.script("import", "ckpt.pt", "meta.pkl", "in.safetensors")
        self.assertIn("no optimiser state", err)
        self.assertIn("step 0, ", out)
        self.assertIn("exists; --overwrite", self.script("import", "ckpt.pt", "meta.pkl", "in.safetensors", code=2)[1])
        self.write_meta(self.characters[:-1])
        _, err = self.script("import", "ckpt.pt", "meta.pkl", "other.safetensors", code=2)
        self.assertRegex(err, rf"{len(self.characters) - 1} characters; ckpt\.pt has {len(self.characters)} tokens")
        self.train("run", "--attention=qk_norm", "--max_iters=1")
        self.assertIn("attention: qk_norm has no counterpart", self.script("export", "run", "out", code=2)[1])
        whole = self.file("run")
        (self.dir / "bad.safetensors").write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
        self.assertRegex(self.script("export", "bad.safetensors", "out", code=2)[1], "damaged|not a checkpoint")
        self.assertFalse((self.dir / "out").exists())


if __name__ == "__main__":
    unittest.main()
