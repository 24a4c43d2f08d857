"""The command `rdmatensor`: what it prints can be used, and a wrong setting is one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rdmatensor
from rdmatensor._config.variables import NATIVE_VARIABLES, VARIABLES
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
    assert set(printed) == {one.full_name for one in (*VARIABLES, *NATIVE_VARIABLES)}
    for name, value in given.items():
        assert printed[f"RDMATENSOR_{name}"] == value
    assert from_environment(printed) == before
    for name in given:
        monkeypatch.delenv(f"RDMATENSOR_{name}")
    assert _settings(capsys)["RDMATENSOR_LOOPBACK"] == "0"


def test_what_the_c_library_reads_is_printed_and_checked_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RDMATENSOR_VERBS_QPS", raising=False)
    assert _settings(capsys)["RDMATENSOR_VERBS_QPS"] == "1"
    monkeypatch.setenv("RDMATENSOR_VERBS_QPS", "2")
    assert _settings(capsys)["RDMATENSOR_VERBS_QPS"] == "2"
    for name, value in (("VERBS_QPS", "99"), ("ALGO", "foo")):
        with monkeypatch.context() as patch:
            patch.setenv(f"RDMATENSOR_{name}", value)
            assert main(["settings"]) == 1
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"rdmatensor: RDMATENSOR_{name}='{value}': ")


def test_settings_are_printed_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATENSOR_ARENA_MIB", "128")
    monkeypatch.setenv("RDMATENSOR_SECRET", "hush")
    assert main(["settings", "--json"]) == 0
    text = capsys.readouterr().out
    assert "hush" not in text
    told = json.loads(text)
    assert (told["schema"], told["version"]) == (1, rdmatensor.__version__)
    rows = {row["name"]: row for row in told["settings"]}
    assert set(rows) == {one.full_name for one in (*VARIABLES, *NATIVE_VARIABLES)}
    row = rows["RDMATENSOR_ARENA_MIB"]
    assert (row["value"], row["default"], row["is_set"], row["kind"]) == ("128", "64", True, "MiB")
    assert not rows["RDMATENSOR_TIMEOUT_S"]["is_set"]
    assert all(row["scope"] in ("process", "job", "rank 0") for row in rows.values())
    assert main(["settings"]) == 0
    assert "`" not in capsys.readouterr().out


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
    found = {
        finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]
    }
    level = "ok" if "a write of" in found["verbs"]["text"] else "broken"
    monkeypatch.setenv(f"RDMATENSOR_{name}", "verbs")
    assert main(["doctor", "--json"]) == (level == "broken")
    found = {
        finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]
    }
    assert found["verbs"]["level"] == level
    assert (f"RDMATENSOR_{name}=verbs" in found["verbs"]["text"]) == (level != "ok")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--listen", "99999999"], "port 99999999 is not in 1..65535"),
        (["--listen", "0"], "port 0 is not in 1..65535"),
        (["--listen", "x"], "port x is not in 1..65535"),
        (["--peer", "host:99999999"], "port 99999999 is not in 1..65535"),
        (["--peer", "host:"], "expected HOST, HOST:PORT or"),
        (["--plan", "/nope.json"], "cannot read /nope.json: No such file or directory"),
    ],
)
def test_a_wrong_argument_is_misuse(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", *words])
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err.splitlines()[-1]


def test_a_peer_that_does_not_listen_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDMATENSOR_TIMEOUT_S", "1")
    assert main(["doctor", "--peer", "127.0.0.1:9"]) == 1
    assert "fix: start `rdmatensor doctor --listen` on 127.0.0.1:9" in capsys.readouterr().out


def test_the_last_line_counts_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    levels = [line.split()[0] for line in lines if line.startswith(("ok ", "slower ", "broken "))]
    assert lines[-1] == f"{len(levels)} checks: " + ", ".join(
        f"{levels.count(level)} {level}" for level in ("ok", "slower", "broken")
    )
    main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert sum(told["summary"].values()) == len(told["findings"])


@pytest.mark.parametrize("words", [[], ["doctor"], ["settings"], ["plan"]])
def test_each_help_has_a_description_and_examples(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--help"])
    said = capsys.readouterr().out
    assert "examples:\n  rdmatensor " in said
    assert not words or "exit status:" in said
    assert "BATCH" not in said


def test_a_plan_is_made_by_a_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", "absent_module:make", "--world", "2"]) == 2
    assert capsys.readouterr().err.startswith("rdmatensor plan: cannot load absent_module:make")
    assert main(["plan", "x:y"]) == 2
    assert "--world" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "settings"])
def test_a_reader_that_has_enough_is_no_error(command: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = [sys.executable, "-m", "rdmatensor", command]
    doctor = subprocess.run(
        words, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write_end)
    assert doctor.stderr == ""
    assert doctor.returncode == 128 + signal.SIGPIPE
