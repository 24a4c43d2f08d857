"""Tables of keys, against a dictionary that does what the documentation says."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdmatensor import errors, ps

DIM = 3
MASK = (1 << 64) - 1
KEYS = [
    0,
    1,
    -1,
    2**63 - 1,
    -(2**63),
    *((i * 0x9E3779B97F4A7C15 & MASK) - 2**63 for i in range(1, 61)),
]


def mixed(x: int) -> int:
    """Return the finalizer of splitmix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def server_of(key: int, servers: int) -> int:
    return mixed(key & MASK) % 1024 % servers


@dataclass
class Entry:
    """A key that was pushed."""

    count: int = 0
    last: int = 0
    epoch: int = 0
    value: torch.Tensor | None = None
    square: torch.Tensor | None = None


@dataclass
class Model:
    """One server's keys, in the order of their last push."""

    options: dict[str, Any]
    capacity: int
    entries: dict[int, Entry] = field(default_factory=dict)
    step: int = 0
    epoch: int = 0

    def score(self, key: int) -> tuple[int, ...]:
        one = self.entries[key]
        return {
            "lru": (),  # the first in order
            "lfu": (one.count, one.last, key & MASK),
            "epoch": (one.epoch, one.count, key & MASK),
        }[self.options.get("evict", "lru")]

    def of_kind(self, has_row: bool) -> list[int]:
        return [key for key, one in self.entries.items() if (one.value is not None) == has_row]

    def apply(self, pushes: dict[int, torch.Tensor], first: Callable[[int], torch.Tensor]) -> None:
        self.step += 1
        expire = self.options.get("expire_after") or math.inf
        for key in [k for k, one in self.entries.items() if self.step - one.last > expire]:
            del self.entries[key]
        admit = self.options.get("admit_after", 1)
        for key, gradient in pushes.items():
            filtered = self.of_kind(False)
            if key not in self.entries and admit > 1 and 0 < self.capacity == len(filtered):
                del self.entries[filtered[0]]
            one = self.entries.pop(key, Entry())
            one.count, one.last, one.epoch = one.count + 1, self.step, self.epoch
            if one.value is None and one.count >= admit:
                rows = self.of_kind(True)
                if 0 < self.capacity == len(rows):
                    del self.entries[min(rows, key=self.score)]
                one.value, one.square = first(key), torch.zeros(DIM)
            self.entries[key] = one
            if one.value is not None and one.square is not None:
                one.square += gradient**2
                one.value -= 0.5 * (gradient / (one.square.sqrt() + 1e-10))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"admit_after": 3},
    {"expire_after": 4},
    {"capacity": 16},
    {"capacity": 16, "evict": "lfu", "admit_after": 2},
    {"capacity": 16, "evict": "epoch", "expire_after": 6},
]
BATCHES = st.lists(
    st.one_of(st.integers(1, 5), st.lists(st.integers(0, len(KEYS) - 1), max_size=30)), max_size=14
)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: " ".join(one) or "plain")
def test_a_table_of_keys_is_a_dictionary(
    options: dict[str, Any], servers: int, transport: str, tmp_path: Path
) -> None:
    def main(w: ps.Worker) -> None:
        tables = 0

        @settings(
            max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(BATCHES)
        def program(batches: list[Any]) -> None:
            nonlocal tables
            tables += 1
            table = w.table(
                f"t{tables}", DIM, keys=ps.Keys(**options), rule=ps.Adagrad(0.5),
                init=ps.uniform(-1, 1),
            )  # fmt: skip
            firsts = dict(zip(KEYS, table.pull(KEYS), strict=True))
            capacity = options.get("capacity", 0) // servers
            models = [Model(options, capacity) for _ in range(servers)]
            draw = torch.Generator().manual_seed(tables)
            for batch in batches:
                if isinstance(batch, int):
                    table.set_epoch(batch)
                    for model in models:
                        model.epoch = max(model.epoch, batch)
                    continue
                keys = [KEYS[i] for i in batch]
                rows = torch.randint(-3, 4, (len(keys), DIM), generator=draw).float()
                table.push(keys, rows)
                w.clock()
                sums: dict[int, torch.Tensor] = {}
                for key, row in zip(keys, rows, strict=True):
                    sums[key] = sums[key] + row if key in sums else row.clone()
                for server, model in enumerate(models):
                    own = {k: row for k, row in sums.items() if server_of(k, servers) == server}
                    model.apply(own, lambda key: firsts[key].clone())
                check(table, models, firsts)

        program()

    ps_clusters.run(
        tmp_path, main, workers=1, servers=servers, transport=transport, slot_bytes=1088
    )


def check(table: ps.Table, models: list[Model], firsts: dict[int, Any]) -> None:
    got, found = table.find(KEYS)
    assert torch.equal(got, table.pull(KEYS))
    for key, row, is_there in zip(KEYS, got, found.tolist(), strict=True):
        one = models[server_of(key, len(models))].entries.get(key)
        value = None if one is None else one.value
        assert is_there == (value is not None), key
        torch.testing.assert_close(row, firsts[key] if value is None else value)
    for model, counts in zip(models, table.describe(), strict=True):
        assert counts["rows"] == len(model.of_kind(True))
        assert counts["filtered"] == len(model.of_kind(False))


def test_a_million_keys_have_rows_of_their_own(tmp_path: Path) -> None:
    count, step = 1_000_000, 100_000

    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, keys="int64", rule=ps.Add())
        draw = torch.Generator().manual_seed(1)
        keys = torch.randint(-(2**63), 2**63 - 1, (count,), generator=draw)
        assert len(keys.unique()) == count
        rows = torch.arange(2 * count).reshape(count, 2).float()
        for at in range(0, count, step):
            table.push(keys[at : at + step], rows[at : at + step])
            w.clock()
        got, found = table.find(keys.flip(0))
        assert bool(found.all())
        assert torch.equal(got, rows.flip(0))
        assert not bool(table.find(keys + 1)[1].any())
        state: Any = w.describe()["servers"]
        tables = [one["tables"]["t"] for one in state]
        assert sum(one["rows"] for one in tables) == count
        assert sum(one["admissions"] for one in tables) == count
        assert sum(one["hits"] for one in tables) == count
        assert sum(one["misses"] for one in tables) == count
        for one, of_server in zip(tables, state, strict=True):
            assert 16 * one["rows"] <= one["memory_bytes"] < 16 * one["rows"] + (8 << 20)
            assert 0 < one["index_bytes"] < 160 * one["rows"]
            bytes_of_all = of_server["rows_bytes"] + of_server["state_bytes"]
            assert bytes_of_all == one["memory_bytes"] + one["index_bytes"]

    ps_clusters.run(tmp_path, main, workers=1, servers=2)


def test_first_values_do_not_depend_on_servers(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", 4, keys="int64", rule=ps.SGD(0.1), init=ps.normal(1.0, 2.0), seed=3)
        before = table.pull(range(5000))
        table.push(range(5000), torch.zeros(5000, 4))
        w.clock()
        after, found = table.find(range(5000))
        assert bool(found.all())
        assert torch.equal(before, after)
        dense = w.table("u", 4, rows=9, rule=ps.SGD(0.1), init=ps.uniform(0, 1))
        assert dense.find([3])[1].tolist() == [True]
        return before

    rows = [
        ps_clusters.run(
            tmp_path / str(servers), main, workers=1, servers=servers, transport=transport
        )[0][0]
        for servers in (1, 3)
    ]
    assert torch.equal(*rows)
    assert abs(float(rows[0].mean()) - 1) < 0.1
    assert abs(float(rows[0].std()) - 2) < 0.1


def test_modules_and_optimizers_work_with_keys(transport: str, tmp_path: Path) -> None:
    """Embedding and EmbeddingBag over keys equal torch's over their numbers, with Adam."""

    def main(w: ps.Worker) -> None:
        table = w.table("t", DIM, keys="int64", rule=ps.Adam(0.01), init=ps.uniform(-1, 1))
        keys = torch.tensor(KEYS)
        weight = torch.nn.Parameter(table.pull(keys))
        optimizer = torch.optim.SparseAdam([weight], 0.01)
        embedding, bag = ps.Embedding(table), ps.EmbeddingBag(table, "sum")
        draw = torch.Generator().manual_seed(3)
        for size in (4, 1, 300, 0, 40):
            ids = torch.randint(0, len(KEYS), (size,), generator=draw)
            goal = torch.randn(size, DIM, generator=draw)
            starts = torch.arange(0, size, 4)
            ((embedding(keys[ids]) - goal) ** 2).sum().backward()
            (bag(keys[ids], starts) ** 2).sum().backward()
            rows = torch.nn.functional.embedding(ids, weight, sparse=True)
            ((rows - goal) ** 2).sum().backward()
            sums = torch.nn.functional.embedding_bag(
                torch.arange(size), torch.nn.functional.embedding(ids, weight, sparse=True), starts,
                mode="sum",
            )  # fmt: skip
            (sums**2).sum().backward()
            w.clock()
            optimizer.step()
            optimizer.zero_grad()
            torch.testing.assert_close(table.pull(keys), weight.detach(), rtol=1e-5, atol=1e-6)

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_steps_of_several_workers_are_sights(mode: str, transport: str, tmp_path: Path) -> None:
    """In sync a step of all workers is one sight, in async each worker's is."""

    def main(w: ps.Worker) -> float:
        table = w.table("t", 1, keys=ps.Keys(admit_after=4), rule=ps.Add())
        for _ in range(6):
            table.push([7, 7, 100 + w.rank], torch.ones(3, 1))
            w.clock()
        w.kv.put(f"done {w.rank}", torch.zeros(()))
        for other in range(w.workers):
            w.kv.get(f"done {other}", wait=20)
        assert float(table.pull([100 + w.rank])) == 3
        return float(table.pull([7]))

    results, _ = ps_clusters.run(
        tmp_path, main, workers=3, servers=1, transport=transport, mode=mode
    )
    # Each applied step adds 2 for each worker in it.
    assert results == [3 * 6.0 if mode == "sync" else 2 * (18 - 3.0)] * 3


def refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_server_without_room_refuses_the_step_whole(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 1024, keys="int64", rule=ps.Add())
        other = w.table("u", 1, keys="int64", rule=ps.Add())
        at = 0

        def fill() -> None:
            nonlocal at
            while at < 1 << 20:
                table.push(range(at, at + 512), torch.ones(512, 1024))
                other.push([1], torch.ones(1, 1))
                w.clock()
                at += 512

        refused(fill, errors.OutOfMemoryError, "arena")
        with contextlib.suppress(errors.OutOfMemoryError):
            w.clock()  # ends the step if a push has raised the error
        assert 0 < at < 1 << 17
        assert float(other.pull([1])) == at // 512, "a step that was refused is applied in part"
        assert not bool(table.find(range(at, at + 512))[1].any())
        table.push(range(at), torch.ones(at, 1024))  # rows that are there need no room
        w.clock()
        assert bool((table.pull(range(0, at, 97)) == 2).all())

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport, arena_max_mib=64)


def test_with_a_capacity_memory_is_bounded(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 1024, keys=ps.Keys(capacity=2048), rule=ps.Adagrad(0.1))
        for at in range(0, 1 << 14, 256):
            table.push(range(at, at + 256), torch.ones(256, 1024))
            w.clock()
        state: Any = w.describe()["servers"]
        one = state[0]["tables"]["t"]
        assert (one["rows"], one["load"], one["evictions"]) == (2048, 1.0, (1 << 14) - 2048)
        assert one["memory_bytes"] <= 2048 * 8192 + (4 << 20)
        assert (
            table.find(range(1 << 14))[1].tolist() == [False] * ((1 << 14) - 2048) + [True] * 2048
        )

    ps_clusters.run(tmp_path, main, workers=1, servers=1, arena_max_mib=64)


def test_pushes_without_a_clock_keep_no_memory(tmp_path: Path) -> None:
    """A worker leaves with staged pushes; the others get what was reserved for them."""

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1024, keys="int64", rule=ps.Add())
        keys = range(w.rank << 20, (w.rank << 20) + 5000)
        if w.rank == 0:
            table.push(keys, torch.ones(5000, 1024))
            w.leave()
            return
        table.push([-1], torch.ones(1, 1024))
        w.clock()
        table.push(keys, torch.ones(5000, 1024))
        w.clock()
        assert bool((table.pull(keys) == 1).all())
        state: Any = w.describe()["servers"]
        assert state[0]["tables"]["t"]["rows"] == 5001
        assert state[0]["tables"]["t"]["memory_bytes"] < 30 << 20

    ps_clusters.run(tmp_path, main, workers=2, servers=1, arena_max_mib=64)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        wrong = errors.InvalidArgumentError

        def table(**options: Any) -> ps.Table:
            return w.table("t", 2, rule=ps.Add(), **options)

        refused(table, wrong, "rows=None with keys='dense'")
        refused(lambda: table(keys="int64", rows=4), wrong, "rows=4 with keys='int64'")
        refused(lambda: table(keys="str"), wrong, "keys='str'")
        refused(lambda: ps.Keys(admit_after=0), wrong, "admit_after=0")
        refused(lambda: ps.Keys(expire_after=0), wrong, "expire_after=0")
        refused(lambda: ps.Keys(capacity=0), wrong, "capacity=0")
        refused(lambda: ps.Keys(capacity=1 << 40), wrong, "capacity")
        refused(lambda: ps.Keys(evict="random"), wrong, "evict='random'")
        refused(lambda: table(keys="int64", spill="/tmp"), wrong, "spill and memory")
        keyed = table(keys=ps.Keys(capacity=5))
        other = ps.Keys(capacity=6)
        refused(lambda: table(keys=other), errors.MismatchError, "capacity=5")
        refused(lambda: keyed.pull(torch.tensor([1.0])), wrong, "not integers")
        refused(lambda: keyed.set_epoch(-1), wrong, "epoch=-1")
        dense = w.table("d", 2, rows=4, rule=ps.Add())
        refused(lambda: dense.set_epoch(1), wrong, "no keys")
        keyed.push([], torch.empty(0, 2))
        w.clock()
        assert keyed.pull([]).shape == (0, 2)

    ps_clusters.run(tmp_path, main, workers=1, servers=2)
