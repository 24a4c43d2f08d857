"""RDMATENSOR_VERIFY: what arrives whole passes, what does not is an error that names it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rdmatensor import (
    Context,
    CorruptedDataError,
    FileStore,
    Group,
    InvalidArgumentError,
    MismatchError,
    PeerError,
    Settings,
    join,
    metrics,
)

BYTES = 3_000_000


@pytest.fixture
def checked(settings: Settings) -> Settings:
    return replace(settings, verify="crc32c")


@pytest.fixture
def groups(checked: Settings, tmp_path: Path) -> Iterator[list[Group]]:
    """Two members of one group."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        contexts = [stack.enter_context(Context(checked)) for _ in range(2)]
        store = FileStore(tmp_path)
        worlds = [join(store, rank, 2, context=contexts[rank], timeout_s=10) for rank in range(2)]
        made = [pool.submit(world.group, "g") for world in worlds]
        yield [job.result(20) for job in made]


def test_writes_reads_and_slots_are_compared(checked: Settings) -> None:
    with Context(checked) as left, Context(checked) as right:
        left.add_job(rank=0)
        right.add_job(rank=1)
        to_right, to_left = left.connect(right.address, rank=1), right.connect(left.address, rank=0)
        src = np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8)
        dst = right.zeros(BYTES, "uint8")
        back = np.zeros(BYTES, np.uint8)
        transfer = to_right.write(src, right.export(dst), notify=5)
        assert to_left.wait_notify(timeout_s=10) == 5
        assert (dst == src).all()
        transfer.wait()
        to_right.read(back, right.export(dst)).wait()
        assert (back == src).all()
        with (
            right.recv_slot("w", (BYTES,), "uint8", src=to_left) as slot,
            to_right.send_slot("w") as out,
        ):
            put = out.put(src, timeout_s=10)
            with slot.get(timeout_s=10) as got:
                assert (got == src).all()
            put.wait()
        assert left.counters().verified_bytes == BYTES
        assert right.counters().verified_bytes == 2 * BYTES
        assert left.describe()["verify"] == "crc32c"
        assert metrics.values(right)["rdmatensor_verified_bytes_total"] == 2 * BYTES
        assert metrics.values(right)["rdmatensor_mismatches_total"] == 0
        del dst


def test_a_message_that_changed_after_it_was_summed(groups: list[Group]) -> None:
    sent = np.zeros(BYTES, np.uint8)
    got = np.zeros(BYTES, np.uint8)
    send = groups[0].send(sent, 1, tag=12)
    sent[1_500_000] = 1  # which nobody may: it is the library's
    with pytest.raises(CorruptedDataError, match=r"bytes 1490944 to 1507327 are others") as caught:
        groups[1].recv(got, 0, tag=12).wait(timeout_s=10)
    assert "the message with tag 12" in str(caught.value)
    assert caught.value.rank == 0
    with contextlib.suppress(PeerError):  # where the path says when bytes are in place, it is over
        send.wait(timeout_s=10)
    with pytest.raises(PeerError, match="others than were sent"):  # the path ended with it
        groups[0].recv(got, 1).wait(timeout_s=10)


def test_collectives_are_compared(groups: list[Group]) -> None:
    def work(group: Group) -> np.ndarray:
        tensor = np.full(100_000, group.rank + 1.0)
        group.all_reduce(tensor).wait(timeout_s=10)
        return tensor

    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(work, groups):
            assert (result == 3.0).all()


def test_a_rank_that_does_not_verify_is_refused(checked: Settings) -> None:
    with Context(checked) as left, Context(replace(checked, verify="off")) as right:
        left.add_job(rank=0)
        right.add_job(rank=1)
        for context, address, rank in ((left, right.address, 1), (right, left.address, 0)):
            with pytest.raises(MismatchError, match="rank 0 sums its payload and rank 1 does not"):
                context.connect(address, rank=rank)


def test_another_sum_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"it must be one of off, crc32c"):
        Settings(verify="md5")  # type: ignore[arg-type]
