"""Advice: bytes counted by playing the messages, the choice against all choices, and its plan."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from generated_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis import (
    CostModel,
    DataParallel,
    ParameterServer,
    advise,
    analyze,
    plan_from_json,
    plan_to_json,
)
from graph_analysis import advice as module
from graph_analysis.__main__ import main
from graph_analysis.build import build_plan
from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Graph

Phase = list[tuple[int, int, int]]  # messages at one time: from, to, bytes


def played(phases: list[Phase]) -> tuple[int, int]:
    """Return the bytes of the busiest direction of a link in each phase, summed; and of all."""
    busiest = total = 0
    for phase in phases:
        moved: Counter[tuple[str, int]] = Counter()
        for source, target, size in phase:
            moved["out", source] += size
            moved["in", target] += size
            total += size
        busiest += max(moved.values(), default=0)
    return busiest, total


def ring(workers: int, size: int) -> list[Phase]:
    chunk = size // workers
    each = [(rank, (rank + 1) % workers, chunk) for rank in range(workers)]
    return [each for _ in range(2 * (workers - 1))]


def servers_of(workers: int, servers: int, there: int, back: int) -> list[Phase]:
    pairs = list(itertools.product(range(workers), range(workers, workers + servers)))
    to = [(worker, server, there // servers) for worker, server in pairs]
    return [to, [(server, worker, back // servers) for worker, server in pairs]]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 50), st.integers(1, 30))
def test_bytes_are_those_of_the_messages(workers: int, servers: int, rows: int, dim: int) -> None:
    size = 4 * workers * servers * rows * dim
    of_ring = module.all_reduce(workers, size)
    assert (of_ring.link_bytes, of_ring.total_bytes) == played(ring(workers, size))
    assert of_ring.rounds == len(ring(workers, size))
    dense = module.dense_push(workers, servers, size)
    assert (dense.link_bytes, dense.total_bytes) == played(servers_of(workers, servers, size, size))
    touched, row = servers * rows, 4 * dim
    pull = servers_of(workers, servers, 8 * touched, row * touched)
    push = servers_of(workers, servers, (8 + row) * touched, 0)
    pushed = module.sparse_push(workers, servers, touched, row)
    assert (pushed.link_bytes, pushed.total_bytes) == played(pull + push)
    gather = [
        [(rank, (rank + 1) % workers, what * rows) for rank in range(workers)]
        for what in (8, row)
        for _ in range(workers - 1)
    ]
    gathered = module.sparse_all_gather(workers, rows, row)
    assert (gathered.link_bytes, gathered.total_bytes) == played(gather)
    assert gathered.rounds == len(gather)


@given(graphs(), st.integers(1, 8), st.integers(0, 10**7), st.integers(1, 10**11))
def test_the_best_comes_first_and_its_plan_is_that_strategys(
    graph: Graph, workers: int, latency_ns: int, rate: int
) -> None:
    cost = CostModel(latency_ns=latency_ns, bandwidth_bytes_per_s=rate)
    advice = advise(graph, workers, cost)
    assert advice == advise(graph, workers, cost)
    times = [one.exchange.time_ns(cost) for one in advice.choices]
    assert times == sorted(times)
    assert advice.strategy in (
        DataParallel(workers),
        ParameterServer(1, workers),
        ParameterServer(2, workers),
    )
    text = advice.text()
    assert text.startswith(f"Advice for {workers} workers: {advice.choices[0].name}\n")
    assert all(one.name in text for one in advice.choices)
    build_plan(graph, advice.strategy, cost=cost)


def test_bad_arguments_are_refused() -> None:
    graph = Graph((), (), (), (), "module", "output_sum", "-")
    for workers in (0, -1, True, "2"):
        with pytest.raises(ArgumentError, match="workers"):
            advise(graph, workers, CostModel())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="rate below 1"):
        advise(graph, 2, CostModel(bandwidth_bytes_per_s=0))


def test_a_ring_moves_least_over_the_busiest_link() -> None:
    for workers, servers in itertools.product(range(2, 9), range(1, 20)):
        pushed = module.dense_push(workers, servers, 1 << 20).link_bytes
        assert pushed >= module.all_reduce(workers, 1 << 20).link_bytes


# ---- Of models -----------------------------------------------------------------------------------

torch = pytest.importorskip("torch")


class Factors(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A look-up, and a dense layer after it."""

    def __init__(self, rows: int, *, is_twice: bool = False, **options: object) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(rows, 16, **options)
        self.last = torch.nn.Linear(16, 1)
        self.is_twice = is_twice

    def forward(self, ids: "torch.Tensor") -> "torch.Tensor":
        found = self.rows(ids)
        if self.is_twice:
            found = found + self.rows(ids + 1)
        return self.last(found)


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"padding_idx": 0}])
def test_few_rows_of_a_large_embedding_are_exchanged_alone(
    options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    model, inputs = Factors(100_000, **options), (torch.zeros(8, 4, dtype=torch.int64),)
    plan = analyze(model, inputs, strategy="advise", workers=4)
    said = capsys.readouterr().out
    assert "rows.weight: a worker's batch has at most 32 of 100000 rows of 64 bytes" in said
    assert "rows to" in said.splitlines()[0] or "all_gather of rows" in said.splitlines()[0]
    wanted = analyze(model, inputs, strategy=DataParallel(4))
    assert plan_to_json(plan) == plan_to_json(wanted)
    assert capsys.readouterr().out == ""


def test_an_embedding_that_a_batch_covers_is_exchanged_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, inputs = Factors(16), (torch.zeros(64, 4, dtype=torch.int64),)
    cost = CostModel(latency_ns=0)
    analyze(model, inputs, strategy="advise", workers=4, cost=cost)
    said = capsys.readouterr().out
    assert said.startswith("Advice for 4 workers: all_reduce\n")
    assert "at most 16 of 16 rows" in said


def test_a_bag_is_a_look_up_and_a_frozen_one_is_not_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bag = torch.nn.EmbeddingBag(1000, 16, mode="sum")
    model = torch.nn.Sequential(bag, torch.nn.Linear(16, 1))
    inputs = (torch.zeros(8, 4, dtype=torch.int64),)
    analyze(model, inputs, strategy="advise", workers=2)
    assert "0.weight: a worker's batch has at most 32 of 1000 rows" in capsys.readouterr().out
    bag.weight.requires_grad_(False)
    analyze(model, inputs, strategy="advise", workers=2)
    said = capsys.readouterr().out
    assert "0.weight" not in said
    assert "of 68 bytes of dense gradients" in said


def test_rows_that_are_looked_up_twice_count_as_dense(capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs = Factors(1000, is_twice=True), (torch.zeros(4, dtype=torch.int64),)
    analyze(model, inputs, strategy="advise", workers=2)
    assert "rows.weight" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("strategy", "workers", "said"),
    [
        ("advise", None, "workers None"),
        (DataParallel(2), 2, "workers 2"),
        ("advice", 2, "strategy 'advice'"),
        ("advise", 0, "workers 0"),
    ],
)
def test_analyze_refuses(strategy: object, workers: int | None, said: str) -> None:
    inputs = (torch.zeros(4, dtype=torch.int64),)
    with pytest.raises(ArgumentError, match=said):
        analyze(Factors(10), inputs, strategy=strategy, workers=workers)  # type: ignore[arg-type]


def test_the_command_line_advises(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = main(["graph_models:mlp", "--strategy", "advise", "--world", "3", "-o", str(out)])
    said = capsys.readouterr().out
    assert done == 0
    assert said.startswith("Advice for 3 workers: parameter server, 2 servers\n")
    assert "parameter_server (shards=2, workers=3" in said
    assert plan_from_json(out.read_bytes()).strategy.world_size == 5
    assert main(["graph_models:mlp", "--strategy", "advise"]) == 2
