"""The thread of rank 0 that serves all ranks."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import wait as wait_for_any

from rdmatensor.horovod._coordinator import Coordinator
from rdmatensor.horovod._wire import Channel

_TICK_S = 0.5
_LAST_WORDS_S = 5.0  # for the others to read what they were sent


class Server:
    """Carries records of the ranks to the coordinator, and its decisions back."""

    def __init__(self, channels: list[Channel], coordinator: Coordinator) -> None:
        self._channels = dict(enumerate(channels))
        self._coordinator = coordinator

    def run(self) -> None:
        """Serve until the coordinator has ended the job."""
        coordinator = self._coordinator
        try:
            while not coordinator.is_over:
                for rank in self._with_records(_TICK_S):
                    self._drain(rank)
                coordinator.tick(time.monotonic())
                self._send_all()
        except Exception as error:
            coordinator.fail(f"rank 0 failed as coordinator: {type(error).__name__}: {error}")
            self._send_all()
            raise
        finally:
            self._see_off()

    def _with_records(self, wait_s: float) -> list[int]:
        """Wait until a rank has sent something or is gone; return such ranks."""
        ready = set(wait_for_any([one.connection for one in self._channels.values()], wait_s))
        return [rank for rank, one in self._channels.items() if one.connection in ready]

    def _drain(self, rank: int) -> None:
        channel = self._channels[rank]
        try:
            while channel.has_record():
                self._coordinator.feed(rank, channel.receive(), time.monotonic())
        except (EOFError, OSError):
            del self._channels[rank]
            self._coordinator.gone(rank)

    def _send_all(self) -> None:
        for rank, record in self._coordinator.flush():
            channel = self._channels.get(rank)
            if channel is not None:
                with contextlib.suppress(OSError):  # its end is seen when it is read
                    channel.send(record)

    def _see_off(self) -> None:
        """Wait until the others have read all: closing before would discard it."""
        deadline_s = time.monotonic() + _LAST_WORDS_S
        while self._channels and time.monotonic() < deadline_s:
            for rank in self._with_records(_TICK_S):
                try:
                    self._channels[rank].receive()
                except (EOFError, OSError):
                    self._channels.pop(rank).close()
        for channel in self._channels.values():
            channel.close()
