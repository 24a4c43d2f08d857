"""One of the processes that pull and push rows, take sync steps of a dense model, or are driven.

Rank 0 measures; the last rank is the server, where there is one. All rows and values are compared
with what they have to be before anything is timed.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.rpc as rpc

import rdmatensor.ps as ps
from bench.benchlib import children
from bench.workers import grpc_native, harness
from bench.workers.busy import burning
from rdmatensor import FileStore
from rdmatensor.ps.driving import take_part

OPTIONS: dict[str, object] = {
    "who": "rdmatensor",
    "what": "rows",
    "ranks": 2,
    "transport": "shm",
    "loads": [0],  # burners
    "sizes": [],  # of dense models
    "calls": 200,
    "port": 6399,  # of Redis
}
ROWS, DIM, BATCH = 100_000, 64, 4096
KEYS = 1_000_000
_BATCHES = 16  # of ids, in turns: their rows exceed the caches of a core
_WARM = 5
_WINDOW = 16  # batches of a driver
_PARAMETER_FLOATS = 1 << 18
_LEAST_CALLS, _MOST_BYTES = 8, 256 << 20
_CPUCLOCK_SCHED = 2  # of the kernel's clock ids: processor time of a process
_RATE = 1.0
Pull = Callable[[torch.Tensor], torch.Tensor]
Push = Callable[[torch.Tensor, torch.Tensor], object]
Step = Callable[[Sequence[torch.Tensor]], object]
Rows = Iterator[tuple[Pull, Push] | None]  # None: this process is a server, which has ended
_served = torch.empty(0)  # the rows of RPC's server


def fetch_rows(ids: torch.Tensor) -> torch.Tensor:
    """Return rows of this process; called by RPC."""
    return _served.index_select(0, ids)


def add_rows(ids: torch.Tensor, rows: torch.Tensor) -> None:
    """Add to rows of this process; called by RPC."""
    _served.index_add_(0, ids, rows)


# ---- Those that hold rows ------------------------------------------------------------------------


@contextlib.contextmanager
def own_rows(arguments: SimpleNamespace) -> Rows:
    store = FileStore(arguments.folder / "store")
    with ps.join(store, arguments.rank, 2, servers=1, mode="async") as cluster:
        if cluster.server is not None:
            cluster.server.serve()
            yield None
        else:
            worker = cluster.worker
            assert worker is not None
            table = worker.table("rows", DIM, rows=ROWS, rule=ps.Add())

            def push(ids: torch.Tensor, rows: torch.Tensor) -> None:
                table.push(ids, rows)
                worker.clock()  # returns when they are applied

            yield table.pull, push
            worker.leave()


@contextlib.contextmanager
def rpc_rows(arguments: SimpleNamespace) -> Rows:
    global _served
    _served = torch.zeros(ROWS, DIM)
    over_tcp: dict[str, Any] = {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{arguments.folder}/rpc",
        rpc_timeout=harness.PATIENCE_S,
        **(over_tcp if arguments.transport == "tcp" else {}),  # else its own choice
    )
    rank, more = arguments.rank, {"world_size": 2, "rpc_backend_options": options}
    rpc.init_rpc(str(rank), rank=rank, **more)  # type: ignore[no-untyped-call]
    if arguments.rank == 0:
        yield (
            lambda ids: rpc.rpc_sync("1", fetch_rows, (ids,)),
            lambda ids, rows: rpc.rpc_sync("1", add_rows, (ids, rows)),
        )
    else:
        yield None
    rpc.shutdown()


@contextlib.contextmanager
def local_rows(_: SimpleNamespace) -> Rows:
    table = torch.zeros(ROWS, DIM)
    yield (
        lambda ids: table.index_select(0, ids),
        lambda ids, rows: table.index_add_(0, ids, rows),
    )


class Redis:
    """MGET and MSET through redis-py."""

    def __init__(self, **where: object) -> None:
        self._module = importlib.import_module("redis")  # not everywhere
        self._client = self._module.Redis(socket_timeout=harness.PATIENCE_S, **where)

    def is_there(self) -> bool:
        try:
            return bool(self._client.ping())
        except self._module.ConnectionError:
            return False

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        rows = b"".join(self._client.mget(ids.tolist()))
        return torch.frombuffer(bytearray(rows), dtype=torch.float32).view(-1, DIM)

    def push(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        values = memoryview(rows.numpy().tobytes())
        starts = range(0, len(values), 4 * DIM)
        items = {
            number: values[at : at + 4 * DIM]
            for number, at in zip(ids.tolist(), starts, strict=True)
        }
        self._client.mset(items)


@contextlib.contextmanager
def redis_rows(arguments: SimpleNamespace) -> Rows:
    path = str(arguments.folder / "redis")
    words = ["redis-server", "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    words += ["--port", str(arguments.port), "--unixsocket", path]
    where = {"unix_socket_path": path} if arguments.transport == "shm" else {"port": arguments.port}
    with subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        preexec_fn=children.tied(),  # noqa: PLW1509
    ) as server:
        arguments.pids.append(server.pid)
        try:
            redis, deadline_s = Redis(**where), time.monotonic() + harness.PATIENCE_S
            while not redis.is_there():
                if server.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError("redis-server does not answer")
                time.sleep(0.02)
            yield redis.pull, redis.push
        finally:
            server.kill()


# ---- Those that hold a dense model ---------------------------------------------------------------


@contextlib.contextmanager
def own_dense(
    arguments: SimpleNamespace, model: torch.nn.ParameterList, number: int
) -> Iterator[Step | None]:
    store = FileStore(arguments.folder / f"store{number}")
    with ps.join(store, arguments.rank, 3, servers=1) as cluster:
        if cluster.server is not None:
            cluster.server.serve()
            yield None
        else:
            assert cluster.worker is not None
            dense = cluster.worker.dense(model, ps.SGD(_RATE))

            def step(gradients: Sequence[torch.Tensor]) -> None:
                torch.autograd.backward(list(model), list(gradients))
                dense.step()

            yield step
            cluster.worker.leave()


@contextlib.contextmanager
def grpc_dense(
    arguments: SimpleNamespace, model: torch.nn.ParameterList, number: int
) -> Iterator[Step | None]:
    parameters, port = list(model), arguments.folder / f"port{number}"
    if arguments.rank == 2:
        with torch.no_grad():
            grpc_native.serve(parameters, 2, _RATE, port, harness.PATIENCE_S)
        yield None
    else:
        client = grpc_native.Client(parameters, port, harness.PATIENCE_S)

        def step(gradients: Sequence[torch.Tensor]) -> None:
            torch.autograd.backward(parameters, list(gradients))
            client.pull()
            model.zero_grad()

        yield step
        client.close()


ROWS_OF = {"rdmatensor": own_rows, "rpc": rpc_rows, "redis": redis_rows, "floor": local_rows}
DENSE_OF = {"rdmatensor": own_dense, "grpc-cpp": grpc_dense}


# ---- Measuring -----------------------------------------------------------------------------------


def spent_ns(pids: Sequence[int]) -> list[int]:
    """Return the processor time of this process, and of others."""
    clocks = (time.CLOCK_PROCESS_CPUTIME_ID, *((~pid << 3) | _CPUCLOCK_SCHED for pid in pids))
    return [time.clock_gettime_ns(clock) for clock in clocks]


def timed(
    arguments: SimpleNamespace, op: str, size: int, load: int, call: Callable[[int], object]
) -> None:
    """Time calls, which are numbered; rank 0 prints. All workers have the same number of calls."""
    calls = max(_LEAST_CALLS, min(arguments.calls, _MOST_BYTES // size))
    for number in range(_WARM):
        call(number)
    raw_ns, before = [], spent_ns(arguments.pids)
    for number in range(calls):
        began_ns = time.perf_counter_ns()
        call(number)
        raw_ns.append(time.perf_counter_ns() - began_ns)
    spent = [after - ns for after, ns in zip(spent_ns(arguments.pids), before, strict=True)]
    if arguments.rank == 0:
        cpu_ns = [spent[0] / calls, sum(spent[1:]) / calls]
        harness.emit(op=op, size=size, load=load, raw_ns=raw_ns, cpu_ns=cpu_ns)


def rows(arguments: SimpleNamespace) -> None:
    """Pull and push batches of ids without repetitions."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randperm(ROWS, generator=generator)[:BATCH] for _ in range(_BATCHES)]
    pushed = torch.randint(-8, 8, (BATCH, DIM), generator=generator).float()
    with ROWS_OF[arguments.who](arguments) as calls:
        if calls is None:
            return
        pull, push = calls
        for first in range(0, ROWS, 10_000):  # all rows are there, as zeros
            push(torch.arange(first, first + 10_000), torch.zeros(10_000, DIM))
        push(ids[0], pushed)
        if not torch.equal(pull(ids[0]), pushed):
            raise RuntimeError(f"{arguments.who}: pulled other rows than were pushed")
        size = pushed.numel() * pushed.element_size()
        for load in arguments.loads:
            with burning("spin", load, arguments.folder):
                timed(arguments, "pull", size, load, lambda n: pull(ids[n % _BATCHES]))
                timed(arguments, "push", size, load, lambda n: push(ids[n % _BATCHES], pushed))


def keys(arguments: SimpleNamespace) -> None:
    """Push a million random keys; each has the row that was pushed for it. Then time batches."""
    draw = torch.Generator().manual_seed(0)
    some = torch.randint(-(2**63), 2**63 - 1, (KEYS,), generator=draw)
    rows = torch.arange(2.0 * KEYS).view(KEYS, 2)  # floats have these numbers
    store = FileStore(arguments.folder / "store")
    with ps.join(store, arguments.rank, 2, servers=1, mode="async") as cluster:
        if cluster.server is not None:
            cluster.server.serve()
            return
        worker = cluster.worker
        assert worker is not None
        table = worker.table("keys", 2, keys="int64", rule=ps.Assign())

        def push(number: int) -> None:
            span = slice(number * BATCH % KEYS, number * BATCH % KEYS + BATCH)
            table.push(some[span], rows[span])
            worker.clock()

        for number in range(-(-KEYS // BATCH)):
            push(number)
        found, is_there = table.find(some)
        if not torch.equal(found, rows) or not bool(is_there.all()):
            raise RuntimeError("a key has the row of another one")
        size = rows[:BATCH].numel() * rows.element_size()
        for load in arguments.loads:
            with burning("spin", load, arguments.folder):
                timed(arguments, "pull of keys", size, load, lambda n: table.pull(
                    some[n * BATCH % KEYS :][:BATCH]))  # fmt: skip
                timed(arguments, "push of keys", size, load, push)
        worker.leave()


def take(_w: ps.Worker, batch: torch.Tensor) -> int:
    """Be sent a batch."""
    return batch.numel()


def driven(arguments: SimpleNamespace) -> None:
    """Schedule batches of so many bytes for two workers; each sample is the mean of a window."""

    def main(driver: ps.Driver) -> None:
        for size, load in itertools.product(arguments.sizes, arguments.loads):
            batch = torch.zeros(max(1, size), dtype=torch.uint8)
            windows = max(_LEAST_CALLS, min(arguments.calls, _MOST_BYTES // size) // _WINDOW)
            raw_ns = []
            with burning("spin", load, arguments.folder):
                send(driver, batch)
                before = spent_ns(arguments.pids)
                for _ in range(windows):
                    began_ns = time.perf_counter_ns()
                    send(driver, batch)
                    raw_ns.append((time.perf_counter_ns() - began_ns) // _WINDOW)
                after, calls = spent_ns(arguments.pids), windows * _WINDOW
            spent = [(end - ns) / calls for end, ns in zip(after, before, strict=True)]
            cpu_ns = [spent[0], sum(spent[1:])]
            harness.emit(op="driven batch", size=size, load=load, raw_ns=raw_ns, cpu_ns=cpu_ns)

    store = FileStore(arguments.folder / "store")
    with ps.join(store, arguments.rank, 4, servers=1, mode="async") as cluster:
        if cluster.worker is not None:
            take_part(cluster.worker, main, _WINDOW)
            cluster.worker.leave()
        elif cluster.server is not None:
            cluster.server.serve()


def send(driver: ps.Driver, batch: torch.Tensor) -> None:
    """Send a window of batches; each arrives whole."""
    for _ in range(_WINDOW):
        driver.schedule(take, batch)
    if driver.gather() != [batch.numel()] * _WINDOW:
        raise RuntimeError("a worker got another batch than was sent")


def dense(arguments: SimpleNamespace) -> None:
    """Take sync steps of models of so many bytes, each with a server of its own."""
    cells = itertools.product(arguments.sizes, arguments.loads)
    for number, (size, load) in enumerate(cells):
        steps(arguments, number, size, load)


def steps(arguments: SimpleNamespace, number: int, size: int, load: int) -> None:
    count = max(1, size // 4 // _PARAMETER_FLOATS)
    floats = size // 4 // count
    model = torch.nn.ParameterList(torch.zeros(floats) for _ in range(count))
    gradients = [torch.full((floats,), 1.0 + arguments.rank) for _ in range(count)]
    with DENSE_OF[arguments.who](arguments, model, number) as step:
        if step is None:
            return
        step(gradients)
        if any((one != -1.5 * _RATE).any() for one in model):
            raise RuntimeError(f"{arguments.who}: a step left other values than it has to")
        with burning("spin", 0 if arguments.rank else load, arguments.folder):
            timed(arguments, "dense step", size, load, lambda _: step(gradients))


def other_pids(arguments: SimpleNamespace) -> list[int]:
    """Return the processes of the other ranks. Raises TimeoutError."""
    draft = arguments.folder / f"draft{arguments.rank}"
    draft.write_text(str(os.getpid()), encoding="ascii")
    draft.rename(arguments.folder / f"pid{arguments.rank}")
    deadline_s = time.monotonic() + harness.PATIENCE_S
    paths = [arguments.folder / f"pid{n}" for n in range(arguments.ranks) if n != arguments.rank]
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline_s:
            raise TimeoutError("a rank did not start")
        time.sleep(0.005)
    return [int(path.read_text(encoding="ascii")) for path in paths]


def main(arguments: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    arguments.pids = other_pids(arguments)
    {"rows": rows, "dense": dense, "keys": keys, "drive": driven}[arguments.what](arguments)
