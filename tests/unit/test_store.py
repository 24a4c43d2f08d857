"""FileStore, and waiting on stores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rdmatensor import (
    ClosedError,
    Context,
    FileStore,
    Group,
    InvalidArgumentError,
    PeerError,
    Settings,
    TransferTimeoutError,
    World,
    join,
)
from rdmatensor._native import lease
from rdmatensor.store import PatientStore, wait_for


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def test_values_are_what_was_set(store: FileStore) -> None:
    values = {"a": "text", "a/b c": b"bytes\x00\xff", "../escape": "", "\u00e9": "\u00e9"}
    for key, value in values.items():
        store.set(key, value)
    for key, value in values.items():
        assert store.get(key, timeout_s=0) == (value.encode() if isinstance(value, str) else value)
    store.set("a", "again")
    assert store.multi_get(["a", "a/b c"]) == [b"again", b"bytes\x00\xff"]
    assert store.check(["a", "../escape"])
    assert not store.check(["a", "b"])
    assert store.delete_key("a")
    assert not store.delete_key("a")


def test_keys_stay_in_their_folder(store: FileStore, tmp_path: Path) -> None:
    store.set("../../x", "y")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_get_waits_and_has_a_deadline(store: FileStore) -> None:
    threading.Timer(0.1, store.set, ("late", "x")).start()
    assert store.get("late", timeout_s=5) == b"x"
    start_s = time.monotonic()
    with pytest.raises(TransferTimeoutError, match=r"key 'never' within 0\.200 s"):
        store.get("never", timeout_s=0.2)
    assert 0.2 <= time.monotonic() - start_s < 1


def test_a_key_that_is_deleted_before_it_is_read_is_waited_for(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set("k", "first")
    check = store.check

    def check_and_delete(keys: Sequence[str]) -> bool:
        found = check(keys)
        store.delete_key("k")
        return found

    monkeypatch.setattr(store, "check", check_and_delete)
    threading.Timer(0.2, monkeypatch.undo).start()
    threading.Timer(0.3, store.set, ("k", "second")).start()
    assert store.get("k", timeout_s=10) == b"second"
    monkeypatch.setattr(store, "check", check_and_delete)
    with pytest.raises(TransferTimeoutError, match="key 'k'"):
        store.get("k", timeout_s=0.2)


@pytest.mark.parametrize("wrong", ["5", True, -1, float("nan")])
def test_a_time_that_is_none_is_refused_by_its_name(store: FileStore, wrong: float) -> None:
    store.set("k", "there")
    for call in (
        lambda: store.get("k", timeout_s=wrong),
        lambda: store.multi_get(["k"], timeout_s=wrong),
        lambda: join(store, 1, 2, timeout_s=wrong),
    ):
        with pytest.raises(InvalidArgumentError, match="timeout_s="):
            call()


@pytest.mark.parametrize(("rank", "size"), [("0", 2), (0, "2"), (0, 2.0), (False, 1), (None, 1)])
def test_a_rank_or_size_that_is_no_number_is_refused(
    store: FileStore, rank: int, size: int
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"(rank|size)=.* not a whole number"):
        join(store, rank, size)


def test_readers_never_see_half_a_value(store: FileStore) -> None:
    values = {bytes([65 + step]) * 100_000 for step in range(20)}
    store.set("k", next(iter(values)))
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for value in values:
                store.set("k", value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert store.get("k") in values
    finally:
        stop.set()
        writer.join()


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidArgumentError, match="chmod 700"):
        FileStore(tmp_path)


def test_no_file_is_left_of_a_failed_set(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="name too long"):
        store.set("x" * 300, "value")
    assert not list((tmp_path / "store").iterdir())


class DeadStore(FileStore):
    """As a torch store whose host has gone."""

    def check(self, keys: Sequence[str]) -> bool:
        raise RuntimeError(f"Connection reset, asking for {keys}")


def test_a_store_that_is_gone_is_a_peer_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="store cannot be reached"):
        wait_for(DeadStore(tmp_path / "dead"), {"a": "rank 1"}, 5, "join")


def test_long_waits_say_once_who_is_missing(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rdmatensor.store._PATIENCE_S", 0.05)
    store.set("0", "x")
    missing = {str(rank): f"rank {rank}" for rank in range(12)}
    with pytest.raises(TransferTimeoutError, match=r"rank 1, .* rank 8 and 3 more within"):
        wait_for(store, missing, 0.3, "join")
    assert len(caplog.records) == 1
    assert "still waiting for rank 1" in caplog.text


def test_torch_s_stores_have_what_is_asked() -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    hash_store = torch.distributed.HashStore()
    hash_store.set("k", "v")
    wait_for(hash_store, {"k": "rank 0"}, 1, "join")
    assert hash_store.get("k") == b"v"
    assert hash_store.multi_get(["k"]) == [b"v"]
    assert hash_store.delete_key("k")
    with pytest.raises(TransferTimeoutError):
        wait_for(hash_store, {"k": "rank 0"}, 0.05, "join")


class GatedStore:
    """A store that answers while its gate is open, as one whose host is not stopped."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner
        self.gate = threading.Event()
        self.gate.set()

    def _pass(self) -> FileStore:
        self.gate.wait()
        return self.inner

    def set(self, key: str, value: str, /) -> None:
        self._pass().set(key, value)

    def get(self, key: str, /) -> bytes:
        return self._pass().get(key)

    def check(self, keys: list[str], /) -> bool:
        return self._pass().check(keys)

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        return self._pass().multi_get(keys)

    def delete_key(self, key: str, /) -> bool:
        return self._pass().delete_key(key)


@pytest.fixture
def gated(store: FileStore) -> Iterator[GatedStore]:
    gated = GatedStore(store)
    yield gated
    gated.gate.set()


def test_a_store_that_does_not_answer_ends_waits_at_their_deadlines(gated: GatedStore) -> None:
    gated.gate.clear()
    patient = PatientStore(gated)
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(TransferTimeoutError, match=r"did not answer within 0\.100 s"):
            wait_for(patient, {"k": "rank 0"}, 0.1, "join")
    assert threading.active_count() == before + 1  # the first request's

    def leave() -> None:
        raise ClosedError("RDT_ECLOSED", "join", "by another thread")

    with pytest.raises(ClosedError):
        wait_for(patient, {"k": "rank 0"}, 60, "join", leave)
    gated.gate.set()
    patient.ask(lambda store: store.set("k", "v"), 5, "join")
    assert patient.ask(lambda store: store.get("k"), 5, "join") == b"v"


def test_a_world_ends_though_its_store_does_not_answer(gated: GatedStore) -> None:
    settings = Settings(loopback=True)
    with Context(settings) as context:
        world = join(gated, 0, 2, context=context, timeout_s=0.3)
        gated.gate.clear()
        start_s = time.monotonic()
        with pytest.raises(TransferTimeoutError, match="the store did not answer"):
            world.endpoint(1)
        world.close()
        assert time.monotonic() - start_s < 20


def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    code = (
        "import sys; from pathlib import Path; from rdmatensor._native import lease\n"
        "print(lease.take(Path(sys.argv[1])), flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    host = holder.stdout.readline().strip()
    assert not lease.is_abandoned(path, host)
    holder.kill()
    holder.communicate()
    assert lease.is_abandoned(path, host)
    assert not lease.is_abandoned(path, "another host"), "its locks are not seen here"
    assert not lease.is_abandoned(path, None), "it could not be locked"
    path.unlink()
    assert lease.is_abandoned(path, host)


def test_a_lease_of_a_living_process_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    host = lease.take(path)
    assert host is not None
    assert not lease.is_abandoned(path, host)
    child = os.fork()
    if child == 0:
        os._exit(lease._held != {})
    assert os.waitpid(child, 0)[1] == 0
    assert not lease.is_abandoned(path, host), "the child closed its copy, not the parent's"
    lease.give(path)
    assert not path.exists()


@pytest.fixture
def settings() -> Settings:
    return Settings(transport="shm", loopback=True, arena_mib=1)


class OfAnotherHost(FileStore):
    """A store that cannot tell whether the process that set a root still lives."""

    def _is_abandoned(self, _name: str, _host: object) -> bool:
        return False


def test_a_run_that_ends_leaves_the_root_of_the_next(settings: Settings, tmp_path: Path) -> None:
    store = OfAnotherHost(tmp_path / "job")
    with Context(settings) as one, Context(settings) as two:
        old = join(store, 0, 1, context=one)
        with join(store, 0, 1, context=two):
            old.close()
            assert store.check(["rdmatensor/default/root"])
        assert not store.check(["rdmatensor/default/root"])


def test_a_rank_of_a_dead_run_notices_the_next(settings: Settings, tmp_path: Path) -> None:
    store = OfAnotherHost(tmp_path / "job")
    with Context(settings) as one, Context(settings) as two, Context(settings) as late:
        dead = join(store, 0, 2, context=one)
        world = join(store, 1, 2, context=late, timeout_s=30)
        store.delete_key(dead._key(0))
        threading.Timer(0.2, lambda: join(store, 0, 2, context=two)).start()
        start_s = time.monotonic()
        with pytest.raises(PeerError, match=r"rank 0 has begun another run .* join again"):
            world.endpoint(0)
        assert time.monotonic() - start_s < 10


def test_a_group_made_while_its_world_closes_is_closed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Group] = []
    with Context(settings) as context:
        world = join(FileStore(tmp_path / "job"), 0, 1, context=context)

        def make(*args: Any, **options: Any) -> Group:
            made.append(Group(*args, **options))
            world.close()
            return made[0]

        monkeypatch.setattr("rdmatensor.world.Group", make)
        with pytest.raises(ClosedError):
            world.group("late")
        assert made[0].is_closed


def test_a_failure_of_rank_0_reaches_a_rank_that_joins_late(
    settings: Settings, tmp_path: Path
) -> None:
    """And that rank can join the next run, which begins later."""
    store = FileStore(tmp_path / "job")
    with Context(settings) as one, Context(settings) as two, Context(settings) as late:
        with pytest.raises(TypeError), join(store, 0, 2, context=one):
            raise TypeError("a mistake")
        start_s = time.monotonic()
        with pytest.raises(PeerError, match=r"rank 0 left .*TypeError: a mistake") as caught:
            join(store, 1, 2, context=late, timeout_s=20)
        assert time.monotonic() - start_s < 5
        assert caught.value.rank == 0
        worlds: list[World] = []
        threading.Timer(0.3, lambda: worlds.append(join(store, 0, 2, context=two))).start()
        with join(store, 1, 2, context=late, timeout_s=20) as world:
            world[0].wait_ready(timeout_s=20)
            worlds[0].close()
    assert [path.name for path in (tmp_path / "job").iterdir()] == []


def test_a_failure_before_this_process_began_is_not_its_run_s(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "job")
    with Context(settings) as one, Context(settings) as late:
        with pytest.raises(TypeError), join(store, 0, 2, context=one):
            raise TypeError("a mistake")
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        monkeypatch.setattr("rdmatensor._join.records._start_s", lambda: now_s)
        with pytest.raises(TransferTimeoutError):
            join(store, 1, 2, context=late, timeout_s=0.3)
