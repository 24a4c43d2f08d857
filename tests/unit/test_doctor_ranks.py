"""The doctor where a launcher's variables are: what it tells, how long it waits, what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rdmatensor import RdmaTensorError, cli
from rdmatensor.doctor import Finding, meet, pairs
from rdmatensor.doctor.words import ROOT, Words


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launched(rank: int, size: int, port: int, **environment: str) -> dict[str, str]:
    """The environment of a rank whose job is at a port of this host."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, "RDMATENSOR_LOOPBACK": "1", **place, **master, **environment}


@contextlib.contextmanager
def doctor(environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command; it is ended behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rdmatensor", "doctor", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
        # A shell's job in the background ignores it, and so does what that starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(120)
def test_a_rank_that_cannot_take_part_is_named_and_the_others_are_tested() -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(doctor(launched(rank, 3, port, **changed), "--json"))
            for rank, changed in enumerate(
                [{}, {"RDMATENSOR_IFNAME": "eth99", "RDMATENSOR_LOOPBACK": ""}, {}]
            )
        ]
        said = [process.communicate(timeout=100) for process in running]
        assert [process.returncode for process in running] == [1, 0, 0], said
    assert [out for out, _ in said[1:]] == ["", ""]  # rank 0 alone tells
    found = {finding["subject"]: finding for finding in json.loads(said[0][0])["findings"]}
    assert found["rank 1"]["level"] == "broken"
    assert "RDMATENSOR_IFNAME=eth99" in found["rank 1"]["text"]
    assert found["rank 1"]["fix"] == "change or unset RDMATENSOR_IFNAME"
    assert found["shm"]["level"] == "ok"  # what rank 0 found of its own
    cells = {(item["rank"], item["peer"]): item for item in found.values() if "peer" in item}
    assert set(cells) == {(0, 2), (2, 0)}
    for cell in cells.values():
        assert (cell["level"], cell["path"]) == ("ok", "shm"), cell
        assert cell["small_us"] > 0
        assert cell["large_gb_s"] > 0
        assert cell["host"] == cell["peer_host"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rank", [0, 1])
def test_the_environment_of_a_job_that_runs(rank: int) -> None:
    """As in another shell: this host is told, nobody comes, the job's store stays as it was."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("default_pg/0//cpu//0", "the job's")
    keys = store.num_keys()
    environment = launched(
        rank, 2, store.port, LOCAL_RANK="0", TORCHELASTIC_USE_AGENT_STORE="True",
        RDMATENSOR_TIMEOUT_S="1",
    )  # fmt: skip
    with doctor(environment) as process:
        said, _ = process.communicate(timeout=100)
    assert process.returncode == 1, said
    lines = [line for line in said.splitlines() if not line.startswith(" ")]
    assert lines[-2].startswith("broken  pairs")
    assert f"nothing from rank {1 - rank} within 1.000 s" in lines[-2]
    assert "rdmatensor doctor --alone" in said.splitlines()[-2]
    assert any(line.startswith("ok      shm") for line in lines)
    assert ("(rank 1, " in lines[0]) == (rank == 1)
    assert store.num_keys() == keys
    assert store.get("default_pg/0//cpu//0") == b"the job's"


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_wait_in_order() -> None:
    with doctor(launched(1, 2, free_port(), LOCAL_RANK="0")) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("waiting up to 120 s for 1 other rank at 127.0.0.1:"), line
        assert "--alone" in line
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in wrong
    assert "ok      shm" in said


@pytest.fixture
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a job's rank 1, whose store nobody hosts."""
    monkeypatch.setattr("rdmatensor.doctor.examine", lambda _plan: iter([Finding("ok", "a", "b")]))
    monkeypatch.setattr(meet, "PATIENCE_S", 0.1)
    for name, value in launched(1, 2, free_port()).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_a_job")
def test_words_on_the_command_line_win_over_the_launcher(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["doctor", "--alone"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      a                b",
        "1 checks: 1 ok, 0 slower, 0 broken",
    ]
    met = []
    monkeypatch.setattr(meet, "with_peer", lambda *given: met.append(given) or ([], []))
    for words in (["--listen", "7"], ["--peer", "host:8"]):
        assert cli.main(["doctor", *words]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "ok      a                b",
            "1 checks: 1 ok, 0 slower, 0 broken",
        ]
    assert [given[:2] for given in met] == [(7, None), (None, "host:8")]


@pytest.mark.usefixtures("in_a_job")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MASTER_PORT", "x", "invalid literal"),
        ("RANK", "2", "are no job's"),
        ("MASTER_ADDR", "no.such.host.invalid", "no process listens at no.such.host.invalid"),
    ],
)
def test_a_place_that_cannot_be_met_at_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    told = meet.with_ranks([])
    assert told is not None
    ((found,), _) = told
    assert (found.level, words in found.text) == ("broken", True), found
    assert "--alone" in found.fix


def test_one_rank_alone_has_nobody_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launched(0, 1, 1).items():
        monkeypatch.setenv(name, value)
    assert not meet.is_under_torchrun()


class DictStore:
    """A store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


def test_a_run_takes_its_words_back_and_no_others() -> None:
    store = DictStore()
    store.set("of a job", "1")
    with Words(store, 0, 2, 1.0) as first, Words(store, 1, 2, 1.0) as second:
        assert first.job == second.job
        assert first.secret == second.secret
        for what in ("hello", "row"):
            for words, rank in ((first, 0), (second, 1)):
                store.set(f"{first.job}/{what}/{1 - rank}", "early")
                told = words.exchange(what, f"word {rank}")
                assert told[rank] == f"word {rank}".encode()
        second.end()
        first.end()
    assert store.values == {"of a job": b"1"}
    store.set(ROOT, "no run")
    with pytest.raises(RdmaTensorError, match="began no run"):
        Words(store, 1, 2, 1.0)


def test_a_secret_on_some_ranks_only_is_named() -> None:
    one, other = pairs.Hello(has_secret=True), pairs.Hello()
    assert pairs._fault(one, one) == pairs._fault(other, other) == ""
    assert pairs._fault(one, other).startswith("rank 0 has RDMATENSOR_SECRET")
    assert pairs._fault(other, one).startswith("this rank has RDMATENSOR_SECRET")
    assert pairs._fault(one, pairs.Hello(error="no device")) == "no device"


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"7", b"[" * 100_000, b'{"address": 1}', b'{"address": "x"}', b'{"speed": 1}'],
)
def test_first_words_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(RdmaTensorError, match="are the versions the same"):
        pairs.Hello.decode(text)


def test_the_bytes_of_a_rank_are_its_own() -> None:
    patterns = [pairs._pattern(rank).tobytes() for rank in range(3)]
    assert len(set(patterns)) == 3
    assert all(len(pattern) == pairs.LARGE_BYTES for pattern in patterns)
