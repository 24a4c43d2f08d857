"""Clusters in threads of one process, each with a context of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rdmatensor import Context, FileStore, Settings, ps
from rdmatensor.errors import MismatchError

SECRET = b"parameter server"
JOIN_S = 60.0


def run(
    folder: Path,
    main: Callable[[ps.Worker], Any],
    *,
    workers: int,
    servers: int,
    transport: str = "auto",
    arena_max_mib: int | None = None,
    **options: Any,
) -> tuple[list[Any], list[dict[str, object]]]:
    """Run main(worker) on each worker; returns what they returned, and the servers' states.

    The first exception of a worker, else of a server, is raised.
    """
    size = workers + servers
    results: list[Any] = [None] * workers
    states: list[dict[str, object]] = [{} for _ in range(servers)]
    failures: dict[int, BaseException] = {}

    def play(rank: int) -> None:
        try:
            settings = Settings(
                transport=transport, secret=SECRET, timeout_s=JOIN_S, arena_max_mib=arena_max_mib
            )
            with (
                Context(settings) as context,
                ps.join(
                    FileStore(folder), rank, size, servers=servers, context=context, **options
                ) as cluster,
            ):
                if cluster.worker is not None:
                    results[rank] = main(cluster.worker)
                    cluster.worker.leave()
                else:
                    assert cluster.server is not None
                    cluster.server.serve()
                    states[rank - workers] = cluster.server.describe()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures[rank] = error

    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive(), f"a rank hangs; others failed with {failures}"

    for rank in sorted(failures, key=lambda rank: (_rank_of_cause(failures[rank]), rank)):
        raise failures[rank]
    return results, states


def _rank_of_cause(error: BaseException) -> tuple[bool, bool]:
    """Order errors: a rank that was refused leaves, and others may know of that only."""
    is_joining = "[wait_ready" in str(error) or "[join" in str(error)
    return not isinstance(error, MismatchError), is_joining
