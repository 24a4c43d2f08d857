"""One suite, every transport: fixtures that give each test two connected contexts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import rdmatensor
from rdmatensor import Context, FileStore, Group, Settings, World, join

# Helpers of this folder are imported by their plain names, as tests/graph does.
sys.path.insert(0, str(Path(__file__).parent))
from groups import SIZE, Work
from pairs import Pair, Peer

PEER = Path(__file__).with_name("peer.py")
SECRET = b"the contract suite"


# RDT_CONTRACT_TRANSPORTS, words with commas: verbs needs a device, which the rig has.
TRANSPORTS = os.environ.get("RDT_CONTRACT_TRANSPORTS", "shm,tcp").split(",")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def settings(transport: str) -> Settings:
    return replace(Settings(), transport=transport, secret=SECRET, timeout_s=10.0, loopback=True)


@pytest.fixture
def pair(settings: Settings) -> Iterator[Pair]:
    with Context(settings) as left, Context(settings) as right:
        left.add_job(rank=0)
        right.add_job(rank=1)
        to_right = left.connect(right.address, rank=1)
        to_left = right.connect(left.address, rank=0)
        to_right.wait_ready()
        to_left.wait_ready()
        assert to_right.transport == to_left.transport == settings.transport
        yield Pair(left, right, to_right, to_left)
        gc.collect()  # arrays in reference cycles of a failed test would outlive the contexts


@pytest.fixture
def worlds() -> list[World]:
    return []


@pytest.fixture
def run(
    settings: Settings, tmp_path: Path, worlds: list[World]
) -> Iterator[Callable[[Work], list[object]]]:
    """Run a function on each of three ranks at once; returns what it returned, by rank."""
    with ExitStack() as stack, ThreadPoolExecutor(SIZE) as pool:
        contexts = [stack.enter_context(Context(settings)) for _ in range(SIZE)]

        def enter(rank: int) -> Group:
            return worlds[rank].group("g")

        store = FileStore(tmp_path)
        for rank, context in enumerate(contexts):
            worlds.append(join(store, rank, SIZE, context=context, timeout_s=10))
        groups = [job.result(20) for job in [pool.submit(enter, rank) for rank in range(SIZE)]]

        def on_all(work: Work) -> list[object]:
            return [job.result(30) for job in [pool.submit(work, group) for group in groups]]

        yield on_all


@pytest.fixture
def start_peer(transport: str, tmp_path: Path) -> Iterator[Callable[..., Peer]]:
    """Start processes of one job; keywords are their environment, or `store`."""
    peers: list[Peer] = []

    def start(role: str, rank: int, size: int, **environment: str) -> Peer:
        folder = Path(rdmatensor.__file__).parent.parent
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(PEER), role, str(rank), str(size),
             environment.pop("store", str(tmp_path / "store"))],
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": str(folder),
                "RDMATENSOR_TRANSPORT": transport,
                "RDMATENSOR_TIMEOUT_S": "20",
                **environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        peers.append(Peer(process))
        return peers[-1]

    yield start
    for peer in peers:
        peer.process.kill()
        peer.process.communicate()
