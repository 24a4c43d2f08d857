"""The command `rdmatensor`: what it prints can be used, and a wrong setting is one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from rdmatensor._config.variables import VARIABLES
from rdmatensor.cli import main
from rdmatensor.config import from_environment


def _settings(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["settings"]) == 0
    lines = re.findall(r"(?m)^(RDMATENSOR_\w+)=(.*)$", capsys.readouterr().out)
    return dict(lines)


def test_the_values_printed_can_be_set_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"PORTS": "20000-20010", "LOOPBACK": "1", "TIMEOUT_S": "7.5", "TRANSPORT": "tcp"}
    for name, value in given.items():
        monkeypatch.setenv(f"RDMATENSOR_{name}", value)
    before = from_environment()
    printed = _settings(capsys)
    assert set(printed) == {variable.full_name for variable in VARIABLES}
    for name, value in given.items():
        assert printed[f"RDMATENSOR_{name}"] == value
    assert from_environment(printed) == before
    for name in given:
        monkeypatch.delenv(f"RDMATENSOR_{name}")
    assert _settings(capsys)["RDMATENSOR_LOOPBACK"] == "0"


def test_what_the_c_library_reads_is_printed_where_it_is_set(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RDMATENSOR_VERBS_QPS", raising=False)
    assert "RDMATENSOR_VERBS_QPS" not in _settings(capsys)
    monkeypatch.setenv("RDMATENSOR_VERBS_QPS", "2")
    assert _settings(capsys)["RDMATENSOR_VERBS_QPS"] == "2"


@pytest.mark.parametrize("is_file", [False, True])
def test_a_secret_stands_at_its_own_variable_and_is_hidden(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    is_file: bool,
) -> None:
    path = tmp_path_factory.mktemp("secret") / "file"
    path.write_text("hush")
    name, other = ("SECRET_FILE", "SECRET") if is_file else ("SECRET", "SECRET_FILE")
    monkeypatch.setenv(f"RDMATENSOR_{name}", str(path) if is_file else "hush")
    printed = _settings(capsys)
    assert printed[f"RDMATENSOR_{name}"] == "(set, not shown)"
    assert printed[f"RDMATENSOR_{other}"] == ""


def test_a_wrong_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATENSOR_TIMOUT", "3")
    assert main(["settings"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "did you mean RDMATENSOR_TIMEOUT_S?" in shown.err
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.count("did you mean") == 1


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "doctor" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["TRANSPORT", "REQUIRE"])
def test_the_doctor_sees_what_a_forced_transport_cannot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    level = "ok" if "a write of" in found["verbs"]["text"] else "broken"
    monkeypatch.setenv(f"RDMATENSOR_{name}", "verbs")
    assert main(["doctor", "--json"]) == (level == "broken")
    found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["verbs"]["level"] == level
    assert (f"RDMATENSOR_{name}=verbs" in found["verbs"]["text"]) == (level != "ok")


def test_a_reader_that_has_enough_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "rdmatensor", "doctor"]
    doctor = subprocess.run(
        words, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write_end)
    assert doctor.stderr == ""
    assert doctor.returncode == 128 + signal.SIGPIPE
