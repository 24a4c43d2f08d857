"""The doctor's test of pairs: how two meet, what they write, and what is made of it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rdmatensor import ProtocolError, cli
from rdmatensor.doctor import Finding, meet, pair_store, pairs
from rdmatensor.doctor.finding import PairFinding

HOST_A, HOST_B = "a (1)", "b (2)"
NAMES = ("shm", "tcp", "verbs")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def rows_of(
    cell: pairs.Cell, *, host: str = HOST_B, viable: tuple[str, ...] = NAMES
) -> list[pairs.Row]:
    """Two ranks; the first has the cell, the second has nothing to tell."""
    finding = Finding("slower", "cpu governor", "powersave", "cpupower")
    return [
        pairs.Row(HOST_A, NAMES, (finding,), {1: cell}),
        pairs.Row(host, viable, (), {}),
    ]


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("host", ("host", pair_store.PORT)),
        ("host:5", ("host", 5)),
        ("::1", ("::1", pair_store.PORT)),
        ("[::1]", ("::1", pair_store.PORT)),
        ("[fe80::1]:7", ("fe80::1", 7)),
    ],
)
def test_a_peer_is_written_as_host_and_port(peer: str, address: tuple[str, int]) -> None:
    assert pair_store.address_of(peer) == address


@pytest.mark.parametrize("peer", ["", ":5", "host:", "host:x", "host:0", "host:65536", "[::1]:x"])
def test_a_peer_that_is_none_is_misuse(peer: str, capsys: pytest.CaptureFixture[str]) -> None:
    if peer == "host:":
        peer = "host:-1"
    with pytest.raises(SystemExit, match="2"):
        cli.main(["doctor", "--peer", peer])
    assert re.search(r"HOST:PORT|is not in 1\.\.65535", capsys.readouterr().err)


def test_the_command_and_the_store_name_one_port() -> None:
    assert cli.PORT == pair_store.PORT


def test_a_path_as_good_as_both_can_is_ok() -> None:
    cell = pairs.Cell("verbs", 3.14, 9.876)
    *_, found = pairs.judge(rows_of(cell))
    text = "verbs; a write of 8 B 3.1 us, of 1 MiB 9.88 GB/s"
    assert found == PairFinding(
        "ok", "0 to 1", text, "", 0, 1, HOST_A, HOST_B, "verbs", 3.14, 9.876
    )
    *_, found = pairs.judge(rows_of(pairs.Cell("tcp", 1, 1), viable=("shm", "tcp")))
    assert found.level == "ok"  # shm is another host's


@pytest.mark.parametrize(("path", "host"), [("tcp", HOST_B), ("verbs", HOST_A)])
def test_a_path_below_what_both_can_is_slower_and_says_why(path: str, host: str) -> None:
    cell = pairs.Cell(path, 1.0, 1.0, why="verbs: no GID fits")
    *_, found = pairs.judge(rows_of(cell, host=host))
    assert found.level == "slower"
    assert f"both have {'verbs' if host == HOST_B else 'shm'}: verbs: no GID fits" in found.text
    assert found.fix


def test_a_pair_that_fails_is_broken() -> None:
    *_, found = pairs.judge(rows_of(pairs.Cell(error="rank 1 cannot be reached")))
    assert (found.level, found.text) == ("broken", "rank 1 cannot be reached")
    assert isinstance(found, PairFinding)
    assert (found.path, found.small_us, found.large_gb_s) == ("none", None, None)
    assert "fails" in "\n".join(pairs.matrix(rows_of(pairs.Cell(error="x"))))


def test_what_is_wrong_on_a_ranks_machine_is_told_once() -> None:
    rows = rows_of(pairs.Cell("verbs"))
    first, *rest = pairs.judge(rows)
    assert first.text == "powersave (rank 0, a (1))"
    assert len(rest) == 1
    assert len(list(pairs.judge(rows, told=0))) == 1


def test_a_row_survives_the_way() -> None:
    row = rows_of(pairs.Cell("tcp", 1.5, 2.5, "why"))[0]
    assert pairs.Row.decode(row.encode().encode()) == row


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[", b"[]", b"7", b"{}"),
        b'{"host": "a", "viable": [], "findings": [{"level": "ok"}], "cells": {}}',
        b'{"host": "a", "viable": [], "findings": [], "cells": {"0": {"speed": 1}}}',
        b'{"host": "a", "viable": [], "findings": [], "cells": []}',
    ],
)
def test_a_row_of_another_version_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="are the versions the same"):
        pairs.Row.decode(text)


def test_a_store_that_is_gone_is_a_finding() -> None:
    def run() -> meet.Report:
        raise RuntimeError("connection reset")

    (found,), _ = meet._guarded(run, "start it")
    assert (found.level, "connection reset" in found.text) == ("broken", True)


def test_the_matrix_has_a_line_for_each_rank() -> None:
    head, columns, *lines = pairs.matrix(rows_of(pairs.Cell("verbs", 3.14, 9.876)))
    assert "row writes to column" in head
    assert columns.split() == ["0", "1"]
    assert [line.split() for line in lines] == [
        ["0", "a", "(1)", "-", "verbs", "3.1", "9.88"],
        ["1", "b", "(2)", "-", "-"],
    ]


def wait_until(is_so: object) -> None:
    deadline_s = time.monotonic() + 20
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_the_store_of_a_pair() -> None:
    here, there = map(pair_store.PairStore, socket.socketpair())
    here.set("key", "Wört")
    wait_until(lambda: there.check(["key"]))
    assert there.get("key") == here.multi_get(["key"])[0] == "Wört".encode()
    assert not there.check(["key", "other"])
    assert there.delete_key("key")
    wait_until(lambda: not here.check(["key"]))
    there.set("empty", "")
    there.set("last", "word")
    there.close()
    wait_until(lambda: here._is_ended)
    assert here.check(["last", "empty"])
    with pytest.raises(RuntimeError, match="has ended"):
        here.check(["more"])
    here.close()


@pytest.mark.filterwarnings("error")  # of a thread that dies, among them
@pytest.mark.parametrize(
    "line", [b"GET / HTTP/1.1\r\n", b"[1]\n", b"7\n", b"\xff\n", b"ff\n", b"\n", b"6"]
)
def test_who_is_no_doctor_is_left(line: bytes) -> None:
    ours, stranger = socket.socketpair()
    with stranger:
        store = pair_store.PairStore(ours)
        stranger.sendall(line)
        stranger.shutdown(socket.SHUT_WR)
        wait_until(lambda: store._is_ended)
        with pytest.raises(RuntimeError, match="is none"):
            store.check(["key"])
        store.close()


def test_who_sends_more_than_a_doctor_is_left() -> None:
    ours, stranger = socket.socketpair()
    with stranger:
        store = pair_store.PairStore(ours)
        for number in range(pair_store._KEYS_MAX + 1):
            key = f"key {number}".encode().hex()
            stranger.sendall(f"{key}=00\n".encode())
        wait_until(lambda: store._is_ended)
        assert len(store._values) == pair_store._KEYS_MAX
        store.close()


def test_who_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_store, "_SEND_S", 1)
    ours, stranger = socket.socketpair()
    with stranger:
        store = pair_store.PairStore(ours)

        def fill() -> None:
            for number in range(64):
                store.set(f"key {number}", "x" * 100_000)

        with pytest.raises(TimeoutError, match="the other doctor does not read"):
            fill()
        store.close()


def test_who_reads_a_drop_at_a_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_store, "_SEND_S", 1)
    ours, stranger = socket.socketpair()
    is_over = threading.Event()

    def sip() -> None:
        while not is_over.wait(0.05):
            stranger.recv(20_000)

    sipper = threading.Thread(target=sip)
    sipper.start()
    store = pair_store.PairStore(ours)
    try:
        start_s = time.monotonic()
        with pytest.raises(TimeoutError):
            store.set("key", "x" * 16_000_000)  # 80 s of sips
        assert time.monotonic() - start_s < 40
    finally:
        is_over.set()
        sipper.join()
        stranger.close()
        store.close()


def test_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meet, "PATIENCE_S", 0.05)
    for listen, peer in ((free_port(), None), (None, f"127.0.0.1:{free_port()}")):
        (found,), lines = meet.with_peer(listen, peer, [])
        assert (found.level, lines) == ("broken", [])
        assert "could not be tested" in found.text


def doctors(arguments: list[list[str]], environments: list[dict[str, str]]) -> list[str]:
    """Run one doctor for each list of arguments at once; return what they print."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "rdmatensor", "doctor", *each],
            env={**os.environ, "RDMATENSOR_LOOPBACK": "1", **environment},
            stdout=subprocess.PIPE, text=True, cwd="/",
        )
        for each, environment in zip(arguments, environments, strict=True)
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=100)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * len(running), printed
    return printed


@pytest.mark.timeout(120)
def test_two_doctors_test_their_pair(tmp_path: Path) -> None:
    port = str(free_port())
    printed = doctors(
        [["--json", "--listen", port], ["--json", "--peer", f"127.0.0.1:{port}"]], [{}, {}]
    )
    for text in printed:
        found = {finding["subject"]: finding for finding in json.loads(text)["findings"]}
        for subject in ("0 to 1", "1 to 0"):
            assert found[subject]["level"] == "ok"
            assert found[subject]["text"].startswith("shm; a write of 8 B")
        assert found["shm"]["level"] == "ok"  # what each found alone


@pytest.mark.timeout(120)
def test_ranks_of_a_launcher_test_all_pairs() -> None:
    launcher = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**launcher, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(3)]
    printed = doctors([[], [], []], environments)
    for rank in range(3):
        for other in set(range(3)) - {rank}:
            assert f"{rank} to {other}" in printed[0]
    assert len([line for line in printed[0].splitlines() if " shm " in line]) >= 3
    assert printed[1:] == ["", ""]
