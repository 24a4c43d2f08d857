"""Training steps on two hosts of the rig, over a slow link: `bench models` where RIG_HOSTS is 2.

A rank runs on each host; the link is limited by `tc tbf`, so that it and not the emulation is the
bound. All take turns in each round, each in fresh processes; of a step that of the slower rank
counts, and the processor time of both machines, since what the kernel does for packets is charged
to no process. The server stands on host 1: its own worker reaches it without the link.

Widths are divided (DIVISORS) and batches small (BATCHES), so that parameters have at most a MiB and
two ranks and a server fit into 3072 MiB: the share of compute is then not that of the whole model.
A plan takes an emulated core minutes, and may be made on the host before, of the same graph:

    python -m bench.suite.rig_models DIR [MODEL...]

oneDNN's LSTM and GRU end in a segmentation fault where QEMU emulates the processor (torch 2.13):
there all train torch's own.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.benchlib import rig
from bench.benchlib.record import Record
from bench.suite import models, rounds, samples
from bench.suite.settings import Settings

if TYPE_CHECKING:
    from bench.workers.trainers import Job

RATE = "8mbit"
_PLAN_LIMIT_S = 900.0  # of one emulated core
_FIRST_PORT, _MEETING_PORT = 18700, 18699
DIVISORS = {"alexnet": 16, "vgg16": 32, "lstm": 8, "gru": 8, "fcn5": 32, "inception_v3": 16}
# Of a rank, by the divisor: an emulated core does some 20 million additions and products a second.
BATCHES = {
    "alexnet": lambda _: (2, 3, 64, 64),
    "vgg16": lambda _: (2, 3, 32, 32),
    "lstm": lambda divisor: (2, 4, 1024 // divisor),
    "gru": lambda divisor: (2, 4, 1024 // divisor),
    "inception_v3": lambda _: (2, 3, 75, 75),
}
# Until a plan's buckets are decided on, until DDP's gradients lie in their buckets, and for the
# others until DDP has made its buckets again.
_WARM_STEPS = {"planned": 12, "planned_floor": 12, "adopted": 6}
_OTHERS_WARM_STEPS = 3
_WITHOUT_ONEDNN = ("lstm", "gru")
_STEPS = 3


def prepare(name: str) -> None:
    """Set the model's batch, and oneDNN on or off, for this process and its children."""
    import torch

    from bench.workers.paper_models import MODELS

    if name in BATCHES:
        MODELS[name] = replace(MODELS[name], shape=BATCHES[name])
    torch.backends.mkldnn.set_flags(name not in _WITHOUT_ONEDNN)  # type: ignore[no-untyped-call]


def job_of(name: str, plans: Path, folder: Path) -> Job:
    """Return what a rank does; plans: the folder of the plan."""
    from bench.workers.trainers import Job

    host = os.environ.get("RIG_ADDR" if rig.is_here() and rig.rank() else "RIG_PEER_ADDR", "")
    return Job(
        name="planned",
        model=name,
        divisor=DIVISORS[name],
        ranks=2,
        steps=_STEPS,
        plan=plans / f"{name}-{DIVISORS[name]}.json",
        folder=folder,
        patience_s=rig.PATIENCE_S,
        server_host=host,
    )


def measure(settings: Settings, present: set[str], progress: rounds.Progress) -> list[Record]:
    """Train each model in turn on both hosts; return host 0's records, none on host 1.

    present: the peers that are there.
    """
    folder = rig.common_folder(_MEETING_PORT)
    os.environ |= {
        "RDMATENSOR_TRANSPORT": "verbs",
        "RDMATENSOR_ADDR": os.environ["RIG_ADDR"],
        "RDMATENSOR_VERBS_TIMEOUT": rig.ACK_TIMEOUT,
        "GLOO_SOCKET_IFNAME": os.environ["RIG_IFNAMES"].split()[0],
    }
    rig.shape(settings.link_rate or RATE)
    ports = itertools.count(_FIRST_PORT)
    peers = [who for who, _ in models.worker_turns(("verbs",), present)]
    records: list[Record] = []
    for name in settings.models or ("fcn5",):
        prepare(name)
        first = job_of(name, settings.plans or folder, folder)
        _await_plan(first, folder)
        turns = [(who, functools.partial(_turn, first, who, ports)) for who in peers]
        # All rounds: both hosts have to agree on their number, so that no clock may decide.
        found, failed = rounds.take(turns, settings.rounds or 3, float("inf"), progress)
        if failed:
            raise RuntimeError(f"a turn failed: {failed[0]['missing']}")
        records += models.with_shares(samples.merge(found)) if rig.rank() == 0 else []
    return records


def _await_plan(job: Job, folder: Path) -> None:
    from bench.workers import model_groups
    from bench.workers import models as worker

    if rig.rank() == 0 and not job.plan.exists():
        pids = [model_groups.fork(lambda: worker.make_plan(job), {}, _PLAN_LIMIT_S)]
        model_groups.await_all(pids, "the plan")
    rig.leave(folder / f"{job.model}-ready{rig.rank()}", {})
    rig.await_file(folder / f"{job.model}-ready{1 - rig.rank()}", _PLAN_LIMIT_S)


def _turn(first: Job, peer: str, ports: Iterator[int]) -> list[Record]:
    """Let one train on both hosts: fresh processes, and one block of steps."""
    from bench.workers import model_figures, model_groups
    from bench.workers import models as worker
    from bench.workers.trainers import TRAINERS

    port = next(ports)
    job = replace(
        first,
        name=peer,
        folder=first.folder / f"{port}-{peer}",
        store=f"tcp://{os.environ['RIG_PEER_ADDR' if rig.rank() else 'RIG_ADDR']}:{port}",
        warm_steps=_WARM_STEPS.get(peer, _OTHERS_WARM_STEPS),
    )
    job.folder.mkdir(exist_ok=True)
    kind = TRAINERS[peer]
    works = [functools.partial(worker.train, job, rig.rank(), model_groups.OneBlock())]
    if rig.rank() == 1 and kind.server is not None:
        works.append(functools.partial(worker.serve, job))
    chosen = {"RDMATENSOR_ADOPT": "1", **kind.environment}
    pids = [model_groups.fork(work, chosen, rig.PATIENCE_S) for work in works]
    model_groups.await_all(pids, peer)
    for rank in range(job.ranks):
        rig.await_file(job.folder / f"rank{rank}")
    found = model_figures.found_by(job)
    same = len({one["bits"] for one in found}) == 1
    if not same and peer not in ("floor", "planned_floor"):
        raise RuntimeError(f"{peer}: the ranks have other parameters")
    printed = model_figures.figures_of(job, found, 0.0)
    del printed["distance"]  # nothing was trained on Gloo to compare with
    printed |= {"name": peer, "beside": 0}
    about = worker.about(job.model, job.divisor, job.ranks)
    return models.records_of(printed, about, "verbs", port)


def main(words: Sequence[str]) -> int:
    """Make plans as a run in the rig would."""
    from bench.workers import models as worker

    plans = Path(words[0])
    plans.mkdir(parents=True, exist_ok=True)
    for name in words[1:] or DIVISORS:
        prepare(name)
        worker.make_plan(job_of(name, plans, plans))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
