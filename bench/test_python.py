"""From Python: small and large writes beside NIXL, the import, and torch.distributed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from bench.benchlib import nixl
from bench.benchlib.pairs import WORKERS, run_pair
from bench.benchlib.record import Record
from bench.benchlib.verdict import Row

Judge = Callable[[str, str, Callable[[], list[Record]]], list[Row]]
pytestmark = pytest.mark.timeout(1800)

_TURNS = 3  # pairs of processes of each contestant, one after the other in turn
_IMPORTS = 15


def _merge(turns: list[Record]) -> list[Record]:
    """One record for each contestant, way and size: raw samples of all turns together."""
    merged: dict[tuple[object, ...], Record] = {}
    for record in turns:
        key = tuple(record[name] for name in ("contestant", "way", "size"))
        raw = record["raw_ns"]
        assert isinstance(raw, list)
        before = merged.setdefault(key, {**record, "raw_ns": []})["raw_ns"]
        assert isinstance(before, list)
        before.extend(raw)
    for record in merged.values():
        raw = record["raw_ns"]
        assert isinstance(raw, list)
        ordered = sorted(raw)
        record["median_ns"] = ordered[len(ordered) // 2]
        record["p10"], record["p90"] = ordered[len(ordered) // 10], ordered[-1 - len(raw) // 10]
        record["samples"] = len(ordered)
    return list(merged.values())


def _contest(path: str) -> list[Record]:
    """Ours and NIXL in turn: A B C A B C, each turn two fresh processes on their own cores."""
    python, why_not = nixl.find()
    turns: list[Record] = []
    for _ in range(_TURNS):
        ours = {"RDMATENSOR_TRANSPORT": path}
        turns += run_pair("p2p", "--contestant", "ours", environment=ours)
        if python is None:
            continue
        for contestant, environment in nixl.ways(path).items():
            words = ("--contestant", contestant)
            turns += run_pair("p2p", *words, python=python, environment=environment)
    missing: list[Record] = [] if python else [{"missing": why_not, "path": path}]
    return _merge(turns) + missing


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_write_and_notify(judge: Judge, path: str) -> None:
    """8 B and 64 MiB from Python, against NIXL's write + notification."""
    judge(f"python_{path}", f"bench/workers/p2p.py, {path}", lambda: _contest(path))


def _import_ns(statement: str) -> int:
    program = (
        "import sys, time; started = time.perf_counter_ns()\n"
        f"{statement}\n"
        "took = time.perf_counter_ns() - started\n"
        "assert 'torch' not in sys.modules, 'torch came along'\n"
        "print(took)"
    )
    done = subprocess.run(  # elsewhere: the sources here would hide the installed package
        [sys.executable, "-c", program], cwd=WORKERS, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def _imports() -> list[Record]:
    statements = {
        "rdmatensor": "import rdmatensor",
        "rdmatensor.Context": "import rdmatensor; rdmatensor.Context",
        "numpy": "import numpy",
    }
    samples: dict[str, list[int]] = {name: [] for name in statements}
    for _ in range(_IMPORTS + 1):
        for name, statement in statements.items():
            samples[name].append(_import_ns(statement))
    return [
        {"contestant": name, "median_ns": sorted(taken[1:])[_IMPORTS // 2], "raw_ns": taken[1:]}
        for name, taken in samples.items()
    ]


def test_import(judge: Judge) -> None:
    """Importing the package, in fresh processes, from warm files."""
    judge("import", "python -c 'import rdmatensor'", _imports)


def test_all_reduce(judge: Judge) -> None:
    """all_reduce through torch.distributed beside a backend that does nothing, and Gloo."""
    pytest.importorskip("torch", reason="torch is not installed")
    judge("all_reduce", "bench/workers/c10d.py", lambda: run_pair("c10d"))


def test_coalesced(judge: Judge) -> None:
    """A thousand tensors of 256 B: coalesced, one by one, and Gloo."""
    pytest.importorskip("torch", reason="torch is not installed")
    judge("coalesced", "bench/workers/coalesced.py", lambda: run_pair("coalesced"))
