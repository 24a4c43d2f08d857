"""Examples in the docstrings of the parameter server, on one worker and one server."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import itertools
import os
import pkgutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from rdmatensor import Context, FileStore, Settings, errors, ps
from rdmatensor.ps import launch
from rdmatensor.ps.driving import take_part
from rdmatensor.ps.places import launched as launched_once

OF_A_CHECKPOINT = ("checkpoint", "saving")  # which a larger job has saved before
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SETTINGS = Settings(secret=b"examples", timeout_s=30.0)


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for found in pkgutil.walk_packages(ps.__path__, "rdmatensor.ps."):
        if found.name.rpartition(".")[2] in OF_A_CHECKPOINT:
            continue
        module = importlib.import_module(found.name)
        yield from (one for one in finder.find(module, module.__name__) if one.examples)


EXAMPLES = {one.name: one for one in _examples()}


class Summed(ps.PythonRule):
    """A rule for the examples."""

    def apply(self, values: torch.Tensor, *rest: Any) -> None:
        values.add_(rest[1])


@ps.register("twice")
def twice(w: ps.Worker, x: torch.Tensor) -> torch.Tensor:
    """Double what an example sends."""
    return 2 * x


class Jobs:
    """Clusters of one worker and one server, each of a name; the server may serve in a thread."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._made: dict[str, ps.Cluster] = {}
        self._threads: list[threading.Thread] = []
        self._ends: list[Callable[[], None]] = []

    def join(self, name: str, rank: int) -> None:
        context = self._stack.enter_context(Context(SETTINGS))
        store = FileStore(self.folder / name)
        self._made[f"{name} {rank}"] = ps.join(store, rank, 2, servers=1, context=context)

    def serve(self, name: str) -> None:
        self.join(name, 1)
        with contextlib.suppress(errors.ClosedError, errors.PeerError):  # of a closed worker
            self.server(name).serve()

    def start(self, play: Callable[..., None], *arguments: object) -> threading.Thread:
        self._threads.append(threading.Thread(target=play, args=arguments))
        self._threads[-1].start()
        return self._threads[-1]

    def driver(self) -> ps.Driver:
        """Return the driver of a job of its own, of one worker and one server."""

        def play(rank: int) -> None:
            cluster = ps.join(FileStore(self.folder / "drive"), rank, 3, servers=1)
            with cluster, contextlib.suppress(errors.PeerError):
                if cluster.worker is not None:
                    take_part(cluster.worker, lambda _: None)
                    cluster.worker.leave()
                elif cluster.server is not None:
                    cluster.server.serve()

        self.start(play, 0)
        self.start(play, 2)
        cluster = self._stack.enter_context(
            ps.join(FileStore(self.folder / "drive"), 1, 3, servers=1)
        )
        assert cluster.worker is not None
        cluster.worker.workers -= 1
        driver = ps.Driver(cluster.worker)
        self._ends += [driver._close, cluster.worker.leave]
        return driver

    def run_worker(self) -> None:
        """Start the worker of the job that an example of drive() runs."""
        program = (
            "import rdmatensor.ps as ps\n"
            "ps.register('twice')(lambda w, x: 2 * x)\n"
            "ps.drive(lambda d: None, servers='colocated')\n"
        )
        other = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
        worker = subprocess.Popen([sys.executable, "-c", program], env=other)
        self._ends.append(lambda: check_exit(worker))

    def cluster(self, name: str) -> ps.Cluster:
        return self._made[f"{name} 0"]

    def worker(self, name: str) -> ps.Worker:
        worker = self.cluster(name).worker
        assert worker is not None
        return worker

    def server(self, name: str) -> ps.Server:
        server = self._made[f"{name} 1"].server
        assert server is not None
        return server

    def close(self) -> None:
        for end in self._ends:
            end()
        for one in self._made.values():
            one.close()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


def check_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that ends without an error."""
    assert process.wait(60) == 0


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """The names of the examples; the server "server" serves in them, and another in a thread."""
    monkeypatch.chdir(tmp_path)  # examples save into the folder that they run in
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launched = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for variable, value in {**launched, "RDMATENSOR_SECRET": "examples"}.items():
        monkeypatch.setenv(variable, value)
    launched_once.cache_clear()  # an example before may have had another rank
    with ExitStack() as stack:
        stack.callback(launched_once.cache_clear)
        made = Jobs(tmp_path, stack)
        made.start(made.serve, "own")
        other = made.start(made.join, "pair", 1)
        made.join("own", 0)
        made.join("pair", 0)
        other.join(30)
        w, model = made.worker("own"), torch.nn.Linear(2, 1)
        yield {
            **{name: getattr(ps, name) for name in ps.__all__},
            "ps": ps,
            "torch": torch,
            "FileStore": FileStore,
            "dataclass": dataclass,
            "rule": Summed(),
            "twice": twice,
            "folder": tmp_path / "folder",
            "cluster": made.cluster("own"),
            "w": w,
            "table": w.table("t", 2, rows=10, rule=ps.Add()),
            "model": model,
            "dense": w.dense(model, ps.SGD(0.1)),
            "server": made.server("pair"),
            "jobs": made,
        }
        made.close()


def _put(kv: ps.KV, name: str) -> None:
    """Make what the examples before it have made."""
    if not name.endswith(".put"):
        kv.put("mean", torch.zeros(3))
    if not name.endswith((".put", ".add")):
        kv.add("mean", torch.ones(3))
        kv.put("best", torch.zeros(3))


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_run(
    name: str,
    names: dict[str, object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = names["jobs"]
    assert isinstance(jobs, Jobs)
    if name.endswith("Server.serve"):
        names["w"] = jobs.worker("pair")
    elif ".Driver." in name:
        names["driver"] = jobs.driver()
    elif name.endswith(".join"):
        jobs.start(jobs.serve, "folder")
    elif name.endswith(".set_epoch"):
        names["table"] = jobs.worker("own").table("k", 2, keys="int64", rule=ps.Add())
    elif name.endswith(".launch.drive"):
        monkeypatch.setattr(launch, "_runs", itertools.count())
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        jobs.run_worker()
    elif ".KV." in name:
        _put(jobs.worker("own").kv, name)
    EXAMPLES[name].globs |= names
    with capsys.disabled():
        result = doctest.DocTestRunner(optionflags=FLAGS).run(EXAMPLES[name])
    assert result.attempted > 0
    assert result.failed == 0
