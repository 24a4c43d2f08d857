"""Elastic jobs: ranks die, hosts come and go, and the training goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rdmatensor.horovod.torch as hvd
from rdmatensor.horovod.torch.elastic import ElasticSampler, TorchState

pytestmark = pytest.mark.timeout(240)
PROGRAM = Path(__file__).with_name("horovod_elastic_train.py")
A, B, C = "localhost", "127.0.0.1", socket.gethostname()


class Job:
    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process

    def log(self) -> list[list[float]]:
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [[float(one) for one in line.split()] for line in lines if line.count(" ") == 2]

    def sizes(self) -> list[int]:
        """Return the numbers of ranks, without repetition."""
        found: list[int] = []
        for _, size, _ in self.log():
            if found[-1:] != [int(size)]:
                found.append(int(size))
        return found

    def wait_for(self, sizes: list[int]) -> None:
        deadline_s = time.monotonic() + 90
        while self.sizes() != sizes:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline_s, (self.log()[-5:], self.sizes())
            time.sleep(0.05)

    def find(self, *hosts: str) -> None:
        """Have the discovery find these hosts."""
        (self.folder / "hosts.part").write_text("\n".join(hosts) + "\n")
        (self.folder / "hosts.part").rename(self.folder / "hosts")

    def finish(self) -> tuple[int, str, str]:
        (self.folder / "stop").touch()
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def check(self, sizes: list[int], status: int, out: str, err: str) -> None:
        """The weight is what so many batches make of rank 0's first one, on all ranks."""
        assert status == 0, out + err
        log = self.log()
        assert self.sizes() == sizes
        assert all(weight == batch + 2 for batch, _, weight in log), log
        batches = [int(batch) for batch, _, _ in log]
        assert sorted(set(batches)) == list(range(batches[-1] + 1))
        ends = [line.partition(":")[2] for line in out.splitlines()]
        assert len(ends) == sizes[-1]
        assert set(ends) == {f"weight {batches[-1] + 2} batch {batches[-1] + 1} size {sizes[-1]}"}


@contextmanager
def job(
    folder: Path, *options: object, kill: str = "none", transport: str = "shm"
) -> Iterator[Job]:
    words = [sys.executable, "-m", "rdmatensor", "horovodrun", *map(str, options)]
    process = subprocess.Popen(
        [*words, sys.executable, str(PROGRAM), str(folder), kill],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RDMATENSOR_TRANSPORT": transport},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Job(folder, process)
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("rank", "transport"), [(0, "shm"), pytest.param(3, "tcp", marks=pytest.mark.slow)]
)
def test_survivors_go_on_after_a_death(tmp_path: Path, rank: int, transport: str) -> None:
    """Both ranks of the host leave; with rank 0 killed, the old rank 2 becomes root."""
    options = ("-np", 4, "--min-np", 2, "-H", f"{A}:2,{B}:2")
    with job(tmp_path, *options, kill=f"{rank}:5", transport=transport) as one:
        one.wait_for([4, 2])
        status, out, err = one.finish()
    one.check([4, 2], status, out, err)
    assert f"rank {rank} on {A if rank < 2 else B} was killed by SIGKILL" in err
    assert {line.partition(".")[0].lstrip("[") for line in out.splitlines()} == {
        B.partition(".")[0] if rank < 2 else A
    }


def test_hosts_come_and_go_over_tcp(tmp_path: Path) -> None:
    Job(tmp_path, None).find(f"{A}:2")  # type: ignore[arg-type]
    options = ("-np", 2, "--min-np", 1, "--max-np", 4, "--host-discovery-script", "cat hosts")
    with job(tmp_path, *options, transport="tcp") as one:
        one.wait_for([2])
        one.find(f"{A}:2", f"{B}:2")
        one.wait_for([2, 4])
        one.find(f"{A}:2")
        one.wait_for([2, 4, 2])
        status, out, err = one.finish()
    one.check([2, 4, 2], status, out, err)


@pytest.mark.slow
def test_a_host_leaves_and_another_comes_at_once(tmp_path: Path) -> None:
    """Survivors would skip the sync in which newcomers wait: all agree on it."""
    Job(tmp_path, None).find(f"{A}:1", f"{B}:2")  # type: ignore[arg-type]
    options = ("-np", 3, "--min-np", 1, "--host-discovery-script", "cat hosts")
    with job(tmp_path, *options) as one:
        one.wait_for([3])
        one.find(f"{A}:1", f"{C}:1")
        one.wait_for([3, 2])
        status, out, err = one.finish()
    one.check([3, 2], status, out, err)


def test_too_few_slots_end_the_job(tmp_path: Path) -> None:
    with job(tmp_path, "-np", 2, "--min-np", 2, "-H", f"{A}:2", kill="1:1") as one:
        out, err = one.process.communicate(timeout=90)
    assert one.process.returncode == 1, out + err
    assert "rank 1 on localhost was killed by SIGKILL" in err
    assert "fewer than 2 slots are left: giving up" in err


# ---- state, in a job of one rank -----------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_a_sampler_gives_each_sample_once_an_epoch(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five batches on two ranks, then the rest on three: all samples, and few twice."""
    count, seen = 50, []

    def sampler(rank: int, size: int, processed: set[int]) -> ElasticSampler:
        monkeypatch.setattr(hvd, "rank", lambda: rank)
        monkeypatch.setattr(hvd, "size", lambda: size)
        made = ElasticSampler(range(count), seed=3)
        made.load_state_dict({"epoch": 1, "processed_indices": processed})
        return made

    processed: set[int] = set()
    for rank in range(2):
        one = sampler(rank, 2, set())
        list(one)
        for batch in range(5):
            one.record_batch(batch, 3)
        processed |= one.processed_indices
    assert len(processed) == 30
    for rank in range(3):
        one = sampler(rank, 3, processed)
        seen += list(one)
        assert len(one) == 7
    assert set(seen) == set(range(count)) - processed
    assert len(seen) == 21


def test_restore_goes_back_to_the_commit(alone: None) -> None:
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    state = TorchState(model, optimizer, sampler=ElasticSampler(range(8)), epoch=1, seen=[1])
    model(torch.ones(2)).backward()
    optimizer.step()
    state.epoch, state.seen[0] = 2, 5
    state.sampler.record_indices([3])
    state.commit()
    kept = {name: one.clone() for name, one in model.state_dict().items()}
    model(torch.ones(2)).backward()
    optimizer.step()
    state.epoch = 9
    state.seen.append(7)
    state.sampler.record_indices([4])

    state.restore()

    assert (state.epoch, state.seen) == (2, [5])
    assert state.sampler.processed_indices == {3}
    assert all(torch.equal(kept[name], one) for name, one in model.state_dict().items())
    assert int(optimizer.state_dict()["state"][0]["step"]) == 1
