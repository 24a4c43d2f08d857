"""Ranks that never come, or go before they were needed; what a group leaves in its store."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from meeting import SCALE, meet
from roles_life import our_backend

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


def _ended_by(call: Callable[[], object]) -> tuple[str, float]:
    """Return the error's words, and how long it took to come."""
    start_s = time.monotonic()
    try:
        call()
    except (RuntimeError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start_s
    return "no error", time.monotonic() - start_s


def the_store_stops(rank: int, world: int, *, folder: str) -> dict[str, object]:
    """Rank 0, which hosts the store, is stopped, and goes on when rank 1 has ended.

    Rank 1 needs the address of rank 2, which never makes the group.
    """
    place, met = Path(folder), range(world)
    (place / str(rank)).write_text(str(os.getpid()), encoding="utf-8")
    if rank < 2:
        _tcp_group(rank, world)
    meet("ready", rank, met)
    pids = [int((place / str(other)).read_text(encoding="utf-8")) for other in range(2)]
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        return {}
    if rank == 2:
        ended = os.pidfd_open(pids[1])
        meet("watched", rank, (1, 2))
        select.select([ended], [], [], 20.0 * SCALE)
        os.kill(pids[0], signal.SIGCONT)
        return {}
    meet("watched", rank, (1, 2))
    while Path(f"/proc/{pids[0]}/stat").read_text(encoding="utf-8").split(") ")[1][0] != "T":
        time.sleep(0.01)
    return _without_the_store()


def _without_the_store() -> dict[str, object]:
    """Return how each wait at the store ended: the words, and the seconds."""
    backend = our_backend()
    seen: dict[str, object] = {}

    def send() -> None:
        dist.send(torch.ones(8), 2)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    seen["Ctrl-C"] = _ended_by(send)
    rdmatensor.distributed.set_timeout(timedelta(seconds=1))
    seen["deadline"] = _ended_by(send)
    rdmatensor.distributed.set_timeout(LONG)
    waits = {
        "send": send,
        "everyone": lambda: backend.everyone("word", "w"),
    }

    def wait(name: str) -> None:
        seen[name] = _ended_by(waits[name])

    threads = [threading.Thread(target=wait, args=(name,), daemon=True) for name in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # they are at the store by then
    seen["abort"] = _ended_by(backend.abort)
    seen["shutdown"] = _ended_by(backend.shutdown)
    for thread in threads:
        thread.join(10)
    return seen


class Gated(dist.Store):
    """A store in Python that answers only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dist.HashStore()
        self.gate = threading.Event()

    def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        return bytes(self.inner.get(key))

    def add(self, key: str, amount: int) -> int:
        return int(self.inner.add(key, amount))

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - by this name torch looks for it
        return bool(self.inner.delete_key(key))

    def check(self, keys: list[str]) -> bool:
        self.gate.wait()
        return bool(self.inner.check(keys))


def a_store_in_python_blocks(rank: int, world: int) -> list[object]:
    """Make a group over a store that answers, and one over a store that does not and never will."""
    seen: list[object] = []
    stores = [Gated(), Gated()]
    stores[0].gate.set()
    for store in stores:

        def make(store: Gated = store) -> None:
            limit = timedelta(seconds=1)
            dist.init_process_group("rdmatensor", None, limit, world, rank, store)
            dist.barrier()
            dist.destroy_process_group()

        seen.append(_ended_by(make))
    return seen


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


def a_setting_is_wrong(rank: int, world: int, *, is_launched: bool) -> str:
    """Return how it ends on rank 1, which makes its group when rank 0, with the store, is gone.

    Rank 0 leaves as it does when it has refused the same setting.
    """
    if not is_launched:
        os.environ.pop("LOCAL_WORLD_SIZE")  # so that the ranks ask each other for their hosts
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, LONG, wait_for_workers=False)
    meet("has the store", rank, range(world))
    if rank == 0:
        return ""
    try:
        while store.add("is there", 1):
            time.sleep(0.01)
    except dist.DistNetworkError:
        pass
    try:
        dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=world)
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return f"{type(error).__name__}: {error}"
    return "no error"


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

    is_over = threading.Event()

    def tell() -> None:
        while not (keys := [key for key in store.list_keys() if "/arrivals/" in key]):
            if is_over.wait(0.001):
                return
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
        is_over.set()
        teller.join()
    dist.destroy_process_group()
    return "joined"
