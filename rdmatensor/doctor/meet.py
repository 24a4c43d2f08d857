"""How doctors of several processes find each other: under torchrun, or as a pair over a socket."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar

from rdmatensor import config
from rdmatensor.doctor import pair_store, pairs
from rdmatensor.doctor.cures import ALONE, REPORT, cure
from rdmatensor.doctor.finding import Finding, broken
from rdmatensor.errors import RdmaTensorError
from rdmatensor.store import Store

PATIENCE_S = 120.0  # to start the others
_SILENT_S = 3.0  # of it: ranks that are started at once need as long to import torch
_OF_LAUNCHERS = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
Report = tuple[list[Finding], list[str]]
_Result = TypeVar("_Result")


def is_under_torchrun() -> bool:
    """Whether a launcher such as torch's started this process as one of several.

    A shell in a container with the launcher's variables looks the same.
    """
    return os.environ.keys() >= _OF_LAUNCHERS and os.environ["WORLD_SIZE"] != "1"


def is_first_of_all() -> bool:
    """Whether this process reports what all ranks found."""
    return os.environ["RANK"] == "0"


def is_first_of_host() -> bool:
    """Whether no other process of the launcher checks this machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def told_of_rank(found: Finding) -> Finding:
    """Return a finding of this rank's own machine, marked with the rank unless it is 0."""
    if is_first_of_all():
        return found
    return pairs.told_of(found, os.environ["RANK"], pairs.host())


def with_ranks(own: list[Finding]) -> Report | None:
    """Test all pairs of a launcher's ranks; return findings and the matrix on rank 0.

    own: what this rank found on its machine; what is not ok in it reaches rank 0.
    Elsewhere: None, or why this rank has not met the others.
    """

    def run() -> Report | None:
        host, port, rank, size = _place()
        patience_s = _patience_s()
        others = f"{size - 1} other rank{'s' * (size > 2)} at {host}:{port}"
        with _announced(f"waiting up to {patience_s:.0f} s for {others}; {ALONE}") as met:
            store = _store(host, port, rank, patience_s)
            rows = pairs.measure(store, rank, size, _wrong(own), timeout_s=patience_s, met=met)
        return (list(pairs.judge(rows, told=0)), list(pairs.matrix(rows))) if rank == 0 else None

    return _guarded(run, f"look at the launcher's variables and at the network; {ALONE}")


def _place() -> tuple[str, int, int, int]:
    """Return host and port of the store, rank and size, as set by the launcher."""
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if not 0 <= rank < size or not 0 < port < 1 << 16:
        raise ValueError(f"RANK={rank}, WORLD_SIZE={size}, MASTER_PORT={port} are no job's")
    return os.environ["MASTER_ADDR"], port, rank, size


def _patience_s() -> float:
    with contextlib.suppress(RdmaTensorError):  # reported by a finding of its own
        return min(PATIENCE_S, config.from_environment().timeout_s)
    return PATIENCE_S


def _store(host: str, port: int, rank: int, timeout_s: float) -> Store:
    """Return the store that torch's "env://" means, without the keys that torch sets in it.

    Its host is chosen as in torch.distributed.rendezvous.
    """
    # Here, as the doctor needs no torch: but these are torch's ranks, so it is installed.
    from torch._C._distributed_c10d import TCPStore

    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not is_host:
        # torch's own wait cannot be interrupted.
        pair_store.reach(host, port, timeout_s, (OSError,)).close()
    store: Store = TCPStore(
        host, port, is_master=is_host, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
    )
    return store


def with_peer(listen: int | None, peer: str | None, own: list[Finding]) -> Report:
    """Test the pair with one other doctor: listen on a port, or connect to its port."""

    def run() -> Report:
        rank, port = 0 if peer is None else 1, listen or pair_store.PORT
        patience_s = _patience_s()
        where = f"to listen at {peer}" if peer else f"to come to port {port}"
        with _announced(f"waiting up to {patience_s:.0f} s for the other doctor {where}") as met:
            store = (
                pair_store.listen(port, patience_s)
                if peer is None
                else pair_store.connect(peer, patience_s)
            )
            with contextlib.closing(store):
                rows = pairs.measure(store, rank, 2, _wrong(own), timeout_s=patience_s, met=met)
        return list(pairs.judge(rows, told=rank)), list(pairs.matrix(rows))

    other = (
        f"`rdmatensor doctor --peer HOST:{listen}` on the other host"
        if peer is None
        else (f"`rdmatensor doctor --listen` on {peer}")
    )
    return _guarded(run, f"start {other}, and look at the firewalls between")


@contextlib.contextmanager
def _announced(text: str) -> Iterator[Callable[[], None]]:
    """Print a line if the wait takes long; yields a function to call when it is over."""
    timer = threading.Timer(_SILENT_S, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _wrong(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.level != "ok")


def _guarded(run: Callable[[], _Result], otherwise: str) -> _Result | Report:
    try:
        return run()
    # Stores raise RuntimeError once their host is gone, or their port is taken.
    except (RdmaTensorError, OSError, ImportError, RuntimeError, ValueError) as error:
        fix = cure(error)
        if fix == REPORT and not isinstance(error, RdmaTensorError):
            fix = otherwise
        text = f"the ranks could not be tested: {type(error).__name__}: {error}"
        return [broken("pairs", text, fix)], []
