"""A layer whose weight lies in a lender's memory; see test_stream.py."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from roles_budget import refusal, report
from roles_collectives import TIMEOUT
from torch import nn

from rdmatensor import budget, stream
from rdmatensor.errors import PeerError


def streamed(rank: int, world: int) -> dict[str, Any]:
    """A layer's weight in the lender's memory, compared with the resident one."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    with budget.lend("32MiB" if rank == 1 else 0) as lent:
        if rank == 0:
            found, kept = _stream(lent)
        else:
            lent.serve()
    if rank == 0:
        found["refused"] += [refusal(lambda: kept(torch.ones(4))), refusal(kept.weight.fetch)]
    dist.destroy_process_group()
    return found


def two_borrowers(rank: int, world: int) -> list[str]:
    """Each of two ranks would step a weight of its own: it is refused."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = nn.Sequential(nn.Linear(4, 4))
    with budget.lend("1MiB", borrow=True) as lent:
        said = [
            refusal(lambda: stream.replace(model, "0", lent)),
            refusal(lambda: stream.Linear.of(model[0], lent)),
        ]
        model[0].weight.requires_grad_(False)
        said.append(str(stream.replace(model, "0", lent)))
    dist.destroy_process_group()
    return said


def lender_dies(rank: int, world: int, call: str) -> str:
    """The lender is killed between two products, or before the update: the next call names it."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    lent = budget.lend("1MiB" if rank == 1 else 0)
    pids: list[Any] = [None] * world
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        time.sleep(60)
    layer = stream.Linear.of(nn.Linear(64, 256), lent, segment_bytes=4096)
    layer(torch.ones(2, 64)).sum().backward()
    os.kill(pids[1], signal.SIGKILL)
    time.sleep(0.2)
    try:
        if call == "update":
            layer.update(lambda weight, gradient: weight.sub_(gradient))
        else:
            layer(torch.ones(2, 64))
    except PeerError as error:
        os._exit(report(error.detail))
    return "no error"


def _stream(lent: budget.Lent) -> tuple[dict[str, Any], stream.Linear]:
    torch.manual_seed(0)
    worst, found = 0.0, {"equal": True}
    for rows, columns, shape, epilogue in (
        (300, 65, (7, 65), "gelu"),
        (64, 32, (2, 3, 32), None),
        (1, 8, (4, 8), "relu"),
        (129, 16, (16,), "tanh"),
    ):
        for has_bias in (True, False):
            layer = nn.Linear(columns, rows, bias=has_bias)
            wide = layer.double()  # the oracle
            x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
            function = epilogue and getattr(nn.functional, epilogue)
            y = layer(x) if function is None else function(layer(x))
            y.square().sum().backward()
            wanted = [y.detach(), x.grad, wide.weight.grad]
            wanted += [wide.bias.grad] if has_bias else []
            weight = wide.weight.detach().clone()
            moved = stream.Linear.of(layer, lent, epilogue=epilogue, segment_bytes=4096)
            z = x.detach().requires_grad_()
            for times in (1, 2):  # gradients accumulate
                if moved.bias is not None and times == 1:
                    moved.bias.grad = None
                made = moved(z)
                made.square().sum().backward()
            again = [made.detach(), z.grad / 2, moved.gradient() / 2]
            again += [moved.bias.grad / 2] if has_bias else []
            worst = max(
                worst, *(float((a - b).abs().max()) for a, b in zip(wanted, again, strict=True))
            )
            if moved.weight.is_mapped:
                found["equal"] = found["equal"] and torch.equal(wanted[0], again[0])
            moved.update(lambda w, g: w.sub_(g, alpha=0.1))
            stepped = moved.weight.fetch()
            worst = max(worst, float((stepped - (weight - 0.2 * wanted[2])).abs().max()))
            with torch.no_grad():
                moved.weight.put(weight)
                worst = max(worst, float((moved(z) - wanted[0]).abs().max()))
    found["worst"] = worst
    found["mapped"] = moved.weight.is_mapped
    found["saved"] = _saved(lent)
    found["refused"] = _stream_refusals(lent)
    return found, stream.Linear.of(nn.Linear(4, 4), lent)


def _saved(lent: budget.Lent) -> list[Any]:
    """A checkpoint of a model has the weight, under the name that it has in a resident layer."""
    plain = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))
    weight = plain[1].weight.detach().clone()
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))
    layer = stream.replace(model, "1", lent)
    model.load_state_dict(plain.state_dict())
    layer.zero_grad()
    saved = model.state_dict()
    words = []
    for wrong in (
        {**saved, "1.weight": torch.ones(1, 2)},
        {key: one for key, one in saved.items() if key != "1.weight"},
    ):
        try:
            model.load_state_dict(wrong)
        except RuntimeError as error:
            words.append(str(error))
    same = torch.equal(layer.weight.fetch(), weight) and torch.equal(saved["1.weight"], weight)
    return [same, list(saved) == list(plain.state_dict()), *words]


def _stream_refusals(lent: budget.Lent) -> list[str]:
    small = stream.place(torch.ones(2, 4), lent)
    tied = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    tied["b"].weight = tied["a"].weight
    calls = [
        lambda: stream.linear(torch.ones(2, 3), small),
        lambda: stream.linear(torch.ones(2, 4).double(), small),
        lambda: stream.linear(torch.ones(2, 4), small, torch.ones(3)),
        lambda: stream.linear(torch.ones(2, 4), small, epilogue="sin"),
        lambda: stream.place(torch.ones(4), lent),
        lambda: stream.place(torch.ones(1 << 12, 1 << 12), lent),
        lambda: small.put(torch.ones(4, 2)),
        lambda: stream.replace(tied, "a", lent),
        lambda: stream.replace(tied, "c", lent),
        lambda: stream.Linear.of(nn.GELU(), lent),  # type: ignore[arg-type]
        lambda: stream.Linear.of(nn.Linear(4, 4), lent).update(lambda *_: None),
    ]
    return [refusal(call) for call in calls]
