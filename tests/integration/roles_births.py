"""Gradients of DistributedDataParallel that are allocated in their buckets, seen from a rank."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import threading
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from births_cases import CASES as PLAIN
from births_cases import STEPS, WIDTH, Case, Moves, Run, loss_of, mlp, plain
from births_sums import SUMS
from births_surprises import SURPRISES, Fails, Square, Swapped, failing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.distributed
import rdmatensor.torch
from rdmatensor._backend.extension import load_extension
from rdmatensor._torch.ddp import gradients as ddp_gradients
from rdmatensor.context import default_context

TIMEOUT = timedelta(seconds=60)
CASES = {**PLAIN, **SURPRISES, **SUMS}


@contextlib.contextmanager
def running(case: Case, group: dist.ProcessGroup | None, rank: int) -> Iterator[Run]:
    torch.manual_seed(7)
    module = DistributedDataParallel(
        case.model(), process_group=group, gradient_as_bucket_view=True, **case.modes
    )
    if case.hook is not None:
        module.register_comm_hook(group, case.hook)
    yield Run(module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9), rank)


def train(rank: int, world: int, cases: list[str]) -> dict[str, Any]:
    """Train in each way over both backends; return the losses, digests, and who was born where."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for name in cases:
        for backend, group in (("ours", None), ("gloo", gloo)):
            with running(CASES[name], group, rank) as run:
                for step in range(STEPS):
                    run.run(CASES[name].step, step, is_witnessed=CASES[name].is_witnessed)
                found.setdefault(name, {})[backend] = {
                    "losses": run.losses,
                    "digest": run.digest(),
                    "born": run.born,
                }
                if group is None:
                    found[name]["told"] = told()
                    found[name]["outside"] = moved_by_torch()
            del run
            gc.collect()  # before the groups: roles_adopt.buckets()
    dist.destroy_process_group()
    return found


def told() -> Any:
    """What describe() says of the one module that lives."""
    born: Any = rdmatensor.distributed.describe()["gradients"]
    assert len(born) <= 1
    assert not born or f"in place {born[0]['in_place']}" in rdmatensor.distributed.describe_text(
        verbose=True
    ).replace("in place: ", "in place ")
    return born[0] if born else None


def moved_by_torch() -> list[str]:
    entries: Any = rdmatensor.distributed.describe()["not_adopted"]
    return [name for e in entries if "until torch has moved" in e["what"] for name in e["names"]]


def adversaries(rank: int, world: int) -> dict[str, Any]:
    """Two modules in turn, one of them also between the other and its loss."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for backend, group in (("ours", None), ("gloo", gloo)):
        case = Case()
        with running(case, group, rank) as judge, running(case, group, rank) as maker:
            last = nn.Linear(8, WIDTH)

            def judged(judge: Run, step: int, last: nn.Module = last, maker: Run = maker) -> None:
                judge.optimizer.zero_grad()
                made = last(maker.module(judge.x(step))).detach()
                loss = loss_of(judge.module(judge.x(step + 9)) - judge.module(made))
                loss.backward()  # type: ignore[no-untyped-call]

            def made(maker: Run, step: int, last: nn.Module = last, judge: Run = judge) -> None:
                maker.optimizer.zero_grad()
                judge.optimizer.zero_grad()
                loss = loss_of(judge.module(last(maker.module(judge.x(step)))))
                loss.backward()  # type: ignore[no-untyped-call]
                judge.losses.append(float(loss.detach()))

            for step in range(STEPS):
                judge.run(judged, step)
                maker.run(made, step)
                judge.optimizer.step()
            found[backend] = [judge.losses, judge.digest(), maker.digest()]
            if group is None:
                found["born"] = [judge.born, maker.born]
        del judge, maker, judged, made
        gc.collect()
    dist.destroy_process_group()
    return found


def without(rank: int, world: int) -> dict[str, Any]:
    """A parameter that is frozen between: no place is certain to be written."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for backend, group in (("ours", None), ("gloo", gloo)):
        with running(Case(modes={"find_unused_parameters": True}), group, rank) as run:
            for step in range(STEPS):
                run.module.module[0].weight.requires_grad_(step < 5)
                run.run(plain, step)
            found[backend] = [run.losses, run.digest()]
            if group is None:
                found["told"], found["outside"] = told(), moved_by_torch()
                parameter = run.module.module[0].weight
        del run
        gc.collect()
        if group is None:  # the module that remains, wrapped again
            bare = mlp()
            bare[0].weight.requires_grad_(False)  # type: ignore[union-attr, operator]
            with running(Case(lambda bare=bare: bare), None, rank) as run:
                for step in range(STEPS):
                    run.run(plain, step)
                found["born"] = run.born
            del run, parameter
            gc.collect()
    dist.destroy_process_group()
    return found


def mixed(rank: int, world: int) -> dict[str, Any]:
    """Gradients that are sparse, ignored, or in no bucket of the arena, next to others."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = nn.Sequential(nn.Embedding(50, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH))
    module = DistributedDataParallel(model, gradient_as_bucket_view=True)
    moves = Moves()
    for step in range(STEPS):
        module.zero_grad()
        with moves if step == STEPS - 1 else contextlib.nullcontext():
            module(torch.arange(8) + rank).square().mean().backward()
    grad = model[0].weight.grad
    assert grad is not None
    found = {
        "is_sparse": grad.is_sparse,
        "born": moves.born(model.parameters()),
        "told": told(),
    }
    dist.destroy_process_group()
    return found


def joined(rank: int, world: int) -> dict[str, Any]:
    """Ranks with different numbers of batches."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for backend, group in (("ours", None), ("gloo", gloo)):
        with running(Case(), group, rank) as run:
            with run.module.join():
                for step in range(STEPS if rank == 0 else STEPS - 2):
                    run.run(plain, step)
            found[backend] = [run.losses, run.digest()]
            found.setdefault("born", run.born)
        del run
        gc.collect()
    dist.destroy_process_group()
    return found


def ends(rank: int, world: int) -> dict[str, Any]:
    """A module that outlives its group."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    context = default_context()
    with running(Case(), None, rank) as run:
        parameter = next(run.module.parameters())
        for step in range(STEPS):
            run.run(plain, step)
    dist.barrier()
    dist.destroy_process_group()
    found = {"born": run.born}
    grad = parameter.grad
    assert grad is not None
    before = grad.clone()
    run.optimizer.step()
    known = weakref.ref(run.module)
    del run, parameter
    gc.collect()
    found["is_gone"] = known() is None
    found["is_kept"] = torch.equal(grad, before)  # in memory that is its own
    c10d = rdmatensor.distributed.load_extension()
    found["is_used"] = c10d.is_context_in_use(context._c_addr)
    del grad
    gc.collect()
    found["is_used_then"] = c10d.is_context_in_use(context._c_addr)
    return found


def small(rank: int, world: int) -> dict[str, Any]:
    """Gradients that are too small, and ones that are added to: nothing is looked at."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    many = Case(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(40)), nn.Linear(8, WIDTH)))

    def tiny(run: Run, step: int) -> None:
        run.optimizer.zero_grad()
        loss_of(run.module(run.x(step)[:, :8])).backward()  # type: ignore[no-untyped-call]

    def added(run: Run, step: int) -> None:
        run.optimizer.zero_grad(set_to_none=False)
        run.backward(step)
        assert not load_extension().is_traced()

    found = {}
    for name, case, step in (("small", many, tiny), ("added", Case(), added)):
        with running(case, None, rank) as run:
            for number in range(STEPS):
                run.run(step, number)
            found[name] = told()
        del run
        gc.collect()
    dist.destroy_process_group()
    return found


def batched(rank: int, world: int) -> dict[str, Any]:
    """A reducer that moves gradients when all of a bucket have come, where torch has one."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    modes = {"batched_grad_copy": True}
    if not set(modes) <= set(inspect.signature(DistributedDataParallel).parameters):
        return {}
    with running(Case(modes=modes), None, rank) as run:
        for step in range(STEPS):
            run.run(plain, step)
        found = {"told": told()}
    dist.destroy_process_group()
    return found


def asked(rank: int, world: int) -> dict[str, Any]:
    """Another thread asks what was born all the while."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    is_over = threading.Event()
    times = 0

    def ask() -> None:
        nonlocal times
        while not is_over.is_set():
            ddp_gradients.told()
            times += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    for is_anew in [False, True] * 10:
        with running(Case(), None, rank) as run:
            for step in range(STEPS):
                run.optimizer.zero_grad(set_to_none=is_anew)
                loss = loss_of(run.module(run.x(step)))
                run.kept = [p.grad for p in run.module.parameters() if p.grad is not None]
                loss.backward()  # type: ignore[no-untyped-call]
        del run
    is_over.set()
    thread.join()
    dist.destroy_process_group()
    return {"times": times}


def left(rank: int, world: int) -> dict[str, Any]:
    """A pass that raises, after which nobody runs the module again."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    c10d = load_extension()
    found = {}
    with running(Case(failing), None, rank) as run:
        for step in range(STEPS):
            run.run(plain, step)
        run.optimizer.zero_grad()
        Fails.is_failing = True
        with contextlib.suppress(ArithmeticError):
            run.backward(STEPS)
        Fails.is_failing = False
        alone = mlp()  # another pass on this thread, of which nothing is ours
        loss_of(alone(run.x(0))).backward()  # type: ignore[no-untyped-call]
        found["told"] = told()
    found["before"] = c10d.is_traced()
    dist.barrier()
    dist.destroy_process_group()
    del run
    gc.collect()
    found["after"] = c10d.is_traced()
    return found


def held(rank: int, world: int) -> dict[str, Any]:
    """Another allocation comes while the program has a gradient of the same bucket, by address."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found = {}
    with running(Case(Square), None, rank) as run:
        for step in range(STEPS):
            run.run(plain, step)
        last = run.module.module.last

        def look(_module: nn.Module, came: Any, _sent: Any) -> None:
            assert last.bias.grad is not None
            run.kept.append(torch.from_numpy(last.bias.grad.numpy()))

        handle = last.register_full_backward_hook(look)
        Swapped.is_swapped = True
        try:
            run.run(plain, STEPS)
        except RuntimeError as error:
            found["error"] = str(error)
        Swapped.is_swapped = False
        handle.remove()
        found["told"] = told()
    return found


def forked(rank: int, world: int) -> dict[str, Any]:
    """A child of a rank runs the module, too."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    with running(Case(), None, rank) as run:
        for step in range(STEPS):
            run.run(plain, step)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                run.optimizer.zero_grad()
                loss_of(run.module.module(run.x(0))).backward()  # type: ignore[no-untyped-call]
                status = 0 if all(p.grad is not None for p in run.module.parameters()) else 2
            os._exit(status)
        _, status = os.waitpid(child, 0)
        run.run(plain, STEPS + 1)
        found = {"status": status, "born": run.born, "told": told()}
    dist.destroy_process_group()
    return found


def dropped(_rank: int, _world: int) -> bool:
    """Places that are dropped while a pass is traced: this thread's allocations still come to them.

    As after a backward pass that raised. The same where another thread ends the trace.
    """
    c10d = load_extension()
    memory = rdmatensor.torch.empty(64, dtype=torch.uint8)
    places = c10d.PlannedPlaces(memory, [(0, 64)])
    places.begin([(0, 0)])
    inside = torch.empty(16)
    was_served = inside.data_ptr() == memory.data_ptr()
    ender = threading.Thread(target=places.end)
    ender.start()
    ender.join()
    del places, inside
    gc.collect()
    kept = [torch.ones(size) for size in range(1, 2000)]
    return was_served and all(bool(tensor.all()) for tensor in kept)
