"""The handshake by wire.md in both roles, and the same without the secret."""

from __future__ import annotations

import hmac
import secrets
import socket

import witness_wire as wire
from witness_wire import Hello, WireError, require

WAIT_S = 60.0  # everything is emulated; a single step takes milliseconds on a machine


def _take(sock: socket.socket, size_bytes: int) -> bytes:
    got = b""
    while len(got) < size_bytes:
        more = sock.recv(size_bytes - len(got))
        if not more:
            raise WireError(f"the socket ended after {got!r}")
        got += more
        if got[:4] == b"RDTX":
            size_bytes = wire.REJECT_BYTES
    if got[:4] == b"RDTX":
        raise WireError(f"refused: {wire.decode_reject(got)}")
    return got


def listen(sock: socket.socket, uuid: bytes, job: str, secret: bytes) -> bytes:
    """Be the listener of one connection; return the connector's uuid."""
    sock.settimeout(WAIT_S)
    raw = _take(sock, wire.HELLO_BYTES)
    hello = Hello.decode(raw)
    require(hello.listener == uuid, "a HELLO for another process")
    require((hello.job, hello.epoch) == (job, 0), f"a HELLO of job {hello.job}, {hello.epoch}")
    require(bool(hello.transports >> wire.TRANSPORT_VERBS & 1), "the peer has no verbs")
    challenge = wire.encode_challenge(uuid, secrets.token_bytes(32), 0, -1)
    mac = wire.prove(secret, "rdt listener", raw, challenge)
    challenge = challenge[: -wire.MAC_BYTES] + mac
    sock.sendall(challenge)
    auth = wire.decode_auth(_take(sock, wire.AUTH_BYTES))
    wanted = wire.prove(secret, "rdt connector", raw, challenge)
    require(hmac.compare_digest(auth, wanted), "the connector does not know the secret")
    return hello.connector


def connect(sock: socket.socket, uuid: bytes, peer: bytes, job: str, secret: bytes) -> None:
    """Be the connector."""
    sock.settimeout(WAIT_S)
    raw = Hello(job, uuid, peer, secrets.token_bytes(32)).encode()
    sock.sendall(raw)
    challenge = _take(sock, wire.CHALLENGE_BYTES)
    listener, _, epoch, transports = wire.decode_challenge(challenge)
    require((listener, epoch) == (peer, 0), "the CHALLENGE of another process or epoch")
    require(bool(transports >> wire.TRANSPORT_VERBS & 1), "the peer has no verbs")
    wanted = wire.prove(secret, "rdt listener", raw, challenge)
    require(hmac.compare_digest(challenge[-32:], wanted), "the listener does not know the secret")
    sock.sendall(wire.encode_auth(wire.prove(secret, "rdt connector", raw, challenge)))


def pretend_to_listen(sock: socket.socket, uuid: bytes) -> bytes:
    """Answer a HELLO without the secret; return what the connector gives away after it."""
    sock.settimeout(WAIT_S)
    _take(sock, wire.HELLO_BYTES)
    challenge = wire.encode_challenge(uuid, secrets.token_bytes(32), 0, -1)
    sock.sendall(challenge[: -wire.MAC_BYTES] + secrets.token_bytes(wire.MAC_BYTES))
    return sock.recv(4096)


def pretend_to_connect(sock: socket.socket, uuid: bytes, peer: bytes, job: str) -> str:
    """Connect without the secret; return how the listener refuses it."""
    sock.settimeout(WAIT_S)
    sock.sendall(Hello(job, uuid, peer, secrets.token_bytes(32)).encode())
    wire.decode_challenge(_take(sock, wire.CHALLENGE_BYTES))
    sock.sendall(wire.encode_auth(secrets.token_bytes(wire.MAC_BYTES)))
    try:
        return f"it went on with {_take(sock, wire.FRAME_HEAD.size)!r}"
    except WireError as error:
        return str(error)
