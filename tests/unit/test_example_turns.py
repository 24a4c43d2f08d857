"""examples/turns.py: a rank that is killed has ended, however its connection says so."""

from __future__ import annotations

import importlib
import socket
import struct
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_connection_that_is_reset_is_a_rank_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    turns = importlib.import_module("turns")
    with socket.create_server(("127.0.0.1", 0)) as server:
        rank = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    rank.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    rank.close()  # a reset, as when a process dies with data that it has not read
    with Connection(accepted.detach()) as connection:
        assert turns._receive([connection], lambda: None) == {connection: None}
