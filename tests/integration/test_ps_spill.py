"""Tables larger than memory: the same numbers, in bounded memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jobs
import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps

ROWS, DIM = 3000, 16
RECORD_BYTES = 4 * 3 * DIM  # a row with Adam's state


def trained(w: ps.Worker, **options: Any) -> torch.Tensor:
    """Train rows, some often and some rarely; return what was read meanwhile and at the end."""
    table = w.table("t", DIM, rule=ps.Adam(0.01), init=ps.uniform(-1, 1), **options)
    draw = torch.Generator().manual_seed(1)
    read = []
    for step in range(25):
        top = ROWS if step % 3 == 0 else ROWS // 20
        ids = torch.randint(0, top, (200,), generator=draw)
        table.push(ids, torch.randn(200, DIM, generator=draw))
        read.append(table.pull(torch.randint(0, ROWS, (100,), generator=draw)))
        w.clock()
    return torch.cat([*read, table.pull(range(ROWS))])


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize(
    "options", [{"rows": ROWS}, {"keys": "int64"}, {"keys": ps.Keys(capacity=1000, evict="lfu")}],
    ids=["ids", "keys", "capacity"],
)  # fmt: skip
def test_spilled_rows_have_the_same_bits(
    options: dict[str, Any], servers: int, transport: str, tmp_path: Path
) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        return trained(w, **options)

    def spilled(w: ps.Worker) -> torch.Tensor:
        memory = servers * 100 * RECORD_BYTES
        result = trained(w, **options, spill=tmp_path, memory=memory)
        state: Any = w.describe()["servers"]
        for one in state:
            counts = one["tables"]["t"]
            assert counts["file_writes"] > 100
            assert counts["file_reads"] > 100
            assert counts["file_bytes"] > 0
        return result

    cluster = {"workers": 1, "servers": servers, "transport": transport, "slot_bytes": 4096}
    want, _ = ps_clusters.run(tmp_path / "memory", main, **cluster)
    got, _ = ps_clusters.run(tmp_path / "spilled", spilled, **cluster)
    assert torch.equal(want[0], got[0])
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == []


def test_memory_is_bounded(path_forced: dict[str, str], tmp_path: Path) -> None:
    """A table of three times the arena's limit; the peak of resident memory is measured."""
    ranks = jobs.run("roles_ps:spills", 2, tmp_path, environment=path_forced, folder=str(tmp_path))
    assert [rank.exit for rank in ranks] == [0, 0], [rank.log for rank in ranks]
    result = ranks[0].result
    assert result["file_bytes"] > 3 * (64 << 20)
    assert result["is_right"]
    assert result["memory_bytes"] <= 20 << 20
    assert result["grown_bytes"] < 48 << 20, "the server keeps more than memory= in memory"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_refuses_a_table_and_a_step(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        spill: Any = {"spill": tmp_path, "memory": 1 << 20}
        table = w.table("t", 1024, keys="int64", rule=ps.Add(), **spill)
        table.push(range(4000), torch.ones(4000, 1024))
        w.clock()
        with largest_file(20 << 20):
            with pytest.raises(errors.DeviceError, match="no room for 100000 more rows"):
                w.table("ids", 1024, rows=100_000, rule=ps.Add(), **spill)
            table.push(range(9000), torch.ones(9000, 1024))
            with pytest.raises(errors.DeviceError, match="no room for"):
                w.clock()
            table.push(range(100), torch.ones(100, 1024))
            w.clock()
        assert bool((table.pull(range(100, 4000, 7)) == 1).all())
        assert bool((table.pull(range(100)) == 2).all())
        assert not bool(table.find(range(4000, 9000))[1].any())

    ps_clusters.run(tmp_path / "store", main, workers=1, servers=1)


def test_wrong_folders_and_numbers_are_refused(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        def table(folder: Any, memory: int) -> None:
            w.table("t", 4, rows=9, rule=ps.Add(), spill=folder, memory=memory)

        for folder, memory, error, words in (
            (tmp_path / "none", 1 << 20, errors.DeviceError, "no file can be made in"),
            (tmp_path, 100, errors.InvalidArgumentError, "64 or more are needed"),
            (b"bytes", 1 << 20, errors.InvalidArgumentError, "not a path"),
            (tmp_path, 0, errors.InvalidArgumentError, "memory=0"),
        ):
            with pytest.raises(error, match=words):
                table(folder, memory)

    ps_clusters.run(tmp_path / "store", main, workers=1, servers=1)
