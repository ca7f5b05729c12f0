#!/usr/bin/env python3
"""Golden numbers of a tiny GPT from PyTorch in float64: a second implementation behind the C++ one.

Writes tests/golden/gpt_KIND_nobias.json for every kind of attention, and gpt_{standard,qk_norm}_bias.json:
parameters, logits, loss, every gradient, and the parameters after 5 AdamW updates. The model is nanoGPT's
architecture written out from the formulas; derivatives are PyTorch's and are compared with central differences
here. The same PyTorch on the same machine writes the same bytes.
    scripts/reference.py [DIR]        DIR is tests/golden by default
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from command import OF_TORCH, how_to_install, run_script

try:
    import torch
except ImportError:
    HOW = how_to_install(OF_TORCH, "python3-torch", "reference.py")
    sys.exit(f"reference.py: PyTorch is missing; one of these brings it\n{HOW}")

Tensor = torch.Tensor
Params = dict[str, Tensor]

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
KINDS = ("standard", "standard_temperature", "softcap", "qk_norm", "qk_norm_fixed", "qk_rmsnorm", "qk_rmsnorm_full",
         "qk_layernorm")
UNIT = 128
VOCAB, LAYERS, HEADS, WIDTH, TIME, BATCH = (7, 2, 2, 6, 5, 3)  # awkward on purpose: no multiples of vector widths
FIXED_SCALE, SOFTCAP = 2.5, 0.75  # a cap that scores of this model feel
DIGITS = 7  # of float32; more would only be larger files
LEARNING_RATES = [1e-3, 3e-3, 2e-3, 1e-2, 5e-4]
BETAS, ADAM_EPS, WEIGHT_DECAY, GRAD_CLIP = (0.9, 0.99), 1e-8, 0.1, 1.0
NORM_EPS, LAYERNORM_EPS = 1e-6, 1e-5
ABOUT = (
    "Float64 numbers from PyTorch by scripts/reference.py, not made by the C++ program. Names and shapes are "
    f"those of nanoGPT's state_dict; tensors are flat, row by row. params are integers: divided by {UNIT} they "
    f"are the parameters, exact in float32; results are rounded to {DIGITS} digits. logits (batch, block_size, "
    "vocab); loss is the mean over all targets; grads are those of the loss before any update and before "
    "clipping. Then 5 updates on the same batch with learning_rates: losses and grad_norms (over all parameters, "
    "before clipping) of each, final_loss and updated parameters after the last. Clipping multiplies by min(1, "
    "grad_clip / norm), without the 1e-6 that torch.nn.utils.clip_grad_norm_ adds to the norm. AdamW as "
    "torch.optim.AdamW (eps outside the root); only 2-D tensors decay. In standard and standard_temperature the "
    "gradient of the key part of c_attn.bias (its middle third) is zero but for rounding, and Adam turns "
    "rounding into steps of up to the learning rate: leave that part out of comparisons of updated parameters."
)


def normalised(kind: str, x: Tensor) -> Tensor:
    """Rows of q or k before the gain; the last dimension is a head, or all channels for qk_rmsnorm_full."""
    if kind in ("qk_norm", "qk_norm_fixed"):
        return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=NORM_EPS)
    if kind == "qk_layernorm":
        x = x - x.mean(-1, keepdim=True)
    if kind in ("qk_rmsnorm", "qk_rmsnorm_full", "qk_layernorm"):
        return x / (x.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
    return x


def attention(kind: str, heads: int, q: Tensor, k: Tensor, v: Tensor, p: Params, fixed: float, cap: float) -> Tensor:
    """Causal attention over rows (..., T, C). p holds what the layer learns: qk_scale, temperature or gains."""

    def split(x: Tensor) -> Tensor:  # (..., heads, T, d)
        return x.unflatten(-1, (heads, -1)).transpose(-2, -3)

    def prepared(x: Tensor, gain: Tensor | float) -> Tensor:
        if kind == "qk_rmsnorm_full":
            return split(normalised(kind, x) * gain)
        return normalised(kind, split(x)) * gain

    q, k = prepared(q, p.get("q_norm.weight", 1.0)), prepared(k, p.get("k_norm.weight", 1.0))
    scores = q @ k.transpose(-1, -2)
    if kind == "qk_norm":
        scores = scores * p["qk_scale"]
    elif kind == "qk_norm_fixed":
        scores = scores * fixed
    else:
        scores = scores * p.get("temperature", 1.0) / math.sqrt(q.shape[-1])
    if kind == "softcap":
        scores = cap * (scores / cap).tanh()
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    y = scores.masked_fill(later, -math.inf).softmax(-1) @ split(v)
    return y.transpose(-2, -3).flatten(-2)


def layer_norm(x: Tensor, p: Params, name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + LAYERNORM_EPS).sqrt() * p[name + ".weight"]
    return y + p[name + ".bias"] if name + ".bias" in p else y


def linear(x: Tensor, p: Params, name: str) -> Tensor:
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def forward(kind: str, p: Params, idx: Tensor) -> Tensor:
    x = p["transformer.wte.weight"][idx] + p["transformer.wpe.weight"][: idx.shape[1]]
    for layer in range(LAYERS):
        h = f"transformer.h.{layer}."
        q, k, v = linear(layer_norm(x, p, h + "ln_1"), p, h + "attn.c_attn").split(WIDTH, dim=-1)
        learned = {name.removeprefix(h + "attn."): tensor for name, tensor in p.items()}
        y = attention(kind, HEADS, q, k, v, learned, FIXED_SCALE, SOFTCAP)
        x = x + linear(y, p, h + "attn.c_proj")
        x = x + linear(gelu(linear(layer_norm(x, p, h + "ln_2"), p, h + "mlp.c_fc")), p, h + "mlp.c_proj")
    return layer_norm(x, p, "transformer.ln_f") @ p["transformer.wte.weight"].T


def loss_of(kind: str, p: Params, idx: Tensor, targets: Tensor) -> Tensor:
    log_p = forward(kind, p, idx).log_softmax(-1)
    return -log_p.gather(-1, targets.unsqueeze(-1)).mean()


def learned_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """What a kind learns in each layer."""
    if kind in ("qk_rmsnorm", "qk_rmsnorm_full", "qk_layernorm"):
        size = WIDTH if kind == "qk_rmsnorm_full" else WIDTH // HEADS
        return {"q_norm.weight": (size,), "k_norm.weight": (size,)}
    return {"qk_norm": {"qk_scale": (1,)}, "standard_temperature": {"temperature": (1,)}}.get(kind, {})


def offset(name: str) -> float:
    """What random numbers in [-1/2, 1/2] are added to: away from where training starts."""
    if name.endswith("qk_scale"):
        return 3.25
    if name.endswith("temperature"):
        return 1.75
    return 1.0 if name.endswith("weight") and (".ln_" in name or "_norm." in name) else 0.0


def shapes(kind: str, bias: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (VOCAB, WIDTH),
        "transformer.wpe.weight": (TIME, WIDTH),
    }

    def add(name: str, *shape: int) -> None:
        found[name + ".weight"] = shape
        if bias:
            found[name + ".bias"] = shape[:1]

    for layer in range(LAYERS):
        h = f"transformer.h.{layer}."
        add(h + "ln_1", WIDTH)
        add(h + "attn.c_attn", 3 * WIDTH, WIDTH)
        add(h + "attn.c_proj", WIDTH, WIDTH)
        for name, shape in learned_shapes(kind).items():
            found[h + "attn." + name] = shape
        add(h + "ln_2", WIDTH)
        add(h + "mlp.c_fc", 4 * WIDTH, WIDTH)
        add(h + "mlp.c_proj", WIDTH, 4 * WIDTH)
    add("transformer.ln_f", WIDTH)
    return found


class Integers:
    """A linear congruential generator: the same integers everywhere."""

    def __init__(self) -> None:
        self.state = 20240229

    def below(self, n: int) -> int:
        self.state = (self.state * 1103515245 + 12345) % 2**31
        return (self.state >> 8) % n


def initial(kind: str, bias: bool) -> tuple[Params, Tensor, Tensor]:
    """Parameters, token ids and targets."""
    integers = Integers()
    p: Params = {}
    for name, shape in shapes(kind, bias).items():
        values = [(integers.below(UNIT + 1) - UNIT // 2) / UNIT for _ in range(math.prod(shape))]
        p[name] = (torch.tensor(values, dtype=torch.float64) + offset(name)).reshape(shape).requires_grad_()
    ids = torch.tensor([integers.below(VOCAB) for _ in range(2 * BATCH * TIME)]).reshape(2, BATCH, TIME)
    return p, ids[0], ids[1]


def check_differences(kind: str, p: Params, grads: Params, idx: Tensor, targets: Tensor) -> None:
    """Central differences at three entries of every tensor."""
    h = 1e-6
    for name, tensor in p.items():
        flat = tensor.detach().view(-1)
        for i in {0, len(flat) // 2, len(flat) - 1}:
            kept = flat[i].item()
            sides = []
            for x in (kept + h, kept - h):
                flat[i] = x
                sides.append(loss_of(kind, p, idx, targets).item())
            flat[i] = kept
            numeric, exact = (sides[0] - sides[1]) / (2 * h), grads[name].view(-1)[i].item()
            if abs(numeric - exact) > 1e-8 + 1e-6 * abs(exact):
                sys.exit(f"reference.py: {kind}: gradient of {name}[{i}]: {exact}, by central differences {numeric}")


def check_attention(path: Path) -> None:
    """The attention above against attention.json, which was made without PyTorch."""
    golden = json.loads(path.read_text(encoding="utf-8"))

    def leaf(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).requires_grad_()

    for kind in KINDS:
        case = golden[kind]
        q, k, v = (leaf(golden["inputs"][name]) for name in "QKV")
        p = {name: leaf(values) for name, values in case["params"].items()}
        y = attention(kind, case["n_head"], q, k, v, p, case["logit_scale"], case["softcap"])
        loss = (torch.tensor(golden["inputs"]["R"], dtype=torch.float64) * y).sum()
        loss.backward()
        pairs = [(loss, case["loss"]), (q.grad, case["dq"]), (k.grad, case["dk"]), (v.grad, case["dv"])]
        pairs += [(tensor.grad, case["dparams"][name]) for name, tensor in p.items()]
        for got, expected in pairs:
            error = (got - torch.tensor(expected, dtype=torch.float64)).abs().max().item()
            if error > 1e-12:
                sys.exit(f"reference.py: {kind} differs from {path.name} by {error}")


def train(kind: str, p: Params, idx: Tensor, targets: Tensor) -> tuple[list[float], list[float]]:
    """AdamW updates in place; losses and gradient norms, each before its update."""
    groups = [
        {"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=ADAM_EPS, foreach=False)
    losses, norms = [], []
    for rate in LEARNING_RATES:
        optimizer.zero_grad()
        loss = loss_of(kind, p, idx, targets)
        loss.backward()
        norm = math.sqrt(sum(t.grad.square().sum().item() for t in p.values()))
        for tensor in p.values():
            tensor.grad *= min(1.0, GRAD_CLIP / norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms


def golden(kind: str, bias: bool) -> dict[str, object]:
    p, idx, targets = initial(kind, bias)
    result: dict[str, object] = {
        "about": ABOUT,
        "config": {
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_embd": WIDTH,
            "block_size": TIME,
            "batch_size": BATCH,
            "bias": bias,
            "attention": kind,
            "qk_norm_eps": NORM_EPS,
            "qk_scale_init": FIXED_SCALE,
            "softcap": SOFTCAP,
            "weight_decay": WEIGHT_DECAY,
            "beta1": BETAS[0],
            "beta2": BETAS[1],
            "grad_clip": GRAD_CLIP,
        },
        "vocab_size": VOCAB,
        "learning_rates": LEARNING_RATES,
        "idx": idx.tolist(),
        "targets": targets.tolist(),
        "shapes": {name: list(tensor.shape) for name, tensor in p.items()},
        "params": {name: (UNIT * tensor).flatten().int().tolist() for name, tensor in p.items()},
        "logits": forward(kind, p, idx).flatten().tolist(),
    }
    loss = loss_of(kind, p, idx, targets)
    grads = dict(zip(p, torch.autograd.grad(loss, list(p.values()))))
    check_differences(kind, p, grads, idx, targets)
    result["loss"] = loss.item()
    result["grads"] = {name: tensor.flatten().tolist() for name, tensor in grads.items()}
    result["losses"], result["grad_norms"] = train(kind, p, idx, targets)
    result["final_loss"] = loss_of(kind, p, idx, targets).item()
    result["updated"] = {name: tensor.flatten().tolist() for name, tensor in p.items()}
    return result


def rounded(value: object) -> object:
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def to_text(value: dict[str, object]) -> str:
    """JSON with a line for each member and for each tensor."""

    def text(v: object) -> str:
        return json.dumps(rounded(v), separators=(",", ":"))

    lines = []
    for key, member in value.items():
        if isinstance(member, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {text(v)}" for k, v in member.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {text(member)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: list[str]) -> None:
    out = Path(arguments[0]) if arguments else GOLDEN
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    check_attention(GOLDEN / "attention.json")
    for kind in KINDS:
        for bias in (True, False) if kind in ("standard", "qk_norm") else (False,):
            path = out / f"gpt_{kind}_{'bias' if bias else 'nobias'}.json"
            numbers = golden(kind, bias)
            path.write_text(to_text(numbers), encoding="utf-8")
            print(f"{path.name}: loss {numbers['loss']:.12f}, after the updates {numbers['final_loss']:.12f}")


if __name__ == "__main__":
    run_script(main)
