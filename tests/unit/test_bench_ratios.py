"""CI's quick look at ratios: what it compares, when it fails, when it tries again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import programs
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record
from bench.suite import ratios


def _figure(runs: Iterator[tuple[float, float]], least: float = 0.5) -> ratios.Figure:
    """A figure whose runs have these fastest samples of us and of the other."""

    def measure() -> list[Record]:
        own, other = next(runs)
        return [
            {"name": "rdmatensor", "raw_ns": [own * 50, own, own * 3]},
            {"name": "floor", "raw_ns": [other * 9, other]},
        ]

    return ratios.Figure(
        "made up",
        measure,
        lambda record: record["name"] == "rdmatensor",
        lambda record: record["name"] == "floor",
        1.0,
        least,
    )


def test_the_manual_counts_them() -> None:
    words = ("six", "seven", "eight", "nine", "ten")
    told = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert f"It has {words[len(ratios.FIGURES) - 6]} ratios of this kind" in told
    counts = ("four", "five", "six")
    assert f"{counts[len(ratios.BUSY_FIGURES) - 4]} more under burners" in told


def test_the_fastest_samples_count() -> None:
    figure = _figure(iter([(200.0, 100.0)]))
    assert figure.ratio(figure.measure()) == 0.5


def test_what_is_good_is_measured_once() -> None:
    assert ratios.judge(_figure(iter([(100.0, 90.0)]))) == [pytest.approx(0.9)]


def test_a_noisy_moment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    runs = iter([(1000.0, 100.0), (900.0, 100.0), (110.0, 100.0)])
    assert ratios.main([_figure(runs)]) == 0
    assert "0.10, 0.11, 0.91" in capsys.readouterr().out


def test_what_is_slow_each_time_fails(capsys: pytest.CaptureFixture[str]) -> None:
    slow = _figure(iter([(300.0, 100.0)] * ratios.TRIES))
    good = _figure(iter([(100.0, 100.0)]))
    assert ratios.main([slow, good]) == 1
    shown = capsys.readouterr().out
    assert shown.count("FAR TOO SLOW") == 1
    assert ", ".join(["0.33"] * ratios.TRIES) in shown


def test_a_peer_without_samples_is_no_success() -> None:
    figure = _figure(iter([(1.0, 1.0)]))
    with pytest.raises(RuntimeError, match="no samples"):
        figure.ratio([{"name": "rdmatensor", "raw_ns": [1]}])


def test_every_figure_asks_for_much_of_what_is_known_and_leaves_room() -> None:
    figures = (*ratios.FIGURES, *ratios.BUSY_FIGURES)
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        assert 0.3 * figure.known <= figure.least <= 0.8 * figure.known, figure.name


def test_each_program_is_asked_for_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peers are found among what the programs print, beside records that are none."""
    printed: list[Record] = [
        {"bench": "x", "summary": True},
        {"name": "rdmatensor", "raw_ns": [20], "timed": "seen"},
        {"name": "floor", "raw_ns": [10]},
        {"name": "stream", "raw_ns": [10], "timed": "seen"},
        {"name": "stream", "raw_ns": [1], "timed": "call"},
        {"name": "slot", "raw_ns": [20]},
        {"name": "copy", "raw_ns": [10]},
    ]
    monkeypatch.setattr(programs, "run", lambda *_, **__: printed)
    compiled = [figure for figure in ratios.FIGURES if "all_reduce" not in figure.name]
    assert len(compiled) == 5
    assert [figure.ratio(figure.measure()) for figure in compiled] == [0.5] * 5


def test_the_slowest_rank_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(worker: str, size: int, *_: str, **__: object) -> list[Record]:
        assert (worker, size) == ("collectives", 2)
        key = {"op": "all_reduce", "size": 8, "ranks": 2}
        return [
            {**key, "name": who, "rank": rank, "raw_ns": [base + 10 * rank, base + 50]}
            for who, base in (("rdmatensor", 10), ("gloo", 50))
            for rank in (0, 1)
        ]

    monkeypatch.setattr(ratios, "run_ranks", run)
    (figure, *_) = [one for one in ratios.FIGURES if "all_reduce" in one.name]
    assert figure.ratio(figure.measure()) == 3.0


def test_under_burners_the_median_of_the_loops_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast loop among slow ones does not hide that ranks wait for a core."""

    def run(worker: str, size: int, *_: str, **__: object) -> list[Record]:
        assert (worker, size) == ("busy", 2)
        key = {"op": "all_reduce", "size": 8, "moved_bytes": 8, "ranks": 2, "kind": "spin"}
        ends = {name: [1, 1, 1] for name in ("p50_ns", "p99_ns", "cpu_ns", "calls")}
        return [
            {
                **key,
                "burners": 2,
                "between_ms": 0.0,
                **ends,
                "name": who,
                "rank": rank,
                "raw_ns": [fast, slow + rank, slow],
            }
            for who, fast, slow in (("rdmatensor", 10, 100), ("gloo", 50, 50))
            for rank in (0, 1)
        ]

    monkeypatch.setattr(ratios, "run_ranks", run)
    for figure in ratios.BUSY_FIGURES:
        assert figure.ratio(figure.measure()) == 0.5
