"""What needs more than one process: deaths, forks, strangers, and jobs side by side."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pairs import Pair, Peer

from rdmatensor import Context, FileStore, Settings, TransferTimeoutError, join

StartPeer = Callable[..., Peer]


def _kill_last(peers: list[Peer]) -> float:
    for peer in peers:
        assert peer.says() == "ready"
    time.sleep(0.3)  # the survivors sleep in their waits
    peers[-1].process.kill()
    return time.monotonic()


@pytest.mark.parametrize("role", ["wait_for_death", "in_group"])
def test_a_killed_peer_is_named_by_everybody_at_once(start_peer: StartPeer, role: str) -> None:
    peers = [start_peer(role, rank, 3) for rank in range(3)]
    killed_s = _kill_last(peers)
    for survivor in peers[:2]:
        said = survivor.says().split(" ", 2)
        assert len(said) == 3, said
        assert said[1] == "2", said
        assert "rank 2" in said[2]
        assert float(said[0]) - killed_s < 0.5


def test_nothing_is_left_behind_by_a_killed_process(start_peer: StartPeer, tmp_path: Path) -> None:
    """What we leave we leave each time; what others of this user write meanwhile they do not."""
    rounds = [_new_after_two_were_killed(start_peer, str(tmp_path / str(n))) for n in range(3)]
    assert not all(rounds), rounds


def _new_after_two_were_killed(start_peer: StartPeer, store: str) -> set[Path]:
    before = _own_files()
    peers = [start_peer("idle", rank, 2, store=store) for rank in range(2)]
    for peer in peers:
        assert peer.says() == "ready"
    for peer in peers:
        peer.process.kill()
        peer.process.wait(10)
    new, deadline_s = _own_files() - before, time.monotonic() + 5
    while new and time.monotonic() < deadline_s:  # others' scratch files go by themselves
        time.sleep(0.1)
        new = {path for path in new if path.exists()}
    return new


def _own_files() -> set[Path]:
    """Everything of this user's where a library might leave something, whatever its name."""
    found = set()
    for place in (Path("/dev/shm"), Path("/tmp")):
        for path in place.iterdir():
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                if path.lstat().st_uid == os.geteuid():
                    found.add(path)
    return found


def test_a_forked_child_changes_nothing_for_its_parent(start_peer: StartPeer) -> None:
    parent, writer = start_peer("forks", 0, 2), start_peer("writes_to_hex", 1, 2)
    region = parent.says()
    assert len(region) == 128, region  # the parent got so far: its child is gone
    writer.tell(region)
    assert writer.says() == "written"
    assert parent.says() == "ok"


def test_a_forked_child_is_told_to_be_spawned_by_every_call(pair: Pair, tmp_path: Path) -> None:
    array = pair.left.zeros(10)
    calls = {
        "Context": lambda: Context(pair.left.settings),
        "empty": lambda: pair.left.empty(1),
        "register": lambda: pair.left.register(bytearray(1)),
        "export": lambda: pair.left.export(array),
        "describe": pair.left.describe,
        "fileno": pair.left.fileno,
        "wait_notify": lambda: pair.to_right.wait_notify(timeout_s=0),
    }
    child = os.fork()
    if child == 0:
        with (tmp_path / "said").open("w") as file:
            for name, call in calls.items():
                try:
                    call()
                    file.write(f"{name}: nothing\n")
                except Exception as error:  # noqa: BLE001 - a child must not return to pytest
                    file.write(f"{name}: {type(error).__name__} {error}\n")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    said = (tmp_path / "said").read_text().splitlines()
    assert len(said) == len(calls)
    for name, line in zip(calls, said, strict=True):
        assert line.startswith(f"{name}: ForkedProcessError "), line
        assert "spawn the process" in line


def test_multiprocessing_workers_under_fork_live(pair: Pair) -> None:
    """As DataLoader does: a forked worker that computes with what it inherited, and exits."""
    array = pair.left.zeros(1000)
    array[:] = 3
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, b"%d" % int(array.sum()))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == b"3000"
    assert os.waitpid(child, 0)[1] == 0
    dst = pair.right.zeros(1000)
    pair.to_right.write(array, pair.right.export(dst), notify=1)
    assert pair.to_left.wait_notify(timeout_s=10) == 1
    assert (dst == 3).all()


def test_a_run_that_was_killed_does_not_spoil_the_next(
    start_peer: StartPeer, tmp_path: Path
) -> None:
    """Its root and its addresses are in the store; rank 1 of the next run comes first."""
    killed = [start_peer("idle", rank, 2) for rank in range(2)]
    assert [peer.says() for peer in killed] == ["ready", "ready"]
    for peer in killed:
        peer.process.kill()
        peer.process.wait()
    left = {path.name for path in (tmp_path / "store").iterdir()}
    assert any("root" in name for name in left)

    second = start_peer("ping", 1, 2)
    time.sleep(1)
    peers = [start_peer("ping", 0, 2), second]
    for peer in peers:
        peer.tell("7")
    assert [peer.says() for peer in peers] == ["ok", "ok"]
    for peer in peers:
        peer.tell("go")
        assert peer.process.wait(20) == 0
    assert not any((tmp_path / "store").iterdir())


def test_two_jobs_on_one_host_do_not_meet(start_peer: StartPeer, tmp_path: Path) -> None:
    jobs = [
        [start_peer("ping", rank, 2, store=str(tmp_path / job)) for rank in range(2)]
        for job in ("one", "two")
    ]
    for mark, peers in enumerate(jobs):
        for peer in peers:
            peer.tell(str(mark * 100_000))
    for peers in jobs:
        assert [peer.says() for peer in peers] == ["ok", "ok"]


def test_a_peer_with_another_secret_is_refused(start_peer: StartPeer) -> None:
    """Who connects is told so. Who listens waits for somebody better: a stranger may not end it."""
    peers = [
        start_peer("expects_refusal", rank, 2, RDMATENSOR_SECRET=f"secret of {rank}")
        for rank in range(2)
    ]
    said = [peer.says().split()[0] for peer in peers]
    assert "AuthenticationError" in said
    assert set(said) <= {"AuthenticationError", "TransferTimeoutError"}


def test_who_waits_for_one_that_gave_up_is_told_at_once(start_peer: StartPeer) -> None:
    """Each is refused, or told that the other was: none waits for its deadline of 20 s."""
    start_s = time.monotonic()
    peers = [
        start_peer("idle", rank, 2, RDMATENSOR_SECRET=f"secret of {rank}") for rank in range(2)
    ]
    said = [peer.says() for peer in peers]
    assert any(line.startswith("raised AuthenticationError") for line in said), said
    for rank, line in enumerate(said):
        told = f"raised PeerError rank {1 - rank} left: AuthenticationError: "
        assert line.startswith(("raised AuthenticationError", told)), said
    assert time.monotonic() - start_s < 10


def test_a_secret_on_one_side_only_is_named(start_peer: StartPeer) -> None:
    first = start_peer("idle", 0, 2, RDMATENSOR_SECRET="x")
    second = start_peer("idle", 1, 2)
    assert second.says().startswith("raised MismatchError rank 0 has RDMATENSOR_SECRET")
    told = "raised PeerError rank 1 left: MismatchError: rank 0 has RDMATENSOR_SECRET"
    assert first.says().startswith(told)


def test_sizes_that_differ_are_named(start_peer: StartPeer) -> None:
    first = start_peer("idle", 0, 2)
    assert (
        start_peer("idle", 1, 3).says().startswith("raised MismatchError rank 0 joined a job of 2")
    )
    assert first.says().startswith(
        "raised PeerError rank 1 left: MismatchError: rank 0 joined a job"
    )


def test_a_rank_that_never_comes_is_named(settings: Settings, tmp_path: Path) -> None:
    with Context(settings) as context:
        store = FileStore(tmp_path / "store")
        with join(store, 0, 3, context=context, timeout_s=0.3) as world:
            with pytest.raises(TransferTimeoutError, match=r"nothing from rank 2 within 0\.300 s"):
                world.endpoint(2)
            with pytest.raises(TransferTimeoutError, match=r"rank 1, rank 2 within"):
                world.group("g")
        with pytest.raises(TransferTimeoutError, match="nothing from rank 0"):
            join(FileStore(tmp_path / "other"), 1, 3, context=context, timeout_s=0.3)


def test_the_secret_s_source_is_described(settings: Settings, tmp_path: Path) -> None:
    with Context(settings) as context, join(FileStore(tmp_path), 0, 1, context=context) as world:
        assert world.describe()["secret"] == "from the argument"
    with join(FileStore(tmp_path / "s"), 0, 1) as world:
        assert "store" in str(world.describe()["secret"])
    assert not list((tmp_path / "s").iterdir()), "the keys are deleted at close"


# ---- growth ---------------------------------------------------------------------------------


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(180)
def test_memory_does_not_grow_over_a_hundred_thousand_transfers(pair: Pair) -> None:
    src, dst = pair.left.zeros(64, "uint8"), pair.right.zeros(64, "uint8")
    region = pair.right.export(dst)
    private = np.zeros(64, np.uint8)
    sizes = []
    for _ in range(5):
        for _ in range(10_000):
            pair.to_right.write(src, region, notify=1)  # dropped
            pair.to_left.wait_notify(timeout_s=10)
            pair.to_right.write(private, region, notify=2).wait()
            pair.to_left.wait_notify(timeout_s=10)
        sizes.append(_resident_bytes())
    assert sizes[-1] - sizes[0] < 2 << 20, sizes


def test_memory_of_freed_arrays_and_regions_is_used_again(pair: Pair) -> None:
    def state(part: str, field: str) -> int:
        values = pair.right.describe()[part]
        assert isinstance(values, dict)
        return int(values[field])

    for _ in range(1000):
        array = pair.right.zeros(1 << 20, "uint8")
        pair.to_right.write(b"x", pair.right.export(array)).wait()
        del array
    # Some wait for the peer's word that it writes them no more; that is short, and bounds them.
    assert state("arena", "mapped_bytes") < 256 << 20
    deadline_s = time.monotonic() + 5
    while state("regions", "quarantine") and time.monotonic() < deadline_s:
        pair.left.progress()
        pair.right.progress()
    assert state("regions", "quarantine") == 0


def test_the_slots_of_the_readme_run_as_two_processes(transport: str, tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    code = readme.split("slots.py", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    assert len(code.strip().splitlines()) <= 16, "a dozen lines were promised"
    example = tmp_path / "example.py"
    example.write_text(code)
    import rdmatensor

    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(rdmatensor.__file__).parent.parent),
        "RDMATENSOR_TRANSPORT": transport,
        "TMPDIR": str(tmp_path),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(example), str(rank)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=30)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], printed
    assert printed == ["", "1.0\n2.0\n"]


def test_an_exiting_interpreter_closes_what_is_open(settings: Settings, tmp_path: Path) -> None:
    """No warning, no hang, no crash; the peer sees that we left, not that we died."""
    code = (
        "import rdmatensor, numpy as np\n"
        "c = rdmatensor.Context(); a = c.zeros(100); d = rdmatensor.Context()\n"
        "c.add_job(secret=b'x', rank=0); d.add_job(secret=b'x', rank=1)\n"
        "e = c.connect(d.address, rank=1); e.wait_ready()\n"
        "f = d.connect(c.address, rank=0); s = d.recv_slot('s', (4,), src=f)\n"
        "o = e.send_slot('s', (4,), 'float32')\n"
        "o.put(np.ones(4, np.float32)); h = s.get()\n"
    )
    import rdmatensor

    environment = {
        "PYTHONPATH": str(Path(rdmatensor.__file__).parent.parent),
        "RDMATENSOR_TRANSPORT": settings.transport,
    }
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start_s < 10


def test_sigterm_of_a_peer_counts_as_death_too(start_peer: StartPeer) -> None:
    peers = [start_peer("wait_for_death", rank, 2) for rank in range(2)]
    for peer in peers:
        assert peer.says() == "ready"
    peers[1].process.send_signal(signal.SIGTERM)
    assert peers[0].says().split(" ")[1] == "1"
