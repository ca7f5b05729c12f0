#!/usr/bin/env python3
"""From nanoGPT and back: checkpoints and configs.

    scripts/nanogpt.py import ckpt.pt meta.pkl OUT.safetensors [--data=FILE] [--overwrite]
    scripts/nanogpt.py export RUN|CHECKPOINT DIR [--dataset=NAME] [--overwrite]
    scripts/nanogpt.py config [FILE.py ...] [--data=FILE] [--KEY=VALUE ...]

`import` makes a checkpoint that `qkgpt sample`, `eval` and `train --init_from` take; `export` writes DIR/ckpt.pt and
the vocabulary DIR/meta.pkl; `config` prints nanoGPT's configs as one of qkgpt. Files of others are never executed:
ckpt.pt is read with weights_only, of meta.pkl only plain values, of Python files only literals and arithmetic.
`import` and `export` need PyTorch and numpy.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import math
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from command import OF_TORCH, InputError, how_to_install, reason, refuse, run_script
from nanogpt_files import DEFAULTS, convert, read_python, read_vocabulary

MODEL_KEYS = ("n_layer", "n_head", "n_embd", "block_size")
NEVER_BEST = 1e9  # nanoGPT's best_val_loss before the first evaluation
FIRST, SECOND = "adamw.exp_avg.", "adamw.exp_avg_sq."
DTYPES = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "U8": "|u1"}
HOW = how_to_install(f"numpy {OF_TORCH}", "python3-torch python3-numpy", "nanogpt.py")
NO_TORCH = f"nanogpt.py: PyTorch and numpy are needed for checkpoints; one of these brings them\n{HOW}"


def import_packages() -> None:
    """What checkpoints need; `config` does without."""
    global np, torch
    try:
        import numpy as np
        import torch
    except ImportError:
        sys.exit(NO_TORCH)


def config_command(options: argparse.Namespace) -> None:
    known: dict[str, Any] = {}
    data = None
    for word in options.arguments:
        if not word.startswith("--"):
            read_python(word, known)
            continue
        key, equals, value = word[2:].partition("=")
        if not equals:
            raise InputError(f"{word}: no value; expected --{key}=VALUE")
        if key == "data":
            data = value
            continue
        try:
            known[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            known[key] = value
    config, others = convert(known, data)
    start = known.get("init_from", "scratch")
    if "init_from" in others and start == "scratch":
        others.remove("init_from")
    print(json.dumps(config, indent=2))
    if others:
        print(f"nanogpt.py: no counterpart in qkgpt, left out: {', '.join(others)}", file=sys.stderr)
    if start == "resume":
        print("nanogpt.py: init_from=resume is `qkgpt train --resume`", file=sys.stderr)
    print("nanogpt.py: nanoGPT makes max_iters + 1 updates, qkgpt max_iters; keys that the files do not set have the "
          "values of nanoGPT's train.py", file=sys.stderr)  # fmt: skip


# --- checkpoints of qkgpt: safetensors whose last tensor is the SHA-256 of all before it ---


def replace_file(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_safetensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    names = {dtype: name for name, dtype in DTYPES.items()}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    ordered.append(("~sha256", np.zeros(32, np.uint8)))
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, tensor in ordered:
        header[name] = {"dtype": names[tensor.dtype.str], "shape": list(tensor.shape),
                        "data_offsets": [at, at + tensor.nbytes]}  # fmt: skip
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    content = b"".join([len(text).to_bytes(8, "little"), text, *(t.tobytes() for _, t in ordered[:-1])])
    replace_file(path, content + hashlib.sha256(content).digest())


def load_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header, data = json.loads(content[8 : 8 + size]), memoryview(content)[8 + size :]
        metadata = header.pop("__metadata__")
        tensors = {name: np.frombuffer(data[slice(*t["data_offsets"])], DTYPES[t["dtype"]]).reshape(t["shape"])
                   for name, t in header.items()}  # fmt: skip
        whole = tensors.pop("~sha256").tobytes() == hashlib.sha256(content[:-32]).digest() == content[-32:]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a checkpoint of qkgpt: {reason(error)}")
    if not whole:
        raise InputError(f"{path}: damaged: its bytes are not those of its SHA-256")
    return tensors, metadata


# --- models ---


def shapes(sizes: dict[str, int], vocab_size: int, bias: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the order of nanoGPT's parameters()."""
    C, found = sizes["n_embd"], {}
    found["transformer.wte.weight"] = (vocab_size, C)
    found["transformer.wpe.weight"] = (sizes["block_size"], C)

    def add(name: str, *shape: int) -> None:
        found[f"{name}.weight"] = shape
        if bias:
            found[f"{name}.bias"] = shape[:1]

    for h in (f"transformer.h.{i}" for i in range(sizes["n_layer"])):
        add(f"{h}.ln_1", C)
        add(f"{h}.attn.c_attn", 3 * C, C)
        add(f"{h}.attn.c_proj", C, C)
        add(f"{h}.ln_2", C)
        add(f"{h}.mlp.c_fc", 4 * C, C)
        add(f"{h}.mlp.c_proj", C, 4 * C)
    add("transformer.ln_f", C)
    return found


def optimiser_order(names: dict[str, tuple[int, ...]]) -> list[list[str]]:
    """nanoGPT's two groups: what decays, then the rest."""
    return [[n for n in names if len(names[n]) > 1], [n for n in names if len(names[n]) == 1]]


def read_ckpt(path: str) -> tuple[dict[str, Any], dict[str, int], int]:
    """All of it, the sizes of its model, and how many tokens it knows."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        sizes = {key: int(checkpoint["model_args"][key]) for key in MODEL_KEYS}
        vocab_size = int(checkpoint["model_args"]["vocab_size"])
        if not all(isinstance(t, torch.Tensor) for t in checkpoint["model"].values()):
            raise ValueError("its model holds more than tensors")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError, TypeError, ValueError, AttributeError) as e:
        raise InputError(f"{path}: not a ckpt.pt of nanoGPT: {(reason(e) or type(e).__name__).splitlines()[0]}")
    return checkpoint, sizes, vocab_size


def read_weights(path: str, checkpoint: dict[str, Any], vocab_size: int) -> tuple[dict[str, Any], bool]:
    """nanoGPT's weights under their own names, and whether there are biases."""
    state = {k.removeprefix("_orig_mod."): v for k, v in checkpoint["model"].items()}
    state = {k: v for k, v in state.items() if not k.endswith((".attn.bias", ".attn.masked_bias"))}  # masks
    head, wte = state.pop("lm_head.weight", None), state.get("transformer.wte.weight")
    if wte is not None and head is not None and not torch.equal(wte, head):
        raise InputError(f"{path}: lm_head is not tied to wte; qkgpt's is")
    bias = "transformer.ln_f.bias" in state
    expected = shapes(checkpoint["model_args"], vocab_size, bias)
    for name in state.keys() | expected.keys():
        got, right = tuple(state[name].shape) if name in state else None, expected.get(name)
        if got != right:
            raise InputError(f"{path}: {name}: {got or 'missing'}; expected {right or 'no such tensor'}")
        if not torch.isfinite(state[name]).all():
            raise InputError(f"{path}: {name}: not finite; take an earlier checkpoint")
    return {name: state[name] for name in expected}, bias


def read_moments(checkpoint: dict[str, Any], weights: dict[str, Any]) -> dict[str, Any] | None:
    """AdamW's moments by name, or none where they are not those of these weights."""
    state = checkpoint.get("optimizer", {}).get("state", {})
    names = sum(optimiser_order({name: tuple(t.shape) for name, t in weights.items()}), [])
    found = {}
    for i, name in enumerate(names):
        for key, prefix in (("exp_avg", FIRST), ("exp_avg_sq", SECOND)):
            moment = state.get(i, {}).get(key)
            if moment is None or moment.shape != weights[name].shape or not torch.isfinite(moment).all():
                return None
            found[prefix + name] = moment
    return found


def import_command(options: argparse.Namespace) -> None:
    out = Path(options.out)
    if out.exists() and not options.overwrite:
        raise InputError(f"{out}: exists; --overwrite replaces it")
    characters = read_vocabulary(options.meta)
    path = options.checkpoint
    checkpoint, sizes, vocab_size = read_ckpt(path)
    if vocab_size != len(characters):
        raise InputError(f"{options.meta}: {len(characters)} characters; {path} has {vocab_size} tokens")
    weights, bias = read_weights(path, checkpoint, vocab_size)
    moments = read_moments(checkpoint, weights)
    step, best = (int(checkpoint.get("iter_num", 0)), float(checkpoint.get("best_val_loss", NEVER_BEST)))
    if moments is None:
        print("nanogpt.py: no optimiser state of these weights; the checkpoint starts at step 0", file=sys.stderr)
        moments, step = {p + n: torch.zeros_like(t) for n, t in weights.items() for p in (FIRST, SECOND)}, 0
    known = {k: v for k, v in checkpoint.get("config", {}).items() if k in DEFAULTS or k == "dataset"}
    config, _ = convert(known | sizes | {"bias": bias}, options.data)
    del config["out_dir"]
    text = Path(config["data"])
    tensors = {name: t.detach().to(torch.float32).numpy().copy() for name, t in (weights | moments).items()}
    order = sorted(range(vocab_size), key=characters.__getitem__)  # qkgpt's ids follow the code points
    for name in ("", FIRST, SECOND):
        tensors[name + "transformer.wte.weight"] = tensors[name + "transformer.wte.weight"][order]
    known_best = math.isfinite(best) and best < NEVER_BEST and step > 0
    numbers = {"step": step, "best_step": step if known_best else -1, "evals_since_best": 0, "last_eval_step": -1}
    tensors |= {f"qkgpt.{key}": np.array([value], "<i8") for key, value in numbers.items()}
    tensors["qkgpt.best_val_loss"] = np.array([best if known_best else 0.0], "<f8")
    save_safetensors(out, tensors, {
        "format": "pt", "qkgpt.format_version": "1", "qkgpt.config": json.dumps(config),
        "qkgpt.vocab": json.dumps(sorted(characters), ensure_ascii=False),
        "qkgpt.text_sha256": hashlib.sha256(text.read_bytes()).hexdigest() if text.is_file() else ""})  # fmt: skip
    print(f"wrote {out}: step {step}, {vocab_size} characters, text {text}" + ("" if text.is_file() else " (not found)"))


def export_command(options: argparse.Namespace) -> None:
    source, folder = Path(options.run), Path(options.dir)
    if source.is_dir():
        source = next((f for f in (source / "best.safetensors", source / "last.safetensors") if f.exists()),
                      source / "last.safetensors")  # fmt: skip
    if (folder / "ckpt.pt").exists() and not options.overwrite:
        raise InputError(f"{folder}/ckpt.pt: exists; --overwrite replaces it")
    tensors, metadata = load_safetensors(source)
    config, vocabulary = json.loads(metadata["qkgpt.config"]), json.loads(metadata["qkgpt.vocab"])
    if config["attention"] != "standard":
        raise InputError(f"{source}: attention: {config['attention']} has no counterpart in nanoGPT; only standard has")
    names = shapes(config, len(vocabulary), config["bias"])
    tensor = {name: torch.from_numpy(t.copy()) for name, t in tensors.items() if t.dtype == np.float32}
    model = {name: tensor[name] for name in names}
    step = int(tensors["qkgpt.step"][0])
    best = float(tensors["qkgpt.best_val_loss"][0]) if tensors["qkgpt.best_step"][0] >= 0 else NEVER_BEST
    groups = optimiser_order(names)
    optimiser = torch.optim.AdamW(
        [{"params": [model[n] for n in group], "weight_decay": decay}
         for group, decay in zip(groups, (config["weight_decay"], 0.0))],
        lr=config["learning_rate"], betas=(config["beta1"], config["beta2"]))  # fmt: skip
    for name in names if step > 0 else ():
        moments = {"exp_avg": tensor[FIRST + name], "exp_avg_sq": tensor[SECOND + name]}
        optimiser.state[model[name]] = {"step": torch.tensor(float(step))} | moments
    dataset = options.dataset or Path(config["data"]).stem
    sizes = {key: config[key] for key in (*MODEL_KEYS, "bias", "dropout")} | {"vocab_size": len(vocabulary)}
    values = {key: config[key] for key in DEFAULTS if config.get(key) is not None}
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save({"model": model | {"lm_head.weight": model["transformer.wte.weight"]}, "optimizer": optimiser.state_dict(),
                "model_args": sizes, "iter_num": step, "best_val_loss": best, "config": values | {"dataset": dataset}},
               content)  # fmt: skip
    replace_file(folder / "ckpt.pt", content.getvalue())
    meta = {"vocab_size": len(vocabulary), "itos": dict(enumerate(vocabulary)),
            "stoi": {c: i for i, c in enumerate(vocabulary)}}  # fmt: skip
    replace_file(folder / "meta.pkl", pickle.dumps(meta))
    print(f"wrote {folder}/ckpt.pt (step {step}) and {folder}/meta.pkl; nanoGPT looks for the latter in data/{dataset}/")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("import", help="a checkpoint of nanoGPT becomes one of qkgpt")
    one.add_argument("checkpoint", metavar="ckpt.pt")
    one.add_argument("meta", metavar="meta.pkl")
    one.add_argument("out", metavar="OUT.safetensors")
    one.add_argument("--data", metavar="FILE", help="the text (default: data/DATASET/input.txt, as in nanoGPT)")
    two = commands.add_parser("export", help="a checkpoint of qkgpt becomes one of nanoGPT")
    two.add_argument("run", metavar="RUN|CHECKPOINT")
    two.add_argument("dir", metavar="DIR")
    two.add_argument("--dataset", metavar="NAME", help="nanoGPT's name of the text (default: from its file name)")
    for command in (one, two):
        command.add_argument("--overwrite", action="store_true", help="replace what is there")
    commands.add_parser("config", help="configs of nanoGPT become one of qkgpt, on stdout")
    options, rest = parser.parse_known_args(arguments)
    if options.command == "config":
        options.arguments = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    else:
        import_packages()
    try:
        {"import": import_command, "export": export_command, "config": config_command}[options.command](options)
    except (InputError, OSError) as error:
        return refuse("nanogpt.py", error)
    return 0


if __name__ == "__main__":
    run_script(main)
