"""Named tensors of a parameter server, against a dictionary."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jobs
import ps_clusters
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdmatensor import errors, ps
from rdmatensor.ps.values import DTYPES

SLOT_BYTES = 2048  # so that most values are cut into parts
NAMES = ("a", "b", "ä" * 100, "layer.0/weight")


def filled(dtype: str, shape: list[int], seed: int) -> torch.Tensor:
    """Return a tensor of any dtype with small whole numbers, whose sums are exact."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=draw).to(DTYPES[dtype])


def sum_of(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.dtype in (torch.uint16, torch.uint32, torch.uint64):
        bits = 8 * one.dtype.itemsize
        return ((one.to(torch.int64) + other.to(torch.int64)) % 2**bits).to(one.dtype)
    return one + other


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    flat = [x.contiguous().reshape(-1).view(torch.uint8) for x in (one, other)]
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(*flat)


SHAPES = st.sampled_from([[], [0], [3], [2, 0, 5], [40, 41], [1, 1, 700]])
OPERATIONS = st.tuples(
    st.sampled_from(["put", "add", "cas", "stale cas", "delete", "get"]),
    st.sampled_from(NAMES),
    st.sampled_from(sorted(DTYPES)),
    SHAPES,
    st.integers(0, 1 << 30),
)


class Model:
    """A dictionary that does what the servers are asked, or says why it cannot be done."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[torch.Tensor, int]] = {}

    def check(self, w: ps.Worker, operation: tuple[str, str, str, list[int], int]) -> None:
        op, name, dtype, shape, seed = operation
        known, value = self.values.get(name), filled(dtype, shape, seed)
        is_other = known is not None and (known[0].dtype, known[0].shape) != (
            value.dtype,
            value.shape,
        )
        if op == "get":
            if known is None:
                with pytest.raises(errors.InvalidArgumentError, match="no value has the name"):
                    w.kv.get(name)
            else:
                got, version = w.kv.read(name)
                assert same(got, known[0])
                assert version == known[1]
            return
        if op == "delete":
            assert w.kv.delete(name) == (self.values.pop(name, None) is not None)
            return
        if op == "add" and (known is None or value.dtype == torch.bool or "float8" in dtype):
            with pytest.raises(errors.InvalidArgumentError, match=r"no sum|no value has the name"):
                w.kv.add(name, value)
            return
        if op == "stale cas":
            assert w.kv.cas(name, value, 10**9) is None
            return
        current = 0 if known is None else known[1]
        call = {
            "put": lambda: w.kv.put(name, value),
            "add": lambda: w.kv.add(name, value),
            "cas": lambda: w.kv.cas(name, value, current),
        }[op]
        if is_other:
            with pytest.raises(errors.MismatchError, match="delete"):
                call()
            return
        version = call()
        assert version is not None
        assert version > current
        self.values[name] = (
            sum_of(known[0], value) if op == "add" and known is not None else value,
            version,
        )


@pytest.mark.parametrize("servers", [1, 3])
def test_named_tensors_are_a_dictionary(servers: int, transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        @settings(
            max_examples=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(OPERATIONS, max_size=12))
        def program(operations: list[Any]) -> None:
            for name in w.kv.names():
                w.kv.delete(name)
            model = Model()
            for operation in operations:
                model.check(w, operation)
            assert w.kv.names() == sorted(model.values)

        program()

    ps_clusters.run(
        tmp_path, main, workers=1, servers=servers, transport=transport, slot_bytes=SLOT_BYTES
    )


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16", "bfloat16"])
def test_sums_of_several_workers_are_all_counted(
    dtype: str, transport: str, tmp_path: Path
) -> None:
    def main(w: ps.Worker) -> torch.Tensor:
        if w.rank == 0:
            w.kv.put("count", torch.zeros(2000).to(DTYPES[dtype]))
        w.kv.get("count", wait=20)
        for _ in range(20):
            w.kv.add("count", torch.ones(2000).to(DTYPES[dtype]))
            got = w.kv.get("count")
            assert bool((got.to(torch.int64) == got.to(torch.int64)[0]).all()), "half a sum"
        w.kv.put(f"done {w.rank}", torch.zeros(()))
        for other in range(w.workers):
            w.kv.get(f"done {other}", wait=20)
        return w.kv.get("count")

    results, _ = ps_clusters.run(
        tmp_path, main, workers=3, servers=2, transport=transport, slot_bytes=SLOT_BYTES
    )
    for result in results:
        assert same(result, torch.full((2000,), 60.0).to(DTYPES[dtype]))


def test_of_workers_that_swap_one_wins_each_time(transport: str, tmp_path: Path) -> None:
    """A counter by compare-and-swap: each success counts, and no change is lost."""

    def main(w: ps.Worker) -> int:
        won = int(w.kv.cas("n", torch.zeros((), dtype=torch.int64), 0) is not None)
        assert w.kv.cas("n", torch.zeros((), dtype=torch.int64), 0) is None
        raised = 0
        while raised < 30:
            value, version = w.kv.read("n")
            raised += w.kv.cas("n", value + 1, version) is not None
        w.kv.put(f"done {w.rank}", torch.zeros(()))
        for other in range(w.workers):
            w.kv.get(f"done {other}", wait=20)
        assert int(w.kv.get("n")) == 30 * w.workers
        return won

    results, _ = ps_clusters.run(tmp_path, main, workers=3, servers=1, transport=transport)
    assert sum(results) == 1


def test_get_waits_for_a_name(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        if w.rank == 0:
            with pytest.raises(errors.TransferTimeoutError, match="no worker has put 'late'"):
                w.kv.get("late", wait=0.05)
            w.kv.put("go", torch.ones(1))
            assert w.kv.get("late", wait=20).tolist() == [7]
        else:
            w.kv.get("go", wait=20)
            w.kv.put("late", torch.tensor([7]))

    ps_clusters.run(tmp_path, main, workers=2, servers=2)


def test_views_are_copied_and_large_values_are_whole(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        big = torch.arange(1 << 20, dtype=torch.int32).reshape(1 << 10, 1 << 10)
        w.kv.put("big", big.t())
        assert torch.equal(w.kv.get("big"), big.t())
        w.kv.put("conj", torch.tensor([1 + 2j]).conj())
        assert w.kv.get("conj").tolist() == [1 - 2j]
        w.kv.put("grad", torch.ones(2, requires_grad=True))
        got = w.kv.get("grad")
        got += 1
        assert w.kv.get("grad").tolist() == [1, 1]

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


def refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        kv, one, wrong = w.kv, torch.ones(1), errors.InvalidArgumentError
        refused(lambda: kv.get("x"), wrong, "no value has the name 'x'")
        refused(lambda: kv.put("", one), wrong, "name=''")
        refused(lambda: kv.put("ä" * 101, one), wrong, "200 B")
        refused(lambda: kv.put("\ud800", one), wrong, "printable")
        refused(lambda: kv.put(3, one), wrong, "name=3")  # type: ignore[arg-type]
        refused(lambda: kv.put("x", [1.0]), wrong, "list")  # type: ignore[arg-type]
        refused(lambda: kv.put("x", one.to_sparse()), wrong, "sparse")
        refused(lambda: kv.put("x", one.reshape([1] * 9)), wrong, "9 dims")
        refused(lambda: kv.put("x", one.to("meta")), wrong, "meta")
        refused(lambda: kv.add("x", one), wrong, "put")
        refused(lambda: kv.add("x", one.bool()), wrong, "no sum")
        refused(lambda: kv.cas("x", one, -1), wrong, "version=-1")
        refused(lambda: kv.get("x", wait=-1), wrong, "-1")
        kv.put("x", one)
        refused(lambda: kv.put("x", one.double()), errors.MismatchError, "float32 of shape")
        refused(lambda: kv.add("x", torch.ones(2)), errors.MismatchError, r"\[2\]")
        assert kv.get("x").tolist() == [1]

    ps_clusters.run(tmp_path, main, workers=1, servers=1)


def test_a_server_without_room_keeps_what_it_has(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        w.kv.put("x", torch.ones(1 << 22))
        refused(lambda: w.kv.put("x", torch.zeros(1 << 23)), errors.MismatchError, "shape")
        refused(lambda: w.kv.put("y", torch.zeros(1 << 24)), errors.OutOfMemoryError, "ARENA")
        refused(lambda: w._call(0, LARGE), errors.OutOfMemoryError, "at most")
        assert w.kv.names() == ["x"]
        assert float(w.kv.get("x").sum()) == 1 << 22

    ps_clusters.run(tmp_path, main, workers=1, servers=1, arena_max_mib=64)


PUT = {
    "call": "kv", "op": "put", "name": "h", "sequence": 1, "dtype": "uint8", "shape": [2],
    "bytes": 2, "offset": 0, "version": None,
}  # fmt: skip
LARGE = {**PUT, "op": "part", "bytes": 1 << 40, "sequence": 100}


@pytest.mark.parametrize(
    "change",
    [
        {"op": "no"}, {"op": []}, {"sequence": "1"}, {"sequence": -1}, {"bytes": 3},
        {"shape": [1 << 62, 4]}, {"shape": "ab"}, {"shape": [-1, -2]}, {"dtype": "x"},
        {"dtype": []}, {"offset": 1}, {"offset": 1 << 70}, {"name": ""}, {"op": "more"},
        {"op": "part", "bytes": 1, "offset": 0}, {"op": "names", "after": {}},
    ],
)  # fmt: skip
def test_hostile_calls_do_not_end_the_server(change: dict[str, Any], tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        request: dict[str, object] = {**PUT, **change}
        data = b"ab"
        try:
            w._call(0, {**request, "data": data})
        except (errors.RdmaTensorError, TypeError):
            pass
        else:
            assert change.get("op") == "names"
        w.kv.put("fine", torch.ones(3))
        assert w.kv.names() == ["fine"]

    ps_clusters.run(tmp_path, main, workers=1, servers=1)


def test_a_repeated_change_counts_once(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        w.kv.put("x", torch.zeros(2, dtype=torch.uint8))
        request: dict[str, object] = {**PUT, "op": "add", "name": "x", "sequence": 2}
        answers = [w._call(0, {**request, "data": b"\1\2"}) for _ in range(3)]
        assert answers == [{"version": 2}] * 3
        assert w.kv.get("x").tolist() == [1, 2]

    ps_clusters.run(tmp_path, main, workers=1, servers=1)


def test_a_worker_that_dies_within_a_change_leaves_nothing_of_it(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_ps:dies_in_add", 4, tmp_path, environment=path_forced)
    assert [rank.exit for rank in ranks] == [0, -9, -9, 0], [rank.log for rank in ranks]
    assert ranks[0].result["values"] == [5 + 2 * 3], "a change was carried out in part, or lost"


def test_waiting_ends_with_the_worker(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        found: list[BaseException] = []

        def wait() -> None:
            try:
                w.kv.get("never", wait=30)
            except errors.RdmaTensorError as error:
                found.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        w.close()
        thread.join(20)
        assert not thread.is_alive()
        assert isinstance(found[0], errors.ClosedError)
        raise Done

    class Done(Exception):
        pass

    with pytest.raises(Done):
        ps_clusters.run(tmp_path, main, workers=1, servers=1, on_worker_death="continue")
