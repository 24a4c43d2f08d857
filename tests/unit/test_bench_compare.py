"""`rdmatensor bench compare`: what it calls a difference, on samples that are made up."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rdmatensor.cli import main

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, Result, Run, write
from bench.suite import compare, samples

MACHINE: Record = {
    "processor": "made up",
    "family_model": "1/2/3",
    "cores": 2,
    "is_virtual": False,
    "kernel": "6.1",
    "python": "3.11",
    "versions": {},
}
TURNS = 8


def _record(
    name: str, turns: list[list[float]], *, peer: str = "rdmatensor", size: int = 8
) -> Record:
    fields: Record = {
        "topic": "p2p",
        "name": name,
        "peer": peer,
        "transport": "shm",
        "size": size,
        "language": "C",
        "timed": "half a round trip",
    }
    (merged,) = samples.merge([samples.turn(fields, one) for one in turns])
    return merged


def _turns(seed: int, scale: float = 1.0, *, scatter: float = 0.02, per_turn: int = 50) -> list:
    """Turns whose levels scatter as much as their samples do."""
    chance = random.Random(seed)
    levels = [1000 * scale * chance.gauss(1, scatter) for _ in range(TURNS)]
    return [[level * chance.gauss(1, scatter) for _ in range(per_turn)] for level in levels]


def _result(records: list[Record], **machine: object) -> Result:
    return Result("quick", "made up", {**MACHINE, **machine}, [Run(records, 0.0, 1.0)])


def _verdict(before: list[Record], after: list[Record]) -> str:
    (line,) = compare.compare(_result(before), _result(after))
    return line.verdict


@pytest.mark.parametrize("seed", range(10))
def test_the_same_distribution_is_the_same(seed: int) -> None:
    pair = [[_record("rdmatensor", _turns(seed + offset))] for offset in (0, 1000)]
    assert _verdict(*pair) == "same"


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [(1.3, "worse"), (1 / 1.3, "better"), (1.03, "same"), (1 / 1.03, "same")],
)
def test_a_difference_counts_beyond_the_smallest_effect(scale: float, verdict: str) -> None:
    before = [_record("rdmatensor", _turns(1))]
    after = [_record("rdmatensor", _turns(2, scale))]
    assert _verdict(before, after) == verdict


def test_samples_of_one_turn_are_not_independent() -> None:
    """Some turns were disturbed: nearly any test of all samples alike calls that a difference."""
    calm = [[1000.0 + n for n in range(100)] for _ in range(6)]
    disturbed = [
        [1000.0 + n + (600 if turn in (0, 3) else 0) for n in range(100)] for turn in range(6)
    ]
    noisier = [[1000.0 + n + (600 if turn < 4 else 0) for n in range(100)] for turn in range(6)]
    assert _verdict([_record("rdmatensor", calm)], [_record("rdmatensor", disturbed)]) == "same"
    assert _verdict([_record("rdmatensor", calm)], [_record("rdmatensor", noisier)]) == "same"


def test_the_machine_s_drift_is_not_ours() -> None:
    """The floor became slower by as much: that was the machine."""
    before = [_record("rdmatensor", _turns(1)), _record("copy", _turns(2), peer="floor")]
    after = [_record("rdmatensor", _turns(3, 1.3)), _record("copy", _turns(4, 1.35), peer="floor")]
    assert _verdict(before, after) == "same"
    steady = [_record("rdmatensor", _turns(3, 1.3)), _record("copy", _turns(4), peer="floor")]
    assert _verdict(before, steady) == "worse"


def test_a_floor_of_another_size_says_nothing() -> None:
    before = [_record("rdmatensor", _turns(1)), _record("copy", _turns(2), peer="floor", size=64)]
    after = [
        _record("rdmatensor", _turns(3, 1.3)),
        _record("copy", _turns(4, 1.5), peer="floor", size=64),
    ]
    assert _verdict(before, after) == "worse"


def test_two_turns_are_too_few() -> None:
    before = [_record("rdmatensor", _turns(1)[:2])]
    after = [_record("rdmatensor", _turns(2, 3.0))]
    assert _verdict(before, after) == "too few turns"


def test_a_comparison_can_be_repeated() -> None:
    found = [_turns(1, scatter=0.2), _turns(2, 1.2, scatter=0.2)]
    pair = [[[turn] for turn in turns] for turns in found]
    assert compare.interval(*pair) == compare.interval(*pair)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"processor": "another"}, "other machine: processor"),
        ({"cores": 64}, "other machine: cores"),
    ],
)
def test_other_machines_are_refused(change: dict[str, object], word: str) -> None:
    records = [_record("rdmatensor", _turns(1))]
    with pytest.raises(compare.NotComparable, match=word):
        compare.compare(_result(records), _result(records, **change))


def test_other_units_are_refused() -> None:
    records = [_record("rdmatensor", _turns(1))]
    others: list[Record] = [{**records[0], "unit": "us"}]
    with pytest.raises(compare.NotComparable, match="other unit: 'ns' and 'us'"):
        compare.compare(_result(records), _result(others))


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(compare.NotComparable, match="in common"):
        compare.compare(
            _result([_record("rdmatensor", _turns(1), size=8)]),
            _result([_record("rdmatensor", _turns(1), size=64)]),
        )


GRPC_64 = _record("gRPC", _turns(3), peer="grpc-cpp", size=64)


@pytest.mark.parametrize(
    ("command", "others", "is_gone"),
    [
        ("rdmatensor bench p2p --peers none --out b.json", [], True),
        ("rdmatensor bench", [], True),
        ("rdmatensor bench p2p --sizes 8", [], False),
        ("rdmatensor bench p2p --sizes 8", [GRPC_64], True),
    ],
)
def test_a_row_that_vanished_is_gone_where_it_was_due(
    command: str, others: list[Record], is_gone: bool
) -> None:
    own = [_record("rdmatensor", _turns(1), size=size) for size in (8, 64)]
    before = Result("full", "rdmatensor bench --out=a", MACHINE, [Run([*own, GRPC_64], 0.0, 1.0)])
    after = Result("full", command, MACHINE, [Run([own[0], *others], 0.0, 1.0)])
    lines = compare.compare(before, after)
    assert [line.verdict for line in lines] == (["same", "gone"] if is_gone else ["same"])
    assert ("p2p shm 64 B: rdmatensor, half a round trip  gone" in compare.table(lines)) == is_gone
    assert [line.verdict for line in compare.compare(after, before)] == ["same"]


def test_rows_of_one_operation_have_names_of_their_own() -> None:
    record: Record = {**_record("rdmatensor", _turns(1)), "ranks": 2, "op": "send"}
    rows: list[Record] = [{**record, "row": row, "timed": row} for row in ("plain", "arena")]
    lines = compare.compare(_result(rows), _result(rows))
    assert [line.what for line in lines] == [
        "p2p shm send 2 ranks 8 B: rdmatensor",
        "p2p shm send 2 ranks 8 B: rdmatensor, arena",
    ]


def test_rows_of_one_size_say_what_was_timed_and_who_waits_how() -> None:
    record = _record("rdmatensor", _turns(1))
    rows: list[Record] = [
        {**record, "timed": timed, "wait": wait}
        for timed in ("in a row", "cold")
        for wait in ("spinning", "sleeping")
    ]
    named = [line.what for line in compare.compare(_result(rows), _result(rows))]
    assert named[0] == "p2p shm 8 B: rdmatensor, in a row, spinning"
    assert len(set(named)) == 4


@pytest.mark.parametrize(
    "name",
    ["p2p", "models", "setup", "scale", "collectives/shm_2_ranks", "collectives/tcp_2_ranks"],
)
def test_every_row_of_a_kept_result_has_a_name_of_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "interval", lambda *_: (1.0, 1.0))  # no verdict is looked at
    result = compare.read(ROOT / "bench" / "results" / f"{name}.json")
    lines = compare.compare(result, result)
    assert len({line.what for line in lines}) == len(lines)


def test_what_no_row_has_enough_turns_for_has_a_status_of_its_own(tmp_path: Path) -> None:
    few, enough = (_record("rdmatensor", turns) for turns in (_turns(1)[:2], _turns(1)))
    more: Record = {**enough, "size": 64}
    for name, records in (("few", [few]), ("some", [few, more])):
        write(_result(records), tmp_path / f"{name}.json")
    paths = [str(tmp_path / f"{name}.json") for name in ("few", "some")]
    assert main(["bench", "compare", paths[0], paths[0]]) == 3
    assert main(["bench", "compare", paths[1], paths[1]]) == 0
    assert main(["bench", "compare", paths[1], paths[0]]) == 1  # a row is gone


def test_another_topic_is_not_gone() -> None:
    own = [_record("rdmatensor", _turns(1))]
    other: list[Record] = [{**own[0], "topic": "setup"}]
    before = Result("full", "rdmatensor bench", MACHINE, [Run(own + other, 0.0, 1.0)])
    after = Result("full", "rdmatensor bench p2p", MACHINE, [Run(own, 0.0, 1.0)])
    assert [line.verdict for line in compare.compare(before, after)] == ["same"]


def test_a_row_that_vanished_is_a_regression(tmp_path: Path) -> None:
    own = [_record("rdmatensor", _turns(1), size=size) for size in (8, 64)]
    for name, records in (("a", own), ("b", own[:1])):
        write(_result(records), tmp_path / f"{name}.json")
    assert main(["bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert main(["bench", "compare", str(tmp_path / "b.json"), str(tmp_path / "a.json")]) == 0


@pytest.mark.parametrize("what", ["kernel", "libc", "huge_pages", "congestion_control"])
def test_what_else_differs_is_said(what: str) -> None:
    records = [_record("rdmatensor", _turns(1))]
    both = [_result(records, **{what: value}) for value in ("before", "after")]
    assert compare.notes(*both) == [f"{what}: before and after"]


@pytest.fixture
def files(tmp_path: Path) -> Callable[[float], list[str]]:
    """Two files of which the second is slower by a factor."""

    def make(scale: float) -> list[str]:
        paths = [tmp_path / "a.json", tmp_path / "b.json"]
        for path, turns in zip(paths, (_turns(1), _turns(2, scale)), strict=True):
            write(_result([_record("rdmatensor", turns)]), path)
        return [str(path) for path in paths]

    return make


@pytest.mark.parametrize(
    ("scale", "status", "words"), [(1.0, 0, "1 same"), (1.5, 1, "1 worse"), (0.5, 0, "1 better")]
)
def test_the_exit_status_tells_a_regression(
    files: Callable[[float], list[str]],
    capsys: pytest.CaptureFixture[str],
    scale: float,
    status: int,
    words: str,
) -> None:
    assert main(["bench", "compare", *files(scale)]) == status
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == words
    assert "p2p shm 8 B: rdmatensor" in shown[-2]


@pytest.mark.parametrize("content", ["", "{", '{"name": "x"}', "[]", '{"runs": [1]}'])
def test_files_that_are_none_are_two(
    files: Callable[[float], list[str]],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: str,
) -> None:
    other = tmp_path / "other.json"
    other.write_text(content, encoding="utf-8")
    assert main(["bench", "compare", files(1.0)[0], str(other)]) == 2
    assert "is not a result of `rdmatensor bench --out`: " in capsys.readouterr().err
    assert main(["bench", "compare", files(1.0)[0], str(tmp_path / "absent")]) == 2
    said = capsys.readouterr().err
    assert said == f"rdmatensor bench compare: {tmp_path / 'absent'}: No such file or directory\n"
