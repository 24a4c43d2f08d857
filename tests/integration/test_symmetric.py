"""torch's SymmetricMemory on CPU tensors, over the arena."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize(("world", "path"), [(2, "tcp"), (3, "shm")])
def test_symmetric_memory_works_over_every_path(world: int, path: str, tmp_path: Path) -> None:
    forced = {"RDMATENSOR_TRANSPORT": path}
    ranks = jobs.run("roles_symmetric:works", world, tmp_path, environment=forced)

    for rank, seen in enumerate(jobs.results(ranks)):
        assert seen["again"]
        assert seen["is one"]
        assert seen["rank"] == [rank, world, 4 << 16]
        assert seen["mapped"] == [path == "shm" or peer == rank for peer in range(world)]
        assert seen["moved"]
        if path == "shm":
            assert seen["stored"]
            assert seen["kept"]
        else:
            assert "has no address here" in seen["buffer"]
            assert "rdmatensor.symmetric.put() and get()" in seen["buffer"]
        refused = seen["refused"]
        assert refused["range"].startswith("ValueError: rdmatensor:put: 32 bytes at offset 262144")
        assert refused["rank"].startswith("ValueError: rdmatensor:get: rank")
        assert "was not made by symm_mem.empty()" in refused["plain"]
        assert "use buffer_ptrs" in refused["device"]
        assert "rdmatensor:wait_signal from rank" in refused["late"]
        assert "the timeout passed" in refused["late"]
        assert "came with" in seen["sizes"]
        if rank in (0, world - 1):
            assert seen["pair"] == 2
        assert "the group was shut down" in seen["after"]
        assert "the group was shut down" in seen["put after"]
        assert seen["new in /dev/shm"] == []
        assert seen["second"]


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_death_of_a_peer_is_an_error_that_names_it(path: str, tmp_path: Path) -> None:
    forced = {"RDMATENSOR_TRANSPORT": path}
    ranks = jobs.run("roles_symmetric:dies", 3, tmp_path, environment=forced, folder=str(tmp_path))

    assert ranks[2].exit == -9
    for seen in jobs.results(ranks[:2]):
        assert seen["waited_s"] < 5.0
        for what in ("text", "put", "barrier", "rendezvous"):
            assert "rank 2" in seen[what], (what, seen[what])
        assert seen["read"] == (path == "shm")


@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_a_member_that_lies_is_named(path: str, tmp_path: Path) -> None:
    forced = {"RDMATENSOR_TRANSPORT": path}
    seen, _ = jobs.results(jobs.run("roles_symmetric:lies", 2, tmp_path, environment=forced))

    said = {
        "came with": ("number", "nobody's", "size", "pad"),
        "lies where it does not fit": ("next offset", "empty", "a byte short"),
        "in bytes that mean nothing": ("first", "zeros", "offset", "sum", "no region", "of nobody"),
    }
    for text, names in said.items():
        for name in names:
            assert seen[name].startswith("DistBackendError: rdmatensor:rendezvous: rank 1 "), name
            assert text in seen[name], (name, seen[name])
    assert "belongs to another process than rank 1" in seen["of another"], seen["of another"]
    assert len(seen) == sum(map(len, said.values())) + 1
