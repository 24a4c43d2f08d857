"""What a worker may see of a row while a server changes it (PS-12)."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import ps_clusters
import pytest
import torch

from rdmatensor import ps

DIM = 32_768  # a row takes long enough to write and to read that the two meet
LIMIT_S = 40.0
CHANGES = 20


def count_mixed(folder: Path, consistency: str, transport: str, pulls: int) -> tuple[int, int]:
    """Pull a row that flips between all 0 and all 1, until one is mixed, or so often.

    It also goes on until the row was seen to change CHANGES times. Returns the number of mixed
    rows, and of changes.
    """
    over = threading.Event()
    seen: list[float] = []

    def changes() -> int:
        return sum(one != other for one, other in itertools.pairwise(seen))

    def main(w: ps.Worker) -> int:
        table = w.table("t", DIM, rows=2, rule=ps.Assign(), consistency=consistency)
        if w.rank == 0:
            rows = [torch.zeros(1, DIM), torch.ones(1, DIM)]
            flip = 0
            while not over.is_set():
                flip += 1
                table.push([1], rows[flip % 2])
                w.clock()
            return 0
        mixed, end_s = 0, time.monotonic() + LIMIT_S
        row = torch.empty(1, DIM)
        while not mixed and time.monotonic() < end_s:
            table.pull([1], out=row)
            seen.append(float(row[0, 0]))
            mixed += int(row.min() != row.max())
            if len(seen) % 100 == 0 and len(seen) >= pulls and changes() >= CHANGES:
                break
        over.set()
        return mixed

    results, _ = ps_clusters.run(
        folder, main, workers=2, servers=1, mode="async", transport=transport, slot_bytes=1 << 18
    )
    return results[1], changes()


def test_a_row_may_be_mixed_if_relaxed_and_read_in_place(tmp_path: Path) -> None:
    mixed, _ = count_mixed(tmp_path, "relaxed", "shm", 1_000_000)
    assert mixed == 1


@pytest.mark.parametrize("consistency", ["row", "relaxed"])
def test_a_row_is_of_one_version(consistency: str, transport: str, tmp_path: Path) -> None:
    if consistency == "relaxed":
        transport = "tcp"  # the server's thread reads and writes rows in turn
    mixed, changes = count_mixed(tmp_path, consistency, transport, 3000)
    assert mixed == 0
    assert changes >= CHANGES, "the row hardly changed: the test shows nothing"


def test_a_worker_maps_rows_for_reading_only(tmp_path: Path) -> None:
    """The server's own mapping, in this process too, is for writing: there are two of the rows."""

    def main(w: ps.Worker) -> list[str]:
        table = w.table("t", 4, rows=1_000_000, rule=ps.Add(), init=ps.constant(3.0))
        assert float(table.pull([7]).sum()) == 12.0
        lines = [one.split() for one in Path("/proc/self/maps").read_text().splitlines()]
        return [one[1] for one in lines if len(one) > 5 and "rdmatensor-arena" in one[5]]

    results, _ = ps_clusters.run(tmp_path, main, workers=1, servers=1, transport="shm")
    assert "r--s" in results[0]
    assert "rw-s" in results[0]
