"""What the doctor makes of this installation, of transports, and of its own findings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import rdmatensor
from rdmatensor import Settings, cli
from rdmatensor.doctor import (
    Finding,
    Machine,
    examine,
    examine_machine,
    host,
    installation,
    plan_arena_bytes,
    rdma,
    report,
    wakeups,
)
from rdmatensor.doctor.loopback import _judge


@pytest.mark.parametrize(
    ("settings", "has_device", "level"),
    [
        (Settings(), False, "ok"),
        (Settings(), True, "broken"),
        (Settings(transport="verbs"), False, "broken"),
        (Settings(require="verbs"), False, "broken"),
    ],
)
def test_what_it_means_that_verbs_cannot_be_used(
    settings: Settings, has_device: bool, level: str
) -> None:
    found = _judge(settings, "verbs", "some reason", has_device=has_device)
    assert (found.level, "some reason" in found.text) == (level, True)


def planted(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_plan_must_find_room(tmp_path: Path) -> None:
    root = planted(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.max": f"{1 << 30}\n",
            "proc/self/limits": f"Max locked memory  {1 << 30}  {1 << 30}  bytes\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        },
    )

    def levels(plan_bytes: int) -> dict[str, str]:
        settings = Settings(arena_max_mib=512)
        machine = Machine(root, settings, plan_bytes=plan_bytes, library=lambda: "libibverbs.so")
        found = {finding.subject: finding.level for finding in examine_machine(machine)}
        return {name: found[name] for name in ("arena", "memory", "memlock") if name in found}

    assert levels(500 << 20) == {"memory": "ok", "memlock": "ok"}
    assert levels(2 << 30) == {"arena": "broken", "memory": "broken", "memlock": "slower"}


@pytest.mark.parametrize("limit", ["max", f"{8 << 30}"])
def test_a_plan_must_find_room_in_the_machine(tmp_path: Path, limit: str) -> None:
    root = planted(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.max": f"{limit}\n",
            "proc/meminfo": f"MemTotal:       {2 << 20} kB\n",
        },
    )
    for plan_bytes, level in ((2 << 30, "ok"), ((2 << 30) + 1, "broken")):
        found = next(host.check_memory(Machine(root, plan_bytes=plan_bytes)))
        assert (found.subject, found.level) == ("memory", level), found
    assert f"the plan's arena takes 2 GiB ({(2 << 30) + 1} bytes)" in found.text
    assert "more memory" in found.fix


TWO_NODES = {
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
}


@pytest.mark.parametrize(
    ("files", "cpus", "text"),
    [
        (TWO_NODES, "0-3", "nodes 0, 1; the cores that may be used are of node 0"),
        (TWO_NODES, "3-4", "nodes 0, 1; the cores that may be used are of nodes 0, 1"),
        (TWO_NODES, "9", "nodes 0, 1; the cores that may be used are of no node of these"),
        ({}, "0-3", "nodes are not told by the kernel"),
    ],
)
def test_nodes_are_told(tmp_path: Path, files: dict[str, str], cpus: str, text: str) -> None:
    root = planted(tmp_path, {**files, "proc/self/status": f"Cpus_allowed_list:\t{cpus}\n"})
    machine = Machine(root, library=lambda: "libibverbs.so")
    (found,) = [finding for finding in examine_machine(machine) if finding.subject == "numa"]
    assert found == Finding("ok", "numa", text)


def no_thread() -> float:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("flags", "wake_up_us", "level", "text"),
    [
        ("fpu hypervisor", lambda: 37.25, "ok", "across a pipe in 37.2 us"),
        ("fpu", lambda: 3.0, "ok", "none seen; one thread wakes another across a pipe in 3.0 us"),
        ("fpu hypervisor", no_thread, "ok", "cannot be timed: can't start new thread"),
    ],
)
def test_the_cost_of_a_wake_up_is_told(
    tmp_path: Path, flags: str, wake_up_us: Callable[[], float], level: str, text: str
) -> None:
    root = planted(tmp_path, {"proc/cpuinfo": f"flags\t\t: {flags}\n"})
    machine = Machine(root, library=lambda: "libibverbs.so", wake_up_us=wake_up_us)
    (found,) = [item for item in examine_machine(machine) if item.subject == "hypervisor"]
    assert (found.level, text in found.text) == (level, True), found


def test_a_wake_up_is_timed_and_leaves_nothing() -> None:
    before = (threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))
    start_s = time.perf_counter()
    cost_us = wakeups.median_us()
    took_us = 1e6 * (time.perf_counter() - start_s)
    assert 0 < cost_us * wakeups.ROUNDS < took_us  # half of the rounds took as long, both ways
    assert (threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))) == before


def test_a_thread_that_does_not_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda _thread: None)
    monkeypatch.setattr(threading.Thread, "join", lambda _thread, _timeout: None)
    monkeypatch.setattr(wakeups, "_DEADLINE_MS", 10)
    with pytest.raises(TimeoutError, match="not woken within 10 ms"):
        wakeups.median_us()


def test_the_size_of_a_plan_is_that_of_its_largest_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas = [SimpleNamespace(peak_bytes=size) for size in (7, 4096, 12)]
    monkeypatch.setattr(
        "graph_analysis.plan_from_json", lambda data: SimpleNamespace(arenas=arenas[: len(data)])
    )
    (tmp_path / "plan").write_bytes(b"abc")
    assert plan_arena_bytes(tmp_path / "plan") == 4096


def test_a_plan_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rdmatensor.cli import main

    (tmp_path / "plan").write_text("{}")
    words = {"plan": "is not a plan: ", "absent": "cannot read .*: No such file or directory"}
    for name, text in words.items():
        with pytest.raises(SystemExit, match="2"):
            main(["doctor", "--json", "--plan", str(tmp_path / name)])
        said = capsys.readouterr().err
        assert re.search(text, said)
        assert "Errno" not in said
        (found,) = [one for one in examine(tmp_path / name) if one.subject == "plan"]
        assert (found.level, found.fix) == ("broken", f"rdmatensor plan ... -o {tmp_path / name}")


@pytest.mark.parametrize("built_for", [None, "2.12.1"])
@pytest.mark.parametrize("has_compiler", [True, False])
def test_a_backend_for_another_torch(
    monkeypatch: pytest.MonkeyPatch, built_for: str | None, has_compiler: bool
) -> None:
    backends = {"_c10d_torch2_12_1.so": f"{built_for} commit 0 cxx11abi 1"} if built_for else {}
    monkeypatch.setattr("rdmatensor._build_stamp.BACKENDS", backends)
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "2.13.0")
    if not has_compiler:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
    (found,) = installation.check_torch()
    assert built_for is None or built_for in found.text
    if has_compiler:
        assert found.level == "ok"
        assert "compiled for this one at its first use" in found.text
    else:
        assert found.level == "broken"
        assert "apt-get install g++" in found.fix


@pytest.mark.parametrize("commit", ["the same", "another"])
def test_a_backend_for_another_commit_of_its_torch(
    monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    """Such a module is not loaded: the doctor says what happens instead."""
    torch = pytest.importorskip("torch")
    from rdmatensor._build_stamp import BACKENDS

    assert installation._commit() == torch.version.git_version
    if commit == "another":
        other = dict.fromkeys(BACKENDS, "2.13.0 commit 0000000 cxx11abi 1")
        monkeypatch.setattr("rdmatensor._build_stamp.BACKENDS", other)
    (found,) = installation.check_torch()
    assert ("compiled for this one" in found.text) == (commit == "another")
    assert ("as the backend was built for" in found.text) == (commit == "the same")


def test_a_backend_whose_file_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    backends = {f"_c10d_torch2_99_0{suffix}": "2.99.0 commit 0 cxx11abi 1"}
    monkeypatch.setattr("rdmatensor._build_stamp.BACKENDS", backends)
    monkeypatch.setattr(installation, "_commit", lambda: "0")
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "2.99.0")
    (found,) = installation.check_torch()
    assert found.level == "broken"
    assert "pip install --no-build-isolation" in found.fix


def test_the_report_has_a_line_for_a_finding_and_one_for_its_fix() -> None:
    lines = list(report([Finding("ok", "a", "b"), Finding("slower", "c", "d", "e")]))
    assert [line.split() for line in lines] == [
        ["ok", "a", "b"],
        ["slower", "c", "d"],
        ["fix:", "e"],
    ]


def test_what_needs_no_transport_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from rdmatensor import cli\n"
        "from rdmatensor.doctor import Machine, examine_machine, installation\n"
        "found = list(examine_machine(Machine()))\n"
        "found += [*installation.check_build(), *installation.check_torch()]\n"
        "print(len(found), *({'torch', 'numpy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(rdmatensor.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60,
        env=environment, cwd="/",
    )  # fmt: skip
    (count,) = done.stdout.split()
    assert int(count) > 8


def test_a_real_write_on_each_transport_that_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rdmatensor.cli import main

    assert main(["doctor", "--json"]) == 0
    found = {item["subject"]: item for item in json.loads(capsys.readouterr().out)["findings"]}
    for name in ("shm", "tcp"):
        assert found[name]["level"] == "ok"
        assert re.search(r"a write of 8 B [\d.]+ us, of 1 MiB [\d.]+ GB/s", found[name]["text"])
    assert found["version"]["fix"] == ""


def test_the_document_has_every_subject_and_the_numbers() -> None:
    document = (Path(__file__).parents[2] / "docs/reference/doctor.md").read_text()
    folder = Path(rdmatensor.__file__).parent / "doctor"
    code = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    made = re.findall(r"\b(?:ok|slower|broken|level)\)?\(\s*f?\"([a-z/][a-z /]*)[\"{]", code)
    subjects = {subject.strip() for subject in made}
    assert len(subjects) > 20
    assert [subject for subject in subjects if f"`{subject}" not in document] == []
    assert f"less than {rdma.MEMLOCK_LEAST_BYTES >> 20} MiB" in document
    assert f"fewer than {host.OPEN_FILES_LEAST} files" in document
    assert f"below {rdma.MTU_MOST} for each packet" in document
    assert f"The port is {cli.PORT} if" in document
    asked = re.findall(r'_tried\("(\w+)"', code)
    assert len(asked) == 4
    assert [subject for subject in asked if f"`{subject}`" not in document] == []
