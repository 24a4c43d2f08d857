"""The trace: what is kept, as a list and as a page of a trace viewer."""

from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdmatensor import ClosedError, Context, InvalidArgumentError, Settings, trace
from rdmatensor.trace import Event

SETTINGS = Settings(transport="shm", loopback=True, arena_mib=1, secret=b"trace")


def write_some(left: Context, count: int, size: int = 512) -> None:
    """Write to another context of this process, with a notification each."""
    with Context(SETTINGS) as right:
        left.add_job(rank=0)
        right.add_job(rank=1)
        with (
            left.connect(right.address, rank=1) as to_right,
            right.connect(left.address, rank=0) as back,
        ):
            to_right.wait_ready()
            back.wait_ready()
            target = right.zeros(size, np.uint8)
            region = right.export(target)
            for number in range(count):
                to_right.write(np.full(size, 7, np.uint8), region, notify=number).wait()
                assert back.wait_notify() == number


def test_nothing_is_kept_until_it_is_started() -> None:
    with Context(SETTINGS) as context:
        write_some(context, 2)
        assert trace.events(context) == []


def test_transfers_are_kept_in_their_order() -> None:
    with Context(SETTINGS) as context:
        trace.start(context)
        write_some(context, 5)
        found = [event for event in trace.events(context) if event.len_bytes == 512]
        assert [event.name for event in found] == ["write"] * 5
        assert {event.peer for event in found} == {1}
        assert {event.status for event in found} == {"RDT_OK"}
        for event in found:
            assert event.end_ns is not None
            assert event.start_ns <= event.end_ns
        assert all(a.sequence < b.sequence for a, b in pairwise(found))
        last = found[-1].sequence
        assert next(event.sequence for event in trace.events(context, since=last)) == last


def test_what_cannot_be_is_refused() -> None:
    with Context(SETTINGS) as context:
        for capacity in (0, -1, trace.CAPACITY_MAX + 1):
            with pytest.raises(InvalidArgumentError):
                trace.start(context, capacity)
        trace.start(context, 4)
        with pytest.raises(InvalidArgumentError, match="on already"):
            trace.start(context)
    with pytest.raises(ClosedError):
        trace.events(context)
    with pytest.raises(InvalidArgumentError, match="RDMATENSOR_TRACE_DIR=/nowhere: no folder"):
        Context(Settings(loopback=True, trace_dir="/nowhere"))


def slices(file: Path) -> list[dict[str, Any]]:
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    found: dict[str, Any] = json.loads(raw)
    return [event for event in found["traceEvents"] if event.get("cat") == "rdmatensor"]


@pytest.mark.parametrize("name", ["transfers.json", "transfers.json.gz"])
def test_the_file_is_a_chrome_trace(tmp_path: Path, name: str) -> None:
    with Context(SETTINGS) as context:
        trace.start(context)
        write_some(context, 3)
        count = trace.write(context, tmp_path / name)
        found = slices(tmp_path / name)
        assert len(found) == count >= 3
        assert {event["ph"] for event in found} == {"X"}
        assert {event["pid"] for event in found} == {os.getpid()}


def test_it_goes_beside_another_trace(tmp_path: Path) -> None:
    base_ns = 1_700_000_000_000_000_000
    other = {"ph": "X", "name": "aten::add", "ts": 5.0, "dur": 1.0, "pid": 1, "tid": 1}
    (tmp_path / "torch.json").write_text(
        json.dumps({"baseTimeNanoseconds": base_ns, "traceEvents": [other]})
    )
    with Context(SETTINGS) as context:
        trace.start(context)
        write_some(context, 1)
        (event,) = [event for event in trace.events(context) if event.len_bytes == 512]
        trace.write(context, tmp_path / "both.json", profile=tmp_path / "torch.json")
    both = json.loads((tmp_path / "both.json").read_text())
    assert other in both["traceEvents"]
    (drawn,) = [one for one in slices(tmp_path / "both.json") if one["args"]["bytes"] == 512]
    assert drawn["ts"] == pytest.approx((event.start_ns - base_ns) / 1000, abs=0.001)


@pytest.mark.parametrize("text", ["{", "[1]", '{"traceEvents": 3}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with Context(SETTINGS) as context, pytest.raises(InvalidArgumentError, match="profile="):
        trace.write(context, tmp_path / "out.json", profile=tmp_path / "bad.json")
    assert not (tmp_path / "out.json").exists()


def test_slices_of_a_row_never_overlap() -> None:
    def event(number: int, start_ns: int, end_ns: int | None, peer: int | None) -> Event:
        return Event(number, "write", peer, 8, start_ns, end_ns, "RDT_OK")

    found = [
        event(1, 0, 100, 1), event(2, 10, 50, 1), event(3, 20, None, 1), event(4, 60, 70, 1),
        event(5, 100, 110, 1), event(6, 5, 90, None),
    ]  # fmt: skip
    drawn = trace.chrome_events(found, base_ns=0, now_ns=1000)
    rows: dict[int, list[tuple[float, float]]] = {}
    for one in drawn:
        if one["ph"] == "X":
            start, duration = one["ts"], one["dur"]
            assert isinstance(start, float)
            assert isinstance(duration, float)
            assert isinstance(one["tid"], int)
            rows.setdefault(one["tid"], []).append((start, start + duration))
    assert len(rows) == 4  # three at a time with rank 1, and the collectives
    for ends in rows.values():
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
    titles = [one["args"] for one in drawn if one["name"] == "thread_name"]
    assert titles.count({"name": "rdmatensor collectives"}) == 1
    assert titles.count({"name": "rdmatensor to and from rank 1"}) == 3


def test_a_setting_writes_it_when_the_context_is_closed(tmp_path: Path) -> None:
    with Context(
        Settings(
            transport="shm", loopback=True, arena_mib=1, secret=b"trace", trace_dir=str(tmp_path)
        )
    ) as context:
        write_some(context, 2)
    context.close()  # again: nothing
    (file,) = tmp_path.iterdir()
    assert file.name.endswith(f"-{os.getpid()}.json")
    assert len([event for event in slices(file) if event["args"]["bytes"] == 512]) == 2


def test_a_folder_that_is_gone_at_the_end_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    context = Context(Settings(loopback=True, arena_mib=1, trace_dir=str(folder)))
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match="no trace"):
        context.close()
    assert context.is_closed
