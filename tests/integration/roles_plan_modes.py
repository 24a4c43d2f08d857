"""What happens around training by a plan: frozen layers, checkpoints, torch's profiler."""

from __future__ import annotations

import copy
import gc
import io
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from roles_coalesced import writes_of
from roles_plan import bits_of, loss_of, make, plan_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.plan
import rdmatensor.torch
from graph_analysis import CostModel, DataParallel, TransferPlan, analyze
from rdmatensor._backend.extension import load_extension
from rdmatensor._plan.agree import BoundBucket

TIMEOUT = timedelta(seconds=60)
SETTINGS = {"lr": 0.1, "momentum": 0.9}
THOUSAND = 1000
WAIT_S = 20.0  # for a bucket; it takes milliseconds


def _steps(
    module: Any,
    optimizer: torch.optim.Optimizer,
    batch_of: Callable[[int, int], torch.Tensor],
    numbers: range,
) -> list[float]:
    rank = dist.get_rank()
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        loss = loss_of(module(batch_of(number, rank)))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def alone(_rank: int, world: int) -> dict[str, Any]:
    """One rank, to which nothing has to be sent, and the same model by itself."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, batch_of = make("mlp")
    itself = copy.deepcopy(model)
    plan = analyze(model, (batch_of(0, 0),), strategy=DataParallel(world))
    optimizers = [torch.optim.SGD(one.parameters(), **SETTINGS) for one in (model, itself)]
    planned = rdmatensor.plan.apply(model, plan, optimizers[0])
    losses = _steps(planned, optimizers[0], batch_of, range(8))
    whole = _steps(itself, optimizers[1], batch_of, range(8))
    planned.close()
    dist.destroy_process_group()
    return {"losses": losses, "whole_losses": whole}


def let_go(_rank: int, world: int) -> dict[str, Any]:
    """What apply() returns is let go of, which changes nothing; then the model, without close()."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, batch_of = make("mlp")
    optimizer = torch.optim.SGD(model.parameters(), **SETTINGS)
    memory = weakref.ref(rdmatensor.plan.apply(model, plan_of("mlp", world), optimizer)._memory)
    gc.collect()
    _steps(model, optimizer, batch_of, range(3))
    found = {"bits": bits_of(model), "is_kept": memory() is not None}
    del model, optimizer
    gc.collect()
    found["is_gone"] = memory() is None
    dist.destroy_process_group()
    return found


def frozen(rank: int, world: int) -> dict[str, Any]:
    """The first layer is frozen: it is not in the plan, and stays what it was."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    mine, batch_of = make("cnn")
    first = next(iter(mine.children()))
    for parameter in first.parameters():
        parameter.requires_grad_(False)
    theirs = copy.deepcopy(mine)
    kept = copy.deepcopy(first.state_dict())
    plan = analyze(mine, (batch_of(0, 0),), strategy=DataParallel(world))
    trained = [p for p in mine.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, **SETTINGS)
    planned = rdmatensor.plan.apply(mine, plan, optimizer)
    losses = _steps(planned, optimizer, batch_of, range(5))
    oracle = DistributedDataParallel(theirs, process_group=gloo, gradient_as_bucket_view=True)
    their_optimizer = torch.optim.SGD(
        [p for p in theirs.parameters() if p.requires_grad], **SETTINGS
    )
    found = {
        "losses": losses,
        "gloo_losses": _steps(oracle, their_optimizer, batch_of, range(5)),
        "is_kept": all(
            torch.equal(kept[name], value) for name, value in first.state_dict().items()
        ),
        "has_no_gradient": all(p.grad is None for p in first.parameters()),
        "planned": len(planned._memory.gradients),
        "trained": len(trained),
        "described": planned.describe(),
        "bits": bits_of(mine),
    }
    planned.close()
    del oracle
    gc.collect()
    dist.destroy_process_group()
    return found


def _begin(world: int) -> tuple[nn.Module, rdmatensor.plan.PlannedModel, torch.optim.Optimizer]:
    model = make("lstm")[0]
    optimizer = torch.optim.SGD(model.parameters(), **SETTINGS)
    plan = plan_of("lstm", world)
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    return model, planned, optimizer


def _saved_after_three_steps(
    world: int, batch_of: Callable[[int, int], torch.Tensor]
) -> tuple[list[float], bytes]:
    _, planned, optimizer = _begin(world)
    losses = _steps(planned, optimizer, batch_of, range(3))
    file = io.BytesIO()
    torch.save({"model": planned.state_dict(), "optimizer": optimizer.state_dict()}, file)
    planned.close()
    return losses, file.getvalue()


def resumed(_rank: int, world: int) -> dict[str, Any]:
    """Three steps, a checkpoint into another model with a plan of its own, and two more.

    Beside five steps in one go by a plan, and with DistributedDataParallel on Gloo.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    batch_of = make("lstm")[1]
    whole, planned, optimizer = _begin(world)
    whole_losses = _steps(planned, optimizer, batch_of, range(5))
    planned.close()

    losses, file = _saved_after_three_steps(world, batch_of)
    again, planned, optimizer = _begin(world)
    saved = torch.load(io.BytesIO(file), weights_only=True)
    planned.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    losses += _steps(planned, optimizer, batch_of, range(3, 5))
    planned.close()

    theirs = make("lstm")[0]
    oracle = DistributedDataParallel(theirs, process_group=gloo, gradient_as_bucket_view=True)
    their_optimizer = torch.optim.SGD(theirs.parameters(), **SETTINGS)
    found = {
        "losses": losses,
        "whole_losses": whole_losses,
        "gloo_losses": _steps(oracle, their_optimizer, batch_of, range(5)),
        "is_same": bits_of(whole) == bits_of(again),
        "bits": bits_of(again),
    }
    del oracle
    gc.collect()
    dist.destroy_process_group()
    return found


def _profiled(
    module: Any, batch: torch.Tensor, parameters: list[nn.Parameter]
) -> tuple[Counter[str], int]:
    """Count what torch.profiler saw of one forward and backward pass, and bytes given to copies."""
    for parameter in parameters:
        parameter.grad = None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        loss_of(module(batch)).backward()
    events = [event for event in profile.events() or [] if event.name == "aten::copy_"]
    sizes = [
        int(torch.Size(event.input_shapes[0]).numel()) if event.input_shapes else 0
        for event in events
    ]
    return Counter(event.name for event in profile.events() or []), sum(sizes)


def profiled(rank: int, world: int, model: str) -> dict[str, Any]:
    """One step by a plan, and one without any communication, as torch.profiler sees them."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    mine, batch_of = make(model)
    alone = copy.deepcopy(mine)
    optimizer = torch.optim.SGD(mine.parameters(), **SETTINGS)
    planned = rdmatensor.plan.apply(mine, plan_of(model, world), optimizer)
    _steps(planned, optimizer, batch_of, range(3))
    places = {gradient.address for gradient in planned._memory.gradients.values()}
    batch = batch_of(3, rank)
    # The profiler itself is warmed up, by a step that nobody counts.
    _profiled(planned, batch, list(mine.parameters()))
    _profiled(alone, batch, list(alone.parameters()))
    seen, copied = _profiled(planned, batch, list(mine.parameters()))
    in_place = {p.grad.data_ptr() for p in mine.parameters() if p.grad is not None} == places
    seen_alone, copied_alone = _profiled(alone, batch, list(alone.parameters()))
    forgotten = _first_step_by_a_plan(model, world, batch)
    planned.close()
    dist.destroy_process_group()
    return {
        "copies": seen["aten::copy_"],
        "copies_alone": seen_alone["aten::copy_"],
        "copied": copied,
        "copied_alone": copied_alone,
        "all_reduces": sum(n for name, n in seen.items() if "all_reduce" in name),
        "buckets": planned.describe()["buckets"],
        "gradients": len(places),
        "is_in_place": in_place,
        "first_copies": forgotten,
    }


def _first_step_by_a_plan(model: str, world: int, batch: torch.Tensor) -> int:
    """Count the copies of a step that has not learnt yet: one of each gradient more."""
    fresh = make(model)[0]
    optimizer = torch.optim.SGD(fresh.parameters(), **SETTINGS)
    planned = rdmatensor.plan.apply(fresh, plan_of(model, world), optimizer)
    seen, _ = _profiled(planned, batch, list(fresh.parameters()))
    planned.close()
    return seen["aten::copy_"]


def _world() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def thousand(rank: int, world: int) -> dict[str, Any]:
    """A thousand parameters of 256 bytes; rank 0's plan, which takes seconds, is everybody's."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(3)
    model = nn.ParameterList([nn.Parameter(torch.randn(64)) for _ in range(THOUSAND)])

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat(list(self.parts)) * x

    whole = Sum()
    plans: list[TransferPlan | None] = [None]
    if rank == 0:
        plans = [analyze(whole, (torch.ones(1),), strategy=DataParallel(world))]
    dist.broadcast_object_list(plans)
    assert plans[0] is not None
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    planned = rdmatensor.plan.apply(whole, plans[0], optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(planned(torch.ones(1))).backward()
        optimizer.step()
    before = writes_of(_world())
    optimizer.zero_grad()
    loss_of(planned(torch.ones(1))).backward()
    found = {
        "buckets": planned.describe()["buckets"],
        "writes": writes_of(_world()) - before,
        "bits": bits_of(whole),
    }
    planned.close()
    dist.destroy_process_group()
    return found


class Delayed(torch.autograd.Function):
    """The identity, whose backward takes as long as a function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wait: Callable[[], None]) -> torch.Tensor:
        """Return the input."""
        ctx.wait = wait
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient, late."""
        ctx.wait()
        return grads[0], None


class Delaying(nn.Module):
    """Two layers, with something to wait for between their backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(256, 256), nn.Linear(256, 256)
        self.wait: Callable[[], None] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.first(x)
        if self.wait is not None:
            hidden = Delayed.apply(hidden, self.wait)  # type: ignore[no-untyped-call]
        out: torch.Tensor = self.last(hidden)
        return out


def overlap(_rank: int, world: int) -> dict[str, Any]:
    """A backward pass that goes on once the first bucket has been summed, or never will be.

    Events: names of gradients that are final, and buckets that begin, in their order.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(5)
    model = Delaying()
    # A message costs nothing, so that each layer has a bucket.
    cost = CostModel(latency_ns=0, bandwidth_bytes_per_s=1_000_000)
    plan = analyze(model, (torch.ones(2, 256),), strategy=DataParallel(world), cost=cost)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    events: list[str] = []
    works: list[Any] = []
    found: dict[str, Any] = {}
    begin = BoundBucket.start

    def start(*args: Any) -> Any:
        events.append("begun")
        works.append(begin(*args))
        return works[-1]

    def wait() -> None:
        deadline_s = time.monotonic() + WAIT_S
        while works and not works[0].is_completed() and time.monotonic() < deadline_s:
            time.sleep(0.001)
        found["is_summed_within"] = bool(works) and works[0].is_completed()

    def note(name: str) -> Callable[[torch.Tensor], None]:
        return lambda _parameter: events.append(name)

    for name, parameter in model.named_parameters():  # these come before those of apply(), by which
        parameter.register_post_accumulate_grad_hook(note(name))  # type: ignore[no-untyped-call]
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    model.wait = wait
    BoundBucket.start = start  # type: ignore[method-assign]
    for _ in range(3):  # the last has learnt where gradients are born
        events.clear()
        works.clear()
        optimizer.zero_grad()
        loss_of(planned(torch.ones(2, 256))).backward()
        found["are_summed_after"] = all(work.is_completed() for work in works)
        optimizer.step()
    BoundBucket.start = begin  # type: ignore[method-assign]
    found["events"] = events
    planned.close()
    dist.destroy_process_group()
    return found


def crossed(_rank: int, _world: int) -> bool:
    """Two passes of one backward, of which the one that began first ends first.

    Whoever has ended hears no more of this thread, even if another one begins with it.
    """
    c10d = load_extension()
    memory = rdmatensor.torch.empty(64, dtype=torch.uint8)
    first, second = (c10d.PlannedPlaces(memory, [(0, 64)]) for _ in range(2))
    first.begin([])
    second.begin([(0, 0)])
    inside = torch.empty(16)
    was_served = inside.data_ptr() == memory.data_ptr()
    del inside
    first.end()
    second.end()
    begun, looked = threading.Event(), threading.Event()

    def elsewhere() -> None:
        first.begin([(0, 0)])
        begun.set()
        looked.wait(60.0)
        first.end()

    other = threading.Thread(target=elsewhere)
    other.start()
    assert begun.wait(60.0)
    mine = torch.empty(16)
    is_served = mine.data_ptr() == memory.data_ptr()
    looked.set()
    other.join()
    return was_served and not is_served
