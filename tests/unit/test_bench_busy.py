"""`bench busy`: its options, the end of its loops, its records and tables; nothing is measured."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record, number
from bench.suite import busy, command, options, rounds, samples, tables
from bench.suite.settings import Settings
from bench.workers import busy as busy_worker
from bench.workers.busy import Budget, burning, compute, loop

MS = 1_000_000


def _options(*chosen: str) -> dict[str, Any]:
    settings = options.settings_of(options.parser_of(None).parse_args(["busy", *chosen]))
    return busy.words_of(settings, 2)


def _records(
    op: str,
    size: int,
    ours_ms: list[float],
    gloo_ms: list[float],
    *,
    burners: int = 2,
    cpu_ms: tuple[float, float] = (1.0, 1.0),
) -> list[Record]:
    found: list[Record] = []
    for who, means, cpu in (
        ("rdmatensor", ours_ms, cpu_ms[0]),
        ("gloo", gloo_ms, cpu_ms[1]),
    ):
        for mean in means:
            printed: Record = {
                "name": who,
                "op": op,
                "size": size,
                "moved_bytes": size,
                "kind": "spin",
                "burners": burners,
                "between_ms": 0.0,
                "ranks": 2,
                "calls": [100],
                "raw_ns": [int(mean * MS)],
                "p50_ns": [int(mean * MS / 2)],
                "p99_ns": [int(mean * MS * 3)],
                "cpu_ns": [int(cpu * MS)],
            }
            slower = {**printed, "raw_ns": [int(mean * MS) + 10]}
            found.append(busy.record_of([printed, slower], "shm"))
    return samples.merge(found)


def test_options_choose_the_cells() -> None:
    chosen = _options("--calls", "barrier,ddp", "--burners", "0,4", "--kinds", "spin,nap")
    assert chosen["calls"] == ["barrier", "ddp"]
    assert chosen["loads"] == ["none:0", "spin:4", "nap:4"]
    assert _options("--between-ms", "0,0.5")["between_ms"] == (0.0, 0.5)
    assert _options()["calls"] == list(busy.CALLS)
    assert "send" not in busy.words_of(Settings(topics=("busy",)), 4)["calls"]
    assert busy.words_of(Settings(topics=("busy",), calls=("send",)), 4) == {}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["busy", "--calls", "all_sum"], "'all_sum' is no call; they are all_reduce"),
        (["busy", "--kinds", "sleep"], "'sleep' is no kind of burner; they are spin, nap, matmul"),
        (["busy", "--burners", "65"], "65 is more than 64"),
        (["busy", "--between-ms", "-1"], "'-1' is not a number above 0"),
        (["p2p", "--burners", "2"], "--burners is of busy, ps, not of p2p"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        command._run(words)
    assert raised.value.code == 2
    assert why in capsys.readouterr().err


def test_a_send_of_four_ranks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command._run(["busy", "--calls", "send", "--ranks", "4"]) == 1
    assert "send is of two ranks: --ranks 2" in capsys.readouterr().err


def test_the_estimate_counts_each_loop() -> None:
    short = busy.words_of(Settings(topics=("busy",), calls=("barrier",), burners=(0,)), 2)
    more = busy.words_of(Settings(topics=("busy",), calls=("barrier",), burners=(0, 2)), 2)
    each_s = busy.seconds_of(more, 2) - busy.seconds_of(short, 2)
    assert each_s == pytest.approx(2 * 2 * (busy._LOOP_S + busy._AROUND_S))  # 0 and 2 ms, 2 each


def test_a_loop_ends_where_rank_0_says() -> None:
    end = memoryview(bytearray(16)).cast("q")
    found = loop(lambda: None, 0, end, Budget(seconds=60.0, calls=5), is_led=False)
    assert found["calls"] == end[0] >= 5
    assert loop(lambda: None, 0, end, None, is_led=False)["calls"] == end[0]


def test_a_rank_that_leads_waits_for_rank_0() -> None:
    end = memoryview(bytearray(16)).cast("q")
    leading: list[int] = []

    def lead() -> None:
        leading.append(max(leading, default=0) + 1)

    def follow() -> None:
        time.sleep(0.0005)
        assert leading[-1] <= end[1] + busy_worker._MOST_LEAD + 1

    other = threading.Thread(target=loop, args=(lead, 0, end, None), kwargs={"is_led": True})
    other.start()
    found = loop(follow, 0, end, Budget(seconds=0.1, calls=10**6), is_led=True)
    other.join(timeout=20)
    assert leading[-1] == found["calls"] == end[0]


def test_a_rank_that_leads_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_worker, "PATIENCE", timedelta(seconds=0.05))
    end = memoryview(bytearray(16)).cast("q")
    with pytest.raises(RuntimeError, match="rank 0 is at call 0, this rank at 65"):
        loop(lambda: None, 0, end, None, is_led=True)


def test_a_loop_lasts_as_long_as_it_should() -> None:
    end = memoryview(bytearray(16)).cast("q")
    found = loop(
        lambda: time.sleep(0.002), MS, end, Budget(seconds=0.05, calls=10**6), is_led=False
    )
    assert found["raw_ns"] * found["calls"] > 0.05e9
    assert found["raw_ns"] > 3 * MS  # with the computing
    assert found["p50_ns"] >= 2 * MS
    assert found["cpu_ns"] < MS  # without it


def test_a_rank_that_is_ahead_of_the_end_is_an_error() -> None:
    end = memoryview(bytearray(16)).cast("q")
    calls = iter(range(5))

    def call() -> None:
        if next(calls) == 3:
            end[0] = 2

    with pytest.raises(RuntimeError, match="call 4 had begun before call 2 was the last"):
        loop(call, 0, end, None, is_led=False)


def test_computing_uses_processor_time() -> None:
    before_ns = time.thread_time_ns()
    used_ns = compute(3 * MS)
    assert 3 * MS <= used_ns <= time.thread_time_ns() - before_ns


def test_a_burner_that_does_not_begin_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="kind none did not begin"), burning("none", 1, tmp_path):
        pass


@pytest.mark.parametrize("kind", busy.KINDS)
def test_burners_use_processor_time_and_end(kind: str, tmp_path: Path) -> None:
    with burning(kind, 1, tmp_path):
        (pid,) = _named(tmp_path)
        deadline_s = time.monotonic() + 20
        while _cpu_ticks(pid) < 20 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert _cpu_ticks(pid) >= 20
    assert _named(tmp_path) == []


def _named(folder: Path) -> list[int]:
    done = subprocess.run(
        ["pgrep", "-f", f"burner.py .*{folder}"], capture_output=True, text=True, check=False
    )
    return [int(word) for word in done.stdout.split()]


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_record_is_of_the_slowest_rank_and_of_all_processor_time() -> None:
    (own, _) = _records("all_reduce", 8, [1.0, 5.0, 2.0], [1.0])
    assert samples.raw_of(own) == [MS + 10, 5 * MS + 10, 2 * MS + 10]
    assert number(own, "median_ns") == 2 * MS + 10
    assert number(own, "p50_ns") == MS
    assert number(own, "call_cpu_ns") == 2 * MS
    (own, _) = _records("wait", 0, [100.0], [100.0])
    assert number(own, "call_cpu_ns") == MS  # each rank waits for itself


def test_tables_have_ratios_and_waits() -> None:
    records = [
        *_records("all_reduce", 8, [1.0, 1.0, 9.0], [4.0, 4.0, 4.0]),
        *_records("all_reduce", 65536, [4.0], [4.4], cpu_ms=(3.0, 1.0)),
        *_records("all_reduce", 1 << 20, [6.0], [4.0]),
        *_records("all_reduce", 1 << 20, [1.0], [4.0], burners=0),
        *_records("wait", 0, [100.0], [100.0], cpu_ms=(30.0, 1.0)),
    ]
    shown = tables.show(records)
    (line,) = [one for one in shown.splitlines() if one.startswith("2 ranks, shm  2 spinning")]
    assert line.split()[-8:] == ["3", "0.48", "1.50", "1", "all_reduce", "1", "MiB:", "1.50"]
    assert "2 spinning: CPU 30.00 ms, Gloo's 1.00 ms; wanted: at most 2.00 ms: NOT met" in shown


def test_without_gloo_there_are_no_ratios() -> None:
    own = [one for one in _records("barrier", 0, [2.0], [1.0]) if one["peer"] == "rdmatensor"]
    shown = busy.show(own)
    assert "barrier, 2 ranks, shm" in shown
    assert "Gloo" not in shown


def test_each_turn_is_another_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def run(worker: str, ranks: int, options: dict[str, Any], **_: object) -> list[Record]:
        assert worker == "busy"
        seen.append((ranks, options["round"]))
        return []

    monkeypatch.setattr(busy, "run_ranks", run)
    settings = Settings(topics=("busy",), transports=("tcp",), rounds=2)
    stream = io.StringIO()
    assert busy.measure(settings, [], rounds.Progress("busy", stream)) == []
    assert sorted(seen) == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert "round 2: 4 ranks, tcp" in stream.getvalue()
    assert "busy: about " in capsys.readouterr().err
