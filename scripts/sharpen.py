#!/usr/bin/env python3
"""What happens to trained models when their attention scores grow: q and k multiplied by sqrt(kappa).

    scripts/sharpen.py RUN [RUN ...] [--out PREFIX]

Scales the q and k rows of every layer's c_attn in a copy of each RUN's best checkpoint, so that q.k grows by kappa =
1, 4, 16, ..., and lets `qkgpt train --max_iters=0` evaluate the copies. Scores without normalisation grow with kappa:
attention becomes one-hot and the loss rises. A normalised q or k does not notice; since sqrt(kappa) is a power of
two, `qk_norm` gives the same bits. Prints a table and writes PREFIX.svg and .png (default: sharpen beside the first).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from command import FOR_FIGURES, InputError, refuse, run_script
from runs import Run, find_program, load

KAPPAS = [4**i for i in range(8)]  # to 16384


class Point(NamedTuple):
    kappa: int
    loss: float  # over the whole validation split
    logit_max: float
    entropy: float  # mean over layers and heads, 1: uniform, 0: one-hot


def sharpened(checkpoint: bytes, factor: float) -> bytes:
    """The checkpoint with q and k of all layers multiplied, and its ~sha256 trailer right again."""
    data = bytearray(checkpoint)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, entry in header.items():
        if name.startswith("transformer.") and name.endswith((".attn.c_attn.weight", ".attn.c_attn.bias")):
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            rows = np.frombuffer(data, "<f4", (end - begin) // 4, begin).reshape(entry["shape"])
            rows[: 2 * len(rows) // 3] *= np.float32(factor)  # q, k and v lie one after the other
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    return bytes(data)


def evaluate(run: Run, kappa: int, program: str, folder: Path) -> Point:
    checkpoint = next(path for name in ("best", "last") if (path := run.path / f"{name}.safetensors").exists())
    (folder / "sharpened.safetensors").write_bytes(sharpened(checkpoint.read_bytes(), kappa**0.5))
    keys = {"init_from": folder / "sharpened.safetensors", "max_iters": 0, "out_dir": folder / "run"}
    options = [f"--{key}={value}" for key, value in keys.items()]
    command = [program, "train", str(run.path / "config.json"), *options, "--overwrite", "--quiet"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8")
    if done.returncode not in (0, 3):  # 3: a loss that is not finite
        raise InputError(f"{run.path}: {done.stderr.strip()}")
    result = load(folder / "run")
    heads = [(row["logit_max"], row["entropy"]) for row in result.rows.get("attention", [])]
    loss = result.final().get("val_loss_full")
    return Point(
        kappa,
        float("nan") if loss is None else loss,
        max(x for logits, _ in heads for x in logits),
        statistics.fmean(x for _, entropies in heads for x in entropies),
    )


def draw(runs: list[Run], points: list[list[Point]], prefix: Path) -> list[Path]:
    import matplotlib

    from curves import RC, STYLES

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    with matplotlib.rc_context(RC):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
        for run, line, (colour, dashes, marker) in zip(runs, points, STYLES * len(runs)):
            x = [p.kappa for p in line]
            style = {"color": colour, "ls": dashes, "marker": marker, "markersize": 4.5, "lw": 1.8}
            left.plot(x, [p.loss for p in line], label=run.label, **style)
            right.plot(x, [p.entropy for p in line], label=run.label, **style)
        for axes, label in ((left, "validation loss (nats per character)"), (right, "entropy of attention, 1: uniform")):
            axes.set_xscale("log", base=4)
            axes.set_xticks(KAPPAS[::2], [f"{kappa:,}" for kappa in KAPPAS[::2]])
            axes.minorticks_off()
            axes.set_xlabel("κ: q·k multiplied by")
            axes.set_ylabel(label)
        right.set_ylim(0, 1)
        left.legend()
        paths = [prefix.with_name(prefix.name + kind) for kind in (".png", ".svg")]
        prefix.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(paths[0], dpi=150, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
        pyplot.close(figure)
    return paths


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Evaluates trained models with q and k multiplied by sqrt(kappa).")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=Path, metavar="PREFIX", help="of the figure; default: sharpen, beside the first run")
    parser.add_argument("--qkgpt", default=find_program(), metavar="PROGRAM", help="default: build/qkgpt")
    options = parser.parse_args(arguments)
    try:
        runs = [load(path) for path in options.runs]
        kinds = [str(run.config.get("attention")) for run in runs]
        for run, kind in zip(runs, kinds):
            run.label = kind if len(set(kinds)) == len(runs) else run.path.name
        points = []
        with tempfile.TemporaryDirectory() as folder:
            for run in runs:
                print(f"{run.label} ({run.path})\n{'kappa':>8} {'val loss':>10} {'largest score':>14} {'entropy':>8}")
                points.append([])
                for kappa in KAPPAS:
                    points[-1].append(evaluate(run, kappa, options.qkgpt, Path(folder)))
                    print("{:8} {:10.4f} {:14.1f} {:8.3f}".format(*points[-1][-1]), flush=True)
                if len({point.loss for point in points[-1]}) == 1:
                    print("the same bits for every kappa")
        for path in draw(runs, points, options.out or runs[0].path.resolve().parent / "sharpen"):
            print(f"wrote {path}")
    except (InputError, OSError) as error:
        return refuse("sharpen.py", error)
    except StopIteration:
        print(f"sharpen.py: {options.runs[0]}: no checkpoint; train it first", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"no figure: {error.name} is missing; one of these brings it\n{FOR_FIGURES}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run_script(main)
