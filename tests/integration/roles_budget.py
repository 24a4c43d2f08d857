"""Ranks that share a budget of memory, lend and borrow; see test_budget_ranks.py."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meeting import FOLDER_VARIABLE
from roles_collectives import TIMEOUT
from torch import nn

from rdmatensor import budget, default_context
from rdmatensor._lend.ranks import Ranks
from rdmatensor.budget import peer
from rdmatensor.errors import InvalidArgumentError, PeerError, PlanMismatchError

WIDTH, ROWS = 128, 1024


def net(depth: int = 6, width: int = WIDTH) -> Any:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(depth)
    ]
    return nn.Sequential(*blocks)


def inputs(rank: int, rows: int = ROWS) -> tuple[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return (torch.randn(rows, WIDTH, generator=generator),)


def squares(output: torch.Tensor, *_: object) -> torch.Tensor:
    return output.square().mean()


def gradients(model: Any, given: tuple[torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    squares(model(*given)).backward()
    return [one.grad.clone() for one in model.parameters()]


def agree(rank: int, world: int) -> list[object]:
    """Rank 1 has more rows: its peak counts, and all ranks choose alike."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, given = net(), inputs(rank, ROWS * (2 if rank == 1 else 1))
    momentum = 0.9 if rank == 1 else 0.0
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    whole = budget.fit(model, given, "1GiB", loss_fn=squares, optimizer=sgd)
    alone = budget.fit(
        model,
        given,
        "1GiB",
        loss_fn=squares,
        optimizer=sgd,
        group=dist.new_group([rank], use_local_synchronization=True),
    )
    size = (whole.least_bytes + whole.peak_bytes) // 2
    chosen = budget.fit(model, given, size, loss_fn=squares, optimizer=sgd)
    wanted = gradients(model, given)
    plain = nn.parallel.DistributedDataParallel(model)
    with chosen.apply(model):
        same = all(map(torch.equal, gradients(model, given), wanted))
        summed = gradients(plain, given)
    again = gradients(plain, given)
    dist.destroy_process_group()
    return [
        chosen.fingerprint(),
        sum(one.way == "recompute" for one in chosen.units),
        same and all(map(torch.equal, summed, again)),
        whole.peak_bytes,
        alone.peak_bytes,
    ]


def differing(rank: int, world: int, what: str) -> str:
    """What the last rank does otherwise is named on all ranks."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    is_last = rank == world - 1
    model = net(7 if is_last and what == "model" else 6)
    if is_last and what == "calls":
        model.forward = lambda x: x * model[0][0].weight.sum()
    size = "1GiB" if is_last and what == "budget" else "2GiB"
    tiers: tuple[str, ...] = ("disk",) if is_last and what == "tier" else ("recompute",)
    try:
        budget.fit(model, inputs(rank), size, loss_fn=squares, tiers=tiers)
    except (PlanMismatchError, InvalidArgumentError) as error:
        said = str(error)
    dist.destroy_process_group()
    return said


def swap(rank: int, world: int, tiers: list[str]) -> dict[str, Any]:
    """The last rank lends; the others train with saved tensors in its memory."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    is_lender = rank == world - 1
    found: dict[str, Any] = {}
    with budget.lend("64MiB" if is_lender else 0) as lent:
        if is_lender:
            lent.serve()
        else:
            found = _train_with(lent, rank, tiers)
    dist.destroy_process_group()
    return found


def _train_with(lent: budget.Lent, rank: int, tiers: list[str]) -> dict[str, Any]:
    model, given = net(), inputs(rank)
    whole = budget.fit(model, given, "1GiB", loss_fn=squares, lent=lent, tiers=tiers)
    size = whole.least_bytes
    chosen = budget.fit(model, given, size, loss_fn=squares, lent=lent, tiers=tiers)
    wanted = gradients(model, given)
    context = default_context()
    same = True
    with chosen.apply(model, lent=lent) as applied:
        for _ in range(3):
            same &= all(map(torch.equal, gradients(model, given), wanted))
        before = context.counters()
        same &= all(map(torch.equal, gradients(model, given), wanted))
        after = context.counters()
        model.zero_grad()
        peak = budget.allocated_peak(lambda: squares(model(*given)).backward())
        small = (given[0][: ROWS // 2],)  # the last batch of an epoch
        gradients(model, small)
        outputs = [model(*given) for _ in range(2)]  # two forward passes, then their backward
        sum(squares(one) for one in outputs).backward()
        state = applied.describe()
    return {
        "same": same,
        "ways": sorted({one.way for one in chosen.units}),
        "prints": chosen.fingerprint(),
        "peaks": [whole.peak_bytes, chosen.peak_bytes],
        "state": state,
        "measured": peak + sum(one.nbytes for one in (*model.parameters(), *given)),
        "control": after.control_messages - before.control_messages,
        "registered": after.registrations - before.registrations,
        "notes": chosen.text().splitlines()[-2:],
    }


def unmeasured(rank: int, world: int) -> str:
    """A rank cannot measure its link: all say so, and its place is free again."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    said = ""
    with budget.lend("8MiB" if rank == world - 1 else 0) as lent:
        if rank == world - 1:
            lent.serve()
        else:
            if rank == 0:
                peer.PeerMover.read = lambda *_: 1 // 0  # type: ignore[method-assign]
            try:
                peer.measure(lent, Ranks(lent.group))
            except (ZeroDivisionError, PlanMismatchError) as error:
                said = f"{error}, {lent.borrowed_bytes - lent.free_bytes} B taken"
    dist.destroy_process_group()
    return said


def too_little(rank: int, world: int) -> list[str]:
    """A lender with too little bounds the choice, or the reason says so."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    said: list[str] = []
    model, given = net(), inputs(rank)
    with budget.lend("2MiB" if rank == 1 else 0) as lent:
        if rank == 0:
            whole = budget.fit(model, given, "1GiB", loss_fn=squares, lent=lent, tiers=["peer"])
            chosen = budget.fit(
                model, given, whole.least_bytes, loss_fn=squares, lent=lent, tiers=["peer"]
            )
            said.append(str(sum(sum(one.lent_bytes) for one in chosen.units)))
            said.append(refusal(lambda: budget.fit(
                model, given, whole.least_bytes - 1, loss_fn=squares, lent=lent, tiers=["peer"]
            )))  # fmt: skip
            said.append(
                refusal(lambda: budget.fit(model, given, "1GiB", tiers=["peer"], group=lent.group))
            )
            said.append(refusal(lambda: chosen.apply(model)))
            lent._take(lent.borrowed_bytes, "test")
            said.append(refusal(lambda: chosen.apply(model, lent=lent)))
    said.append(refusal(lambda: budget.lend(0)))
    dist.destroy_process_group()
    return said


def refusal(call: Any) -> str:
    try:
        call()
    except InvalidArgumentError as error:
        return str(error)
    return "nothing was refused"


def lender_dies(rank: int, world: int, when: str) -> str:
    """The lender is killed between or in the passes: the error names it, and a unit."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    lent = budget.lend("64MiB" if rank == 1 else 0)
    pids: list[Any] = [None] * world
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        time.sleep(60)
    model, given = net(), inputs(rank)
    whole = budget.fit(model, given, "1GiB", loss_fn=squares, lent=lent, tiers=["peer"])
    chosen = budget.fit(model, given, whole.least_bytes, loss_fn=squares, lent=lent, tiers=["peer"])
    chosen.apply(model, lent=lent)
    gradients(model, given)
    began = time.monotonic()
    try:
        if when == "forward":
            os.kill(pids[1], signal.SIGKILL)
            time.sleep(0.2)
        loss = squares(model(*given))
        if when == "backward":
            os.kill(pids[1], signal.SIGKILL)
            time.sleep(0.2)
        loss.backward()
    except PeerError as error:
        os._exit(report(f"{error.detail} rank={error.rank} {time.monotonic() - began:.1f} s"))
    return "no error"


def report(words: str) -> int:
    """Leave the result: the group cannot be destroyed with a dead member."""
    out = Path(os.environ[FOLDER_VARIABLE])
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(words), encoding="utf-8")
    return 0
