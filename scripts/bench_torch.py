#!/usr/bin/env python3
"""Times the same training step in qkgpt and in PyTorch, turn by turn: medians, and the median of their ratios.

    scripts/bench_torch.py [CONFIG.json ...] [--KEY=VALUE ...] [--rounds=N] [--seconds=S] [--compile] [--qkgpt=FILE]

PyTorch runs nanoGPT's model: fused attention (scaled_dot_product_attention), fused AdamW, clipping, float32, random
tokens. `--compile` puts it through torch.compile first. Both programs get the same number of threads and never run at
the same time."""
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

from command import OF_TORCH, how_to_install, run_script

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    HOW = how_to_install(OF_TORCH, "python3-torch", "bench_torch.py")
    sys.exit(f"bench_torch: PyTorch is missing; one of these brings it\n{HOW}")

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 65  # as in `qkgpt bench` without a text


class Block(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        C, bias = c["n_embd"], c["bias"]
        self.n_head, self.dropout, self.qk_norm = c["n_head"], c["dropout"], c["attention"] == "qk_norm"
        self.ln_1, self.ln_2 = nn.LayerNorm(C, bias=bias), nn.LayerNorm(C, bias=bias)
        self.c_attn, self.c_proj = nn.Linear(C, 3 * C, bias=bias), nn.Linear(C, C, bias=bias)
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C, bias=bias), nn.GELU(), nn.Linear(4 * C, C, bias=bias))
        self.qk_scale = nn.Parameter(torch.tensor(math.log2(c["block_size"] ** 2 - c["block_size"])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, dim=2))
        if self.qk_norm:
            q, k = F.normalize(q, dim=-1, eps=1e-6) * self.qk_scale, F.normalize(k, dim=-1, eps=1e-6)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True,
                                           scale=1.0 if self.qk_norm else None)
        x = x + F.dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.ln_2(x)), self.dropout, self.training)


class Gpt(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, c["n_embd"]), nn.Embedding(c["block_size"], c["n_embd"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(c["n_embd"], bias=c["bias"])

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def torch_step(c: dict, compiled: bool):
    """A function that makes one update."""
    model = Gpt(c)
    run = torch.compile(model) if compiled else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=c["learning_rate"], betas=(c["beta1"], c["beta2"]),
                                  weight_decay=c["weight_decay"], fused=True)

    def step() -> None:
        for _ in range(c["gradient_accumulation_steps"]):
            tokens = torch.randint(VOCABULARY, (c["batch_size"], c["block_size"] + 1))
            loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            (loss / c["gradient_accumulation_steps"]).backward()
        if c["grad_clip"] > 0:
            nn.utils.clip_grad_norm_(model.parameters(), c["grad_clip"])
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return step


def median_ms(step, seconds: float) -> float:
    times, begin = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main(arguments: list[str]) -> None:
    own = {"rounds": "5", "seconds": "3", "qkgpt": str(ROOT / "build" / "qkgpt")}
    compiled = "--compile" in arguments
    rest = [a for a in arguments if a != "--compile"]
    for argument in list(rest):
        name, _, value = argument.removeprefix("--").partition("=")
        if argument.startswith("--") and name in own:
            own[name] = value
            rest.remove(argument)

    def bench() -> dict:
        done = subprocess.run([own["qkgpt"], "bench", "--json", *rest], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"bench_torch: {done.stderr.strip() or 'qkgpt bench failed'}")
        return json.loads(done.stdout)

    first = bench()
    config = first["config"]
    if config["attention"] not in ("standard", "qk_norm"):
        sys.exit(f"bench_torch: attention {config['attention']} is not written here; standard and qk_norm are")
    torch.set_num_threads(first["threads"])
    step = torch_step(config, compiled)
    for _ in range(3):  # warm up, compile
        step()
    ours, theirs = [], []
    print(f"{first['simd']}, {first['threads']} threads, PyTorch {torch.__version__}"
          f"{' compiled' if compiled else ''}; milliseconds an update")
    print("round      qkgpt    PyTorch   ratio   qkgpt's share of the peak")
    for i in range(int(own["rounds"])):
        measured = bench()
        ours.append(measured["ms"]["median"])
        theirs.append(median_ms(step, float(own["seconds"])))
        print(f"{i + 1:5} {ours[-1]:10.2f} {theirs[-1]:10.2f} {theirs[-1] / ours[-1]:7.2f}   {measured['fraction']:.1%}",
              flush=True)
    ratio = statistics.median(t / o for t, o in zip(theirs, ours))
    print(f"median {statistics.median(ours):9.2f} {statistics.median(theirs):10.2f} {ratio:7.2f}")


if __name__ == "__main__":
    run_script(main)
