"""Checkpoints of tables of keys, and of tables larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch

from rdmatensor import errors, ps

DIM, KEYS, STEPS = 3, 400, 24
TABLES: dict[str, dict[str, Any]] = {
    "plain": {"keys": "int64"},
    "admitted": {"keys": ps.Keys(admit_after=3, expire_after=9)},
    "lru": {"keys": ps.Keys(capacity=64)},
    "lfu": {"keys": ps.Keys(capacity=64, evict="lfu", admit_after=2)},
    "ids": {"rows": KEYS},
}
SPILLED = {"plain", "ids", "lfu"}  # with memory for some rows only


def key_of(number: torch.Tensor) -> torch.Tensor:
    return number * 0x1E3779B97F4A7C15


def train(
    folder: Path, name: str, *, steps: int, servers: int, saves: dict[int, Any] | None = None,
    memory: bool = False, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """Train from the restored step to `steps`; return the rows, and which are there."""

    def main(w: ps.Worker) -> torch.Tensor:
        spill = (
            {}
            if memory or name not in SPILLED
            else {"spill": folder.parent, "memory": servers * 3400}
        )
        table = w.table("t", DIM, rule=ps.Adam(0.01), init=ps.normal(), **TABLES[name], **spill)
        for step in range(w.steps, steps):
            draw = torch.Generator().manual_seed(10 * step + w.rank)
            numbers = (torch.rand(60, generator=draw) ** 2 * KEYS).to(torch.int64)
            ids = numbers if name == "ids" else key_of(numbers)
            table.push(ids, torch.randn(60, DIM, generator=draw))
            w.clock()
            if saves is not None and w.rank == 0 and step + 1 in saves:
                saves[step + 1](w)
        every = torch.arange(KEYS)
        rows, found = table.find(every if name == "ids" else key_of(every))
        return torch.cat([rows, found[:, None].float()], 1)

    results, _ = ps_clusters.run(folder, main, workers=2, servers=servers, **options)
    assert torch.equal(*results)
    return results[0]


@pytest.mark.parametrize("name", TABLES)
def test_a_restored_run_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """From a full checkpoint, and from an increment after it; steps go on while it is saved."""
    saved = tmp_path / "saved"
    waiting: list[Any] = []

    def save(w: ps.Worker) -> None:
        waiting.append(w.save(saved))

    def increment(w: ps.Worker) -> None:
        waiting.pop().wait(20)
        waiting.append(w.save(tmp_path / "saved", incremental=True))

    def wait(_: ps.Worker) -> None:
        waiting.pop().wait(20)

    whole = train(tmp_path / "a", name, steps=STEPS, servers=2, saves={10: save, 14: wait})
    # What a capacity keeps depends on the number of servers.
    others = (2,) if name[0] == "l" else (1, 2, 3)
    for servers in others:
        again = train(
            tmp_path / f"b{servers}", name, steps=STEPS, servers=servers, restore=str(saved)
        )
        assert torch.equal(whole, again), servers
    again = train(
        tmp_path / "c", name, steps=STEPS, servers=2, restore=str(saved),
        saves={12: save, 16: increment, 20: wait},
    )  # fmt: skip
    assert torch.equal(whole, again)
    for servers in others:
        again = train(
            tmp_path / f"d{servers}", name, steps=STEPS, servers=servers, restore=str(saved)
        )
        assert torch.equal(whole, again), servers
    again = train(tmp_path / "e", name, steps=STEPS, servers=2, restore=str(saved), memory=True)
    assert torch.equal(whole, again), "in memory, what was spilled"


def test_a_checkpoint_gives_keys_and_rows(tmp_path: Path) -> None:
    def save(w: ps.Worker) -> None:
        w.save(tmp_path / "saved").wait(20)

    for name in ("admitted", "ids"):
        rows = train(tmp_path / name, name, steps=12, servers=2, saves={12: save})
        found = rows[:, DIM] != 0
        got = ps.Checkpoint(tmp_path / "saved").table("t")
        if name == "admitted":
            keys = key_of(torch.arange(KEYS)[found])
            order = keys.argsort()
            assert torch.equal(got["keys"], keys[order])
            assert torch.equal(got["values"], rows[found][order][:, :DIM])
        else:
            assert torch.equal(got["values"], rows[:, :DIM])
        assert got["state"].shape == (len(got["values"]), 2 * DIM)


def test_more_servers_with_less_room_evict(tmp_path: Path) -> None:
    def save(w: ps.Worker) -> None:
        w.save(tmp_path / "saved").wait(20)

    before = train(tmp_path / "a", "lru", steps=12, servers=1, saves={12: save})
    assert float(before[:, DIM].sum()) == 64
    after = train(tmp_path / "b", "lru", steps=13, servers=3, restore=str(tmp_path / "saved"))
    assert 0 < float(after[:, DIM].sum()) <= 64


def test_other_keys_are_refused(tmp_path: Path) -> None:
    def save(w: ps.Worker) -> None:
        w.save(tmp_path / "saved").wait(20)

    train(tmp_path / "a", "lru", steps=3, servers=1, saves={3: save})
    with pytest.raises(errors.MismatchError, match="was saved as"):
        train(tmp_path / "b", "plain", steps=4, servers=1, restore=str(tmp_path / "saved"))
