"""Finding each other: who waits for whom, what it costs the others, and what is left behind."""

from __future__ import annotations

import struct
import subprocess
import threading
import time
from pathlib import Path

import jobs
import pytest

from rdmatensor import ClosedError, FileStore, join
from rdmatensor.world import World


def test_a_rank_that_never_comes_holds_up_nobody_else(tmp_path: Path) -> None:
    ranks = jobs.run("roles_rendezvous:a_rank_never_comes", 3, tmp_path, folder=str(tmp_path))

    seen, received, _ = jobs.results(ranks)
    assert received["sum"] == 8.0
    assert seen["send_s"] < 5.0
    assert seen["shutdown_s"] < 5.0
    assert not seen["is_waiting"]
    assert "send" in seen["text"]
    assert "shut down" in seen["text"]


def test_the_death_of_the_rank_that_hosts_the_store_is_named(tmp_path: Path) -> None:
    ranks = jobs.run("roles_rendezvous:the_store_dies", 3, tmp_path)

    assert ranks[0].exit == -9
    early, late = jobs.results(ranks[1:])
    assert "rank 0" in early["text"]
    assert "rank 0" in late["text"]
    assert "store" not in late["text"]
    assert early["seconds"] < 5.0
    assert late["seconds"] < 5.0


def test_a_stopped_rank_that_hosts_the_store_holds_up_nobody(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_PEER_TIMEOUT_S": "60"}  # nobody else tells of its silence
    role = "roles_rendezvous:the_store_stops"
    ranks = jobs.run(role, 3, tmp_path, environment=environment, folder=str(tmp_path))

    seen = jobs.results(ranks)[1]
    assert seen["Ctrl-C"][0].startswith("KeyboardInterrupt"), seen
    host = "rank 0, which hosts the store, did not answer within 1000 ms"
    assert "rdmatensor:send to rank 2" in seen["deadline"][0], seen
    assert host in seen["deadline"][0], seen
    for name in ("send", "everyone"):
        assert "rank 1 called abort()" in seen[name][0], seen
    for name in ("abort", "shutdown"):
        assert seen[name][0] == "no error", seen
    assert all(seconds < 10.0 for _, seconds in seen.values()), seen


def test_a_store_in_python_that_blocks_ends_at_the_deadline(tmp_path: Path) -> None:
    (seen,) = jobs.results(jobs.run("roles_rendezvous:a_store_in_python_blocks", 1, tmp_path))

    assert seen[0][0] == "no error"
    assert "rdmatensor:init_process_group: the store did not answer within 1000 ms" in seen[1][0]
    assert seen[1][1] < 10.0


def test_a_group_leaves_counts_and_unread_addresses_in_the_store(tmp_path: Path) -> None:
    keys = jobs.results(jobs.run("roles_rendezvous:keys_that_stay", 3, tmp_path))[0]

    # A member that came before the others' addresses did may never have needed them all.
    addresses = {"3/1/read/address/0", *(f"3/1/address/{rank}" for rank in range(3))}
    assert sorted(set(keys) - addresses) == [f"3/arrivals/{rank}" for rank in range(3)]


@pytest.mark.parametrize("is_launched", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("TEST_HOST", "two words", " is 'two words'; want 1 to 63 letters"),
        ("ALGO", "rign", " is 'rign'; want auto"),
        ("DETERMINISTIC", "yea", " is 'yea'; want 0 or 1"),
        ("TIMEOUT_S", "soon", "='soon'"),
    ],
)
def test_a_rank_names_its_own_wrong_setting_and_not_that_the_store_is_gone(
    name: str, value: str, text: str, is_launched: bool, tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_rendezvous:a_setting_is_wrong",
        2,
        tmp_path,
        environment={f"RDMATENSOR_{name}": value},
        is_launched=is_launched,
    )
    assert f"RDMATENSOR_{name}{text}" in jobs.results(ranks)[1]


def test_making_a_group_asks_no_name_server(tmp_path: Path) -> None:
    library = tmp_path / "libasked.so"
    source = Path(__file__).with_name("asked_names.c")
    flags = ["-std=c17", "-O2", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library)}

    ranks = jobs.results(
        jobs.run("roles_rendezvous:names_are_asked", 2, tmp_path, environment=environment)
    )
    # torch's store asks for the names of both ends, which is how the count is known to count.
    assert all(rank["store"] > 0 for rank in ranks)
    assert [rank["group"] for rank in ranks] == [0, 0]


JOB = struct.Struct("<4sHH12s12sIBBH32s64s64s")  # wire.md
JOB_FIELDS = {
    "magic": b"RDTG",
    "version": 1,
    "size": JOB.size,
    "id": b"i" * 12,
    "group": b"g" * 12,
    "epoch": 1,
    "has_secret": 1,
    "is_store_at_rank_0": 0,
    "zero": 0,
    "secret": b"a secret" * 4,
    "algo": b"auto",
    "deterministic": b"0",
}


def job(**changed: object) -> str:
    """Return what rank 0 tells the others through the store, in hexadecimal."""
    return JOB.pack(*(JOB_FIELDS | changed).values()).hex()


def test_a_job_that_rank_0_never_wrote_is_refused_by_its_key(tmp_path: Path) -> None:
    right = job()
    wrong = {
        "empty": "",
        "a byte": "00",
        "its head": right[:16],
        "truncated": right[:-2],
        "a byte more": right + "00",
        "too long": right + "00" * 100_000,
        "text": b"ab cd 1 0: a job as an older version wrote it".hex(),
        "another magic": job(magic=b"RDTB"),
        "another version": job(version=2),
        "another size": job(size=JOB.size - 1),
        "a flag": job(is_store_at_rank_0=2),
        "a secret and none": job(has_secret=0),
        "a filler": job(zero=256),
        "a line": job(algo=b"auto\n"),
        "no end": job(algo=b"a" * 64),
        "behind the end": job(deterministic=b"0\0\0x"),
    }
    environment = {"RDMATENSOR_LOOPBACK": "1"}
    (seen,) = jobs.results(
        jobs.run(
            "roles_rendezvous:the_job_is_wrong",
            1,
            tmp_path,
            environment=environment,
            jobs={**wrong, "right": right},
        )
    )
    assert seen.pop("right") == "joined"
    assert seen.keys() == wrong.keys()
    for name, text in seen.items():
        assert text.startswith("DistStoreError: "), (name, text)
        assert "no valid job under rdmatensor/2/1/job, which rank 0 writes: " in text, (name, text)
        assert "a secreta" not in text, name
    assert "this process 1 (library" in seen["another version"]


def test_a_setting_that_cannot_be_told_ends_all_ranks_alike(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_LOOPBACK": "1", "RDMATENSOR_ALGO": "ring" * 16}
    role = "roles_rendezvous:the_job_is_wrong"
    ranks = jobs.run(role, 1, tmp_path, environment=environment, jobs={"right": job()})

    (seen,) = jobs.results(ranks)
    assert seen["right"].startswith("ValueError: "), seen
    assert "RDMATENSOR_ALGO has control characters, or more than 63 bytes" in seen["right"]


def test_a_host_that_is_no_text_is_another(tmp_path: Path) -> None:
    role = "roles_rendezvous:a_host_is_no_text"
    (seen,) = jobs.results(jobs.run(role, 1, tmp_path, job=job()))

    assert seen == {"joined": "joined", "loopback": False}


@pytest.mark.parametrize("what", ["endpoint", "group"])
def test_a_world_waits_for_each_rank_alone(what: str, tmp_path: Path) -> None:
    raised = []

    def wait_for_rank_2(world: World) -> None:
        try:
            world.endpoint(2) if what == "endpoint" else world.group("g")
        except ClosedError as error:
            raised.append(error)

    store = FileStore(tmp_path / "store")
    with join(store, 0, 3, timeout_s=60) as world, join(store, 1, 3, timeout_s=60) as other:
        waiter = threading.Thread(target=wait_for_rank_2, args=(world,))
        waiter.start()
        time.sleep(0.2)
        start_s = time.monotonic()
        world.endpoint(1).wait_ready(timeout_s=10)
        assert other.endpoint(0) is other[0]
        world.close()
        waiter.join(30)
        assert time.monotonic() - start_s < 10
    assert len(raised) == 1
    assert "was closed" in str(raised[0])
