"""What servers report while their jobs run, and when they are stuck."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import ps_clusters
import pytest
import torch

from rdmatensor import cli, errors, metrics, ps, state
from rdmatensor._observe import reports
from rdmatensor._observe.ps_text import text_of_servers
from rdmatensor._observe.reports import Report, ask_all
from rdmatensor.ps.report import held_by, numbers_of

WAIT_S = 20.0


def until(seen: Callable[[], Any]) -> Any:
    """Return the first result that is true."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := seen()):
        assert time.monotonic() < deadline_s, "it does not become true"
        time.sleep(0.01)
    return found


def own_reports() -> list[Any]:
    return [one for one in ask_all("ps") if one["pid"] == os.getpid()]


@pytest.mark.parametrize(("mode", "steps"), [("sync", 3), (ps.SSP(2), 3)])
def test_a_stuck_job_shows_who_holds_it(mode: ps.Mode, steps: int, tmp_path: Path) -> None:
    """Worker 1 stops after some steps: the others wait for it, and the report names it."""
    is_seen, found = threading.Event(), []

    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=10, rule=ps.Add())
        for step in range(2 * steps):
            if w.rank == 1 and step == steps:
                found.append(until(held))
                is_seen.set()
            table.push([1], torch.ones(1, 2))
            w.clock()

    def held() -> Any:
        ours = own_reports()
        return ours if [one["held_by"] for one in ours] == [[1]] and waits(ours[0]) == 2 else None

    def waits(report: Any) -> int:
        return sum(one["is_waiting"] for one in report["workers"])

    ps_clusters.run(tmp_path, main, workers=3, servers=1, mode=mode)
    assert is_seen.is_set()
    (report,) = found[0]
    assert [one["state"] for one in report["workers"]] == ["in"] * 3
    assert report["workers"][1]["clock"] == steps
    assert report["tables"]["t"]["rows"] == 10
    text = "\n".join(text_of_servers(found[0]))
    assert "2 workers wait for worker 1, quiet for" in text
    assert own_reports() == [], "a report outlived its server"


def test_a_server_reports_what_its_type_says(tmp_path: Path) -> None:
    states: list[Any] = []

    def main(w: ps.Worker) -> None:
        w.table("t", 2, rows=10, rule=ps.Add()).push([1], torch.ones(1, 2))
        w.table("k", 2, keys="int64", rule=ps.Add())
        w.clock()
        states.append(w.describe())

    ps_clusters.run(tmp_path, main, workers=1, servers=2)
    of_cluster = {"role", "rank", "context", "backup"}
    assert set(states[0]) == set(get_type_hints(state.PsWorkerState)) - of_cluster
    for one in states[0]["servers"]:
        assert set(one) == set(get_type_hints(state.PsServerState)) - of_cluster
        assert set(one["workers"][0]) == set(get_type_hints(state.PsPart))
        assert set(one["tables"]["t"]) == set(state.PsTableState.__required_keys__)
        assert set(one["tables"]["k"]) == set(get_type_hints(state.PsTableState))
        assert one["queued"] == 0


def test_metrics_have_each_number_of_a_server(tmp_path: Path) -> None:
    found: dict[str, float] = {}
    numbers: dict[str, object] = {}

    class Probe(ps.Server):
        def serve(self) -> None:
            super().serve()
            found.update(metrics.values(self._context))
            numbers.update(numbers_of(self._handle.get("test")))

    def main(w: ps.Worker) -> None:
        table = w.table("t", 2, rows=10, rule=ps.Add())
        for _ in range(3):
            table.push([1, 2], torch.ones(2, 2))
            w.clock()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rdmatensor.ps.cluster.Server", Probe)
        ps_clusters.run(tmp_path, main, workers=1, servers=1)
    label = '{server="0"}'
    assert found[f"rdmatensor_ps_applied_rows_total{label}"] == 6
    assert found[f"rdmatensor_ps_ticks_total{label}"] == 3
    assert found[f"rdmatensor_ps_apply_seconds_total{label}"] == numbers["apply_s"]
    assert found['rdmatensor_ps_staleness_total{server="0",steps="0"}'] == 3
    missing = [
        name for name in numbers
        if not any(f"rdmatensor_ps_{name.removesuffix('_s')}" in one for one in found)
    ]  # fmt: skip
    assert missing == []


def part(worker: int, clock: int, state: str = "in", is_waiting: bool = False) -> Any:
    return {"worker": worker, "clock": clock, "state": state, "is_waiting": is_waiting}


@pytest.mark.parametrize(
    ("mode", "parts", "held"),
    [
        ("sync", [part(0, 3), part(1, 3)], []),
        ("sync", [part(0, 4, is_waiting=True), part(1, 3), part(2, 0, "absent")], [1, 2]),
        ("sync", [part(0, 4, is_waiting=True), part(1, 3, "dead"), part(2, 3, "left")], []),
        ("sync", [part(0, 4, "parked", True), part(1, 4)], [1]),
        ("SSP(staleness=1)", [part(0, 5, is_waiting=True), part(1, 3), part(2, 4)], [1]),
    ],
)
def test_holders(mode: str, parts: list[Any], held: list[int]) -> None:
    assert held_by(mode, parts) == held


class Speaker:
    """An object with a state."""

    def __init__(self, value: object) -> None:
        self.value = value

    def describe(self) -> dict[str, object]:
        if isinstance(self.value, Exception):
            raise self.value
        return {"value": self.value}


def test_reports_of_a_kind_answer_until_they_are_closed() -> None:
    gone = errors.ClosedError("RDT_ECLOSED", "describe", "gone")
    speakers = [Speaker(1), Speaker("x" * 1_000_000), Speaker(gone)]
    opened = [Report("test-kind", one.describe) for one in speakers]
    try:
        found = ask_all("test-kind")
        assert {one["pid"] for one in found} == {os.getpid()}
        values = [one.get("value") for one in found]
        assert sorted(map(str, values), key=len) == ["1", "None", "x" * 1_000_000]
        assert [one["error"] for one in found if "error" in one] == [
            "ClosedError: gone [describe: RDT_ECLOSED]"
        ]
        assert ask_all("test-kin") == []
    finally:
        for one in opened:
            one.close()
            one.close()
    assert ask_all("test-kind") == []


def test_a_process_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_ANSWER_S", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(f"\0rdmatensor/test-mute/{os.getpid()}/0")
        mute.listen()
        (found,) = ask_all("test-mute")
    assert found == {"pid": os.getpid(), "error": "the process does not answer within 0.2 s"}


def test_a_forked_child_does_not_answer_for_its_parent() -> None:
    speaker = Speaker(1)
    report = Report("test-fork", speaker.describe)
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    report.close()
    try:
        assert ask_all("test-fork") == []
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_command_prints_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status: list[int] = []

    def main(w: ps.Worker) -> None:
        w.table("films", 2, rows=10, rule=ps.Add())
        w.clock()
        status.extend([cli.main(["ps", "status"]), cli.main(["ps", "status", "--json"])])

    ps_clusters.run(tmp_path, main, workers=1, servers=2)
    lines = capsys.readouterr().out.splitlines()
    assert status == [0, 0]
    found = [one for one in json.loads(lines[-1])["servers"] if one["pid"] == os.getpid()]
    assert [one["server"] for one in sorted(found, key=lambda one: one["server"])] == [0, 1]
    assert "  tables: films (10 x 2)" in lines
    monkeypatch.setattr(reports, "_NAMES", Path(os.devnull))
    assert cli.main(["ps", "status"]) == 1
    assert capsys.readouterr().out == "no parameter server of this user runs here\n"
