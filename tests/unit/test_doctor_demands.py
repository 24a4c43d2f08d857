"""Settings that a job would stumble over later: the doctor tries each by the job's own code."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from rdmatensor import Settings, cli, errors
from rdmatensor.doctor import Finding, demands, loopback
from rdmatensor.doctor.cures import REPORT, cure


def tried(settings: Settings, **native: str) -> dict[str, Finding]:
    found = list(demands.check(settings, native))
    return {finding.subject: finding for finding in found}


@pytest.mark.parametrize(
    ("variables", "words", "fix"),
    [
        ({"RDMATENSOR_ALGO": "rng"}, "RDMATENSOR_ALGO is 'rng'; want auto", "RDMATENSOR_ALGO"),
        ({"RDMATENSOR_DETERMINISTIC": "2"}, "want 0 or 1", "RDMATENSOR_DETERMINISTIC"),
        (
            {"RDMATENSOR_DETERMINISTIC": "1", "RDMATENSOR_ALGO": "ring"},
            "sums in rank order, which RDMATENSOR_ALGO=ring does not",
            "RDMATENSOR_DETERMINISTIC or RDMATENSOR_ALGO",
        ),
        ({"RDMATENSOR_ALGO": "ring"}, "a sum goes by RDMATENSOR_ALGO=ring", ""),
        ({"RDMATENSOR_DETERMINISTIC": "1"}, "a sum goes by RDMATENSOR_DETERMINISTIC=1", ""),
    ],
)
def test_how_collectives_go_is_what_a_sum_takes(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variables: dict[str, str],
    words: str,
    fix: str,
) -> None:
    table = tmp_path / "costs"
    for name, value in {**variables, "RDMATENSOR_COST_TABLE": str(table)}.items():
        monkeypatch.setenv(name, value)
    found = tried(Settings(loopback=True), **variables)["collectives"]
    assert (found.level, words in found.text) == ("broken" if fix else "ok", True), found
    assert found.fix == (f"change or unset {fix}" if fix else "")
    assert not table.exists()  # the doctor changes nothing


def test_a_table_of_costs_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("nonsense\n")
    monkeypatch.setenv("RDMATENSOR_COST_TABLE", str(tmp_path / "costs"))
    native = {"RDMATENSOR_COST_TABLE": str(tmp_path / "costs")}
    found = tried(Settings(loopback=True), **native)["collectives"]
    assert (found.level, "line 1 is not a name" in found.text) == ("broken", True), found
    assert found.fix == "change or unset RDMATENSOR_COST_TABLE"
    assert tried(Settings(), RDMATENSOR_COST_TABLE=str(tmp_path / "absent")) == {}


def test_ports_that_are_all_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = tried(Settings(addr="127.0.0.1", ports=(port, port)))["ports"]
    assert (found.level, f"RDMATENSOR_PORTS={port}-{port}" in found.text) == ("broken", True), found
    assert found.fix == "change or unset RDMATENSOR_PORTS"
    found = tried(Settings(addr="127.0.0.1", ports=(20000, 60000)))["ports"]
    assert (found.level, found.text[:30]) == ("ok", "one of 20000 to 60000 is free;")


@pytest.mark.parametrize("is_installed", [False, True])
def test_counters_that_cannot_be_served(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    def absent() -> None:
        raise errors.NotSupportedError(
            "RDT_ENOTSUP", "metrics", "install it, or unset RDMATENSOR_X"
        )

    if not is_installed:
        monkeypatch.setattr("rdmatensor.metrics._client", absent)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = tried(Settings(loopback=True, metrics_ports=(port, port)))["metrics"]
    assert found.level == "broken"
    assert ("cannot listen" in found.text) == is_installed, found
    assert found.fix == f"change or unset RDMATENSOR_{'METRICS_PORTS' if is_installed else 'X'}"


def test_a_folder_for_traces_that_is_none(tmp_path: Path) -> None:
    found = tried(Settings(trace_dir=str(tmp_path / "absent")))["trace"]
    assert (found.level, found.fix) == ("broken", "change or unset RDMATENSOR_TRACE_DIR")
    assert tried(Settings(trace_dir=str(tmp_path)))["trace"].level == "ok"
    assert all(loopback.check(Settings(loopback=True, trace_dir=str(tmp_path)), has_device=False))
    assert list(tmp_path.iterdir()) == []  # trials leave no traces there


@pytest.mark.parametrize(
    "variables",
    [{"IFNAME": "eth99"}, {"ADDR": "192.0.2.99"}, {"ADDR": "10.0.0.1", "LOOPBACK": "1"}],
)
def test_where_nobody_can_listen_is_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> None:
    names = [f"RDMATENSOR_{name}" for name in variables]
    for name, value in zip(names, variables.values(), strict=True):
        monkeypatch.setenv(name, value)
    assert cli.main(["doctor", "--json"]) == 1
    found = {
        finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]
    }
    assert found["transports"]["fix"] == f"change or unset {' or '.join(names)}", found
    assert found["transports"]["level"] == "broken"


@pytest.mark.parametrize("text", [None, "{}"])
def test_a_plan_that_is_none_is_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str | None,
) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        cli.main(["doctor", "--json", "--plan", str(path)])
    said = capsys.readouterr().err
    assert str(path) in said
    assert text is None or f"-o {path}" in said


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.AuthenticationError, "the same RDMATENSOR_SECRET"),
        (errors.VersionMismatchError, "the same version"),
        (errors.ProtocolError, "the same version"),
        (errors.PeerError, "the doctor of that rank"),
        (errors.TransferTimeoutError, "start the doctor on every host"),
        (errors.MismatchError, "the same settings"),
        (errors.TransportNotViableError, "unset RDMATENSOR_TRANSPORT"),
        (errors.OutOfMemoryError, "the limit"),
        (errors.InternalError, REPORT),
    ],
)
def test_an_error_has_the_cure_of_its_kind(kind: type[errors.RdmaTensorError], words: str) -> None:
    assert words in cure(kind("RDT_E", "call", "what happened"))
    assert cure(ValueError("what happened")) == REPORT
