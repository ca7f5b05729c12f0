#!/usr/bin/env python3
"""Exports in the hands of Hugging Face's transformers, and logs in those of pandas and TensorBoard. What needs a package
that is not installed is skipped and says so; `pip install torch transformers tensorboard pandas` brings all."""
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

from program import Case, make_text, read_safetensors

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
ROOT = Path(__file__).resolve().parent.parent
CHARACTERS = "\n\t  é “日本”\U0001f600\u0301\u00a0'll.\"\\<|end|> "
CONTEXT = 16


def needs(*modules: str):
    missing = [name for name in modules if not importlib.util.find_spec(name)]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


class Exported(Case):
    def setUp(self) -> None:
        super().setUp()
        self.text = CHARACTERS * 20 + make_text(6000)
        (self.dir / "text.txt").write_text(self.text, encoding="utf-8", newline="")

    def export(self, *options: str) -> None:
        self.train("run", "--learning_rate=1e-2", "--max_iters=200", "--eval_interval=100", "--overwrite", *options)
        self.run_program("export", "run", "hf")

    def loss(self, text: str) -> float:
        """Sum of the program's losses over a text of at most CONTEXT + 1 characters."""
        padding = next(n for n in range(9) if int(0.9 * (len(text) + n)) == len(text))  # the train split is the text
        (self.dir / "part.txt").write_text(text + text[0] * padding, encoding="utf-8", newline="")
        row = json.loads(self.run_program("eval", "run", "--data=part.txt", "--split=train", "--json")[0])
        self.assertEqual(row["characters"], len(text) - 1)
        return row["loss"] * row["characters"]

    def check_logits(self, context: str, vocabulary: list[str], theirs: list[float]) -> None:
        """Log-probabilities of what follows the context."""
        start = self.loss(context)
        ours = [start - self.loss(context + c) for c in vocabulary]
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs, strict=True)), 1e-4)
        self.assertGreater(max(ours) - min(ours), 1.0, "the model has learned something")


@needs("numpy")
class NumPy(Exported):
    """R37: the formulas of GPT-2, written down once more, read an exported directory."""

    def log_probabilities(self, context: str) -> list[float]:
        """Of every character after the context."""
        import numpy as np
        config, tokenizer = (json.loads((self.dir / "hf" / f"{name}.json").read_text(encoding="utf-8"))
                             for name in ("config", "tokenizer"))
        w = {name: np.array(numbers, float).reshape(shape)
             for name, (shape, numbers) in read_safetensors(self.dir / "hf" / "model.safetensors")[1].items()}
        ids = [tokenizer["model"]["vocab"][c] for c in context]
        T, heads = len(ids), config["n_head"]
        erf = np.vectorize(math.erf)

        def layernorm(x, name: str):
            x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
            return x * w[f"{name}.weight"] + w[f"{name}.bias"]

        def linear(x, name: str):
            return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

        def softmax(x):
            x = np.exp(x - x.max(-1, keepdims=True))
            return x / x.sum(-1, keepdims=True)

        x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:T]
        for layer in range(config["n_layer"]):
            block = f"transformer.h.{layer}"
            q, k, v = (part.reshape(T, heads, -1).swapaxes(0, 1) for part in
                       np.split(linear(layernorm(x, f"{block}.ln_1"), f"{block}.attn.c_attn"), 3, axis=-1))
            scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
            scores[:, np.triu(np.ones((T, T), bool), 1)] = -np.inf
            x = x + linear((softmax(scores) @ v).swapaxes(0, 1).reshape(T, -1), f"{block}.attn.c_proj")
            h = linear(layernorm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
            x = x + linear(h * (1 + erf(h / math.sqrt(2))) / 2, f"{block}.mlp.c_proj")
        return np.log(softmax(w["transformer.wte.weight"] @ layernorm(x, "transformer.ln_f")[-1])).tolist()

    def test_an_independent_forward_pass_gives_the_same_logits(self) -> None:
        for bias in ("true", "false"):
            self.export(f"--bias={bias}")
            for context in (make_text()[:CONTEXT], CHARACTERS[:9]):
                self.check_logits(context, sorted(set(self.text)), self.log_probabilities(context))


@needs("torch", "transformers")
class HuggingFace(Exported):
    def load(self, *options: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        torch.set_num_threads(1)
        self.export(*options)
        self.model, report = AutoModelForCausalLM.from_pretrained(self.dir / "hf", output_loading_info=True)
        self.assertEqual({k: set(v) for k, v in report.items() if v}, {}, "every tensor is known and none is missing")
        self.model.eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.dir / "hf")

    def log_probabilities(self, context: str) -> list[float]:
        import torch
        with torch.no_grad():
            return self.model(**self.tokenizer(context, return_tensors="pt")).logits[0, -1].log_softmax(-1).tolist()

    def test_transformers_computes_the_same_logits(self) -> None:
        vocabulary = sorted(set(self.text))
        for bias in ("true", "false"):
            self.load(f"--bias={bias}")
            self.assertEqual(self.model.config.vocab_size, len(vocabulary))
            for context in (make_text()[:CONTEXT], CHARACTERS[:9]):
                self.check_logits(context, vocabulary, self.log_probabilities(context))

    def test_greedy_text_is_that_of_sample(self) -> None:
        self.load()
        for prompt, length in (("the king", 8), ("é “", 13), ("a", 15)):
            ours, _ = self.run_program("sample", "run", f"--prompt={prompt}", f"--length={length}", "--temperature=0")
            inputs = self.tokenizer(prompt, return_tensors="pt")
            theirs = self.model.generate(**inputs, max_new_tokens=length, do_sample=False, pad_token_id=0)
            self.assertEqual(self.tokenizer.decode(theirs[0]) + "\n", ours)

    def test_the_tokenizer_gives_the_text_back(self) -> None:
        self.load()
        vocabulary = {c: i for i, c in enumerate(sorted(set(self.text)))}
        for text in (CHARACTERS, self.text, " ", "\n\n", "e\u0301", "  the  king "):
            ids = self.tokenizer(text)["input_ids"]
            self.assertEqual(ids, [vocabulary[c] for c in text])
            self.assertEqual(self.tokenizer.decode(ids), text)
        self.assertEqual(self.tokenizer.model_max_length, CONTEXT)
        self.assertEqual(len(self.tokenizer), len(vocabulary))


class Logs(Case):
    def to_tensorboard(self, *arguments: str, env: dict | None = None) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, ROOT / "scripts" / "to_tensorboard.py", *arguments], cwd=self.dir, text=True,
                              capture_output=True, timeout=120, env=os.environ | (env or {}))

    def test_without_tensorboard_it_says_what_to_install(self) -> None:
        (self.dir / "without").mkdir()
        (self.dir / "without" / "tensorboard.py").write_text("raise ImportError\n")
        done = self.to_tensorboard("run", env={"PYTHONPATH": str(self.dir / "without")})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "pip install tensorboard")

    @needs("tensorboard")
    def test_the_event_file_holds_every_number(self) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
        self.train("run")
        path = self.dir / "run" / "metrics.jsonl"
        broken = {"kind": "train", "step": 41, "loss": None, "nonfinite": "nan", "lr": 0.5}
        path.write_text(path.read_text() + json.dumps(broken) + '\n{"kind": "train", "st')
        (self.dir / "logs" / "run").mkdir(parents=True)
        (self.dir / "logs" / "run" / "events.out.tfevents.1.other").write_bytes(b"")
        for _ in range(2):  # a second time replaces, it does not double
            done = self.to_tensorboard("run", "--logdir", "logs")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(list((self.dir / "logs" / "run").iterdir())), 2)
        events = EventAccumulator(str(self.dir / "logs" / "run"), size_guidance={"tensors": 0})
        events.Reload()
        read = {tag: {e.step: make_ndarray(e.tensor_proto).item() for e in events.Tensors(tag)}
                for tag in events.Tags()["tensors"]}
        expected = {}
        for row in (json.loads(line) for line in path.read_text().splitlines()[:-1]):
            place = row["kind"] + (f"/layer {row['layer']}" if "layer" in row else "")
            for name, value in row.items():
                values = {f" head {i}": v for i, v in enumerate(value)} if isinstance(value, list) else {"": value}
                for end, number in values.items():
                    if name not in ("kind", "step", "layer") and type(number) in (int, float):
                        expected.setdefault(f"{place}/{name}{end}", {})[row["step"]] = number
        self.assertEqual(read.keys(), expected.keys())
        self.assertLessEqual({"train/loss", "eval/val_loss", "attention/layer 1/entropy head 1", "final/val_loss_full"},
                             read.keys())
        for tag, points in expected.items():
            self.assertEqual(read[tag].keys(), points.keys(), tag)
            for step, value in points.items():
                self.assertTrue(math.isclose(read[tag][step], value, rel_tol=1e-6), (tag, step))
        self.assertEqual((read["train/lr"][41], 41 in read["train/loss"]), (0.5, False))
        times = [e.wall_time for e in events.Tensors("train/lr")]
        self.assertEqual(times, sorted(times))

    def run_readme(self, mention: str) -> dict:
        """Runs the README's Python that mentions this, in a run directory; returns its variables."""
        self.train("run")
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        code, = (block for block in re.findall(r"```python\n(.*?)```", text, re.S) if mention in block)
        found: dict = {}
        before = os.getcwd()
        os.chdir(self.dir / "run")
        try:
            exec(code, found)
        finally:
            os.chdir(before)
        return found

    @needs("pandas")
    def test_the_recipe_for_pandas_reads_a_run(self) -> None:
        found = self.run_readme("pandas")
        rows = self.rows("run", "train")
        self.assertEqual(found["train"].loss.to_dict(), {row["step"]: row["loss"] for row in rows})

    @needs("safetensors", "numpy")
    def test_the_recipe_for_weights_reads_a_checkpoint(self) -> None:
        weights = self.run_readme("safetensors")["weights"]
        names = {t["name"] for t in self.inspect("run")["tensors"] if t["name"].startswith("transformer.")}
        self.assertEqual(set(weights), names | {"lm_head.weight"})


if __name__ == "__main__":
    unittest.main()
