"""Training steps over a slow link: planned and DDP over verbs, DDP on Gloo, a server over gRPC C++.

Usage: python bench/rdma_models.py --make-plans DIR [--models fcn5 ...] [--divisor N]
       bash ci/rig/run.sh --hosts 2 --memory 3072 --timeout 3600 -- .venv/bin/python \
           bench/rdma_models.py [--plans DIR] [--rate 8mbit] [--models fcn5 ...] [--divisor N] \
           [--steps 4] [--rounds 3] [--turns planned gloo ...] [--out FILE]

Runs on both hosts at once, a rank on each; the link is limited by `tc tbf`, so that it and not the
emulation is the bound. All contestants take turns in each round, each in fresh processes; of each
step that of the slower rank counts, and the processor time of both machines, since what the kernel
does for packets is charged to no process. The server stands on host 1: its own worker reaches it
without the link. What a step takes beyond the same one without communication is exposed; of the
planned one beyond the same without communication by the plan. "DDP, not adopted" has neither
adoption nor views of buckets; the copy variant is what a tuned RPC would do over the same verbs
(workers/copy_variant.py), and nobody has measured here that it is well tuned.

The file is written after each turn; a target is held to its share of the models after the last.

Widths are divided (DIVISORS) and batches are small (BATCHES), so that parameters have at most a
MiB, a step takes seconds and two ranks and a server fit beside each other into 3072 MiB: what a
model computes per byte that it sends is then not that of the whole one, which is why the share of
compute is told wherever a target is missed. A plan, which an emulated core takes minutes for, may
be made outside before: the graph is the same, and so is the plan.

oneDNN's LSTM and GRU, which torch takes on a processor, end in a segmentation fault where QEMU
emulates one (torch 2.13, Gloo's ranks and the floor's too): there torch's own are trained, by all.

Needs build/rivals/libparameters.so (bench/rivals/grpc/setup.sh).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench import rdma
from bench.benchlib import rig
from bench.benchlib.record import Record
from bench.suite.model_targets import TARGETS, Target, figure_of
from bench.suite.models import CONTESTANTS
from bench.workers import model_figures, model_groups, models
from bench.workers.paper_models import MODELS
from bench.workers.trainers import TRAINERS, Job

LIMIT_S = 240.0
PLAN_LIMIT_S = 900.0  # of an analysis, which is made by one core, emulated
FIRST_PORT = 18700
MEETING_PORT = 18699
FLOORS = ("floor", "planned_floor")
TURNS = ("planned", "adopted", "copied", "variant", "gloo", "grpc_cpp", *FLOORS)
# Whose floor has its gradients where a plan has them, where that had turns; of others "floor".
FLOOR_OF = {"planned": "planned_floor"}
# Bytes of parameters: 0.35 to 1 MiB.
DIVISORS = {"alexnet": 16, "vgg16": 32, "lstm": 8, "gru": 8, "fcn5": 32, "inception_v3": 16}
# A rank's, by the divisor: an emulated core does some 20 million additions and products a second.
BATCHES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "alexnet": lambda _: (2, 3, 64, 64),
    "vgg16": lambda _: (2, 3, 32, 32),
    "lstm": lambda divisor: (2, 4, 1024 // divisor),
    "gru": lambda divisor: (2, 4, 1024 // divisor),
    "inception_v3": lambda _: (2, 3, 75, 75),
}
# Steps before those that are timed: until a plan's buckets are decided on for good, until gradients
# of DDP are born in their buckets, and of the others until DDP has made its buckets anew.
WARM_STEPS = {"planned": models.WARM_STEPS, "adopted": 6}
OTHERS_WARM_STEPS = 3
WITHOUT_ONEDNN = ("lstm", "gru")
UNRATED = "its own rate beside UCX's was not measured here"
IS_IN_RIG = "RIG_HOST" in os.environ
RANK = int(os.environ["RIG_HOST"]) if IS_IN_RIG else 0
# Host 0 listens for ranks, host 1 for workers; nobody does where plans are made.
STORE_HOST = os.environ["RIG_PEER_ADDR" if RANK else "RIG_ADDR"] if IS_IN_RIG else ""
SERVER_HOST = os.environ["RIG_ADDR" if RANK else "RIG_PEER_ADDR"] if IS_IN_RIG else ""


def train(job: Job, port: int) -> None:
    """One rank of one contestant; leaves its figures where both hosts see them."""
    kind = TRAINERS[job.contestant]
    dist.init_process_group(
        kind.backend,
        init_method=f"tcp://{STORE_HOST}:{port}",
        rank=RANK,
        world_size=job.ranks,
        timeout=timedelta(seconds=LIMIT_S),
    )
    trainer = kind(job, RANK)
    warm_steps = WARM_STEPS.get(job.contestant, OTHERS_WARM_STEPS)
    for number in range(warm_steps):
        trainer.step(number)
    bits = model_figures.bits_of(trainer.model)
    took_ns = []
    dist.barrier()
    busy_s = rig.busy_s()
    for number in range(warm_steps, warm_steps + job.steps):
        began_ns = time.perf_counter_ns()
        trainer.step(number)
        took_ns.append(time.perf_counter_ns() - began_ns)
    dist.barrier()
    busy_s = rig.busy_s() - busy_s
    trainer.close()
    dist.destroy_process_group()
    _leave(job.folder / f"rank{RANK}", {"bits": bits, "took_ns": took_ns, "busy_s": busy_s})


@dataclass(frozen=True, slots=True)
class Turn:
    """What a contestant's steps took, the slower rank's each, and both hosts' CPU time for one."""

    raw_ns: list[int]
    machines_cpu_s: float


def turn(job: Job, port: int) -> Turn:
    """Let one contestant train on both hosts."""
    job.folder.mkdir(exist_ok=True)
    chosen = {"RDMATENSOR_ADOPT": "1", **TRAINERS[job.contestant].environment}
    works = [functools.partial(train, job, port)]
    if RANK == 1 and TRAINERS[job.contestant].server is not None:
        works.append(functools.partial(models.serve, job))
    pids = [model_groups.fork(work, chosen, LIMIT_S) for work in works]
    model_groups.await_all(pids, job.contestant)
    found = [
        json.loads(await_file(job.folder / f"rank{rank}", LIMIT_S)) for rank in range(job.ranks)
    ]
    if job.contestant not in FLOORS and len({one["bits"] for one in found}) != 1:
        raise RuntimeError(f"{job.contestant}: the ranks have other parameters")
    raw_ns = [max(of) for of in zip(*(one["took_ns"] for one in found), strict=True)]
    return Turn(raw_ns, sum(one["busy_s"] for one in found) / job.steps)


def _leave(path: Path, what: Record) -> None:
    """Write a file that the other host finds whole or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(what), encoding="utf-8")
    draft.rename(path)


def await_file(path: Path, limit_s: float) -> str:
    """Return a file's text once it is there."""
    end_s = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"the other host leaves no {path.name}")
        time.sleep(0.05)
    return path.read_text(encoding="utf-8")


def rows_of(found: Mapping[str, list[Turn]], about: Record) -> list[Record]:
    """Return a row for each contestant that had a turn, with its samples alone."""
    return [
        {
            **about,
            "contestant": CONTESTANTS[name],
            "machines_cpu_s": [one.machines_cpu_s for one in of],
            "raw_ns": [one.raw_ns for one in of],
        }
        for name, of in found.items()
        if of
    ]


def report(found: dict[str, list[Turn]], about: Record) -> list[Record]:
    """Print a model's table; return its rows."""
    median_ns = {
        name: statistics.median(ns for one in of for ns in one.raw_ns) for name, of in found.items()
    }
    mib = int(str(about["parameter_bytes"])) / (1 << 20)
    print(
        f"{about['model']}, widths divided by {about['divisor']}, {mib:.1f} MiB of parameters,"
        f" batch {about['batch']}; medians"
    )
    rows: list[Record] = []
    for (name, of), row in zip(found.items(), rows_of(found, about), strict=True):
        floor = FLOOR_OF.get(name, "floor")
        exposed_ns = median_ns[name] - median_ns[floor if floor in median_ns else "floor"]
        cpu_s = statistics.median(one.machines_cpu_s for one in of)
        share, times = exposed_ns / median_ns[name], median_ns[name] / median_ns["planned"]
        print(
            f"{CONTESTANTS[name]:<24} {median_ns[name] / 1e9:8.3f} s a step  {share:6.1%} exposed"
            f"  {cpu_s:7.2f} CPU s  {times:5.2f} times planned"
        )
        figures = {"median_ns": median_ns[name], "exposed_ns": exposed_ns, "share": share}
        rows.append({**row, **figures})
    for line in verdicts(rows):
        print(line)
    sys.stdout.flush()
    return rows


def verdicts(rows: Sequence[Record]) -> list[str]:
    """Say of each target whether it is met, and where not, how much of the step is compute."""
    by_name = {str(row["contestant"]): row for row in rows}
    planned = by_name[CONTESTANTS["planned"]]
    return [
        _verdict(planned, by_name[rival], target)
        for target in TARGETS
        for rival in target.rivals
        if rival in by_name
    ]


def _verdict(planned: Record, rival: Record, target: Target) -> str:
    head = f"    {_about(target, str(rival['contestant']))}, wanted {target.words}: "
    tail = f"; {UNRATED}" if rival["contestant"] == CONTESTANTS["variant"] else ""
    figure = figure_of(planned, rival, target)
    if figure is None:
        return head + "undecided, one of them exposes nothing that is more than noise" + tail
    if target.holds(figure):
        return head + f"{figure:.2f}, yes" + tail
    compute = min(1.0, 1 - float(str(planned["share"])))
    return head + f"{figure:.2f}, NO; compute is {compute:.0%} of the planned step" + tail


def _about(target: Target, rival: str) -> str:
    what = "its step over ours" if target.of == "step" else "our exposed time over its"
    return f"{rival}, {what}"


def shares(rows: Sequence[Record]) -> list[str]:
    """Say of each target in how many of the models it held, and in how many it should."""
    planned = {row["model"]: row for row in rows if row["contestant"] == CONTESTANTS["planned"]}
    lines = []
    for target in TARGETS:
        for rival in target.rivals:
            figures = [
                figure_of(planned[row["model"]], row, target)
                for row in rows
                if row["contestant"] == rival
            ]
            judged = [figure for figure in figures if figure is not None]
            if judged:
                held = sum(map(target.holds, judged))
                wanted = f"{target.share * len(MODELS):.0f} of {len(MODELS)}"
                lines.append(
                    f"{_about(target, rival)} {target.words}: held in {held} of {len(judged)},"
                    f" wanted {wanted}"
                )
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="8mbit")
    parser.add_argument("--models", choices=MODELS, nargs="+", default=["fcn5"])
    parser.add_argument("--divisor", type=int, help="of all widths; else each model's own")
    parser.add_argument("--steps", type=int, default=4, help="timed, of a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", choices=TURNS, nargs="+", default=TURNS)
    parser.add_argument("--out", type=Path, default=Path("rdma_models.json"), help="in RIG_OUT")
    parser.add_argument("--plans", type=Path, help="where --make-plans left them")
    parser.add_argument("--make-plans", type=Path, metavar="DIR", help="only that, outside the rig")
    chosen = parser.parse_args()
    if not IS_IN_RIG and chosen.make_plans is None:
        parser.error("trains in the rig only: bash ci/rig/run.sh --hosts 2")
    if not {"planned", "floor"} <= {*chosen.turns}:
        parser.error("--turns: planned and floor are what the others stand beside")
    return chosen


def prepare(name: str) -> bool:
    """Set the model's batch, and oneDNN on or off, for this process and all that it forks.

    Returns whether oneDNN is on.
    """
    if name in BATCHES:
        MODELS[name] = replace(MODELS[name], shape=BATCHES[name])
    has_onednn = name not in WITHOUT_ONEDNN
    torch.backends.mkldnn.set_flags(has_onednn)  # type: ignore[no-untyped-call]
    return has_onednn


def plan_in(folder: Path, name: str, divisor: int) -> Path:
    """Return where a plan lies that was made before."""
    return folder / f"{name}-{divisor}.json"


def job_of(chosen: argparse.Namespace, name: str, plan: Path, folder: Path) -> Job:
    """Return what the first contestant does."""
    return Job(
        contestant="planned",
        model=name,
        divisor=chosen.divisor or DIVISORS[name],
        ranks=2,
        steps=chosen.steps,
        plan=plan,
        folder=folder,
        patience_s=LIMIT_S,
        server_host=SERVER_HOST,
    )


def make_plans(chosen: argparse.Namespace) -> None:
    """Make the plan of each model, as a run in the rig would."""
    chosen.make_plans.mkdir(parents=True, exist_ok=True)
    for name in chosen.models:
        prepare(name)
        plan = plan_in(chosen.make_plans, name, chosen.divisor or DIVISORS[name])
        models.make_plan(job_of(chosen, name, plan, chosen.make_plans))


def measure(
    chosen: argparse.Namespace,
    name: str,
    folder: Path,
    ports: Iterator[int],
    keep: Callable[[list[Record]], None],
) -> list[Record]:
    """Let all have a turn in each round with one model; return its rows, which keep() has earlier.

    After each turn it has those of all turns so far.
    """
    divisor = chosen.divisor or DIVISORS[name]
    has_onednn = prepare(name)
    about = {**models.about(name, divisor, 2), "onednn": has_onednn}
    with tempfile.TemporaryDirectory(prefix="rdt-rdma-models-") as mine:
        made = None if chosen.plans is None else plan_in(chosen.plans, name, divisor)
        first = job_of(chosen, name, made or Path(mine) / "plan.json", folder)
        if made is None:
            plans = [model_groups.fork(lambda: models.make_plan(first), {}, PLAN_LIMIT_S)]
            model_groups.await_all(plans, "the plan")
        _leave(folder / f"{name}-planned{RANK}", {})
        await_file(folder / f"{name}-planned{1 - RANK}", PLAN_LIMIT_S)

        def act(contestant: str) -> Turn:
            port = next(ports)
            job = replace(first, contestant=contestant, folder=folder / f"{port}-{contestant}")
            return turn(job, port)

        acts = {who: functools.partial(act, who) for who in chosen.turns}
        found = rdma.take_turns(
            acts, chosen.rounds, after=lambda turns: keep(rows_of(turns, about))
        )
    return report(found, about) if RANK == 0 else []


def main() -> int:
    """Train each model in turn; 0 if all trained."""
    chosen = _options()
    if chosen.make_plans is not None:
        make_plans(chosen)
        return 0
    os.environ["RDMATENSOR_TRANSPORT"] = "verbs"
    os.environ["RDMATENSOR_ADDR"] = os.environ["RIG_ADDR"]
    os.environ["RDMATENSOR_VERBS_TIMEOUT"] = "20"  # rxe's queue on a slow link is long
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["RIG_IFNAMES"].split()[0]
    folder = rig.common_folder(MEETING_PORT)
    kept = rig.Kept(folder)
    subprocess.run(["rig-shape", "--rate", chosen.rate], check=True, timeout=LIMIT_S)
    if RANK == 0:
        print(f"two hosts, {os.environ['RIG_MEANS']}, {chosen.rate}", flush=True)
    ports = itertools.count(FIRST_PORT)
    options = {"rate": chosen.rate, "steps": chosen.steps, "rounds": chosen.rounds}
    rows: list[Record] = []

    def keep(of_model: list[Record]) -> None:
        kept.so_far(chosen.out, [*rows, *of_model], **options)

    for name in chosen.models:
        rows += measure(chosen, name, folder, ports, keep)
        keep([])
    for line in shares(rows):
        print(line)
    kept.finish(chosen.out, rows, **options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
