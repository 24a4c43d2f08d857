"""The table of peers: whom the suite measures beside rdmatensor, and how to get them."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from bench.benchlib import mooncake, mpi, nixl
from bench.benchlib.programs import GRPC_PARAMETERS, RIVALS_DIR

GRPC_PROGRAM = RIVALS_DIR / "grpc_rival"
OURS = "rdmatensor"
COPIES = "copies"


@dataclass(frozen=True, slots=True)
class Peer:
    """Somebody to be measured beside us.

    what: a line for people.
    topics: where it takes part.
    why_missing: takes a topic; returns why it cannot run in it here; empty where it can.
    how_to_get: what installs it; empty where nothing has to be installed.
    """

    name: str
    what: str
    topics: tuple[str, ...]
    why_missing: Callable[[str], str]
    how_to_get: str = ""


def _never(_topic: str) -> str:
    return ""


def _no_grpc_program(topic: str) -> str:
    wanted = GRPC_PARAMETERS if topic == "models" else GRPC_PROGRAM
    return "" if wanted.exists() else f"not built in build/rivals: {wanted.name}"


def _no_module(name: str) -> Callable[[str], str]:
    def why(_topic: str) -> str:
        return "" if importlib.util.find_spec(name) else f"this interpreter has no module {name}"

    return why


def _no_nixl(_topic: str) -> str:
    return nixl.find()[1]


def _no_mooncake(_topic: str) -> str:
    return mooncake.find()[1]


def _no_mpi(_topic: str) -> str:
    return mpi.why_missing()


def _no_command(name: str) -> Callable[[str], str]:
    return lambda _topic: "" if shutil.which(name) else f"no {name} on the PATH"


def _no_gpu(_topic: str) -> str:
    return "it moves GPUs' memory, and this suite measures tensors of CPUs"


# A line for each: add one here, and its turn in p2p.py, collectives.py, setup.py or models.py.
PEERS = (
    Peer(
        "floor",
        "what this machine gives without a library: copies, plain sockets, a backend that does "
        "nothing, a step that sends nothing",
        ("p2p", "collectives", "models"),
        _never,
    ),
    Peer(
        COPIES,
        "an RPC made for our transports: a private ring at the receiver and a copy out of it",
        ("p2p", "models"),
        _never,
    ),
    Peer(
        "grpc-cpp",
        "gRPC C++ over loopback TCP: unary calls and a stream, a parameter server with streams",
        ("p2p", "models"),
        _no_grpc_program,
        "bash bench/rivals/grpc/setup.sh",
    ),
    Peer(
        "grpc-python",
        "gRPC from Python over loopback TCP: unary calls, a parameter server with streams",
        ("p2p", "models"),
        _no_module("grpc"),
        "pip install grpcio",
    ),
    Peer(
        "nixl",
        "NIXL over UCX, from Python",
        ("p2p",),
        _no_nixl,
        "python3 -m venv build/nixl/venv; "
        "build/nixl/venv/bin/pip install --no-deps nixl-cu12; "
        "build/nixl/venv/bin/pip install numpy torch",
    ),
    Peer(
        "mooncake",
        "Mooncake's transfer engine over its TCP transport, from Python",
        ("p2p",),
        _no_mooncake,
        "python3 -m venv build/mooncake/venv; "
        f"build/mooncake/venv/bin/pip install --no-deps {mooncake.PACKAGE} numpy",
    ),
    Peer(
        "ucx",
        "UCX's own ucx_perftest: put, and tagged messages",
        ("p2p", "models"),
        _no_command("ucx_perftest"),
        "apt-get install ucx-utils",
    ),
    Peer(
        "gloo",
        "Gloo, torch.distributed's backend for CPUs",
        ("collectives", "setup", "models", "busy"),
        _no_module("torch"),
        "pip install torch",
    ),
    Peer(
        "mpi",
        "Open MPI's collectives and send, from Python through mpi4py's calls on buffers",
        ("collectives",),
        _no_mpi,
        "apt-get install openmpi-bin; pip install mpi4py",
    ),
    # Known, and not measured: named in the tables, so that nobody takes them for beaten.
    Peer("nccl", "NCCL, NVIDIA's collectives", ("collectives", "models"), _no_gpu),
)
UNMEASURED = ("nccl",)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the peers that are no packages of this interpreter."""
    python, _ = nixl.find()
    probe = "import importlib.metadata as m; print(m.version('{}'))"
    engine, _ = mooncake.find()
    return {
        "grpc++": _said("pkg-config", "--modversion", "grpc++"),
        "ucx": ucx_version(_said("ucx_info", "-v")),
        "openmpi": mpi.version(),
        "nixl": _said(str(python), "-c", probe.format("nixl-cu12")) if python else "absent",
        "mooncake": _said(str(engine), "-c", probe.format(mooncake.PACKAGE))
        if engine
        else "absent",
    }


def ucx_version(said: str) -> str:
    """Return the version in the first line of `ucx_info -v`, which differs between versions."""
    for head in ("# Library version: ", "# Version ", "# UCT version="):
        said = said.removeprefix(head)
    return said.partition(" ")[0]


def _said(*words: str) -> str:
    """Return the first line of what a program prints; "absent" where there is none."""
    if shutil.which(words[0]) is None:
        return "absent"
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20.0)
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else "unknown"


@dataclass(frozen=True, slots=True)
class Missing:
    """A peer that was wanted and is not here."""

    peer: Peer
    why: str


def names() -> list[str]:
    """Return all names, in the order of the table."""
    return [peer.name for peer in PEERS]


def choose(
    topic: str, wanted: list[str] | None, table: tuple[Peer, ...] = PEERS
) -> tuple[list[Peer], list[Missing]]:
    """Return who takes part in a topic, and who would if it were installed.

    wanted: names; None: everybody.
    """
    present, missing = [], []
    for peer in table:
        if topic not in peer.topics or (wanted is not None and peer.name not in wanted):
            continue
        why = peer.why_missing(topic)
        if why:
            missing.append(Missing(peer, why))
        else:
            present.append(peer)
    return present, missing
