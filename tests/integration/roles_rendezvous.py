"""Ranks that never come, or go before they were needed; what a group leaves in its store."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from meeting import meet

import rdmatensor

LONG = timedelta(seconds=60)


def a_rank_never_comes(rank: int, world: int, *, folder: str) -> dict[str, object]:
    """Rank 0 waits for the address of rank 2 while it sends to rank 1, and shuts down."""
    if rank == 2:
        meet("over", rank, range(world))
        return {}
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=world, timeout=LONG)
    if rank == 1:
        tensor = torch.zeros(8)
        dist.recv(tensor, 0)
        meet("over", rank, range(world))
        return {"sum": float(tensor.sum())}
    seen: dict[str, object] = {}

    def send_to_nobody() -> None:
        try:
            dist.send(torch.ones(8), 2)
        except RuntimeError as error:
            seen["text"] = str(error)

    waiter = threading.Thread(target=send_to_nobody)
    waiter.start()
    time.sleep(0.3)  # it waits in the store by then
    start_s = time.monotonic()
    dist.send(torch.ones(8), 1)
    seen["send_s"] = time.monotonic() - start_s
    start_s = time.monotonic()
    dist.group.WORLD._get_backend(torch.device("cpu")).shutdown()
    waiter.join(30)
    seen["shutdown_s"] = time.monotonic() - start_s
    seen["is_waiting"] = waiter.is_alive()
    meet("over", rank, range(world))
    return seen


def _tcp_group(rank: int, world: int) -> dist.TCPStore:
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, LONG, wait_for_workers=False)
    dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=world, timeout=LONG)
    return store


def the_store_dies(rank: int, world: int) -> dict[str, object]:
    """Rank 0, which hosts the store, dies when all have the group and none has used it."""
    others = range(1, world)
    if rank == 2:
        meet("1 is there", rank, others)
    _tcp_group(rank, world)
    if rank == 1:
        meet("1 is there", rank, others)
    meet("ready", rank, range(world))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)  # the kernel has closed what rank 0 had open
    start_s = time.monotonic()
    text = "no error"
    try:
        if rank == 1:  # it came before rank 2, whose address it does not know
            dist.send(torch.ones(8), 2)
        else:  # it came last and knows all
            dist.recv(torch.ones(8), 0)
    except RuntimeError as error:
        text = str(error)
    seconds = time.monotonic() - start_s
    meet("told", rank, others)
    return {"text": text, "seconds": seconds}


def keys_that_stay(rank: int, world: int) -> list[str]:
    """Return, on rank 0, the keys of a group that was used and ended."""
    os.environ.pop("LOCAL_WORLD_SIZE")  # so that the ranks ask each other for their hosts
    store = _tcp_group(rank, world)
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()
    meet("ended", rank, range(world))
    keys = sorted(str(key) for key in store.list_keys()) if rank == 0 else []
    meet("listed", rank, range(world))
    return [key.partition("rdmatensor/")[2] for key in keys if "rdmatensor/" in key]


def names_are_asked(rank: int, world: int) -> dict[str, int]:
    """Return how often this process asked for names: by its store, and by the group and its use."""
    asked = ctypes.CDLL(None).asked_names
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, LONG)
    by_store = int(asked())
    dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=world, timeout=LONG)
    dist.barrier()
    return {"store": by_store, "group": int(asked()) - by_store}


def the_job_is_wrong(rank: int, world: int, *, jobs: dict[str, str]) -> dict[str, str]:
    """Come as rank 1 of 2 to stores in which each of these stands where rank 0 tells."""
    del rank, world
    return {name: _join_by(job) for name, job in jobs.items()}


def a_host_is_no_text(rank: int, world: int, *, job: str) -> dict[str, object]:
    """Come as rank 1 of 2 to a store whose rank 0 is on a host that has no name."""
    del rank, world
    os.environ.pop("LOCAL_WORLD_SIZE")  # so that hosts are asked for
    joined = _join_by(job, host=b"\xff\xfe")
    return {"joined": joined, "loopback": rdmatensor.default_context().settings.loopback}


def _join_by(job: str, *, host: bytes = b"") -> str:
    """Return how it ended; job: in hexadecimal."""
    store = dist.HashStore()

    def tell() -> None:
        while not (keys := [key for key in store.list_keys() if "/arrivals/" in key]):
            time.sleep(0.001)
        for name, told in {"host/0": host, "job": bytes.fromhex(job)}.items():
            key = keys[0].replace("arrivals/1", f"1/{name}")
            store.set(key, told)  # type: ignore[arg-type]

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        dist.init_process_group("rdmatensor", store=store, rank=1, world_size=2, timeout=LONG)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        teller.join()
    dist.destroy_process_group()
    return "joined"
