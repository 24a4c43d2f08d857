"""Runs take turns: one trains while all ranks of the others wait, without use of a core.

A server in the launcher, a client in each rank, a Unix socket between them. A rank asks for each
turn with its progress so far, and has the machine from the answer until it asks again or ends.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, wait
from pathlib import Path

from launch import RunFailed
from load import Load, LoadMeter

POLL_S = 0.5
BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What a rank says when it asks for a turn: the model is the one that comes next."""

    run: str
    rank: int
    model: str
    turn: int  # of this model, from 1
    turns: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that is over, and how busy others kept the machine meanwhile."""

    request: Request
    seconds: float
    load: Load


class TurnClient:
    """A rank's side."""

    def __init__(self, address: str, run: str, rank: int) -> None:
        self._run = run
        self._rank = rank
        self._connection = Client(address, "AF_UNIX")

    def wait(self, model: str, turn: int, turns: int) -> None:
        """End this turn, if there is one, and wait for the next."""
        request = Request(self._run, self._rank, model, turn, turns)
        self._connection.send(request)
        self._connection.recv()

    def close(self) -> None:
        """End the last turn."""
        self._connection.close()


class TurnServer:
    """The launcher's side."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(address))
        self._socket.listen(BACKLOG)
        self._socket.settimeout(POLL_S)

    def __enter__(self) -> TurnServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def accept(
        self, runs: Sequence[str], ranks: int, check: Callable[[], None]
    ) -> dict[str, dict[Connection, Request]]:
        """Wait until each rank of each run has asked for its first turn.

        check() is called every half second; it raises if that will never be.
        """
        connections: list[Connection] = []
        while len(connections) < ranks * len(runs):
            try:
                accepted, _ = self._socket.accept()
            except TimeoutError:
                check()
            else:
                accepted.setblocking(True)
                connections.append(Connection(accepted.detach()))
        asking: dict[str, dict[Connection, Request]] = {name: {} for name in runs}
        for connection, request in _receive(connections, check).items():
            if request is None:
                raise RunFailed("a rank ended before its first turn")
            asking[request.run][connection] = request
        return asking


def _receive(
    connections: Sequence[Connection], check: Callable[[], None]
) -> dict[Connection, Request | None]:
    """Return what each rank asks for next; None if it has ended."""
    got: dict[Connection, Request | None] = {}
    while len(got) < len(connections):
        ready = wait([one for one in connections if one not in got], timeout=POLL_S)
        if not ready:
            check()
        for connection in ready:
            assert isinstance(connection, Connection)
            try:
                got[connection] = connection.recv()
            except (EOFError, OSError):  # it was killed
                got[connection] = None
    return got


def hand_out(
    asking: Mapping[str, Mapping[Connection, Request]],
    meter: LoadMeter,
    check: Callable[[], None],
) -> Iterator[list[Turn]]:
    """Give the runs turns until none asks any more; yields each round when it is over.

    Each second round goes through them backwards, so that none always follows the same one.
    """
    state = {name: dict(ranks) for name, ranks in asking.items()}
    names = list(state)
    while any(state.values()):
        done = [_turn(state, name, meter, check) for name in names if state[name]]
        yield sorted(done, key=lambda turn: list(asking).index(turn.request.run))
        names.reverse()


def _turn(
    state: dict[str, dict[Connection, Request]],
    name: str,
    meter: LoadMeter,
    check: Callable[[], None],
) -> Turn:
    ranks = state[name]
    request = next(iter(ranks.values()))
    began_s = time.monotonic()
    meter.begin()
    for connection in ranks:
        with contextlib.suppress(OSError):  # it was killed: nothing comes from it
            connection.send(None)
    answers = _receive(list(ranks), check)
    state[name] = {one: answer for one, answer in answers.items() if answer is not None}
    if len(state[name]) not in (0, len(ranks)):
        raise RunFailed(f"{name}: some ranks ended early")
    return Turn(request, time.monotonic() - began_s, meter.end())
