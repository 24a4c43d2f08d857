"""Messages there and back, and sums, of two processes: this one measures, a peer answers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pytest_benchmark.fixture import BenchmarkFixture

from bench.benchlib.units import size_text
from rdmatensor import FileStore, Settings, default_context, join
from rdmatensor.types import Array

Name = Literal["gloo", "shm", "tcp"]
Receive = Callable[[], AbstractContextManager[Array]]  # gives what has arrived, for a block
Way = tuple[Array, Callable[[Array], object], Receive]  # source of rank 0, and how to send it
PATIENCE_S = 20.0
ROUNDS = {"rounds": 20, "warmup_rounds": 2}
CALLS = {8: 20, 1 << 20: 5}  # of a round, by bytes
WAYS = ("send", "all_reduce", "write", "slot")
CASES = [("gloo", way) for way in WAYS[:2]] + [(on, way) for on in ("shm", "tcp") for way in WAYS]
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores")


class End(ExitStack):
    """One of two ranks: torch's group and, on rdmatensor's paths, an endpoint of its context."""

    def __init__(self, path: Name, rank: int, folder: Path, pipe: Connection) -> None:
        super().__init__()
        self.path, self.rank, self.other, self.pipe = path, rank, 1 - rank, pipe
        if path != "gloo":
            settings = Settings(path, loopback=True, hooks=False, timeout_s=PATIENCE_S)
            self.context = default_context(lambda: settings)
            self.callback(self.context.close)
            self.world = self.enter_context(join(FileStore(folder), rank, 2, context=self.context))
            self.endpoint = self.world.endpoint(self.other)
        backend, limit = path if path == "gloo" else "rdmatensor", timedelta(seconds=PATIENCE_S)
        dist.init_process_group(backend, f"file://{folder}.torch", limit, 2, rank)
        self.callback(dist.destroy_process_group)

    def write(self, count: int) -> Way:
        mine, landing = self.context.zeros(count), self.context.zeros(count)
        self.pipe.send(self.context.export(landing))
        write, there = self.endpoint.write, self.pipe.recv()
        receive = after(self.endpoint.wait_notify, landing)
        return mine, lambda array: write(array, there, notify=1).wait(), receive

    def slot(self, count: int) -> Way:
        receiver = self.world.recv_slot(f"{count} to {self.rank}", count, src=self.other)
        sender = self.endpoint.send_slot(f"{count} to {self.other}", count)
        self.push(receiver)  # the world would warn of slots that are open
        self.push(sender)
        return self.context.zeros(count), lambda array: sender.put(array).wait(), receiver.get

    def send(self, count: int) -> Way:
        mine, landing = torch.zeros(count), torch.zeros(count)
        receive = after(lambda: dist.recv(landing, self.other), landing.numpy())
        source = landing if self.rank else mine
        return mine.numpy(), lambda _: dist.send(source, self.other), receive

    def all_reduce(self, count: int) -> Way:
        mine = torch.zeros(count)
        return mine.numpy(), lambda _: None, after(lambda: dist.all_reduce(mine), mine.numpy())


def after(wait: Callable[[], object], landing: Array) -> Receive:
    return lambda: (wait(), nullcontext(landing))[1]


def answer(path: Name, folder: Path, pipe: Connection) -> None:
    with End(path, 1, folder, pipe) as end:
        for way, size in iter(pipe.recv, None):
            _, send, receive = getattr(end, way)(size // 4)
            is_last = False
            while not is_last:
                with receive() as landed:
                    is_last = landed[0] != 0  # all others are zeros
                    send(landed)


@pytest.fixture(scope="module")
def end(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[End]:
    folder, spawn = tmp_path_factory.mktemp("paths"), multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    peer = spawn.Process(target=answer, args=(request.param, folder, other), daemon=True)
    peer.start()
    other.close()  # only the peer has it now: both ends see the other process's death
    with End(request.param, 0, folder, pipe) as end:
        yield end
        pipe.send(None)
    peer.join(PATIENCE_S)
    assert peer.exitcode == 0


@pytest.mark.parametrize("size", CALLS)
@pytest.mark.parametrize(("end", "way"), CASES, indirect=["end"], scope="module")
def test_path(end: End, way: str, size: int, benchmark: BenchmarkFixture) -> None:
    end.pipe.send((way, size))
    mine, send, receive = getattr(end, way)(size // 4)

    def call(use: Callable[[Array], Array | int] = len) -> Array | int:
        send(mine)
        with receive() as landed:
            return use(landed)

    benchmark.group = f"{way if way == 'all_reduce' else 'there and back'}, {size_text(size)}"
    benchmark.extra_info.update(path=end.path, way=way, bytes=size)
    benchmark.pedantic(call, iterations=CALLS[size], **ROUNDS)  # type: ignore[no-untyped-call]
    mine[:] = sent = np.arange(1, mine.size + 1, dtype=np.float32)
    assert np.array_equal(call(np.copy), sent)
