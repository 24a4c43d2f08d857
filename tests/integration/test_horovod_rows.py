"""Each call of Horovod's API, on ranks, with numpy as the oracle."""

from __future__ import annotations

import functools
from pathlib import Path

import jobs
import pytest
import roles_horovod_rows


@functools.cache
def _found(world: int, transport: str, folder: Path) -> list[dict[str, str | None]]:
    ranks = jobs.run(
        "roles_horovod_rows:every",
        world,
        folder / f"{world}-{transport}",
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=50.0,
    )
    found: list[dict[str, str | None]] = jobs.results(ranks)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(roles_horovod_rows.ROWS))
@pytest.mark.parametrize(
    ("world", "transport"), [(1, "shm"), (2, "shm"), (2, "tcp"), (3, "shm"), (4, "tcp")]
)
def test_row(world: int, transport: str, name: str, folder: Path) -> None:
    for rank, found in enumerate(_found(world, transport, folder)):
        assert found[name] is None, f"rank {rank} of {world}: {found[name]}"
