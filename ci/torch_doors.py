"""What torch 2.14 opens to every backend, tried with this one on two ranks. Usage: torch_doors.py.

Run by ci/torch_next.sh in the environment of that torch; an older one lacks most of it.
"""

from __future__ import annotations

import importlib
import pickle
import tempfile
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

RANKS = 2


def monitored_barrier() -> None:
    """torch asks the group's CPU backend, no longer for Gloo's name."""
    dist.monitored_barrier(timeout=timedelta(seconds=20))


def set_timeout() -> None:
    """The group's time-out becomes the given one."""
    newer: Any = dist  # 2.14's
    newer.set_timeout(timedelta(seconds=17))
    backend: Any = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=17)
    newer.set_timeout(timedelta(seconds=60))


def canonical_names() -> None:
    """The collectives that 2.14 renamed reach those that the backend has."""
    group: Any = dist.distributed_c10d._get_default_group()
    rank = dist.get_rank()
    out, mine = torch.zeros(RANKS * 3), torch.full((3,), float(rank))
    group.all_gather_single(out, mine).wait()
    assert out.tolist() == [0.0] * 3 + [1.0] * 3
    part = torch.zeros(3)
    group.reduce_scatter_single(part, torch.ones(RANKS * 3)).wait()
    assert part.tolist() == [2.0] * 3
    swapped = torch.zeros(RANKS)
    group.all_to_all_single(swapped, torch.full((RANKS,), float(rank)), [], []).wait()
    assert swapped.tolist() == [0.0, 1.0]


def flight_recorder() -> None:
    """torch's flight recorder, through the hooks of the process group."""
    torch_c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    hook = torch_c10d.FlightRecorderHook.attach(dist.distributed_c10d._get_default_group())
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    entries = pickle.loads(torch_c10d._dump_fr_trace())["entries"]
    hook.remove()
    names = [entry["profiling_name"] for entry in entries]
    assert len([name for name in names if "all" in name.lower()]) >= 3, names


def shrink_group() -> None:
    """The last rank leaves, and the other is a group of one."""
    if dist.get_rank() == RANKS - 1:
        return
    dist.shrink_group([RANKS - 1])
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert (dist.get_world_size(), tensor.tolist()) == (RANKS - 1, [1.0] * 4)


DOORS = (monitored_barrier, set_timeout, canonical_names, flight_recorder, shrink_group)


def rank(number: int, folder: str) -> None:
    dist.init_process_group(
        "rdmatensor", init_method=f"file://{folder}/store", rank=number, world_size=RANKS
    )
    failed = []
    for door in DOORS:
        try:
            door()
            said = "open"
        except Exception as error:  # noqa: BLE001 - all doors are tried, and each failure told
            said = f"{type(error).__name__}: {error}"
            failed.append(door.__name__)
        if number == 0:
            print(f"{door.__name__}: {said}", flush=True)
    dist.destroy_process_group()
    assert not failed, failed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = importlib.import_module("torch.multiprocessing").spawn
        spawn(rank, (folder,), nprocs=RANKS)
