"""What a backward pass that raised leaves on a thread, seen from a rank."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from births_cases import STEPS, Case, Run, plain
from births_surprises import Fails, failing
from roles_births import TIMEOUT, running, told

import rdmatensor.torch
from rdmatensor._backend.extension import load_extension
from rdmatensor.context import default_context


def left_on_a_thread(rank: int, world: int, *, is_ending: bool) -> dict[str, Any]:
    """A pass that raises on another thread, which ends, or goes on; the module goes on this one.

    So do places as a planned model has them.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    c10d, context = load_extension(), default_context()
    runs: list[Run] = []
    places: list[Any] = []
    has_raised, is_gone, has_allocated, may_end = (threading.Event() for _ in range(4))

    def work() -> None:
        _raise_in_a_pass(runs[0])
        places.append(_traced_places())
        has_raised.set()
        if not is_ending:
            is_gone.wait()
            torch.empty(1)
            has_allocated.set()
            may_end.wait()

    with running(Case(failing), None, rank) as run:
        runs.append(run)
    del run
    thread = threading.Thread(target=work)
    thread.start()
    has_raised.wait()
    found = {"told": told(), "before": c10d.GradientPlacer.living()}
    dist.barrier()
    dist.destroy_process_group()
    if is_ending:
        thread.join()
    else:
        places[0].end()
    runs.clear()
    places.clear()
    gc.collect()
    is_gone.set()
    if not is_ending:
        has_allocated.wait()
    ends_at = time.monotonic() + 10.0  # join() may return before the thread's own memory is freed
    while c10d.is_context_in_use(context._c_addr) and time.monotonic() < ends_at:
        time.sleep(0.01)
    found["after"] = c10d.GradientPlacer.living()
    found["is_used"] = c10d.is_context_in_use(context._c_addr)
    may_end.set()
    thread.join()
    return found


def _raise_in_a_pass(run: Run) -> None:
    for step in range(STEPS):
        run.run(plain, step)
    run.optimizer.zero_grad()
    Fails.is_failing = True
    with contextlib.suppress(ArithmeticError):
        run.backward(STEPS)
    Fails.is_failing = False


def _traced_places() -> Any:
    memory = rdmatensor.torch.empty(4096, dtype=torch.uint8)
    places = load_extension().PlannedPlaces(memory, [(0, 4096)])
    places.begin([])
    return places
