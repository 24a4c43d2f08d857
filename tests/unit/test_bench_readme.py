"""README's tables of messages: what bench/results/p2p.json gives, losses with reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench import readme
from bench.benchlib.record import Record, Result, Run, load
from bench.suite import samples
from bench.suite.p2p import KNOWN
from bench.suite.peers import OURS

KIB = 1 << 10
SPINNING, SLEEPING = samples.WAITS["spin"], samples.WAITS["sleep"]


def _record(
    who: str, peer: str, ns: int, *, path: str = "shm", size: int = 8, wait: str = SPINNING
) -> Record:
    language = "C++" if peer == "grpc-cpp" else "C"
    how = {"language": language, "wait": wait, "timed": samples.HALF}
    fields = samples.p2p_fields(who, peer, path, size, **how)
    (merged,) = samples.merge([samples.turn(fields, [ns]) for _ in range(3)])
    return merged


def _known(who: str, peer: str, ns: int) -> Record:
    return {**_record(who, peer, ns, size=256 * KIB), "timed": KNOWN}


def _stream(who: str, ns: int, timed: str, *, path: str = "tcp", wait: str = SPINNING) -> Record:
    peer = OURS if who == OURS else "floor"
    fields = {**_record(who, peer, ns, path=path, wait=wait), "timed": timed}
    return {**fields, "first_cpu_s_per_gb": 1.0, "second_cpu_s_per_gb": 1.0}


def _cells(table: str) -> list[list[str]]:
    _, rule, *rows = table.splitlines()
    assert set(rule) == set("| -")
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _rows(records: Iterable[Record], place: int = 0) -> list[list[str]]:
    machine: Record = {
        "processor": "made up",
        "cores": 2,
        "is_virtual": True,
        "family_model": "1/2/3",
        "kernel": "6.0",
        "commit": "abc",
    }
    result = Result("full", "rdmatensor bench p2p", machine, [Run(list(records), 0.25, 3.0)])
    head, *found = readme.block(result).split("\n\n")
    assert "`python -m rdmatensor bench p2p`, 3 turns of each, commit abc" in head
    assert "others kept 0.25 of the cores busy" in head
    return _cells(found[place])


def test_readme_has_what_the_results_give() -> None:
    """After a new p2p.json: python bench/readme.py."""
    assert readme.main(["--check"]) == 0


def test_each_size_and_path_of_the_results_has_a_row() -> None:
    run = load(readme.RESULTS).quietest
    halves = [one for one in run.records if one.get("timed") == samples.HALF]
    cells = {
        (one["transport"], one["size"], one["wait"])
        for one in halves
        if one["peer"] == OURS and one["language"] == "C"
    }
    _, singles, in_a_row = readme.block(load(readme.RESULTS)).split("\n\n")
    assert len(_cells(singles)) == len(cells) > 0
    for row in _cells(singles) + _cells(
        in_a_row
    ):  # a loss has its reason, and nothing else has one
        assert ("**" in " ".join(row)) == bool(row[-1]), row


def test_a_loss_is_bold_and_has_a_reason() -> None:
    (row,) = _rows([_record(OURS, OURS, 100), _record("memcpy and flag", "floor", 50)])
    assert row[:3] == ["shm 8 B, spinning", "100 ns", "50 ns, **0.50**"]
    assert "wake a sleeper" in row[-1]


def test_a_win_has_none_and_a_twentieth_does_not_count() -> None:
    (row,) = _rows([_record(OURS, OURS, 100), _record("UCX put", "ucx", 96)])
    assert row == ["shm 8 B, spinning", "100 ns", "", "", "put: 96 ns, 0.96", ""]


def test_the_faster_way_of_a_rival_counts() -> None:
    ways = [_record("UCX put", "ucx", 300), _record("UCX tag", "ucx", 200)]
    (row,) = _rows([_record(OURS, OURS, 100), *ways])
    assert row[4] == "tag: 200 ns, 2.00"


def test_rows_wait_alike_but_for_grpc() -> None:
    sleeper = {"path": "tcp", "wait": SLEEPING}
    found = _rows(
        [
            _record(OURS, OURS, 100),
            _record("gRPC C++ unary", "grpc-cpp", 3000, wait=SLEEPING),
            _record(OURS, OURS, 1000, path="tcp"),
            _record(OURS, OURS, 2000, **sleeper),
            _record("gRPC C++ unary", "grpc-cpp", 3000, **sleeper),
            _record("plain socket", "floor", 900, path="tcp"),
            _record("plain socket", "floor", 2400, **sleeper),
        ]
    )
    assert [row[0] for row in found] == [
        "shm 8 B, spinning",
        "tcp 8 B, spinning",
        "tcp 8 B, sleeping",
    ]
    assert [row[3] for row in found] == [
        "unary: 3.00 us, 30",
        "unary: 3.00 us, 3.00",
        "unary: 3.00 us, 1.50",
    ]
    assert [row[2] for row in found] == ["", "900 ns, **0.90**", "2.40 us, 1.20"]
    assert "acknowledgement" in found[1][-1]


def test_large_messages_say_what_copies_do_that_the_peer_reads() -> None:
    size = 256 * KIB
    (row,) = _rows(
        [
            _record(OURS, OURS, 100, size=size),
            _record("memcpy and flag", "floor", 40, size=size),
            _known(OURS, OURS, 100),
            _known("copy: memcpy", "floor", 110),
            _known("copy: movsb", "floor", 97),
        ]
    )
    assert "0.97 of our time" in row[-1]


def test_messages_in_a_row_are_beside_the_floor_that_spins_too() -> None:
    ours = _record(OURS, OURS, 100)
    once, both = "1 in flight, one way", "1 in flight, both ways"
    records = [
        *(_stream(OURS, ns, way) for ns, way in ((1000, once), (9000, both))),
        *(_stream("plain socket", ns, way) for ns, way in ((900, once), (990, both))),
        _stream("plain socket", 10, once, wait=SLEEPING),
    ]
    (row,) = _rows([ours, *records], place=1)
    assert row[:3] == ["tcp 8 B", "1.00 us, **0.90**", "9.00 us, **0.11**"]
    assert "acknowledgement" in row[3]
    assert f"{both}: why is not known yet" in row[3]


def test_a_loss_that_nobody_explains_is_an_error() -> None:
    faster = _record("gRPC C++ unary", "grpc-cpp", 50, path="tcp")
    with pytest.raises(ValueError, match="grpc-cpp is faster in tcp 8"):
        _rows([_record(OURS, OURS, 100, path="tcp"), faster])


def test_another_table_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    monkeypatch.setattr(readme, "README", page)
    page.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n", encoding="utf-8")
    assert readme.main(["--check"]) == 1
    assert "bench/readme.py" in capsys.readouterr().err
    assert "old" in page.read_text(encoding="utf-8")
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
    found = page.read_text(encoding="utf-8")
    assert found.startswith(f"before\n{readme.BEGIN}\n`python -m rdmatensor bench p2p")
    assert found.endswith(f"{readme.END}\nafter\n")
    page.write_text("no place\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no place for the table"):
        readme.main([])
