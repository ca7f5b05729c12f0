"""Reads what nanoGPT keeps as Python: config files and the vocabulary meta.pkl. Nothing in them is executed."""

from __future__ import annotations

import ast
import operator
import pickle
from pathlib import Path
from typing import Any

from command import InputError, reason

# What train.py of nanoGPT starts from, of the keys that mean the same in qkgpt.
DEFAULTS: dict[str, Any] = {
    "out_dir": "out", "n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "dropout": 0.0, "bias": False,
    "batch_size": 12, "gradient_accumulation_steps": 40, "max_iters": 600000, "learning_rate": 6e-4, "min_lr": 6e-5,
    "decay_lr": True, "warmup_iters": 2000, "lr_decay_iters": 600000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95,
    "grad_clip": 1.0, "eval_interval": 2000, "eval_iters": 200, "log_interval": 1}  # fmt: skip
DATASET = "openwebtext"
NUMBERS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
           ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow}  # fmt: skip


def value_of(node: ast.expr, known: dict[str, Any]) -> Any:
    """The value of a literal, of arithmetic on numbers, or of a name set before; ValueError for all else."""

    def number(part: ast.expr) -> int | float:
        value = value_of(part, known)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError
        return value

    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str, type(None))):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return -number(node.operand) if isinstance(node.op, ast.USub) else number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in NUMBERS:
        left, right = number(node.left), number(node.right)
        if isinstance(node.op, ast.Pow) and (abs(left) > 1024 or abs(right) > 64):
            raise ValueError  # may take for ever
        result = NUMBERS[type(node.op)](left, right)
        if isinstance(result, (int, float)) and abs(result) < 1e300:
            return result
    raise ValueError


def read_python(path: str, known: dict[str, Any]) -> None:
    """Adds what a config of nanoGPT sets to `known`."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}")
    except SyntaxError as error:
        raise InputError(f"{path}:{error.lineno}: not Python: {error.msg}")
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a text that documents
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else \
            getattr(node, "target", None) if isinstance(node, ast.AnnAssign) and node.value else None  # fmt: skip
        if not isinstance(target, ast.Name):
            raise InputError(f"{path}:{node.lineno}: not KEY = VALUE; nothing else is read, and nothing executed")
        try:
            known[target.id] = value_of(node.value, known)
        except (ValueError, ArithmeticError, RecursionError):
            if target.id in DEFAULTS or target.id == "dataset":
                raise InputError(f"{path}:{node.lineno}: {target.id}: not a literal or arithmetic; write the value")
            known[target.id] = None


def convert(known: dict[str, Any], data: str | None) -> tuple[dict[str, Any], list[str]]:
    """A config of qkgpt and the names of keys that have no counterpart there."""
    text = data or f"data/{known.get('dataset', DATASET)}/input.txt"
    config = {"data": text} | {key: known.get(key, default) for key, default in DEFAULTS.items()}
    return config, sorted(known.keys() - config.keys() - {"dataset"})


class PlainUnpickler(pickle.Unpickler):
    """Numbers, texts and containers of them; every name of a class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise InputError(f"asks for {module}.{name}; a vocabulary holds plain values only, nothing was executed")


def read_vocabulary(path: str) -> list[str]:
    """The characters in the order of their ids."""
    try:
        with open(path, "rb") as file:
            meta = PlainUnpickler(file).load()
    except (InputError, OSError, pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError,
            AttributeError, UnicodeDecodeError, OverflowError, MemoryError) as error:  # fmt: skip
        raise InputError(f"{path}: not a meta.pkl of nanoGPT: {reason(error)}")
    tables = [meta.get(key) for key in ("itos", "stoi")] if isinstance(meta, dict) else [None, None]
    itos, stoi = tables
    if itos is None and isinstance(stoi, dict):
        itos = {i: c for c, i in stoi.items()}
    itos = dict(enumerate(itos)) if isinstance(itos, list) else itos
    if not isinstance(itos, dict) or not itos or set(itos) != set(range(len(itos))):
        raise InputError(f"{path}: no itos or stoi that numbers characters from 0")
    characters = [itos[i] for i in range(len(itos))]
    if stoi is not None and stoi != {c: i for i, c in enumerate(characters)}:
        raise InputError(f"{path}: itos and stoi contradict each other")
    for c in characters:
        if not isinstance(c, str) or len(c) != 1 or 0xD800 <= ord(c) < 0xE000:
            raise InputError(f"{path}: token {c!r} is not one character; qkgpt's tokens are characters")
    return characters
