"""Examples in the docstrings of the parameter server, on one worker and one server."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import pkgutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from rdmatensor import Context, FileStore, Settings, errors, ps

OF_A_CHECKPOINT = ("checkpoint", "saving")  # which a larger job has saved before
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SETTINGS = Settings(secret=b"examples", timeout_s=30.0)


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for found in pkgutil.iter_modules(ps.__path__, "rdmatensor.ps."):
        if found.name.rpartition(".")[2] in OF_A_CHECKPOINT:
            continue
        module = importlib.import_module(found.name)
        yield from (one for one in finder.find(module, module.__name__) if one.examples)


EXAMPLES = {one.name: one for one in _examples()}


class Jobs:
    """Clusters of one worker and one server, each of a name; the server may serve in a thread."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._made: dict[str, ps.Cluster] = {}
        self._threads: list[threading.Thread] = []

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
        for one in self._made.values():
            one.close()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


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
    with ExitStack() as stack:
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
    name: str, names: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = names["jobs"]
    assert isinstance(jobs, Jobs)
    if name.endswith("Server.serve"):
        names["w"] = jobs.worker("pair")
    elif name.endswith(".join"):
        jobs.start(jobs.serve, "folder")
    elif name.endswith(".set_epoch"):
        names["table"] = jobs.worker("own").table("k", 2, keys="int64", rule=ps.Add())
    elif ".KV." in name:
        _put(jobs.worker("own").kv, name)
    EXAMPLES[name].globs |= names
    with capsys.disabled():
        result = doctest.DocTestRunner(optionflags=FLAGS).run(EXAMPLES[name])
    assert result.attempted > 0
    assert result.failed == 0
