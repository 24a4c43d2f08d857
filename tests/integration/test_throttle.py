"""ci/throttle.sh: the rate, both kinds of link, limits, statuses, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

THROTTLE = Path(__file__).parents[2] / "ci" / "throttle.sh"
LIMIT_S = 60
MIB = 1 << 20
# Sends MiB from a child to its parent over one connection each way of a list, all at once.
EXCHANGE = """
import socket, sys, threading, time
MIB, LIMIT_S = 1 << 20, 60
address, is_first, ways = sys.argv[1], sys.argv[2] == "0", sys.argv[3]
if is_first:
    server = socket.create_server((address, 5000))
    server.settimeout(LIMIT_S)
    one, _ = server.accept()
else:
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            one = socket.create_connection((address, 5000), LIMIT_S)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.01)
one.settimeout(LIMIT_S)
def send(): one.sendall(bytes(2 * MIB))
def receive():
    left = 2 * MIB
    while left: left -= len(one.recv(min(left, MIB)))
out, back = (send, receive) if is_first else (receive, send)
began = time.monotonic()
jobs = [threading.Thread(target=out)] + [threading.Thread(target=back)] * (ways == "both")
for job in jobs: job.start()
for job in jobs: job.join()
one.sendall(b"x"); one.recv(1)
sys.stdout.write(str(time.monotonic() - began) + " ")
"""


@pytest.fixture(autouse=True)
def _allowed() -> None:
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if done.returncode != 0:
        assert not os.environ.get("CI"), f"CI must run what needs a link: {done.stderr}"
        pytest.skip("unshare is refused")


def run(*words: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run the script with these words."""
    return subprocess.run(
        ["bash", str(THROTTLE), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the script until it is ended, however the signals of this process are handled."""

    def reset() -> None:  # bash cannot catch what was ignored when it began
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    with subprocess.Popen(
        ["bash", str(THROTTLE), *words],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=reset,  # noqa: PLW1509  the parent has no other thread that matters
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def processes_with(mark: str) -> list[int]:
    """Return the processes with a mark in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue  # it has ended
        if mark.encode() in words and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def await_none(mark: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while processes_with(mark):
        assert time.monotonic() < end_s, "processes are left"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "RATE (nothing) is not a number with kbit"),
        (["5", "--", "true"], "RATE 5 is not"),
        (["0mbit", "--", "true"], "RATE 0mbit is not"),
        (["5mbit"], "no COMMAND after --"),
        (["5mbit", "--"], "no COMMAND after --"),
        (["5mbit", "true"], "unknown option true"),
        (["5mbit", "--hosts", "1", "--", "true"], "--hosts 1 is not a number from 2 to 64"),
        (["5mbit", "--quota", "--", "true"], "--quota -- is not a number"),
        (["5mbit", "--memory", "x", "--", "true"], "--memory x is not a number"),
    ],
)
def test_misuse_is_refused(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "usage: ci/throttle.sh RATE" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("command", "status"), [("exit 7", 7), ("exit 0", 0), ("nope", 127), ("kill -9 $$", 137)]
)
def test_the_status_is_the_commands(command: str, status: int) -> None:
    assert run("1gbit", "--", "sh", "-c", command).returncode == status


def test_of_several_hosts_the_one_that_fails_counts() -> None:
    script = 'test "$RANK" = 1 && exit 9; sleep 100'
    assert run("1gbit", "--hosts", "3", "--", "sh", "-c", script).returncode == 9


def test_the_command_keeps_folder_input_and_arguments(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(THROTTLE), "1gbit", "--", "sh", "-c", 'pwd; cat; echo "$1"', "sh", "a  b"],
        input="in\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.stdout == f"{tmp_path}\nin\na  b\n", done.stderr


def test_the_command_knows_the_rate() -> None:
    done = run("700mbit", "--duplex", "--", "sh", "-c", 'echo "$THROTTLE_RATE"')
    assert done.stdout == "700mbit\n" * 2, done.stderr


def test_loopback_is_the_only_interface() -> None:
    done = run("1gbit", "--", "ls", "/proc/sys/net/ipv4/conf")
    assert set(done.stdout.split()) == {"all", "default", "lo"}, done.stderr


def exchange(ways: str, *options: str) -> float:
    """Return the seconds in which 2 MiB go one way or both ways at 40 Mbit/s."""
    code = '"$0" -c "$1" 127.0.0.1 0 "$2" & "$0" -c "$1" 127.0.0.1 1 "$2" && wait $!'
    command = ["sh", "-c", 'exec "$0" -c "$1" "$MASTER_ADDR" "$RANK" "$2"']
    if not options:
        command = ["bash", "-c", code]
    done = run("40mbit", *options, "--", *command, sys.executable, EXCHANGE, ways)
    assert done.returncode == 0, done.stderr
    return max(map(float, done.stdout.split()))


def test_both_directions_share_loopback_and_not_a_duplex_link() -> None:
    least_s = (2 * MIB - 131072) * 8 / 40e6  # the burst is free
    half = {ways: exchange(ways) for ways in ("one", "both")}
    duplex = {ways: exchange(ways, "--duplex") for ways in ("one", "both")}
    assert half["one"] > least_s
    assert duplex["one"] > least_s
    assert half["both"] > 2 * least_s
    assert duplex["both"] < 0.8 * half["both"]


def test_hosts_have_numbers_and_addresses_and_reach_each_other() -> None:
    script = (
        'echo "$RANK $WORLD_SIZE $MASTER_PORT $(ip -4 -br address show eth0)";'
        "exec 3<>/dev/udp/10.77.0.3/9"
    )
    done = run("1gbit", "--hosts", "3", "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in sorted(done.stdout.splitlines())]
    assert [line[:3] for line in words] == [[str(rank), "3", "29500"] for rank in range(3)]
    assert [line[5] for line in words] == [f"10.77.0.{rank}/24" for rank in (1, 2, 3)]


def cgroups() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob("*/rdmatensor-throttle-*"))


def test_a_quota_bounds_processor_time() -> None:
    before = set(cgroups())
    spin = "import time\nbegan = time.monotonic()\nwhile time.process_time() < 0.4: pass\n"
    code = f"{spin}print(time.monotonic() - began)"
    done = run("1gbit", "--quota", "250", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.4 / 0.25 * 0.6  # of the first period a part is over at its start
    assert set(cgroups()) <= before


def test_memory_beyond_the_limit_ends_the_command() -> None:
    code = "x = b'x' * (100 << 20)"
    assert run("1gbit", "--memory", "300", "--", sys.executable, "-c", code).returncode == 0
    assert run("1gbit", "--memory", "50", "--", sys.executable, "-c", code).returncode == 137


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("options", [(), ("--duplex", "--quota", "900")])
def test_a_signal_ends_the_command(number: signal.Signals, options: tuple[str, ...]) -> None:
    mark = uuid.uuid4().hex
    script = 'trap "echo ended; exit 5" TERM; echo ready; while :; do sleep 0.05; done'
    with started("1gbit", *options, "--", "bash", "-c", script, mark) as one:
        assert one.stdout is not None
        for _ in range(2 if options else 1):
            assert one.stdout.readline() == "ready\n"
        one.send_signal(number)
        assert one.wait(LIMIT_S) == 5
        assert one.stdout.read() == "ended\n" * (2 if options else 1)
    await_none(mark)
    assert not [path for path in cgroups() if str(one.pid) in path.name]


@pytest.mark.parametrize("number", [0, signal.SIGKILL, pytest.param(15, marks=pytest.mark.slow)])
def test_nothing_outlives_the_script(number: int) -> None:
    """Of a command that is deaf to SIGTERM, and of one that leaves a process behind."""
    mark = uuid.uuid4().hex
    script = 'trap "" TERM; setsid bash -c "sleep 1000" "$0" & echo ready; '
    script += "exit 3" if number == 0 else "sleep 1000"
    with started("1gbit", "--", "bash", "-c", script, mark) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        if number:
            one.send_signal(number)
        status = one.wait(LIMIT_S)
    assert status == {0: 3, signal.SIGKILL: -9, 15: 137}[number]
    await_none(mark)
