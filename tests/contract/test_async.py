"""What waits can be awaited: slots, notifications and the set-up of a connection."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import (
    ClosedError,
    Context,
    FileStore,
    MismatchError,
    PeerError,
    Settings,
    TransferTimeoutError,
    join_async,
)


def run(coroutine: Coroutine[Any, Any, object]) -> object:
    return asyncio.run(asyncio.wait_for(coroutine, 20))


async def ticks(until: asyncio.Event) -> int:
    """Count how often the loop runs meanwhile."""
    count = 0
    while not until.is_set():
        await asyncio.sleep(0.01)
        count += 1
    return count


def test_tensors_pass_a_slot_without_blocking_the_loop(pair: Pair) -> None:
    async def main() -> None:
        slot = pair.right.recv_slot("s", 4, src=pair.to_left)
        sender = await pair.to_right.send_slot_async("s", 4)
        is_over = asyncio.Event()
        counting = asyncio.create_task(ticks(is_over))

        async def receive() -> list[float]:
            found = []
            for _ in range(5):
                await asyncio.sleep(0.03)  # both buffers are full then: put_async() waits
                with await slot.get_async() as array:
                    found.append(float(array[0]))
            return found

        receiving = asyncio.create_task(receive())
        for step in range(4):
            transfer = await sender.put_async(np.full(4, step, np.float32))
            assert (await transfer) is transfer
        (await sender.buffer_async())[:] = 4
        await sender.post()
        assert await receiving == [0, 1, 2, 3, 4]
        is_over.set()
        assert await counting > 3
        sender.close()
        slot.close()

    run(main())


def test_a_slot_is_an_asynchronous_iterator(pair: Pair) -> None:
    async def main() -> None:
        slot = pair.right.recv_slot("s", 4, src=pair.to_left)
        with await pair.to_right.send_slot_async("s") as sender:
            for step in range(2):
                await (await sender.put_async(np.full(4, step, np.float32)))
            found = []
            async for received in slot:
                found.append(float(received.array[0]))
                received.release()
                if len(found) == 2:
                    slot.close()
            assert found == [0, 1]

    run(main())


def test_an_iteration_has_no_deadline_and_ends_at_close(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        slot = pair.right.recv_slot("s", 4, src=pair.to_left)
        monkeypatch.setattr(slot._core, "timeout_s", 0.05)
        asyncio.get_running_loop().call_later(0.3, slot.close)
        start_s = time.monotonic()
        assert [received async for received in slot] == []
        assert time.monotonic() - start_s >= 0.3

    run(main())


def test_a_cancelled_wait_takes_nothing(pair: Pair) -> None:
    async def main() -> None:
        slot = pair.right.recv_slot("s", 4, src=pair.to_left)
        waiting = asyncio.create_task(slot.get_async())
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pair.to_right.send_slot("s", 4) as sender:
            sender.put(np.ones(4, np.float32)).wait()
            with await slot.get_async() as array:
                assert array.sum() == 4
        slot.close()

    run(main())


def test_deadlines_and_errors_are_those_of_the_other_calls(pair: Pair) -> None:
    async def main() -> None:
        slot = pair.right.recv_slot("s", 4, src=pair.to_left)
        start_s = time.monotonic()
        with pytest.raises(TransferTimeoutError, match=r"within 0\.200 s"):
            await slot.get_async(timeout_s=0.2)
        with pytest.raises(TransferTimeoutError, match=r"within 0\.200 s"):
            await pair.to_right.wait_notify_async(timeout_s=0.2)
        with pytest.raises(TransferTimeoutError, match=r"within 0\.200 s"):
            await pair.to_right.send_slot_async("nobody", 4, timeout_s=0.2)
        assert 0.6 <= time.monotonic() - start_s < 5
        with pair.right.recv_slot("m", 4, src=pair.to_left), pytest.raises(MismatchError):
            await pair.to_right.send_slot_async("m", 5)
        waiting = asyncio.create_task(slot.get_async())
        await asyncio.sleep(0.02)
        slot.close()
        with pytest.raises(ClosedError):
            await waiting

    run(main())


def test_notifications_and_set_up_are_awaited(settings: Settings) -> None:
    async def main() -> None:
        with Context(settings) as left, Context(settings) as right:
            left.add_job(rank=0)
            right.add_job(rank=1)
            to_right, to_left = left.connect(right.address, rank=1), right.connect(left.address)
            await asyncio.gather(to_right.wait_ready_async(), to_left.wait_ready_async())
            array = right.zeros(4)
            region = right.export(array)
            waiting = asyncio.create_task(to_left.wait_notify_async())
            await asyncio.sleep(0.02)
            await to_right.notify(17, region)
            assert await waiting == 17

    run(main())


def test_a_job_is_joined_in_the_loop(settings: Settings, tmp_path: Path) -> None:
    async def one(rank: int) -> None:
        with Context(settings) as context:
            world = await join_async(FileStore(tmp_path), rank, 2, context=context)
            endpoint = await world.endpoint_async(1 - rank)
            await endpoint.wait_ready_async()
            slot = await world.recv_slot_async("s", 1, src=1 - rank)
            with await endpoint.send_slot_async("s", 1) as sender:
                await (await sender.put_async(np.full(1, rank, np.float32)))
                with await slot.get_async() as array:
                    assert array[0] == 1 - rank
            slot.close()
            group = await world.group_async("all")
            total = np.array([rank + 1.0])
            await group.all_reduce(total)
            assert total[0] == 3
            await group.barrier()
            world.close()

    async def main() -> None:
        await asyncio.gather(one(0), one(1))

    run(main())


def test_a_join_that_is_cancelled_ends_soon(settings: Settings, tmp_path: Path) -> None:
    """asyncio.run() ends its threads before it returns, and would wait for the deadline."""

    async def main(context: Context) -> None:
        joining = asyncio.create_task(
            join_async(FileStore(tmp_path), 1, 2, context=context, timeout_s=30)
        )
        await asyncio.sleep(0.1)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining

    with Context(settings) as context:
        start_s = time.monotonic()
        run(main(context))
        assert time.monotonic() - start_s < 5
        assert "job" not in context.describe()


class SlowStore(FileStore):
    """Holds up the last step of join() until it may go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_reached, self.may_go_on = threading.Event(), threading.Event()

    def set(self, key: str, value: str | bytes) -> None:
        super().set(key, value)
        if key.endswith("/0"):
            self.is_reached.set()
            assert self.may_go_on.wait(30)


@pytest.mark.parametrize("goes_on", ["after the cancellation", "before it"])
def test_what_a_cancelled_join_made_is_closed(
    settings: Settings, tmp_path: Path, goes_on: str
) -> None:
    store = SlowStore(tmp_path)

    async def main(context: Context) -> None:
        joining = asyncio.create_task(join_async(store, 0, 1, context=context))
        while not store.is_reached.is_set():
            await asyncio.sleep(0.01)
        if goes_on == "before it":
            store.may_go_on.set()
            time.sleep(0.3)  # the thread ends, and the loop has not seen it
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        store.may_go_on.set()

    with Context(settings) as context:
        run(main(context))
        end_s = time.monotonic() + 10
        while _keys(tmp_path) and time.monotonic() < end_s:
            time.sleep(0.01)
        assert _keys(tmp_path) == []


def test_a_store_that_is_slow_does_not_stop_the_loop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with Context(settings) as one, Context(settings) as other:
            one.add_job(rank=0)
            endpoint = one.connect(other.address, rank=1)
            looks: list[int] = []

            def look() -> None:
                looks.append(1)
                time.sleep(0.5)
                if len(looks) == 2:
                    raise PeerError("RDT_EPEER", "join", "rank 1 left")

            def never(_timeout_s: float, look: Callable[[], None] | None) -> None:
                if look is not None:
                    look()
                raise TransferTimeoutError("RDT_ETIMEDOUT", "wait_ready", "not yet")

            monkeypatch.setattr(endpoint, "_look_for_leaving", look)
            monkeypatch.setattr(endpoint, "_wait_ready", never)
            waiting = asyncio.create_task(endpoint.wait_ready_async(timeout_s=20))
            longest_s = 0.0
            while not waiting.done():
                start_s = time.monotonic()
                await asyncio.sleep(0.001)
                longest_s = max(longest_s, time.monotonic() - start_s)
            with pytest.raises(PeerError, match="rank 1 left"):
                await waiting
            assert longest_s < 0.4

    run(main())


def _keys(folder: Path) -> list[str]:
    names = [path.name for path in folder.iterdir() if path.name.endswith(".value")]
    return [name.removesuffix(".value").replace("%2F", "/") for name in names]
