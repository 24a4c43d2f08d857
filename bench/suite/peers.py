"""The table of peers: what the suite measures in addition to rdmatensor, and how to get each."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.benchlib import mpi
from bench.benchlib.machine import ROOT
from bench.benchlib.programs import GRPC_PARAMETERS, PEERS_DIR

GRPC_PROGRAM = PEERS_DIR / "grpc_transfer"
RDMATENSOR = "rdmatensor"
COPIES = "copies"
_PROBE_LIMIT_S = 60.0
Why = Callable[[str], str]  # takes a topic; returns why a peer cannot run in it; empty: it can


@dataclass(frozen=True, slots=True)
class Peer:
    """A line for people, the topics, why it is missing, and what installs it (empty: nothing)."""

    name: str
    what: str
    topics: tuple[str, ...]
    why_missing: Why
    how_to_get: str = ""


_NIXL_PYTHON = "RDMATENSOR_BENCH_NIXL_PYTHON"
_NIXL_PACKAGE = "nixl-cu12"


def find_nixl() -> tuple[Path | None, str]:
    """Return an interpreter that imports NIXL, or None and why there is none."""
    python = Path(os.environ.get(_NIXL_PYTHON, ROOT / "build/nixl/venv/bin/python"))
    if not python.exists():
        return None, f"no interpreter with NIXL in build/nixl/venv, or named in {_NIXL_PYTHON}"
    # os._exit: NIXL 1.5 crashes in Python's own end otherwise
    words = [str(python), "-c", "import os, nixl_cu12; os._exit(0)"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_PROBE_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"NIXL is not imported after {_PROBE_LIMIT_S:g} s"
    if done.returncode != 0:
        return None, f"NIXL does not import: {done.stderr.strip().splitlines()[-1:]}"
    return python, ""


def nixl_environment(worker: str, path: str) -> dict[str, str]:
    """Return the variables of NIXL over one path.

    "nixl": with its defaults UCX chooses among all its transports on one host. "nixl tuned":
    without error handling between peers; UCX is held to the path.
    """
    quiet = {"NIXL_LOG_LEVEL": "ERROR"}
    is_held = path == "tcp" or worker == "nixl tuned"
    return {**quiet, "UCX_TLS": f"{path},self"} if is_held else quiet


def _never(_topic: str) -> str:
    return ""


def _no_grpc_program(topic: str) -> str:
    wanted = GRPC_PARAMETERS if topic in ("models", "ps") else GRPC_PROGRAM
    return "" if wanted.exists() else f"not built in build/peers: {wanted.name}"


def _no_module(name: str) -> Why:
    return lambda _: (
        "" if importlib.util.find_spec(name) else f"this interpreter has no module {name}"
    )


def _no_command(name: str) -> Why:
    return lambda _: "" if shutil.which(name) else f"no {name} on the PATH"


# A line for each: add one here, and its turn in the topics.
PEERS = (
    Peer(
        "floor",
        "what this machine gives without a library: copies, plain sockets, a backend that does "
        "nothing, a step that sends nothing",
        ("p2p", "collectives", "models", "ps"),
        _never,
    ),
    Peer(
        COPIES,
        "an RPC over rdmatensor's transports: a ring at the receiver and a copy out of it",
        ("p2p", "models"),
        _never,
    ),
    Peer(
        "grpc-cpp",
        "gRPC C++ over loopback TCP: unary calls and a stream, a parameter server with streams",
        ("p2p", "models", "links", "ps"),
        _no_grpc_program,
        "bash bench/peers/grpc/setup.sh",
    ),
    Peer(
        "nixl",
        "NIXL over UCX, from Python",
        ("p2p",),
        lambda _: find_nixl()[1],
        "python3 -m venv build/nixl/venv; build/nixl/venv/bin/pip install --no-deps nixl-cu12; "
        "build/nixl/venv/bin/pip install numpy torch",
    ),
    Peer(
        "ucx",
        "UCX's own ucx_perftest: put, get, and tagged messages",
        ("p2p",),
        _no_command("ucx_perftest"),
        "apt-get install ucx-utils",
    ),
    Peer(
        "perftest",
        "perftest's ib_write_lat, ib_write_bw and others; over verbs only",
        ("p2p", "collectives", "links"),
        _no_command("ib_write_lat"),
        "apt-get install perftest",
    ),
    Peer(
        "gloo",
        "Gloo, torch.distributed's backend for CPUs",
        ("collectives", "setup", "models", "busy", "hosts", "links", "lossy"),
        _no_module("torch"),
        "pip install torch",
    ),
    Peer(
        "mpi",
        "Open MPI's collectives and send, from Python through mpi4py's calls on buffers",
        ("collectives",),
        lambda _: mpi.why_missing(),
        "apt-get install openmpi-bin; pip install mpi4py",
    ),
    Peer("rpc", "torch RPC over TensorPipe", ("ps",), _no_module("torch"), "pip install torch"),
    Peer(
        "redis",
        "Redis, through redis-py",
        ("ps",),
        lambda topic: _no_command("redis-server")(topic) or _no_module("redis")(topic),
        "apt-get install redis-server; pip install redis",
    ),
    # Known, and not measured: named in the tables.
    Peer(
        "nccl",
        "NCCL, NVIDIA's collectives",
        ("collectives", "models"),
        lambda _: "it moves GPUs' memory, and this suite measures tensors of CPUs",
    ),
)
_OVER_VERBS = ("perftest",)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the peers that are no packages of this interpreter."""
    probe = f"import importlib.metadata as m; print(m.version('{_NIXL_PACKAGE}'))"

    python, _ = find_nixl()
    return {
        "grpc++": _output("pkg-config", "--modversion", "grpc++"),
        "ucx": ucx_version(_output("ucx_info", "-v")),
        "openmpi": mpi.version(),
        "nixl": _output(str(python), "-c", probe) if python else "absent",
    }


def ucx_version(printed: str) -> str:
    """Return the version in the first line of `ucx_info -v`, which differs between versions."""
    for head in ("# Library version: ", "# Version ", "# UCT version="):
        printed = printed.removeprefix(head)
    return printed.partition(" ")[0]


def _output(*words: str) -> str:
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
    topic: str,
    wanted: list[str] | None,
    table: tuple[Peer, ...] = PEERS,
    *,
    has_verbs: bool = False,
) -> tuple[list[Peer], list[Missing]]:
    """Return the peers of a topic, and those that would take part if they were installed.

    wanted: names; None: all. has_verbs: whether the topic is measured over verbs.
    """
    present, missing = [], []
    for peer in table:
        if topic not in peer.topics or (wanted is not None and peer.name not in wanted):
            continue
        if peer.name in _OVER_VERBS and not has_verbs:
            continue
        why = peer.why_missing(topic)
        if why:
            missing.append(Missing(peer, why))
        else:
            present.append(peer)
    return present, missing
