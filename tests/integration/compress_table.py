"""The table of compress-a-model.md: python tests/integration/compress_table.py.

Losses and bytes repeat on one machine; the row of a slow link needs root, as ci/throttle.sh does.
With --step it is a process of that row.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from compress_tasks import DEGREE, MODELS, STEPS, Task, Text, pruned, pruned_by_torch
from torch import nn

import rdmatensor.plan
from graph_analysis import DataParallel, analyze
from rdmatensor import compress

ROOT = Path(__file__).parents[2]
BLOCK = (1, 16)
TURNS, STEPS_A_TURN, WARM = 5, 3, 3
LIMIT_S = 300


def losses() -> list[list[str]]:
    """Return rows of pruned models: the loss on what they were not trained on."""
    rows = []
    for name in ("cnn", "mlp", "gpt"):
        task: Any = Text() if name == "gpt" else Task(MODELS[name])
        linear = pruned_by_torch(task, BLOCK)
        mine = pruned(task, "near_zero", 0.1, 1, "cubic", block=BLOCK, what=nn.Linear)
        every = {
            what: pruned(task, by, step, epochs, block=BLOCK)
            for what, by, step, epochs in (
                ("near zero", "near_zero", 0.1, 1),
                ("contribution", "contribution", 0.1, 1),
                ("at once", "contribution", 1.0, STEPS),
            )
        }
        dense = task.evaluate(task.model)
        said = ", ".join(f"{what} {loss:.3f}" for what, loss in every.items())
        rows.append([f"{name}, 90 % of all blocks", f"{dense:.3f} dense", said])
        rows.append(
            [f"{name}, 90 % of linear layers", f"torch.ao.pruning {linear:.3f}", f"{mine:.3f}"]
        )
        print(rows[-2:], file=sys.stderr, flush=True)
    return rows


def allocations() -> list[list[str]]:
    """Return rows of degrees that the curve chose, and of one degree for all, of equal bytes."""
    rows = []
    for name in ("cnn", "mlp", "gpt"):
        task: Any = Text() if name == "gpt" else Task(MODELS[name])
        equal, chosen = copy.deepcopy(task), copy.deepcopy(task)
        rule = compress.Prune("*", block=(1, 4), to=0.7)
        flat = compress.run(equal.model, compress.Policy(rule), progress=False)
        share = flat.size_bytes / flat.dense_bytes
        policy = compress.Policy(
            compress.Prune("*", block=(1, 4)), total=compress.Target(bytes=share)
        )
        curve = compress.sensitivity(chosen.model, policy, chosen.evaluate, progress=False)
        compress.run(chosen.model, policy, curve=curve, progress=False)
        mine, theirs = chosen.evaluate(chosen.model), equal.evaluate(equal.model)
        rows.append([f"{name}, chosen degrees", f"one degree {theirs:.3f}", f"{mine:.3f}"])
    return rows


def points() -> list[list[str]]:
    """Return rows of few values: squared errors of weights, and errors of outputs."""
    from torchao.quantization import IntxWeightOnlyConfig, quantize_

    task = Task(MODELS["mlp"])
    weights = {}
    for kind in ("clustered", "uniform"):
        model: Any = copy.deepcopy(task.model)
        compress.run(model, compress.Policy(compress.Quantize("*", points=kind, bits=4)))
        weights[kind] = [one.weight.detach() for one in model if isinstance(one, nn.Linear)]
    theirs: Any = copy.deepcopy(task.model)
    quantize_(theirs, IntxWeightOnlyConfig(torch.int4))
    weights["torchao"] = [one.weight.dequantize() for one in theirs if isinstance(one, nn.Linear)]
    dense: Any = task.model
    whole = [one.weight.detach() for one in dense if isinstance(one, nn.Linear)]
    error = {
        kind: sum(float((a - b).square().sum()) for a, b in zip(few, whole, strict=True))
        for kind, few in weights.items()
    }
    shares = ", ".join(
        f"{error['clustered'] / error[kind]:.2f} of {kind}'s" for kind in ("uniform", "torchao")
    )
    return [["mlp, 4 bits, squared error of weights", "uniform, torchao", shares]]


def link() -> list[list[str]]:
    """Return the row of a slow link."""
    done = subprocess.run(
        [
            *("bash", str(ROOT / "ci/throttle.sh"), "500mbit", "--", sys.executable, "-m"),
            *("torch.distributed.run", "--nproc-per-node", "2", __file__, "--step"),
        ],
        env={**os.environ, "RDMATENSOR_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_S,
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    times = f"{1e3 * found['dense_s']:.0f} ms dense, {found['dense_bytes'] >> 10} KiB"
    mine = f"{1e3 * found['thin_s']:.0f} ms, {found['thin_bytes'] >> 10} KiB"
    share = f"{found['thin_s'] / found['dense_s']:.2f} of the time"
    share += f", {found['thin_bytes'] / found['dense_bytes']:.3f} of the bytes"
    return [["a planned step at 500 Mbit/s, 90 % zeros", times, f"{mine}: {share}"]]


Trained = tuple[rdmatensor.plan.PlannedModel, torch.optim.Optimizer]


def planned(kind: str, batch: torch.Tensor) -> Trained:
    """Return a pruned model that trains by a dense or by a thin plan."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plan = analyze(model, (batch,), strategy=DataParallel(dist.get_world_size()))
    rule = compress.Prune("*", block=BLOCK, to=DEGREE)
    policy = compress.Policy(rule, process=compress.Progressive(step=1.0))
    if kind == "dense":  # masked before there is a plan, which then knows of no mask
        compress.run(model, policy, progress=False)
    made = rdmatensor.plan.apply(model, plan, optimizer)
    if kind == "thin":
        compress.run(model, policy, progress=False)
    return made, optimizer


def steps(of: Trained, batch: torch.Tensor, count: int) -> float:
    """Train; return the seconds that a step took."""
    model: Any = of[0]
    dist.barrier()
    began_s = time.monotonic()
    for _ in range(count):
        of[1].zero_grad()
        model(batch).square().mean().backward()
        of[1].step()
    return (time.monotonic() - began_s) / count


def step() -> None:
    """Print what a step takes by a dense and by a thin plan, in turns."""
    dist.init_process_group("rdmatensor")
    batch = torch.randn(8, 1024, generator=torch.Generator().manual_seed(dist.get_rank()))
    made = {kind: planned(kind, batch) for kind in ("dense", "thin")}
    times: dict[str, list[float]] = {kind: [] for kind in made}
    for of in made.values():
        steps(of, batch, WARM)
    for _ in range(TURNS):
        for kind, of in made.items():
            times[kind].append(steps(of, batch, STEPS_A_TURN))
    found: dict[str, float] = {}
    for kind, (model, _) in made.items():
        described = model.describe()
        found[f"{kind}_s"] = statistics.median(times[kind])
        found[f"{kind}_bytes"] = described["sent_bytes"] // described["steps"]
        model.close()
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Print the table, or take part in the row of the link."""
    torch.set_num_threads(1)
    if "--step" in sys.argv:
        step()
        return
    rows = [["model", "compared with", "rdmatensor"], ["---"] * 3]
    rows += [*losses(), *allocations(), *points(), *link()]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
