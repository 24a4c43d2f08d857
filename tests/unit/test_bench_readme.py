"""Generated tables of messages: what bench/results gives, losses with reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import cells_of, merged, result_of

from bench import readme
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, load, number, write
from bench.suite import doc_messages, doc_reasons, doc_words, reads, samples, streams, tensors
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
    return merged(fields, [ns])


def _known(who: str, peer: str, ns: int) -> Record:
    return {**_record(who, peer, ns, size=256 * KIB), "timed": KNOWN}


def _stream(
    who: str, ns: int, timed: str, *, path: str = "tcp", size: int = 8, wait: str = SPINNING
) -> Record:
    peers = {OURS: OURS, "UCX put": "ucx", "UCX tag": "ucx", "gRPC C++ stream": "grpc-cpp"}
    peer = peers.get(who, "floor")
    fields = {**_record(who, peer, ns, path=path, size=size, wait=wait), "timed": timed}
    return {**fields, "first_cpu_s_per_gb": 1.0, "second_cpu_s_per_gb": 1.0}


def _parts(records: Iterable[Record]) -> tuple[list[list[str]], list[list[str]], str]:
    """Single messages, messages in a row, and the notes."""
    head, singles, in_a_row, *notes = doc_messages.block(result_of(records)).split("\n\n")
    assert "`python -m rdmatensor bench p2p`, 3 turns of each, commit abc" in head
    assert "others kept 0.25 of the cores busy" in head
    return cells_of(singles), cells_of(in_a_row), " ".join(notes)


def _rows(records: Iterable[Record]) -> list[list[str]]:
    return _parts(records)[0]


def test_the_pages_have_what_the_results_give() -> None:
    """After new results: python bench/readme.py."""
    assert readme.main(["--check"]) == 0


def test_each_size_and_path_of_the_results_has_a_row() -> None:
    result = load(ROOT / readme.RESULTS / "p2p.json")
    ours = [one for one in result.quietest.records if one.get("peer") == OURS]
    ours = [one for one in ours if one.get("language") == "C"]
    keys = ("transport", "size", "wait")
    singles = {tuple(map(one.get, keys)) for one in ours if one["timed"] == samples.HALF}
    streams_of = {tuple(map(one.get, keys)) for one in ours if streams.is_stream(one)}
    read = {tuple(map(one.get, keys)) for one in ours if reads.is_read(one)}
    _, *tables, notes = doc_messages.block(result).split("\n\n")
    of_tables = [cells_of(table) for table in tables]
    assert list(map(len, of_tables)) == [len(of) for of in (singles, streams_of, read) if of]
    assert len(of_tables) >= 2
    for row in (row for of in of_tables for row in of):
        # a loss has its reason, and nothing else has one
        assert ("**" in " ".join(row)) == bool(row[-1]), row
        assert all(f"{letter}: " in notes for letter in row[-1].split(", ") if letter)


def test_each_bold_ratio_of_messages_is_a_loss_that_is_told() -> None:
    result = load(ROOT / readme.RESULTS / "p2p.json")
    bold = f"{doc_messages.block(result)}{doc_messages.gains(result)}".count("**") // 2
    lost = doc_messages.losses(result)
    assert len(lost) == bold > 0
    assert all(loss.ratio < doc_words.ROOM and loss.why for loss in lost)


def test_a_loss_is_bold_and_has_a_reason() -> None:
    (row,), _, notes = _parts([_record(OURS, OURS, 100), _record("memcpy and flag", "floor", 50)])
    assert row[:3] == ["shm 8 B, spinning", "100 ns (100-100)", "50 ns (50-50), **0.50**"]
    assert row[-1] == "a"
    assert notes.startswith("a: ours has a notification that can wake a sleeper")


def test_of_a_larger_message_a_notification_is_not_all() -> None:
    for rival, said in ((90, "still lives."), (80, "still lives; besides, why is not known yet.")):
        rows = [_record(OURS, OURS, 100, size=64 * KIB)]
        _, _, notes = _parts([*rows, _record("memcpy and flag", "floor", rival, size=64 * KIB)])
        assert notes.endswith(said)


def test_a_win_has_none_and_a_twentieth_does_not_count() -> None:
    ((*row,),), _, notes = _parts([_record(OURS, OURS, 100), _record("UCX put", "ucx", 96)])
    assert row[2:] == ["", "", "", "put: 96 ns (96-96), 0.96", ""]
    assert not notes


def test_the_faster_way_of_a_rival_counts() -> None:
    ways = [_record("UCX put", "ucx", 300), _record("UCX tag", "ucx", 200)]
    (row,) = _rows([_record(OURS, OURS, 100), *ways])
    assert row[5] == "tag: 200 ns (200-200), 2.00"


def test_a_time_has_its_samples_spread_in_its_own_unit() -> None:
    fields = samples.p2p_fields(OURS, OURS, "shm", 8, language="C")
    record = merged(fields, [900, *[1234] * 8, 12_345, 20_000])
    assert doc_words.spread(record) == "1.23 us (1.23-12.3)"
    assert doc_words.spread_of([ns - 1000 for ns in samples.raw_of(record)]) == "234 ns (234-11345)"


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
    assert [row[4].partition(", ")[2] for row in found] == ["30", "3.00", "1.50"]
    assert [row[2].partition(", ")[2] for row in found] == ["", "**0.90**", "1.20"]
    assert [row[-1] for row in found] == ["", "a", ""]


def test_the_best_of_the_copies_stands_beside_memcpy_by_its_name() -> None:
    size = 256 * KIB
    (row,), _, notes = _parts(
        [
            _record(OURS, OURS, 90, size=size),
            _record("memcpy and flag", "floor", 140, size=size),
            _known(OURS, OURS, 100),
            _known("copy: memcpy", "floor", 150),
            _known("copy: movsb", "floor", 90),
        ]
    )
    assert row[2:4] == ["140 ns (140-140), 1.56", "movsb: 90 ns (90-90), **0.90** of 100 ns"]
    assert notes == "a: best copy: why is not known yet."


@pytest.mark.parametrize(
    ("spread", "samples", "is_told"), [(300, 6, True), (300, 60, False), (10, 6, False)]
)
def test_of_few_samples_bands_that_overlap_say_little(
    spread: int, samples: int, *, is_told: bool
) -> None:
    few = [
        _stream(who, ns, "1 in flight, both ways")
        | {"p10": ns - spread, "p90": ns + spread, "samples": samples}
        for who, ns in ((OURS, 700), ("plain socket", 400))
    ]
    single = _record(OURS, OURS, 100, path="tcp")
    *_, notes = _parts([single, *few])
    assert (doc_reasons.OVERLAPS in notes) == is_told


@pytest.mark.parametrize(("memcpy_ns", "is_unread"), [(340, True), (140, False)])
def test_a_copy_that_nobody_reads_is_no_faster_where_it_is_read(
    memcpy_ns: int, *, is_unread: bool
) -> None:
    size = 256 * KIB
    copies = [_known(OURS, OURS, 100), _known("copy: memcpy", "floor", memcpy_ns)]
    ours, put = _record(OURS, OURS, 100, size=size), _record("UCX put", "ucx", 50, size=size)
    way = "16 in flight, both ways"
    in_a_row = [_stream(who, ns, way, path="shm", size=size) for who, ns in (("UCX put", 50),)]
    in_a_row.append(_stream(OURS, 100, way, path="shm", size=size))
    (row,), (many,), notes = _parts([ours, put, *copies, *in_a_row])
    assert (row[-1], many[-1]) == ("a", "a")
    assert ("a: what nobody reads stays in the writer's cache" in notes) == is_unread
    assert ("(3.4 times its speed)" in notes) == is_unread
    assert ("a: shm, UCX put: why is not known yet" in notes) != is_unread
    dynamic = [_tensor(tensors.SLOT, 100, size), _tensor(tensors.DYNAMIC, 80, size)]
    gains = doc_messages.gains(result_of([*dynamic, *copies]))
    assert ("reads it out of the sender's cache into its own" in gains) == is_unread


def test_messages_in_a_row_are_beside_the_floor_that_waits_alike() -> None:
    once, both = "1 in flight, one way", "1 in flight, both ways"
    records = [
        *(_stream(OURS, ns, way) for ns, way in ((1000, once), (9000, both))),
        *(_stream("plain socket", ns, way) for ns, way in ((900, once), (990, both))),
        _stream(OURS, 3000, once, wait=SLEEPING),
        _stream("plain socket", 6000, once, wait=SLEEPING),
    ]
    _, (spinning, sleeping), notes = _parts([_record(OURS, OURS, 100), *records])
    ours = ["1 us (1-1), **0.90**", "9 us (9-9), **0.11**", "a, b"]
    assert spinning == ["tcp 8 B, spinning", *ours]
    assert sleeping == ["tcp 8 B, sleeping", "3 us (3-3), 2.00", "", ""]
    assert "a: ours has a header" in notes
    assert f"b: spinning, {both}: why is not known yet" in notes


def test_rivals_stand_beside_messages_in_a_row_and_a_loss_to_one_has_its_reason() -> None:
    once, both = "1 in flight, one way", "1 in flight, both ways"
    records = [
        *(_stream(OURS, 1000, way) for way in (once, both)),
        _stream("plain socket", 1200, once),
        _stream("UCX put", 950, once),
        _stream("UCX tag", 900, once),
        *(_stream("gRPC C++ stream", 3000, way, wait=SLEEPING) for way in (once, both)),
        _stream(OURS, 2000, once, wait=SLEEPING),
    ]
    _, (spinning, sleeping), notes = _parts([_record(OURS, OURS, 100), *records])
    assert spinning[1:3] == [
        "1 us (1-1), 1.20, gRPC C++ 3.00, UCX **0.90**",
        "1 us (1-1), gRPC C++ 3.00",
    ]
    assert sleeping[1:3] == ["2 us (2-2), gRPC C++ 1.50", ""]
    assert (spinning[-1], sleeping[-1]) == ("a", "")
    assert notes.startswith("a: ours has a header")
    far = [_stream(OURS, 1000, once), _stream("UCX tag", 400, once)]
    *_, notes = _parts([_record(OURS, OURS, 100), *far])
    assert notes == f"a: ucx, spinning, {once}: why is not known yet."
    late = _record("UCX tag", "ucx", 900, path="tcp")
    *_, notes = _parts([_record(OURS, OURS, 100, path="tcp"), late, *far])
    assert "as done before that has arrived" in notes


def test_what_both_ways_take_over_shm_is_twice_the_work_or_not_known() -> None:
    once, both = "16 in flight, one way", "16 in flight, both ways"
    ways = [(OURS, 100, once), (OURS, 500, both)]
    ways += [("memcpy and flag", 50, way) for way in (once, both)]
    streams_of = [_stream(*one, path="shm") for one in ways]
    large = [_stream(*one, path="shm", size=256 * KIB) for one in ways]
    _, (small, other), notes = _parts([_record(OURS, OURS, 100), *streams_of, *large])
    assert (small[-1], other[-1]) == ("a, b", "c")
    assert "a: ours has a notification" in notes
    assert "b: shm, both ways: why is not known yet; c: shm, memcpy and flag: why is" in notes
    twice = [*streams_of[:1], _stream(OURS, 260, both, path="shm"), *streams_of[2:]]
    _, (small,), notes = _parts([_record(OURS, OURS, 100), *twice])
    assert small[-1] == "a, b"
    assert "both ways each side's core takes as many as it sends" in notes
    assert "not known" not in notes


def test_who_was_to_sleep_tells_how_often_it_did() -> None:
    who = ((OURS, OURS, 100, 0.02), ("plain socket", "floor", 300, 1.98))
    records = [
        {**_record(name, peer, ns, path="tcp", wait=wait), "switches_per_trip": slept}
        for name, peer, ns, slept in who
        for wait in (SPINNING, SLEEPING)
    ]
    spinning, sleeping = _rows(records)
    assert (spinning[0], spinning[2]) == ("tcp 8 B, spinning", "300 ns (300-300), 3.00")
    assert sleeping[0] == "tcp 8 B, sleeping, slept 0.02 times a trip"
    assert sleeping[2] == "300 ns (300-300), 3.00, slept 1.98 times a trip"


def test_a_loss_that_nobody_explains_is_an_error() -> None:
    faster = _record("gRPC C++ unary", "grpc-cpp", 50, path="tcp")
    with pytest.raises(ValueError, match="grpc-cpp is faster in tcp 8"):
        _rows([_record(OURS, OURS, 100, path="tcp"), faster])
    once = "1 in flight, one way"
    in_a_row = [_stream(OURS, 100, once), _stream("gRPC C++ stream", 50, once, wait=SLEEPING)]
    with pytest.raises(ValueError, match="grpc-cpp is faster in tcp 8"):
        _parts([_record(OURS, OURS, 100), *in_a_row])


def _tensor(who: str, ns: int, size: int, path: str = "shm") -> Record:
    return {**_record(who, OURS, ns, path=path, size=size), "timed": tensors.TENSOR}


def test_what_gains_is_told_apart_and_a_slower_slot_has_its_reason() -> None:
    ways = ((tensors.SLOT, 100), (tensors.DYNAMIC, 200), (tensors.COPY, 80))
    found = [_tensor(who, ns, 4 * KIB) for who, ns in ways]
    found += [_tensor(tensors.SERIALISED, 120, 4 * KIB)]
    _, table, notes = doc_messages.gains(result_of(found)).split("\n\n")
    (row,) = cells_of(table)
    assert row == ["shm 4 KiB", "100 ns (100-100)", "2.00", "**0.80**", "1.50", "", "", "a"]
    assert notes.startswith("a: a slot is released to its sender after each tensor")
    odd = [_tensor(tensors.SLOT, 100, 64 * KIB), _tensor(tensors.DYNAMIC, 50, 64 * KIB)]
    with pytest.raises(ValueError, match="dynamic / slot is below 1 in shm 65536"):
        doc_messages.gains(result_of(odd))


def _root(folder: Path) -> Path:
    """A root with empty places and no results."""
    for block in readme.BLOCKS:
        page = folder / block.page
        page.parent.mkdir(exist_ok=True)
        with page.open("a", encoding="utf-8") as out:
            out.write(f"before\n{block.begin}\nold\n{readme.END}\nafter\n")
    (folder / readme.RESULTS).mkdir(parents=True)
    return folder


def test_the_places_are_found_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = _root(tmp_path)
    write(result_of([_record(OURS, OURS, 100)]), root / readme.RESULTS / "p2p.json")
    assert readme.main(["--check"], root) == 1
    assert "measured.md is not what the results give" in capsys.readouterr().err
    assert "old" in (root / readme.README).read_text(encoding="utf-8")
    assert readme.main([], root) == 0
    assert readme.main(["--check"], root) == 0
    found = (root / readme.MEASURED).read_text(encoding="utf-8")
    begin = "before\n<!-- bench/readme.py: p2p.json -->\n`python -m rdmatensor bench p2p`, "
    assert found.startswith(begin)
    assert found.endswith(f"{readme.END}\nafter\n")
    absent = (root / readme.PERFORMANCE).read_text(encoding="utf-8")
    assert "Not measured yet: `python -m rdmatensor bench models --out bench/results/" in absent


def test_a_cell_without_a_reason_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = _root(tmp_path)
    kept = root / readme.RESULTS / readme.TCP
    kept.parent.mkdir()
    fields = {"topic": "collectives", "op": "send", "ranks": 2, "row": "same"}
    lost = [
        {**_record(who, peer, us, path="tcp"), **fields}
        for who, peer, us in ((OURS, OURS, 9), ("gloo", "gloo", 3))
    ]
    write(result_of(lost), kept)
    assert readme.main(["--check"], root) == 1
    told = "collectives/tcp_2_ranks.json: gloo is faster in tcp send 8, same, and why?"
    assert told in capsys.readouterr().err


def test_no_page_is_written_where_another_cannot_be(tmp_path: Path) -> None:
    root = _root(tmp_path)
    write(result_of([_record(OURS, OURS, 100)]), root / readme.RESULTS / "p2p.json")
    (root / readme.README).write_text("no place\n", encoding="utf-8")
    assert readme.main([], root) == 1
    assert "old" in (root / readme.MEASURED).read_text(encoding="utf-8")


def test_a_page_without_a_place_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = _root(tmp_path)
    (root / readme.README).write_text("no place\n", encoding="utf-8")
    assert readme.main([], root) == 1
    assert "README.md has no place for a table" in capsys.readouterr().err


def test_twelve_starts_of_1_mib_say_what_the_reason_says() -> None:
    records = load(ROOT / readme.RESULTS / "p2p_1_mib.json").quietest.records
    of_ucx = [one for one in records if one.get("contestant") in ("UCX put", "UCX get")]
    ratios = [
        number(rival, "median_ns") / number(ours, "median_ns")
        for rival in of_ucx
        for ours in records
        if ours.get("contestant") == OURS and ours.get("timed") == rival["timed"]
    ]
    assert len(ratios) == 5
    said = f"with twelve UCX takes {min(ratios):.2f} to {max(ratios):.2f} of our time"
    assert said in doc_reasons.BY_STARTS
    assert all(len(samples.starts_of(one)) == 12 for one in of_ucx)
