"""Whoever connects to a listening port without being of the job: refused, the job unharmed."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st
from pairs import Pair

from rdmatensor import Context, RdmaTensorError, Settings

GARBAGE = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(4096),
    b"\xff" * 4096,
    b"RDTH\x01\x00\xac\x00" + bytes(164),  # looks like a hello of the right length
    b"RDTJ\x01\x00\x40\x00" + bytes(200),
    b"RDTH\x63\x00\x10\x00" + bytes(8),  # another version
    b"RDTH",
]


def _listening(context: Context) -> tuple[str, int]:
    listens = context.describe()["listens"]
    assert isinstance(listens, list)
    address, port = next(text for text in listens if text.startswith("127.")).split(":")
    return address, int(port)


def test_garbage_on_the_listening_port_hurts_nobody(pair: Pair) -> None:
    dst = pair.right.zeros(64, "uint8")
    region = pair.right.export(dst)
    where = _listening(pair.right)
    sockets = []
    for garbage in GARBAGE:
        stranger = socket.create_connection(where, timeout=5)
        stranger.sendall(garbage)
        sockets.append(stranger)
        pair.to_right.write(b"x" * 64, region, notify=1).wait()
        assert pair.to_left.wait_notify(timeout_s=10) == 1
    for stranger in sockets:
        with stranger:
            answer = _read_all(stranger)
        assert len(answer) <= 512, "nobody who proved nothing is told more than a refusal"
        assert region.encode() not in answer
    with Context(pair.left.settings) as third:  # and others are still let in
        third.add_job(rank=2)
        with pair.right.connect(third.address, rank=2) as endpoint:
            endpoint.wait_ready(timeout_s=10)


@pytest.fixture
def greeting(settings: Settings) -> bytes:
    """Return what a member of the job says first: a hello, with a nonce of that connection."""
    settings = replace(settings, transport="tcp")  # which says hello over TCP
    with Context(settings) as member:
        member.add_job(rank=0)
        with Context(settings) as gone:
            gone.add_job(rank=1)
            address, where = gone.address, _listening(gone)
        with socket.create_server(where) as listener:
            listener.settimeout(5)
            with member.connect(address, rank=1):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    return connection.recv(4096)


_CHANGES = st.dictionaries(st.integers(0, 200), st.integers(0, 255), max_size=4)


@hypothesis.settings(
    deadline=None,  # a loaded machine is no finding
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(data=st.data())
def test_whatever_a_stranger_sends_hurts_nobody(
    pair: Pair, greeting: bytes, data: st.DataObject
) -> None:
    """Anything, and a real hello that is replayed with a few bytes changed, cut or more behind."""
    dst = pair.right.zeros(8, "uint8")
    region = pair.right.export(dst)
    changes = data.draw(_CHANGES)
    hello = bytes(changes.get(at, byte) for at, byte in enumerate(greeting))
    cut = hello[: data.draw(st.integers(0, len(hello)))]
    sent = data.draw(st.sampled_from([b"", hello, hello, cut])) + data.draw(st.binary(max_size=300))
    with socket.create_connection(_listening(pair.right), timeout=5) as stranger:
        with contextlib.suppress(ConnectionError):  # hung up on before the end
            stranger.sendall(sent)
        answer = _read_all(stranger)
    assert len(answer) <= 512
    assert region.encode() not in answer
    pair.to_right.write(b"unharmed", region, notify=1).wait()
    assert pair.to_left.wait_notify(timeout_s=10) == 1
    assert bytes(dst) == b"unharmed"


def _read_all(stranger: socket.socket) -> bytes:
    stranger.settimeout(20)  # the set-up's own deadline is 10
    answer = b""
    try:
        stranger.shutdown(socket.SHUT_WR)
        while data := stranger.recv(4096):
            answer += data
    except OSError:  # it was hung up
        pass
    return answer


def test_a_client_that_cannot_prove_itself_gets_no_region_and_no_answer(pair: Pair) -> None:
    """It knows everything that is public: the address, the job's name, the version."""
    dst = pair.right.zeros(8, "uint8")
    region = pair.right.export(dst)
    stranger_settings = replace(pair.left.settings, secret=b"guessed")
    with Context(stranger_settings) as stranger:
        stranger.add_job(rank=0)
        endpoint = stranger.connect(pair.right.address, rank=1)
        with pytest.raises(RdmaTensorError, match="secret"):
            endpoint.write(b"12345678", region).wait(10)  # posted before or after the refusal
        with pytest.raises(RdmaTensorError, match="secret"):
            endpoint.wait_ready(timeout_s=10)
        endpoint.close()
    assert not dst.any()
