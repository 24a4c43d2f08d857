"""Tables of a parameter server: pulls, pushes and rules over one and several servers."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import ps_clusters
import pytest
import torch

from rdmatensor import Context, FileStore, Settings, errors, ps

ROWS, DIM = 3000, 5
INIT = ps.uniform(-0.5, 0.5)


def first_rows(tmp_path: Path, servers: int, transport: str) -> torch.Tensor:
    def main(w: ps.Worker) -> torch.Tensor:
        table = w.table("t", DIM, rows=ROWS, rule=ps.SGD(0.1), init=INIT, seed=7)
        assert w.describe()["mapped"] == [transport == "shm"] * servers
        return table.pull(torch.arange(ROWS))

    results, _ = ps_clusters.run(
        tmp_path / str(servers), main, workers=1, servers=servers, transport=transport
    )
    return results[0]


def test_first_values_do_not_depend_on_servers_and_paths(transport: str, tmp_path: Path) -> None:
    one = first_rows(tmp_path, 1, transport)
    assert torch.equal(one, first_rows(tmp_path, 3, transport))
    assert -0.5 <= float(one.min()) < -0.49
    assert 0.49 < float(one.max()) < 0.5
    assert abs(float(one.mean())) < 0.02
    assert len(one.unique()) > 0.99 * one.numel()


RULES = {
    "sgd": (ps.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "adagrad": (ps.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1)),
    "adam": (ps.Adam(0.01), lambda p: torch.optim.SparseAdam(p, 0.01)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rows_follow_torch_s_optimizer(
    rule: str, servers: int, mode: str, transport: str, tmp_path: Path
) -> None:
    """Duplicates, empty batches, ids on one server only, batches larger than a slot."""
    mine, make = RULES[rule]

    def main(w: ps.Worker) -> None:
        table = w.table("t", DIM, rows=ROWS, rule=mine, init=INIT)
        embedding = ps.Embedding(table)
        weight = torch.nn.Parameter(table.pull(torch.arange(ROWS)))
        optimizer = make([weight])
        draw = torch.Generator().manual_seed(3)
        for step, size in enumerate((4, 1, 300, 0, 2500, 7)):
            ids = torch.randint(0, ROWS // (1 + step % 3), (size,), generator=draw)
            goal = torch.randn(size, DIM, generator=draw)
            ((embedding(ids) - goal) ** 2).sum().backward()
            rows = torch.nn.functional.embedding(ids, weight, sparse=True)
            ((rows - goal) ** 2).sum().backward()
            assert w.clock() == step + 1
            optimizer.step()
            optimizer.zero_grad()
            got = table.pull(torch.arange(ROWS))
            torch.testing.assert_close(got, weight.detach(), rtol=1e-5, atol=1e-6)

    _, states = ps_clusters.run(
        tmp_path, main, workers=1, servers=servers, transport=transport, mode=mode, slot_bytes=4096
    )
    assert all(state["staged_bytes"] == 0 and state["replays"] == 0 for state in states)


def test_of_assigned_rows_the_last_one_counts_and_added_rows_are_summed(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        assigned = w.table("assigned", 2, rows=9, rule=ps.Assign())
        added = w.table("added", 2, rows=9, rule=ps.Add(), init=ps.constant(1.0))
        ids = [4, 4, 8]
        rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        assigned.push(ids, rows)
        added.push(torch.tensor(ids, dtype=torch.int32), rows)
        w.clock()
        assert assigned.pull([4, 8, 0]).tolist() == [[3, 4], [5, 6], [0, 0]]
        assert added.pull([4, 8, 0]).tolist() == [[5, 7], [6, 7], [1, 1]]

    ps_clusters.run(tmp_path, main, workers=1, servers=2)


def test_a_bag_is_torch_s(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 3, rows=50, rule=ps.SGD(0.1), init=INIT)
        weight = torch.nn.Parameter(table.pull(torch.arange(50)))
        ids = torch.tensor([1, 2, 2, 4, 5, 49, 0])
        for mode in ("sum", "mean"):
            for offsets in ([0, 3, 3, 6], [0]):
                starts = torch.tensor(offsets)
                bag = ps.EmbeddingBag(table, mode)(ids, starts)
                oracle = torch.nn.functional.embedding_bag(ids, weight, starts, mode=mode)
                assert torch.equal(bag, oracle)
                (bag**2).sum().backward()
                (oracle**2).sum().backward()
        square = ids[:6].reshape(2, 3)
        assert torch.equal(
            ps.EmbeddingBag(table)(square), torch.nn.functional.embedding_bag(square, weight)
        )
        w.clock()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        torch.testing.assert_close(table.pull(torch.arange(50)), weight.detach())

    ps_clusters.run(tmp_path, main, workers=1, servers=2)


def test_prefetched_rows_are_pulled_rows(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", DIM, rows=ROWS, rule=ps.SGD(0.1), init=INIT)
        ids = torch.randint(0, ROWS, (4, 100))
        futures = [table.prefetch(one) for one in ids]
        for one, future in zip(ids, futures, strict=True):
            assert torch.equal(future.result(20), table.pull(one))

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


def refused(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_wrong_arguments_are_refused_and_nothing_is_sent(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=10, rule=ps.Add())
        wrong, ones = errors.InvalidArgumentError, torch.ones(1, 2)
        refused(lambda: table.pull([10]), wrong, "id 10 is not from 0 to 9")
        refused(lambda: table.push([3, -1], torch.ones(2, 2)), wrong, "id -1 is not")
        refused(lambda: table.pull(torch.tensor([1.0])), wrong, "float32, not integers")
        refused(lambda: table.push([1], torch.ones(1, 3)), wrong, r"\(1, 3\), not float32")
        refused(lambda: table.push([1], ones.double()), wrong, "float64")
        refused(lambda: table.pull([1], out=torch.empty(2)), wrong, "out is")
        refused(lambda: w.clock(-1.0), wrong, "lr_scale")
        refused(lambda: w.table("t", 3, rows=10, rule=ps.Add()), errors.MismatchError, "dim=2")
        refused(lambda: w.table("u", 0, rows=10, rule=ps.Add()), wrong, "dim 0")
        refused(lambda: w.table("u", 2, rows=1 << 60, rule=ps.Add()), wrong, "rows")
        refused(lambda: w.table("", 2, rows=1, rule=ps.Add()), wrong, "name")
        refused(lambda: w.table("u", 2, rows=1, rule="sgd"), wrong, "ps rule")
        refused(lambda: w.table("t", 2, rows=10, rule=ps.Add(), consistency="row"),
                errors.MismatchError, "consistency='relaxed'")  # fmt: skip
        refused(lambda: w.table("u", 2, rows=1, rule=ps.Add(), consistency="strict"), wrong,
                "consistency='strict' is not 'relaxed' or 'row'")  # fmt: skip
        w.clock()
        assert table.pull(range(10)).sum() == 0
        table.push([], torch.empty(0, 2))
        table.push([1], ones)
        w.clock()
        assert table.pull(range(10)).sum() == 2

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


def test_a_table_that_workers_describe_differently_is_refused(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> str:
        try:
            w.table("t", 2, rows=10, rule=ps.SGD(0.1 + w.rank))
        except errors.MismatchError as error:
            return str(error)
        return ""

    results, _ = ps_clusters.run(tmp_path, main, workers=2, servers=1)
    assert sorted(map(bool, results)) == [False, True]
    assert "lr" in "".join(results)


def test_a_server_without_room_refuses_and_goes_on(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        refused(
            lambda: w.table("huge", 4096, rows=1 << 33, rule=ps.Adam()),
            errors.OutOfMemoryError,
            "arena",
        )
        table = w.table("small", 2, rows=10, rule=ps.Add())
        table.push([9], torch.ones(1, 2))
        w.clock()
        assert table.pull([9]).tolist() == [[1, 1]]

    ps_clusters.run(tmp_path, main, workers=1, servers=1)


HOSTILE: list[dict[str, Any]] = [
    {"call": ["table"]},
    {"call": "no"},
    {"call": "table"},
    {"call": "table", "table": {"name": "x", "dim": 1 << 70, "rows": 1, "rule": {}, "init": {}}},
    {"call": "queue", "name": "q", "chunks": 1e300},
    {"call": "queue", "name": "q", "chunks": -1},
    {"call": "dense", "name": "\ud800", "rule": {"kind": "\ud800"}, "count": 1},
    {"call": "dense", "name": "d", "rule": {"kind": "SGD", "lr": []}, "count": "x"},
    {"call": "values", "name": "\ud800" * 500},
    {"call": "first values", "name": "y"},
]


def test_bad_calls_do_not_end_the_server(tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        for request in HOSTILE:
            refused(lambda r=request: w._call(0, r), errors.RdmaTensorError, "server 0: ")
        table = w.table("t" * 200, 2, rows=4, rule=ps.Add(), init=ps.constant(1.0))
        for number in range(4):  # its description exceeds a slot
            w.table(f"{number}" * 200, 2, rows=4, rule=ps.Add())
        refused(w.describe, errors.RdmaTensorError, "exceeds a slot")
        assert float(table.pull([3]).sum()) == 2.0
        init = ps.Init("NONE", 0.0, 0.0)
        refused(
            lambda: w.table("u", 1, rows=1, rule=ps.Add(), init=init),
            errors.InvalidArgumentError,
            "init=",
        )

    ps_clusters.run(tmp_path, main, workers=1, servers=1, slot_bytes=2048)


def test_a_worker_closes_while_another_thread_pulls(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 64, rows=ROWS, rule=ps.Add())
        futures = [table.prefetch(torch.arange(ROWS)) for _ in range(50)]
        futures[0].result(20)
        w.leave()
        w.close()
        for future in futures:
            assert (
                future.cancelled()
                or future.exception(20) is None
                or isinstance(future.exception(), errors.ClosedError)
            )
        refused(lambda: table.prefetch([0]), errors.ClosedError, "closed")
        refused(lambda: table.pull([0]), errors.ClosedError, "closed|left")

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


def test_nothing_is_pulled_after_leave(transport: str, tmp_path: Path) -> None:
    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=4, rule=ps.Add())
        w.leave()
        refused(lambda: table.pull([0]), errors.ClosedError, "has left")

    ps_clusters.run(tmp_path, main, workers=1, servers=2, transport=transport)


def pull_for_s(table: ps.Table, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        table.pull([0])


def test_a_pull_notices_that_the_job_has_ended(transport: str, tmp_path: Path) -> None:
    have_joined = threading.Barrier(2)

    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=4, rule=ps.Add())
        have_joined.wait(20)
        if w.rank == 1:
            raise RuntimeError("worker 1 ends without leave()")
        refused(lambda: pull_for_s(table, 20), errors.PeerError, "worker 1 is gone")

    with pytest.raises(errors.PeerError, match="worker 1 is gone"):  # of leave()
        ps_clusters.run(tmp_path, main, workers=2, servers=2, transport=transport)


def test_a_server_closes_while_it_serves(tmp_path: Path) -> None:
    clusters: list[ps.Cluster] = []
    ended: list[BaseException] = []

    def play(rank: int) -> None:
        settings = Settings(transport="tcp", secret=b"secret", timeout_s=30)
        with (
            Context(settings) as context,
            ps.join(FileStore(tmp_path), rank, 2, servers=1, context=context) as cluster,
        ):
            clusters.append(cluster)
            try:
                if cluster.server is not None:
                    cluster.server.serve()
                elif cluster.worker is not None:
                    table = cluster.worker.table("t", 2, rows=4, rule=ps.Add())
                    is_made.set()
                    while True:
                        table.pull([0])
            except errors.RdmaTensorError as error:
                ended.append(error)

    is_made = threading.Event()
    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    assert is_made.wait(30)
    next(one.server for one in clusters if one.server is not None).close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert {type(one) for one in ended} == {errors.ClosedError, errors.PeerError}
