"""Finding each other: who waits for whom, what it costs the others, and what is left behind."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import jobs
import pytest

from rdmatensor import Closed, FileStore, join
from rdmatensor.bootstrap import World


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
    assert "rank 0, which hosts the store, cannot be reached" in early["text"]
    assert "rank 0" in late["text"]
    assert "store" not in late["text"]
    assert early["seconds"] < 5.0
    assert late["seconds"] < 5.0


def test_a_group_leaves_counts_and_unread_addresses_in_the_store(tmp_path: Path) -> None:
    keys = jobs.results(jobs.run("roles_rendezvous:keys_that_stay", 3, tmp_path))[0]

    # A member that came before the others' addresses did may never have needed them all.
    addresses = {"3/1/read/blob/0", *(f"3/1/blob/{rank}" for rank in range(3))}
    assert sorted(set(keys) - addresses) == [f"3/arrivals/{rank}" for rank in range(3)]


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


def job_text(**changed: str) -> str:
    """Return what rank 0 tells the others through the store."""
    auto, off = b"auto".hex(), b"0".hex()
    words = {"id": "ab" * 12, "epoch": "1", "secret": "cd" * 32, "flag": "0", "group": "ef" * 12}
    return " ".join((words | {"algo": auto, "deterministic": off} | changed).values())


def test_a_job_that_rank_0_never_wrote_is_refused_by_its_key(tmp_path: Path) -> None:
    right = job_text()
    wrong = {
        "empty": "",
        "one word": "x",
        "no settings": right.rsplit(" ", 2)[0],
        "truncated": right[:-1],
        "a word more": f"{right} 30",
        "spaces": right.replace(" ", "  "),
        "a line": f"{right}\n",
        "not hexadecimal": job_text(secret="xy" * 32),
        "odd": job_text(secret="cd" * 31 + "c"),
        "a short secret": job_text(secret="cd"),
        "a long secret": job_text(secret="cd" * 33),
        "a setting": job_text(algo="auto"),
        "a long name": job_text(id="ab" * 13),
        "a name": job_text(id="xy" * 12),
        "a group": job_text(group="../../../../../../../../"),
        "a flag": job_text(flag="2"),
        "a sign": job_text(epoch="-1"),
        "an epoch": job_text(epoch="4294967296"),
        "digits": job_text(epoch="1" * 4000),
        "too long": job_text(algo="30" * 100_000),
    }
    environment = {"RDMATENSOR_LOOPBACK": "1"}
    (seen,) = jobs.results(
        jobs.run(
            "roles_rendezvous:the_job_is_wrong",
            1,
            tmp_path,
            environment=environment,
            texts={**wrong, "right": right},
        )
    )
    assert seen.pop("right") == "joined"
    assert seen.keys() == wrong.keys()
    for name, text in seen.items():
        assert text.startswith("DistStoreError: "), (name, text)
        assert "no valid job under rdmatensor/2/1/job, which rank 0 writes: " in text, (name, text)
        assert "cdcdcd" not in text, name


def test_a_host_that_is_no_text_is_another(tmp_path: Path) -> None:
    role = "roles_rendezvous:a_host_is_no_text"
    (seen,) = jobs.results(jobs.run(role, 1, tmp_path, text=job_text()))

    assert seen == {"joined": "joined", "loopback": False}


@pytest.mark.parametrize("what", ["endpoint", "group"])
def test_a_world_waits_for_each_rank_alone(what: str, tmp_path: Path) -> None:
    raised = []

    def wait_for_rank_2(world: World) -> None:
        try:
            world.endpoint(2) if what == "endpoint" else world.group("g")
        except Closed as error:
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
