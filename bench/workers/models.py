"""Training steps of one model, by each contestant in turn: forked ranks, one group after another.

This process imports what all need, and forks the ranks of each group (and the server of the one
that has a server), so that memory and settings of one contestant are gone when the next begins.
Ranks have one compute thread each. Every group trains from the same parameters on the same batch
for each rank. Its first steps are not timed: after three of them the parameters must have the same
bits on all ranks, and be those that DistributedDataParallel on Gloo arrives at (of more than two
ranks, which sum in orders of their own, after one); the rest is for buckets and plans to settle.
Of each timed step that of the slowest rank counts, and the processor time of all processes. After
them memory is counted: what all processes hold more than before they made their models (Pss: pages
that ranks share count once). The contestants are in trainers.py.

With --curve all steps are told instead, the first ones too, with their losses: batches have
something to learn then, and the losses have to be Gloo's.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import hashlib
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before the forks
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import graph_analysis

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import children
from bench.workers.paper_models import MODELS
from bench.workers.trainers import TRAINERS, Job, Trainer

VERIFIED_STEPS = 3
WARM_STEPS = 12  # plan.apply() decides on its buckets for good after the tenth
SAMPLE_ELEMENTS = 512  # of each parameter
# After how many steps a group of more than two ranks is held against Gloo, whose sums are rounded
# otherwise: inception_v3 amplifies a last bit to half of what its parameters move within three.
ROUNDED_STEPS = 1
# Of how far the parameters may be from Gloo's, in parts of how far they moved.
FARTHEST = 0.001


def sampled(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return some elements of each parameter, evenly spread."""
    flats = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    return [flat[:: max(1, flat.numel() // SAMPLE_ELEMENTS)].clone() for flat in flats]


def bits_of(model: torch.nn.Module) -> str:
    """Return a digest of all parameters' bytes."""
    digest = hashlib.blake2b()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def held_bytes(pid: int | None = None) -> int:
    """Return the memory of a process, this one by default (Pss): its part of what it shares."""
    rollup = Path("/proc") / str(pid or "self") / "smaps_rollup"
    for line in rollup.read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not tell how much memory is held")


def start(job: Job, rank: int) -> Trainer:
    """Meet the other ranks."""
    kind = TRAINERS[job.contestant]
    dist.init_process_group(
        kind.backend,
        store=FileStore(str(job.folder / "c10d"), job.ranks),
        rank=rank,
        world_size=job.ranks,
        timeout=timedelta(seconds=job.patience_s),
    )
    return kind(job, rank)


def end(job: Job, rank: int, trainer: Trainer, found: dict[str, Any]) -> None:
    """Leave figures in a file, together with the others."""
    dist.barrier()
    trainer.close()
    (job.folder / f"rank{rank}").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def learn(job: Job, rank: int) -> None:
    """One rank that tells of all its steps when they ended, and of the losses before them."""
    trainer = start(job, rank)
    losses, at_ns = [], []
    dist.barrier()
    began_ns = time.perf_counter_ns()
    for number in range(job.steps):
        losses.append(float(trainer.step(number)))
        at_ns.append(time.perf_counter_ns() - began_ns)
    found = {"bits": bits_of(trainer.model), "losses": losses, "at_ns": at_ns}
    end(job, rank, trainer, found)


def train(job: Job, rank: int) -> None:
    """One rank, from its start to its end; its figures go to a file."""
    empty_bytes = held_bytes()
    trainer = start(job, rank)
    before = sampled(trainer.model)
    compared = VERIFIED_STEPS if job.ranks <= 2 else ROUNDED_STEPS
    for number in range(VERIFIED_STEPS):
        trainer.step(number)
        if rank == 0 and number + 1 == compared:
            torch.save((before, sampled(trainer.model)), job.folder / "sampled")
    found: dict[str, Any] = {"bits": bits_of(trainer.model)}
    for number in range(VERIFIED_STEPS, WARM_STEPS if job.steps else 0):
        trainer.step(number)
    cores = sorted(os.sched_getaffinity(0))
    if job.ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})  # this thread only
    took_ns = []
    passes = trainer.passes()
    spent_ns = trainer.spent_ns()
    dist.barrier()
    costs = trainer.costs()
    for number in range(WARM_STEPS, WARM_STEPS + job.steps):
        started_ns = time.perf_counter_ns()
        trainer.step(number)
        took_ns.append(time.perf_counter_ns() - started_ns)
    found["spent_ns"] = trainer.spent_ns() - spent_ns
    found["took_ns"] = took_ns
    after = {**trainer.costs(), **trainer.passes()}
    found["parts"] = {name: after[name] - value for name, value in {**costs, **passes}.items()}
    dist.barrier()
    found["held_bytes"] = held_bytes() - empty_bytes  # while all are there, whom it shares with
    server = job.folder / "server"
    if rank == 0 and server.exists():
        began = json.loads(server.read_text(encoding="utf-8"))
        found["held_bytes"] += held_bytes(began["pid"]) - began["empty_bytes"]
    dist.barrier()
    found["arena_bytes"] = trainer.arena_bytes()
    end(job, rank, trainer, found)


def serve(job: Job) -> None:
    """The process beside the ranks that has the parameters, until they end."""
    began = {"pid": os.getpid(), "empty_bytes": held_bytes()}
    (job.folder / "server").write_text(json.dumps(began), encoding="utf-8")
    kind = TRAINERS[job.contestant]
    assert kind.server is not None
    parameters = kind.server(job)
    assert parameters


def make_plan(job: Job) -> None:
    """Analyse the step, for all later turns too."""
    spec = MODELS[job.model]
    strategy = graph_analysis.DataParallel(job.ranks)
    batch = spec.batch(job.divisor, 0)
    plan = graph_analysis.analyze(
        spec.make(job.divisor), batch, loss_fn=spec.loss_fn, strategy=strategy
    )
    draft = job.plan.with_suffix(".draft")
    draft.write_text(graph_analysis.plan_to_json(plan), encoding="utf-8")
    draft.rename(job.plan)


def fork(
    work: Callable[[], None],
    environment: dict[str, str],
    patience_s: float,
    gate: int | None = None,
) -> int:
    """Run work in a process of its own, which ends with this one or then; return its pid.

    gate: it begins with a byte from there. What a process holds of its parent's memory hangs on
    how many share it, so none may look before all are there.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        children.end_with(parent)
        os.environ.update(environment)
        torch.set_num_threads(1)
        faulthandler.dump_traceback_later(patience_s, exit=True)  # says where it hangs
        if gate is not None:
            os.read(gate, 1)
        work()
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must not run on in its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def await_all(pids: list[int], what: str) -> None:
    """Wait for all; raises once one fails, and then ends the others."""
    waiting = set(pids)
    try:
        while waiting:
            for pid in sorted(waiting):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    waiting.discard(pid)
                    if status:
                        ending = os.waitstatus_to_exitcode(status)
                        how = f"signal {-ending}" if ending < 0 else f"status {ending}"
                        raise RuntimeError(f"{what}: a process ended with {how}; see above")
            time.sleep(0.02)
    finally:
        for pid in waiting:  # nobody has waited for it yet: the pid is its own
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run_group(job: Job, environment: dict[str, str]) -> list[dict[str, Any]]:
    """Run all ranks of a contestant; return what each found."""
    job.folder.mkdir()
    kind = TRAINERS[job.contestant]
    chosen = {"RDMATENSOR_ADOPT": "1", **kind.environment, **environment}
    works = [functools.partial(serve, job)] if kind.server is not None else []
    act = learn if job.has_lessons else train
    works += [functools.partial(act, job, rank) for rank in range(job.ranks)]
    gate, opener = os.pipe()
    try:
        pids = [fork(work, chosen, job.patience_s, gate) for work in works]
        os.write(opener, b"g" * len(pids))
        await_all(pids, f"{job.model}, {job.contestant}")
    finally:
        os.close(gate)
        os.close(opener)
    paths = [job.folder / f"rank{rank}" for rank in range(job.ranks)]
    return [cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def distance(mine: Path, reference: Path) -> float:
    """How far the parameters are from others, in parts of how far those moved."""
    _, now = torch.load(mine)
    before, wanted = torch.load(reference)
    off = sum(float((a - b).double().square().sum()) for a, b in zip(now, wanted, strict=True))
    moved = sum(float((a - b).double().square().sum()) for a, b in zip(before, wanted, strict=True))
    return float((off / moved) ** 0.5)


def check(job: Job, found: list[dict[str, Any]], reference: Path) -> float:
    """Compare parameters after the first steps; return their distance from Gloo's."""
    far = distance(job.folder / "sampled", reference)
    if job.contestant in ("floor", "planned_floor"):
        return far
    if len({one["bits"] for one in found}) != 1:
        raise RuntimeError(f"{job.model}, {job.contestant}: the ranks have other parameters")
    if not far < FARTHEST:
        raise RuntimeError(f"{job.model}, {job.contestant}: {far:.2g} away from Gloo's parameters")
    return far


def figures(job: Job, transport: str, reference: Path) -> dict[str, Any]:
    """Run one contestant, and return what it is about."""
    found = run_group(job, {"RDMATENSOR_TRANSPORT": transport} if transport else {})
    if job.has_lessons:
        return curve_of(job, found, reference)
    return {
        "raw_ns": [
            max(several) for several in zip(*(one["took_ns"] for one in found), strict=True)
        ],
        "cpu_ns": sum(one["spent_ns"] for one in found) // job.steps,
        "memory_bytes": sum(one["held_bytes"] for one in found),
        "arena_bytes": sum(one["arena_bytes"] for one in found),
        "parts": {
            name: sum(one["parts"][name] for one in found) / job.ranks / job.steps
            for name in found[0]["parts"]
        },
        "distance": check(job, found, reference),
    }


def curve_of(job: Job, found: list[dict[str, Any]], reference: Path) -> dict[str, Any]:
    """Return the mean loss before each step, and how long steps took; the losses are Gloo's."""
    losses = [sum(of) / job.ranks for of in zip(*(one["losses"] for one in found), strict=True)]
    ends_ns = [max(of) for of in zip(*(one["at_ns"] for one in found), strict=True)]
    if len({one["bits"] for one in found}) != 1:
        raise RuntimeError(f"{job.model}, {job.contestant}: the ranks have other parameters")
    if not reference.exists():
        reference.write_text(json.dumps(losses), encoding="utf-8")
    wanted = json.loads(reference.read_text(encoding="utf-8"))
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"{job.model}, {job.contestant}: a loss is no number")
    off = max(abs(loss - other) for loss, other in zip(losses, wanted, strict=True)) / wanted[0]
    if not off < FARTHEST:
        raise RuntimeError(f"{job.model}, {job.contestant}: losses are {off:.2g} off Gloo's")
    raw_ns = [after - before for before, after in zip([0, *ends_ns], ends_ns, strict=False)]
    return {"raw_ns": raw_ns, "losses": losses, "off": off}


def about(name: str, divisor: int, ranks: int) -> dict[str, object]:
    """Return what is trained."""
    spec = MODELS[name]
    with torch.device("meta"):
        parameters = list(spec.make(divisor).parameters())
    return {
        "model": name,
        "divisor": divisor,
        "ranks": ranks,
        "parameter_bytes": sum(parameter.nbytes for parameter in parameters),
        "batch": "x".join(map(str, spec.shape(divisor))),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="0: there is one of this process")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--divisor", type=int, default=1, help="of all widths")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds of a contestant")
    parser.add_argument("--kept", type=Path, required=True, help="plans and references, for all")
    parser.add_argument(
        "--turns", required=True, help="contestant:transport, separated by commas, in this order"
    )
    parser.add_argument("--curve", action="store_true", help="losses of all steps")
    parser.add_argument("--rate", type=float, default=0.01, help="of learning")
    return parser.parse_args()


def main() -> None:
    arguments = _options()
    name = f"{arguments.model}-{arguments.divisor}-{arguments.ranks}"
    kind = f"curve-{arguments.steps}-{arguments.rate}" if arguments.curve else "reference"
    plan, reference = arguments.kept / f"{name}.json", arguments.kept / f"{name}.{kind}"

    def job(contestant: str, folder: str, steps: int) -> Job:
        return Job(
            contestant=contestant,
            model=arguments.model,
            divisor=arguments.divisor,
            ranks=arguments.ranks,
            steps=steps,
            plan=plan,
            folder=arguments.folder / folder,
            patience_s=arguments.patience,
            rate=arguments.rate,
            has_lessons=arguments.curve,
        )

    sys.stdout.write(json.dumps(about(arguments.model, arguments.divisor, arguments.ranks)) + "\n")
    if not plan.exists():
        first = job("planned", "plan", 0)
        await_all([fork(lambda: make_plan(first), {}, first.patience_s)], "the plan")
    if not reference.exists():
        first = job("gloo", "reference", arguments.steps if arguments.curve else 0)
        found = run_group(first, {})
        if arguments.curve:
            curve_of(first, found, reference)
        else:
            (first.folder / "sampled").rename(reference)
    for number, turn in enumerate(str(arguments.turns).split(",")):
        contestant, transport = turn.split(":")
        one = job(contestant, f"{number}", arguments.steps)
        said = {"contestant": contestant, "transport": transport}
        try:
            said |= figures(one, transport, reference)
        except RuntimeError as error:  # the others go on
            traceback.print_exc()
            said["failed"] = str(error)
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
