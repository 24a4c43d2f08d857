"""The rig's own behaviour, without booting anything: options, control words, cleaning up."""

from __future__ import annotations

import io
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RIG = Path(__file__).resolve().parents[2] / "ci" / "rig"
sys.path.insert(0, str(RIG))
import guests  # noqa: E402
import options  # noqa: E402
import tsc  # noqa: E402

QEMU_STAND_IN = """#!/bin/sh
echo "$$" >>"{folder}/pids"
for word in "$@"; do
    case "$word" in file,id=console,path=*) echo "last words" >"${{word#*path=}}" ;; esac
done
exec sleep 300
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--loss", "1%", "--", "true"],  # nothing is lost without a cable
        ["--rate", "10mbit", "--", "true"],
        ["--hosts", "3", "--", "true"],
        ["--hosts", "2", "--means", "device", "--", "true"],
        ["--hosts", "2", "--loss", "1", "--", "true"],
        ["--hosts", "2", "--loss", "101%", "--", "true"],
        ["--hosts", "2", "--loss", "1%; reboot", "--", "true"],
        ["--hosts", "2", "--delay", "5", "--", "true"],
        ["--hosts", "2", "--rate", "fast", "--", "true"],
        ["--timeout", "0", "--", "true"],
        ["--timeout", "soon", "--", "true"],
        ["--memory", "-1", "--", "true"],
        ["--cpu", "-kernel", "--", "true"],
        ["--cpu", "max avx", "--", "true"],
        ["--unknown", "--", "true"],
        ["--"],
        ["true"],
        [],
    ],
)
def test_wrong_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        options.parse(words)
    assert left.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_options_become_words_of_tc() -> None:
    given = options.parse(
        [
            "--hosts",
            "2",
            "--loss",
            "1%",
            "--duplicate",
            "0.5%",
            "--reorder",
            "2%",
            "--",
            "a",
            "--",
            "b",
        ]
    )
    assert given.netem == "delay 1ms loss 1% duplicate 0.5% reorder 2%"
    assert given.command == ("a", "--", "b")
    assert (given.cpus, given.memory_mb, given.timeout_s) == (1, 2048, 600.0)
    assert options.parse(["--timeout", "5s", "--", "x"]).timeout_s == 5.0


def test_control_words_are_taken_out_wherever_the_stream_is_cut() -> None:
    stream = b"one\n\0rig:abc:up 4.1 rxe0\ntwo\0rig:\0rig:xyz:no\n\0rig:abc:exit 3\n\0rig:ab"
    for step in range(1, len(stream) + 1):
        control = guests.ControlFilter("abc")
        passed, words = b"", []
        for start in range(0, len(stream), step):
            some, found = control.feed(stream[start : start + step])
            passed += some
            words += found
        assert words == ["up 4.1 rxe0", "exit 3"], step
        assert passed + control.rest() == b"one\ntwo\0rig:\0rig:xyz:no\n\0rig:ab", step


def test_a_prefix_stands_before_whole_lines_only() -> None:
    stream = io.BytesIO()
    printer = guests.Printer(stream, b"[1] ")
    for data in (b"he", b"llo\nwor", b"ld\n\nend"):
        printer.write(data)
    assert stream.getvalue() == b"[1] hello\n[1] world\n[1] \n"
    printer.close()
    assert stream.getvalue().endswith(b"[1] end\n")


def test_an_emulated_cpu_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    assert options.parse(["--", "x"]).cpu == "max"
    chosen = options.parse(["--cpu", "max,erms=off", "--", "x"]).cpu
    machine = guests.Machine("tcg", tmp_path, 1, 512, cpu=chosen)
    words = guests.qemu_command(machine, console=tmp_path / "console")
    assert words[words.index("-cpu") + 1] == "max,erms=off"


def test_commas_in_a_path_do_not_end_qemus_option() -> None:
    assert "path=/a,,b," in guests.share("root", Path("/a,b"), is_writable=False)[1]


def test_the_counters_rate_is_a_rate_and_the_same_each_time() -> None:
    if platform.machine() != "x86_64":
        assert tsc.rate_khz() is None
        return
    rates = [tsc.rate_khz() for _ in range(3)]
    assert all(rate is not None and 100_000 < rate < 10_000_000 for rate in rates), rates
    first, second, third = sorted(rate for rate in rates if rate is not None)
    assert min(third - second, second - first) < second / 200, rates  # the kernel takes 1 %


@pytest.fixture
def rig_copy(tmp_path: Path) -> Path:
    """A copy of the rig in which QEMU is a stand-in that never gets anywhere."""
    copy = tmp_path / "ci" / "rig"
    copy.mkdir(parents=True)
    for path in (*RIG.glob("*.py"), RIG / "run.sh"):
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "guest").mkdir()
    (copy / "guest" / "boot.sh").write_text("")
    (copy / "setup.sh").write_text("exit 0\n")
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "qemu-system-x86_64"
    stand_in.write_text(QEMU_STAND_IN.format(folder=tmp_path))
    stand_in.chmod(0o755)
    return tmp_path


def start(rig_copy: Path, *words: str) -> subprocess.Popen[str]:
    command = ["bash", str(rig_copy / "ci/rig/run.sh"), "--means", "tcg", *words]
    environment = os.environ | {"PATH": f"{rig_copy / 'bin'}:{os.environ['PATH']}"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def machines(rig_copy: Path, count: int, limit_s: float = 20) -> list[int]:
    """Wait for so many stand-ins and return their ids."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        pids = rig_copy / "pids"
        found = pids.read_text().split() if pids.exists() else []
        if len(found) == count:
            return [int(pid) for pid in found]
        time.sleep(0.05)
    raise AssertionError(f"not {count} machines after {limit_s} s")


def assert_gone(pids: list[int], limit_s: float = 10) -> None:
    end = time.monotonic() + limit_s
    while any(Path("/proc", str(pid)).exists() for pid in pids):
        assert time.monotonic() < end, f"still there: {pids}"
        time.sleep(0.05)


def run_folders(rig_copy: Path) -> list[Path]:
    return list((rig_copy / "build" / "rig").glob("run-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_machines_and_leaves_nothing(
    rig_copy: Path, number: signal.Signals
) -> None:
    with start(rig_copy, "--hosts", "2", "--", "true") as rig:
        pids = machines(rig_copy, 2)
        rig.send_signal(number)
        assert rig.wait(30) == 128 + number
    assert_gone(pids)
    assert run_folders(rig_copy) == []


def test_killing_the_rig_ends_its_machines_and_the_next_run_sweeps(rig_copy: Path) -> None:
    with start(rig_copy, "--", "true") as rig:
        pids = machines(rig_copy, 1)
        rig.kill()
    assert_gone(pids)
    assert len(run_folders(rig_copy)) == 1
    with start(rig_copy, "--timeout", "0.5", "--", "true") as rig:
        assert rig.wait(30) == 124
    assert run_folders(rig_copy) == []


def test_the_deadline_ends_a_hang_and_shows_the_console(rig_copy: Path) -> None:
    with start(rig_copy, "--timeout", "1", "--", "true") as rig:
        _, said = rig.communicate(timeout=30)
    assert rig.returncode == 124
    assert "deadline of 1 s passed" in said
    assert "| last words" in said
    assert_gone(machines(rig_copy, 1))


def test_a_machine_that_ends_by_itself_is_the_rigs_failure(rig_copy: Path) -> None:
    (rig_copy / "bin" / "qemu-system-x86_64").write_text(
        "#!/bin/sh\necho no such board >&2\nexit 3\n"
    )
    with start(rig_copy, "--", "true") as rig:
        _, said = rig.communicate(timeout=30)
    assert rig.returncode == 125
    assert said.count("trying once more") == 1
    assert "error: the machine of host 0 ended by itself, with status 3: no such board" in said
    assert run_folders(rig_copy) == []


def test_a_machine_that_dies_before_it_is_up_is_booted_once_more(rig_copy: Path) -> None:
    stand_in = rig_copy / "bin" / "qemu-system-x86_64"
    dies_first = f'[ -e "{rig_copy}/died" ] || {{ echo >"{rig_copy}/died"; exit 3; }}\n'
    shebang, rest = stand_in.read_text().split("\n", 1)
    stand_in.write_text(f"{shebang}\n{dies_first}{rest}")
    with start(rig_copy, "--timeout", "1", "--", "true") as rig:
        _, said = rig.communicate(timeout=30)
    assert rig.returncode == 124, said
    assert "trying once more: the machine of host 0 ended by itself, with status 3" in said
    assert_gone(machines(rig_copy, 1))
