"""Training steps of one model, by each peer in turn: groups of forked ranks.

This process imports what all need, and forks the ranks of each group (and the server of the one
that has a server). Ranks have one compute thread each. Every group trains from the same parameters
on the same batch for each rank. Its first steps are not timed, and no other group does anything
meanwhile: after three of them the parameters must have the same bits on all ranks, and be those
that DistributedDataParallel on Gloo arrives at (of more than two ranks, which sum in orders of
their own, after one); the rest is for buckets and plans to settle. Then memory is counted: what all
processes hold more than before they made their models (Pss: pages that ranks share count once).
What is timed are blocks of a few steps, of all groups that there is memory for in turns
(model_groups.py): of each step that of the slowest rank counts, and the processor time of all
processes. The peers are in trainers.py.

With "curve" each group has all its steps at once, and the figures of all are printed, the first
ones too, with their losses: batches have something to learn then, and the losses have to be Gloo's.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # optimizers import it, which takes seconds: once, before the forks
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import graph_analysis
from bench.benchlib import rig
from bench.benchlib.machine import available_bytes
from bench.workers import harness
from bench.workers.model_figures import (
    bits_of,
    check,
    curve_of,
    figures_of,
    found_by,
    held_bytes,
    sampled,
)
from bench.workers.model_groups import (
    Group,
    Line,
    await_all,
    fork,
    forwards_and_back,
    has_room,
)
from bench.workers.paper_models import MODELS
from bench.workers.trainers import TRAINERS, Job, Trainer

VERIFIED_STEPS = 3
WARM_STEPS = 12  # plan.apply() has its final buckets after the tenth
# After how many steps a group of more than two ranks is held against Gloo, whose sums are rounded
# otherwise: inception_v3 amplifies a last bit to half of what its parameters move within three.
ROUNDED_STEPS = 1
OPTIONS = {
    "model": "",
    "divisor": 1,  # of all widths
    "ranks": 2,
    "steps": 4,  # timed of each block, or of a curve
    "blocks": 4,  # of each peer
    "patience": 300.0,  # seconds until it is ready, and of a block
    "kept": "",  # a folder with plans and references, for all
    "turns": [],  # (peer, transport), in this order
    "curve": False,  # losses of all steps
    "rate": 0.01,  # of learning
}


def start(job: Job, rank: int) -> Trainer:
    """Meet the other ranks."""
    kind = TRAINERS[job.name]
    path = str(job.folder / "c10d")
    where = {"init_method": job.store} if job.store else {"store": FileStore(path, job.ranks)}
    dist.init_process_group(
        kind.backend,
        **where,
        rank=rank,
        world_size=job.ranks,
        timeout=timedelta(seconds=job.patience_s),
    )
    return kind(job, rank)


def end(job: Job, rank: int, trainer: Trainer, found: dict[str, Any]) -> None:
    """Leave figures in a file, together with the others."""
    dist.barrier()
    trainer.close()
    rig.leave(job.folder / f"rank{rank}", found)
    dist.destroy_process_group()


def learn(job: Job, rank: int, _line: Line) -> None:
    """One rank that reports when each of its steps ended, and of the losses before them."""
    trainer = start(job, rank)
    losses, at_ns = [], []
    dist.barrier()
    began_ns = time.perf_counter_ns()
    for number in range(job.steps):
        losses.append(float(trainer.step(number)))
        at_ns.append(time.perf_counter_ns() - began_ns)
    found = {"bits": bits_of(trainer.model), "losses": losses, "at_ns": at_ns}
    end(job, rank, trainer, found)


def train(job: Job, rank: int, line: Line) -> None:
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
    warm_steps = job.warm_steps or WARM_STEPS
    for number in range(VERIFIED_STEPS, warm_steps if job.steps else 0):
        trainer.step(number)
    cores = sorted(os.sched_getaffinity(0))
    if job.ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})  # this thread only
    dist.barrier()
    found["held_bytes"] = held_bytes() - empty_bytes  # while all are there, whom it shares with
    server = job.folder / "server"
    if rank == 0 and server.exists() and not job.store:  # else it may be on the other host
        began = json.loads(server.read_text(encoding="utf-8"))
        found["held_bytes"] += held_bytes(began["pid"]) - began["empty_bytes"]
    dist.barrier()
    found["arena_bytes"] = trainer.arena_bytes()
    next_step = warm_steps
    found["blocks"] = []
    for _ in line.blocks():
        trainer.step(next_step)  # of the caches others had the use
        found["blocks"].append(timed(trainer, range(next_step + 1, next_step + 1 + job.steps)))
        next_step += 1 + job.steps
    end(job, rank, trainer, found)


def timed(trainer: Trainer, numbers: range) -> dict[str, Any]:
    """Take steps; return how long each took, the processor time of all, and what was spent on."""
    passes = trainer.passes()
    spent_ns = trainer.spent_ns()
    dist.barrier()
    costs = trainer.costs()
    took_ns = []
    for number in numbers:
        started_ns = time.perf_counter_ns()
        trainer.step(number)
        took_ns.append(time.perf_counter_ns() - started_ns)
    spent_ns = trainer.spent_ns() - spent_ns
    after = {**trainer.costs(), **trainer.passes()}
    parts = {name: after[name] - value for name, value in {**costs, **passes}.items()}
    return {"took_ns": took_ns, "spent_ns": spent_ns, "parts": parts}


def serve(job: Job) -> None:
    """The process next to the ranks that has the parameters, until they end."""
    began = {"pid": os.getpid(), "empty_bytes": held_bytes()}
    (job.folder / "server").write_text(json.dumps(began), encoding="utf-8")
    kind = TRAINERS[job.name]
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


def group_of(job: Job, transport: str, patience_s: float) -> Group:
    """Fork all processes of a peer; patience_s: as in Group."""
    job.folder.mkdir()
    kind = TRAINERS[job.name]
    chosen = {"RDMATENSOR_ADOPT": "1", **kind.environment}
    act = learn if job.has_lessons else train
    return Group(
        f"{job.model}, {job.name}",
        [functools.partial(serve, job)] if kind.server is not None else [],
        [functools.partial(act, job, rank) for rank in range(job.ranks)],
        {**chosen, "RDMATENSOR_TRANSPORT": transport} if transport else chosen,
        patience_s,
    )


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


def make_reference(job: Job, reference: Path, patience_s: float) -> None:
    """Let Gloo's ranks train, whose parameters or losses all others have to have."""
    group = group_of(job, "", patience_s)
    if job.has_lessons:
        group.join()
        curve_of(job, found_by(job), reference)
    else:
        group.await_ready()
        group.end()
        (job.folder / "sampled").rename(reference)


class Standing:
    """A peer whose group is there, or why it is not.

    said: what is printed of it in the end.
    """

    def __init__(self, job: Job, transport: str, reference: Path, patience_s: float) -> None:
        self._job, self._reference, self._patience_s = job, reference, patience_s
        self.said: dict[str, Any] = {"name": job.name, "transport": transport}
        self._group: Group | None = None
        self._far = 0.0
        self._try(lambda: self._begin(transport))

    def _try(self, act: Callable[[], None]) -> None:
        """A peer that fails takes no further part; the others go on."""
        try:
            act()
        except RuntimeError as error:
            traceback.print_exc()
            self.said["failed"] = str(error)
            self.kill()

    def _begin(self, transport: str) -> None:
        self._group = group_of(self._job, transport, self._patience_s)
        if not self._job.has_lessons:
            self._group.await_ready()

    @property
    def is_there(self) -> bool:
        """Whether it takes blocks."""
        return self._group is not None

    def take_block(self) -> None:
        """Let it take a few steps, which are timed."""
        if self._group is not None:
            self._try(self._group.take_block)

    def end(self) -> None:
        """Let it finish, and read what it found."""
        if self._group is not None:
            self._try(self._finish)

    def _finish(self) -> None:
        group, self._group = self._group, None
        assert group is not None
        if self._job.has_lessons:
            group.join()
            self.said |= curve_of(self._job, found_by(self._job), self._reference)
            return
        group.end()
        found = found_by(self._job)
        self.said |= figures_of(self._job, found, check(self._job, found, self._reference))

    def kill(self) -> None:
        """End its processes at once, if there are any."""
        group, self._group = self._group, None
        if group is not None:
            group.kill()


def run_together(
    jobs: list[tuple[Job, str]], blocks: int, reference: Path, patience_s: float
) -> Iterator[dict[str, Any]]:
    """Let all train, as many side by side as there is memory for; yield what is said of each.

    patience_s: as in Group. The field "beside" has how many others had their blocks in turn.
    """
    members: list[Standing] = []
    largest_bytes = 0
    try:
        for place, (job, transport) in enumerate(jobs):
            before_bytes = available_bytes()
            members.append(Standing(job, transport, reference, patience_s))
            largest_bytes = max(largest_bytes, before_bytes - available_bytes())
            is_last = place + 1 == len(jobs)
            if not (is_last or job.has_lessons) and has_room(largest_bytes):
                continue
            for number in range(0 if job.has_lessons else blocks):
                for member in forwards_and_back(members, number):
                    member.take_block()
            standing = sum(member.is_there for member in members)
            for member in members:
                member.end()
                yield {**member.said, "beside": standing - 1}
            members = []
    finally:
        for member in members:
            member.kill()


def main(options: SimpleNamespace) -> None:
    name = f"{options.model}-{options.divisor}-{options.ranks}"
    kind = f"curve-{options.steps}-{options.rate}" if options.curve else "reference"
    kept, turns, patience_s = Path(options.kept), options.turns, options.patience
    plan, reference = kept / f"{name}.json", kept / f"{name}.{kind}"

    def job(peer: str, folder: str, steps: int) -> Job:
        return Job(
            name=peer,
            model=options.model,
            divisor=options.divisor,
            ranks=options.ranks,
            steps=steps,
            plan=plan,
            folder=options.folder / folder,
            # Servers, streams and receivers stand idle while all others have their turns.
            patience_s=patience_s * (1 + len(turns) * (1 + options.blocks)),
            rate=options.rate,
            has_lessons=options.curve,
        )

    harness.emit(**about(options.model, options.divisor, options.ranks))
    if not plan.exists():
        first = job("planned", "plan", 0)
        await_all([fork(lambda: make_plan(first), {}, patience_s)], "the plan")
    if not reference.exists():
        first = job("gloo", "reference", options.steps if options.curve else 0)
        make_reference(first, reference, patience_s)
    jobs = [
        (job(peer, f"{number}", options.steps), transport)
        for number, (peer, transport) in enumerate(turns)
    ]
    # What all processes share must not be copied by Python's collector in the middle of a step.
    gc.collect()
    gc.freeze()
    for said in run_together(jobs, options.blocks, reference, patience_s):
        harness.emit(**said)
