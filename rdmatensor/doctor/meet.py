"""How doctors of several processes find each other: under torchrun, or as a pair over a socket."""

from __future__ import annotations

import os
from collections.abc import Callable

from rdmatensor import config
from rdmatensor.doctor import pair_store, pairs
from rdmatensor.doctor.finding import Finding, broken
from rdmatensor.errors import RdmaTensorError

PATIENCE_S = 120.0  # for somebody to start the other one
_OF_LAUNCHERS = frozenset({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
Told = tuple[list[Finding], list[str]]


def is_under_torchrun() -> bool:
    """Whether a launcher of torch's kind started this process as one of several."""
    return os.environ.keys() >= _OF_LAUNCHERS


def is_first_of_host() -> bool:
    """Whether no other process of the launcher's looks at this machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def with_ranks(own: list[Finding]) -> Told:
    """Test all pairs of a launcher's ranks; on rank 0 return findings and the matrix.

    own: what this rank found of its machine; what is not ok in it reaches rank 0.
    """

    def run() -> Told:
        # They are torch's ranks, so torch is there.
        from torch.distributed.rendezvous import rendezvous

        store, rank, size = next(rendezvous("env://"))
        rows = pairs.measure(store, rank, size, config.from_environment(), _wrong(own))
        return (list(pairs.judge(rows)), list(pairs.matrix(rows))) if rank == 0 else ([], [])

    return _guarded(run)


def with_peer(listen: int | None, peer: str | None, own: list[Finding]) -> Told:
    """Test the pair with one other doctor: wait for it on a port, or reach it where it waits."""

    def run() -> Told:
        rank = 0 if peer is None else 1
        store = (
            pair_store.listen(listen or pair_store.PORT, PATIENCE_S)
            if peer is None
            else pair_store.connect(peer, PATIENCE_S)
        )
        try:
            rows = pairs.measure(store, rank, 2, config.from_environment(), _wrong(own))
        finally:
            store.close()
        return list(pairs.judge(rows, told=rank)), list(pairs.matrix(rows))

    return _guarded(run)


def _wrong(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.level != "ok")


def _guarded(run: Callable[[], Told]) -> Told:
    try:
        return run()
    # RuntimeError is what stores raise once their host is gone.
    except (RdmaTensorError, OSError, ImportError, RuntimeError) as error:
        text = f"the ranks could not be tested: {type(error).__name__}: {error}"
        return [broken("pairs", text, "start the doctor on every host, with the same secret")], []
