"""Generated tables of collectives: others beside ours, and every loss that a file has."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import cells_of, merged, result_of

from bench import readme
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, load
from bench.suite import doc_collectives, doc_losses, doc_reasons, doc_words, samples
from bench.suite.collective_cells import by_who, over, rival_of
from bench.suite.collectives import COPY_FLOOR, NOTHING, net_samples
from bench.suite.peers import OURS

KIB, MIB = 1 << 10, 1 << 20


def _collective(
    who: str, op: str, us: int, *, path: str = "shm", size: int = 8, row: str = "same"
) -> Record:
    floors = dict.fromkeys((NOTHING, COPY_FLOOR), "floor")
    peer = {OURS: OURS, **floors, "gloo": "gloo"}.get(who, "mpi")
    fields: Record = {
        **samples.p2p_fields(who, peer, path, size),
        "topic": "collectives",
        "op": op,
        "ranks": 2,
        "row": row,
        "loop_ns": 1000.0,
        "timed": row,
    }
    return merged(fields, [1000 * us + 1000])


def test_collectives_have_means_and_every_cell_that_is_slower() -> None:
    records = [
        _collective(OURS, "reduce", 4),
        _collective("OpenMPI", "reduce", 1),
        _collective("gloo", "reduce", 64),
        _collective(NOTHING, "reduce", 3),
        _collective(OURS, "gather", 4),
        _collective("OpenMPI", "gather", 4),
        _collective(OURS, "send", 100, size=MIB),
        _collective("OpenMPI", "send", 80, size=MIB),
    ]
    _, means, losses, notes = doc_collectives.block(result_of(records)).split("\n\n")
    assert [row[1:] for row in cells_of(means)] == [
        ["16 (16-16)", ""],
        ["**0.50** (0.25-1.00)", "**0.80** (0.80-0.80)"],
    ]
    assert cells_of(losses) == [
        ["Open MPI", "same", "8 B: reduce 4 us (4-4) / 1 us (1-1), **0.25**", "a"],
        ["Open MPI", "same", "1 MiB: send 100 us (100-100) / 80 us (80-80), **0.80**", "b"],
    ]
    assert "is most of what is between them (a backend that does nothing takes 3.00 us); b" in notes


def test_shares_of_the_copy_floor_are_the_turns_own() -> None:
    records = [
        _collective(OURS, "gather", 100, size=64 * MIB, row="plain"),
        _collective(OURS, "gather", 80, size=64 * MIB, row="arena"),
        _collective(OURS, "gather", 10, size=MIB, row="plain"),  # lies in caches
        *(_collective(COPY_FLOOR, "gather", 90, size=of, row="plain") for of in (MIB, 64 * MIB)),
    ]
    _, _, floors = doc_collectives.block(result_of(records)).split("\n\n")
    assert floors.startswith("| shm, 2 ranks: share of the copy floor, the turns' median")
    assert "| plain | arena |" in floors
    assert cells_of(floors) == [["gather, 64 MiB", "0.90 (0.90-0.90)", "1.12 (1.12-1.12)"]]


def test_losses_of_one_reason_have_a_row() -> None:
    cells = (("send", 512 * KIB), ("gather", MIB), ("scatter", MIB))
    records = [
        _collective(who, op, us, size=size)
        for op, size in cells
        for who, us in ((OURS, 100), ("OpenMPI", 80))
    ]
    _, _, losses, _ = doc_collectives.block(result_of(records)).split("\n\n")
    ((who, _, lost, why),) = cells_of(losses)
    times = "100 us (100-100) / 80 us (80-80), **0.80**"
    assert (who, why) == ("Open MPI", "a")
    assert lost == f"512 KiB: send {times}. 1 MiB: gather {times}; scatter {times}"


def test_new_memory_has_its_own_reasons() -> None:
    records = [
        *(
            _collective(who, "scatter", us, size=64 * MIB, row="fresh")
            for who, us in ((OURS, 9), ("gloo", 3))
        ),
        _collective("OpenMPI", "scatter", 3, size=64 * MIB, row="fresh"),
    ]
    _, _, losses, notes = doc_collectives.block(result_of(records)).split("\n\n")
    assert [row[0] for row in cells_of(losses)] == ["Gloo", "Open MPI"]
    assert notes.startswith(
        "a: Gloo's scatter into new memory: why is not known yet; b: nearly all"
    )


@pytest.mark.parametrize(
    ("row", "beside_us", "untouched_us", "is_shown"),
    [
        ("fresh", 60, 60, True),
        ("fresh", 60, 40, False),  # what is more in new memory is no share of a call
        ("fresh", 40, 60, False),
        ("fresh", 50, 60, False),  # half of what is between them is not most of it
        ("same", 60, 60, True),
        ("arena", 60, 60, True),  # it has no arena: those used again stand beside
    ],
)
def test_torchs_share_of_a_call_is_a_reason_where_the_samples_show_it(
    row: str, beside_us: int, untouched_us: int, is_shown: bool
) -> None:
    """Ours takes 110 us, the rival 10."""
    use = "same" if row == "arena" else row
    records = [
        _collective(OURS, "gather", 110, size=64 * KIB, row=row),
        _collective("OpenMPI", "gather", 10, size=64 * KIB, row=use),
        _collective(NOTHING, "gather", untouched_us, size=64 * KIB, row="plain"),
        _collective(NOTHING, "gather", beside_us, size=64 * KIB, row=use),
    ]
    told = doc_collectives.block(result_of(records))
    assert (doc_reasons.CALLS in told) == is_shown
    assert (doc_reasons.NEW_SMALL in told) != is_shown


def test_of_few_bytes_in_the_arena_the_share_is_that_of_the_same_turns() -> None:
    """A machine that was slower then was so for both: by other turns' share nothing is known."""
    records = [
        _collective(OURS, "reduce", 16, row="arena"),
        _collective("OpenMPI", "reduce", 1, row="same"),
        _collective(NOTHING, "reduce", 13, row="arena"),
        _collective(NOTHING, "reduce", 7, row="same"),
        _collective(NOTHING, "reduce", 7, row="plain"),
    ]
    assert doc_reasons.CALLS in doc_collectives.block(result_of(records))
    with pytest.raises(ValueError, match="OpenMPI is faster in shm reduce 8, arena, and why"):
        doc_collectives.block(result_of([*records[:2], *records[3:]]))


def test_without_the_backend_that_does_nothing_in_the_same_row_nothing_is_shown() -> None:
    fields = {"size": 64 * KIB, "row": "fresh"}
    records = [_collective(who, "gather", us, **fields) for who, us in ((OURS, 9), ("OpenMPI", 3))]
    untouched = _collective(NOTHING, "gather", 8, size=64 * KIB, row="plain")
    with pytest.raises(ValueError, match="OpenMPI is faster in shm gather 65536, fresh, and why"):
        doc_collectives.block(result_of([*records, untouched]))


def _lost_in(path: Path) -> list[str]:
    """What has to be told of a file: each cell of ours in which somebody is faster."""
    records = [one for one in load(path).quietest.records if "missing" not in one]
    known = by_who(records)
    return [
        f"{ours['op']} {doc_words.spread_of(net_samples(ours))} / "
        f"{doc_words.spread_of(net_samples(theirs))}, "
        f"{doc_words.marked(ratio)}"
        for ours in known[OURS].values()
        for rival in ("gloo", "OpenMPI")
        for theirs in [rival_of(ours, known.get(rival, {}))]
        for ratio in [over(theirs, ours)]
        if theirs is not None and ratio is not None and ratio < doc_words.ROOM
    ]


def test_every_loss_in_a_file_of_collectives_is_told() -> None:
    kept = sorted((ROOT / readme.RESULTS / "collectives").glob("*_ranks*.json"))
    lost = [(path.name, cell) for path in kept for cell in _lost_in(path)]
    assert len(kept) >= 6
    assert len(lost) > 50
    page = (ROOT / readme.MEASURED).read_text(encoding="utf-8")
    assert [one for one in lost if one[1] not in page] == []
    (block,) = (one for one in readme.BLOCKS if one.name == "losses")
    files = [name for name in block.files if name.startswith("collectives/")]
    assert {f"collectives/{path.name}" for path in kept} == set(files)
    rows = [row for row in cells_of(block.text(ROOT)) if row[0].startswith("collectives, ")]
    cells = [cell for row in rows for cell in row[2].split("; ")]
    counted = [re.search(r"(\d+) cases", cell) for cell in cells]
    named = [len(re.findall(r"\b0\.\d+\b", cell)) for cell in cells]
    told = [int(of[1]) if of else least for of, least in zip(counted, named, strict=True)]
    assert sum(told) == sum(len(_lost_in(ROOT / readme.RESULTS / name)) for name in files)


def test_losses_have_a_row_for_each_rival_and_reason() -> None:
    size = {"size": 64 * MIB, "row": "fresh"}
    records = [
        *(
            _collective(who, op, us)
            for op in ("send", "gather")
            for who, us in ((OURS, 8), ("OpenMPI", 4))
        ),
        *(_collective(NOTHING, op, 6) for op in ("send", "gather")),
        *(
            _collective(who, "scatter", us, **size)
            for who, us in ((OURS, 8), ("gloo", 6), ("OpenMPI", 8))
        ),
    ]
    first = result_of(records)
    other = dataclasses.replace(first, machine={**first.machine, "family_model": "1/2/4"})
    lost, reasons = doc_losses.block(first, other).split("\n\n")
    here, scatter, there, _ = cells_of(lost)
    assert here[:2] == ["collectives, shm", "Open MPI"]
    assert here[2] == "8 B: 0.50 (send, same), 0.50 (gather, same)"
    assert scatter[1:] == ["Gloo", "64 MiB: 0.75 (scatter, fresh)", "b"]
    assert "- b: Gloo's scatter into new memory: why is not known yet." in reasons.split("\n")
    assert there[:2] == ["collectives, shm, another machine", "Open MPI"]
    assert there[3] == here[3] == "a"
    assert doc_losses.block(result_of(records[:1])) == "Nothing is."


def test_of_many_losses_of_a_size_the_ends_are_named() -> None:
    times_us = {"send": 4, "gather": 2, "scatter": 6, "broadcast": 5}
    records = [_collective(OURS, op, 8) for op in times_us]
    records += [_collective("OpenMPI", op, us) for op, us in times_us.items()]
    records += [_collective(NOTHING, op, 7) for op in times_us]
    (row, *_) = cells_of(doc_losses.block(result_of(records)).split("\n\n")[0])
    assert row[2] == "8 B: 4 cases, 0.25 (gather, same) to 0.75 (scatter, same)"


def test_reasons_have_letters_also_where_they_are_many() -> None:
    notes = doc_words.Notes()
    letters = [notes.mark(f"reason {number}") for number in range(28)]
    assert letters[::25] == ["a", "z"]
    assert letters[26:] == ["aa", "bb"]
    assert notes.mark("reason 1") == "b"


def test_another_use_of_the_tensors_is_not_what_was_shown() -> None:
    first = result_of([_collective(OURS, "send", 4), _collective("OpenMPI", "send", 4)])
    plain = {"size": MIB, "row": "plain"}
    second = [
        *(_collective(who, "send", us, size=MIB) for who, us in ((OURS, 9), ("OpenMPI", 8))),
        *(_collective(who, "send", us, **plain) for who, us in ((OURS, 9), ("OpenMPI", 6))),
    ]
    shown = result_of([*first.quietest.records, *second[:2]])
    _, _, losses, _ = doc_collectives.block(result_of(second), [shown]).split("\n\n")
    assert [row[1] for row in cells_of(losses)] == ["plain"]


@pytest.mark.parametrize(
    ("size", "theirs_us", "wanted"),
    [
        (8, 3, doc_reasons.PROFILED),
        (8, 8, doc_reasons.PROFILED),
        (64 << 10, 8, doc_reasons.RINGED),
        (64 << 10, 3, f"of 64 KiB over TCP, less than half: {doc_reasons.UNKNOWN}"),
        (1 << 20, 8, doc_reasons.AWAITED),
    ],
)
def test_over_tcp_a_profile_tells_of_small_tensors_only(
    size: int, theirs_us: int, wanted: str
) -> None:
    times = ((OURS, 13), ("OpenMPI", theirs_us))
    pair = [_collective(who, "reduce", us, path="tcp", size=size) for who, us in times]
    told = doc_collectives.block(result_of(pair))
    reasons = {doc_reasons.PROFILED, doc_reasons.RINGED, doc_reasons.AWAITED, wanted}
    assert {reason for reason in reasons if reason in told} == {wanted}


@pytest.mark.parametrize(("sent_us", "is_told"), [(3, True), (1, False)])
def test_over_tcp_to_await_a_receive_is_no_reason_for_more_than_round_trips(
    sent_us: int, *, is_told: bool
) -> None:
    times = ((OURS, "reduce", MIB, 20), ("OpenMPI", "reduce", MIB, 12), (OURS, "send", 8, sent_us))
    pair = [_collective(who, op, us, path="tcp", size=size) for who, op, size, us in times]
    assert (doc_reasons.AWAITED in doc_collectives.block(result_of(pair))) == is_told


@pytest.mark.parametrize(("arena_us", "is_staging"), [(700, True), (820, False)])
def test_a_sum_that_is_no_slower_in_the_arena_is_slower_for_its_stages(
    arena_us: int, *, is_staging: bool
) -> None:
    times = ((OURS, 1000, "plain"), ("OpenMPI", 800, "plain"), ("OpenMPI", 800, "same"))
    records = [_collective(who, "reduce", us, size=MIB, row=row) for who, us, row in times]
    records.append(_collective(OURS, "reduce", arena_us, size=MIB, row="arena"))
    told = doc_collectives.block(result_of(records))
    assert (doc_reasons.STAGED in told) == is_staging
    assert ("a sum of a tensor that nobody touches" in told) != is_staging


@pytest.mark.parametrize(
    ("op", "size", "nothing_us", "wanted"),
    [
        ("reduce", 8, 60, doc_reasons.SHARED),  # of 100 us that are between them
        ("reduce", 8, 40, f"more than two ranks on two cores: {doc_reasons.UNKNOWN}"),
        ("gather", MIB, 40, doc_reasons.TWICE),
        ("gather", MIB, 60, doc_reasons.SHARED),
        ("gather", 16 * MIB, 60, doc_reasons.LARGE_TWICE),
        ("reduce", MIB, 40, f"more than two ranks on two cores: {doc_reasons.UNKNOWN}"),
    ],
)
def test_where_ranks_share_cores_most_is_what_a_call_costs_after_another_rank(
    op: str, size: int, nothing_us: int, wanted: str
) -> None:
    times = ((OURS, 110), ("OpenMPI", 10), (NOTHING, nothing_us))
    records = [
        {**_collective(who, op, us, size=size, row="plain"), "ranks": 8} for who, us in times
    ]
    told = doc_collectives.block(result_of(records))
    assert wanted in told
    has_share = "a backend that does nothing but offer its core three times takes" in told
    assert has_share == (wanted == doc_reasons.SHARED and size == 8)


def test_an_older_commit_on_the_same_machine_leaves_nothing_out() -> None:
    times = ((OURS, 9), ("OpenMPI", 4), (NOTHING, 8))
    first = result_of([_collective(who, "send", us) for who, us in times])
    other = dataclasses.replace(first, machine={**first.machine, "commit": "another"})
    told = doc_collectives.block(other, [first])
    assert told.startswith("Of another commit than those above: `python -m rdmatensor bench")
    assert "**0.44**" in told
    assert "another commit" in doc_losses.block(first, other)


def test_another_machine_is_named_and_leaves_nothing_out() -> None:
    records = [_collective(OURS, "send", 9), _collective("OpenMPI", "send", 9)]
    first = result_of(records)
    other = dataclasses.replace(first, machine={**first.machine, "family_model": "1/2/4"})
    told = doc_collectives.block(other, [first])
    assert told.startswith("On another machine than those above: `python -m rdmatensor bench")
    assert "Open MPI, the same tensors again and again (same) | 1.00" in told


def test_another_result_adds_only_what_the_first_has_not() -> None:
    first = result_of([_collective(OURS, "send", 4)])
    second = result_of([_collective(OURS, "send", 9), _collective("OpenMPI", "send", 9)])
    assert doc_collectives.block(second, [first]) == ""
    more = [_collective(OURS, "barrier", 9, size=0), _collective("OpenMPI", "barrier", 9, size=0)]
    both = [*second.quietest.records, *more, _collective(NOTHING, "barrier", 8, size=0)]
    assert "send" not in doc_collectives.block(result_of(both), [first])


@pytest.mark.parametrize(
    ("who", "path", "op", "size", "row"),
    [
        ("gloo", "tcp", "reduce", 8, "same"),
        ("OpenMPI", "shm", "reduce", 8, "same"),
        ("gloo", "shm", "reduce", 4 * KIB, "arena"),
        ("OpenMPI", "tcp", "reduce", 8, "same"),  # more than tenfold
        ("gloo", "shm", "gather", 64 * MIB, "fresh"),  # its scatter alone is looked at
        ("OpenMPI", "shm", "reduce", 64 * MIB, "fresh"),  # pages are those of what is only moved
        ("OpenMPI", "shm", "reduce", MIB, "same"),  # and so are copies
        ("OpenMPI", "shm", "all_reduce", 64 * MIB, "plain"),
    ],
)
def test_a_collective_that_no_rule_covers_is_an_error(
    who: str, path: str, op: str, size: int, row: str
) -> None:
    use = "same" if row == "arena" else row
    pair = [
        _collective(OURS, op, 31 if path == "tcp" else 13, path=path, size=size, row=row),
        _collective(who, op, 3, path=path, size=size, row=use),
        _collective(NOTHING, op, 2, path=path, size=size, row=use),
    ]
    told = f"{who} is faster in {path} {op} {size:g}, {row}, and why?"
    with pytest.raises(ValueError, match=re.escape(told)):
        doc_collectives.block(result_of(pair))
