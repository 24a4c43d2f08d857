"""An independent witness: a peer by wire.md on Debian's pyverbs, driven by witness_job.py.

Usage: witness.py DEVICE ADDRESS QPS, by the system's Python; lines of JSON come in and go out. It
checks with its own eyes what the library writes, asks for and allows, and leaves at the first
failure with status 1.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Callable

import pyverbs.enums as e
import witness_handshake
import witness_wire as wire
from pyverbs.device import Context
from pyverbs.pyverbs_error import PyverbsRDMAError
from witness_peer import FILL, WAIT_S, Session
from witness_pipe import Checks, Pipe, payload
from witness_verbs import Device
from witness_wire import Address, Region

JOB = "witness"
IDLE_S = 120.0
PROBE_BYTES = 8
VERBS = {"read": e.IBV_WR_RDMA_READ, "write": e.IBV_WR_RDMA_WRITE}


class Witness:
    """The commands of the job; each answers with one line."""

    def __init__(self, device: str, addr: str, qp_count: int) -> None:
        self._checks = Checks("witness")
        self._pipe = Pipe(sys.stdin.fileno(), sys.stdout.fileno())
        self._addr, self._qp_count = addr, qp_count
        self._device = Device(device)
        self._session: Session | None = None
        self._listener: socket.socket | None = None
        self._uuid = b""
        self._secret = b""

    def run(self) -> None:
        """Obey until the pipe ends; heartbeats go on meanwhile."""
        while True:
            session = self._session
            if session is not None and not session.has_left:
                session.pump(self._pipe.has_line, "a command", IDLE_S)
            words = self._pipe.recv(IDLE_S)
            if not words:
                return
            do: Callable[..., dict[str, object]] = getattr(self, "do_" + words.pop("do"))
            self._pipe.send(done=True, **do(**words))

    @property
    def _peer(self) -> Session:
        assert self._session is not None
        return self._session

    # ---- connections ---------------------------------------------------------------------------

    def do_secret(self, secret: str) -> dict[str, object]:
        self._secret = hashlib.sha256(bytes.fromhex(secret)).digest()
        return {}

    def do_listen(self) -> dict[str, object]:
        self._uuid = os.urandom(16)
        self._listener = socket.create_server((self._addr, 0))
        self._listener.settimeout(WAIT_S)
        return {"address": Address(self._uuid, [self._listener.getsockname()[:2]]).encode().hex()}

    def do_accept(self, is_deaf: bool) -> dict[str, object]:
        assert self._listener is not None
        sock, _ = self._listener.accept()
        self._listener.close()
        peer = witness_handshake.listen(sock, self._uuid, JOB, self._secret)
        self._begin(sock, peer, is_connector=False, is_deaf=is_deaf)
        return {}

    def do_connect(self, address: str) -> dict[str, object]:
        self._uuid = os.urandom(16)
        self._dial(address)
        return {"address": Address(self._uuid, []).encode().hex()}

    def _dial(self, address: str) -> None:
        peer = Address.decode(bytes.fromhex(address))
        sock = socket.create_connection(peer.addrs[0], WAIT_S)
        witness_handshake.connect(sock, self._uuid, peer.uuid, JOB, self._secret)
        self._begin(sock, peer.uuid, is_connector=True)

    def do_pretend(self, address: str) -> dict[str, object]:
        """Be in both roles one who does not know the secret: nothing must be given away."""
        assert self._listener is not None
        sock, _ = self._listener.accept()
        got = witness_handshake.pretend_to_listen(sock, self._uuid)
        self._checks.same(got, b"", "a listener without the secret hears nothing more")
        sock.close()
        self._listener.close()
        peer = Address.decode(bytes.fromhex(address))
        with socket.create_connection(peer.addrs[0], WAIT_S) as sock:
            said = witness_handshake.pretend_to_connect(sock, os.urandom(16), peer.uuid, JOB)
        self._checks.that("refused: status" in said, f"a connector without it is {said}", said)
        return {}

    def _begin(
        self, sock: socket.socket, peer: bytes, *, is_connector: bool, is_deaf: bool = False
    ) -> None:
        role = "connector" if is_connector else "listener"
        self._checks.that(True, f"the handshake as {role}: the peer knows the secret")
        session = Session(sock, self._device, self._qp_count, self._uuid, peer, is_connector)
        session.setup(is_deaf)
        own, peer_gid = session.lane.pairs[session.round]
        self._checks.that(True, f"the path as {role}: GIDs {own} and {peer_gid} of the offers")
        self._session = session

    def do_leave(self) -> dict[str, object]:
        """Go first: the peer answers GOODBYE."""
        self._peer.leave()
        self._checks.that(True, "the peer answered GOODBYE")
        self._session = None
        return {}

    def do_left(self) -> dict[str, object]:
        """Let the peer go first."""
        self._peer.pump(lambda: self._peer.has_left, "the peer's GOODBYE")
        self._checks.that(True, "the peer said GOODBYE")
        self._peer.leave()
        self._session = None
        return {}

    # ---- what the library writes ---------------------------------------------------------------

    def do_expose(self, size: int) -> dict[str, object]:
        return {"region": self._peer.expose(size).region.encode().hex()}

    def do_expect(
        self, region: str, blocks: list[tuple[int, int, int]], value: int, what: str
    ) -> dict[str, object]:
        """Wait for one message: these blocks (offset, size, seed), all else untouched."""
        peer = self._peer
        held = peer.exposed(Region.decode(bytes.fromhex(region)).index)
        peer.pump(lambda: bool(peer.messages), what)
        got = peer.messages.popleft()
        wanted = bytearray([FILL]) * held.region.len_bytes
        for off, size, seed in blocks:
            wanted[off : off + size] = payload(seed, size)
        self._checks.same(hex(got), hex(wire.NOTIFY_USER | value), f"{what}: its immediate")
        self._checks.same_bytes(held.bytes_now(), bytes(wanted), f"{what}: its bytes, no others")
        return {}

    def do_expect_row(self, region: str, count: int, seed: int) -> dict[str, object]:
        """Wait for messages 0, 1, ... of 8 bytes side by side, more than the window holds."""
        peer = self._peer
        held = peer.exposed(Region.decode(bytes.fromhex(region)).index)
        peer.pump(lambda: len(peer.messages) >= count, f"{count} messages")
        got = [peer.messages.popleft() for _ in range(count)]
        self._checks.same(
            got, [wire.NOTIFY_USER | i for i in range(count)], f"{count} immediates in order"
        )
        wanted = payload(seed, count * PROBE_BYTES)
        self._checks.same_bytes(held.bytes_now(), wanted, f"the bytes of {count} messages")
        times = peer.restocked_by_us
        self._checks.that(times > 0, f"the peer kept to the window, restocked {times} times")
        return {}

    def do_keys(self) -> dict[str, object]:
        """Look at what the library asked for while it wrote."""
        asked = self._peer.asked
        self._checks.same(
            {get.access for get in asked}, {wire.MAY_WRITE}, f"{len(asked)} keys asked for to write"
        )
        return {}

    # ---- what the witness does to the library --------------------------------------------------

    def do_write(self, region: str, size: int, seed: int, value: int) -> dict[str, object]:
        target = Region.decode(bytes.fromhex(region))
        self._peer.write(target, 0, payload(seed, size), wire.NOTIFY_USER | value)
        return {}

    def do_write_row(self, region: str, count: int, seed: int) -> dict[str, object]:
        target = Region.decode(bytes.fromhex(region))
        data = payload(seed, count * PROBE_BYTES)
        for i in range(count):
            part = data[i * PROBE_BYTES :][:PROBE_BYTES]
            self._peer.write(target, i * PROBE_BYTES, part, wire.NOTIFY_USER | i)
        times = self._peer.restocked_by_peer
        self._checks.that(times > 0, f"{count} messages: the peer restocked {times} times")
        return {}

    def do_read(self, region: str, seed: int) -> dict[str, object]:
        peer, target = self._peer, Region.decode(bytes.fromhex(region))
        at = peer.reach(target, 0, wire.MAY_READ)
        status, got = peer.touch(VERBS["read"], at, bytes(target.len_bytes))
        self._checks.same(status, e.IBV_WC_SUCCESS, "a read with a key to read")
        self._checks.same_bytes(got, payload(seed, len(got)), "a read with a key to read: bytes")
        return {}

    def do_refused(self, region: str) -> dict[str, object]:
        """Wait for the revocation of a region; there must be no key for it any more."""
        peer, target = self._peer, Region.decode(bytes.fromhex(region))
        gone = (target.index, target.generation)
        peer.pump(lambda: gone in peer.revoked, f"REVOKE of region {gone}")
        self._checks.that(True, f"REVOKE of region {gone}")
        for access in (wire.MAY_READ, wire.MAY_WRITE):
            got = peer.key_of(target, access).kind
            self._checks.same(got, wire.WORD_KEY_REFUSED, f"no key {access} for freed memory")
        return {}

    def do_intrude(
        self,
        address: str,
        region: str,
        verb: str,
        key: str,
        at: int,
        what: str,
        piece: bool = False,
    ) -> dict[str, object]:
        """Do what a key does not allow, on QPs of its own, which it ends.

        at: offset in the region, or, where `piece`, from the end of the piece that the key opens.
        """
        self._uuid = os.urandom(16)
        self._dial(address)
        peer, target = self._peer, Region.decode(bytes.fromhex(region))
        access = {"write": wire.MAY_WRITE, "read": wire.MAY_READ}[key]
        addr, rkey = peer.reach(target, 0, access)
        status, _ = peer.touch(VERBS[key], (addr, rkey), payload(1, PROBE_BYTES))
        self._checks.same(status, e.IBV_WC_SUCCESS, f"{what}: first, what the key allows")
        words = peer.key_of(target, access)
        goal = words.base + words.len_bytes + at if piece else addr + at
        status, got = peer.touch(VERBS[verb], (goal, rkey), bytes(PROBE_BYTES))
        self._checks.same(status, e.IBV_WC_REM_ACCESS_ERR, f"{what}: remote access error")
        if verb == "read":
            self._checks.same(got, bytes(PROBE_BYTES), f"{what}: nothing came")
        peer.drop()
        self._session = None
        return {}

    # ---- pyverbs itself ------------------------------------------------------------------------

    def do_import(self) -> dict[str, object]:
        """See whether this device can be shared by its command descriptor: 0, or the errno."""
        try:
            Context(cmd_fd=os.dup(self._device.context.cmd_fd)).close()
        except PyverbsRDMAError as error:
            return {"errno": abs(error.error_code)}
        return {"errno": 0}


def main() -> int:
    """Run until the job closes the pipe."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    witness = Witness(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    try:
        witness.run()
    except (wire.WireError, TimeoutError, PyverbsRDMAError) as error:
        print(f"witness: FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
