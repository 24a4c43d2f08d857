"""The wire format, written down a second time from wire.md: no code of the library is used.

Decoders check what they rely on and raise WireError; values are plain tuples and dataclasses.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import struct
from dataclasses import dataclass, field

WIRE_VERSION = 1
HELLO_BYTES, CHALLENGE_BYTES, AUTH_BYTES, REJECT_BYTES = 172, 124, 40, 268
MAC_BYTES = 32
NO_SEGMENT = 0xFFFFFFFF
TRANSPORT_VERBS = 3
RING_BYTES = 4096  # the least that a peer takes

FRAME_PATH, FRAME_PATH_FAILED, FRAME_READY, FRAME_HEARTBEAT = 1, 2, 3, 4
FRAME_DEATH, FRAME_GOODBYE, FRAME_REVOKE, FRAME_REVOKED, FRAME_LANE_WORDS = 5, 6, 7, 8, 15
WORD_READY, WORD_PROVED, WORD_FAILED, WORD_KEY_GET, WORD_KEY, WORD_KEY_REFUSED = range(1, 7)
WORD_FLAGS = 8
MAY_WRITE, MAY_READ, MAY_WRITE_STRICT = 1, 2, 3

NOTIFY_PROBE = 0xFFF10000
NOTIFY_RESTOCKED = 0xFFF20000
NOTIFY_USER = 0xFFF40000  # 0xfff, then 01, then 18 bits of the user's

_HEAD = struct.Struct("<4sHH")
_ADDRESS = struct.Struct("<8s16s16s16sI64sI")
_ADDR = struct.Struct("<BBHI16s")
_HELLO = struct.Struct("<8s16s64s16s16s32sIiIII")
_CHALLENGE = struct.Struct("<8s16s16s32sIiIII32s")
_AUTH = struct.Struct("<8s32s")
_REGION = struct.Struct("<16sQQQIIIIHH")
_PATH = struct.Struct("<I16s16s64s384sI")
_OFFER = struct.Struct("<HBBBBBBIH2x")
_PORT = struct.Struct("<24sBBBBHBBQ")
_GID = struct.Struct("<16sBB")
_QP = struct.Struct("<II")
_WORDS = struct.Struct("<BBBBBxBxIIIQQ")
FRAME_HEAD = struct.Struct("<HHI")
WORDS_BYTES = FRAME_HEAD.size + _WORDS.size  # of READY


class WireError(Exception):
    """Bytes of the peer's are not what wire.md says."""


def require(is_so: bool, what: str) -> None:
    """Refuse bytes that break a rule."""
    if not is_so:
        raise WireError(what)


def head(magic: bytes, size_bytes: int) -> bytes:
    """Return the first 8 bytes of a message of set-up."""
    return _HEAD.pack(magic, WIRE_VERSION, size_bytes)


def check_head(raw: bytes, magic: bytes, size_bytes: int) -> None:
    """Refuse a message of another kind, version or length."""
    require(len(raw) == size_bytes, f"{magic!r}: {len(raw)} bytes, not {size_bytes}")
    require(raw[:8] == head(magic, size_bytes), f"{magic!r}: its head is {raw[:8]!r}")


def text(raw: bytes) -> str:
    """Decode a text field: NULs behind the first NUL, at least one, no control characters."""
    value, nul, rest = raw.partition(b"\0")
    require(bool(nul) and not rest.strip(b"\0"), f"a text ends in other bytes than NULs: {raw!r}")
    require(all(c >= 0x20 and c != 0x7F for c in value), f"control characters in a text: {raw!r}")
    return value.decode(errors="replace")


# ---- The address ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """Where a process listens: its uuid and IPv4 or IPv6 addresses with ports."""

    uuid: bytes
    addrs: list[tuple[str, int]]

    def encode(self) -> bytes:
        """Another host's by its hint, no Unix socket: what is left is the way over the network."""
        size_bytes = _ADDRESS.size + _ADDR.size * len(self.addrs)
        fixed = _ADDRESS.pack(
            head(b"RDTB", size_bytes), b"witness", self.uuid, bytes(16), 0, b"", len(self.addrs)
        )
        return fixed + b"".join(_pack_addr(*addr) for addr in self.addrs)

    @staticmethod
    def decode(raw: bytes) -> Address:
        """Read an address; scope ids are those of link-local addresses, which are not published."""
        require(len(raw) >= _ADDRESS.size, f"an address of {len(raw)} bytes")
        _, version, uuid, _, _, unix_name, count = _ADDRESS.unpack(raw[: _ADDRESS.size])
        check_head(raw, b"RDTB", _ADDRESS.size + _ADDR.size * count)
        text(version), text(unix_name)
        addrs = []
        for entry in _ADDR.iter_unpack(raw[_ADDRESS.size :]):
            family, is_loopback, port, scope_id, addr = entry
            require(family in (4, 6) and is_loopback < 2 and port > 0 and scope_id == 0, str(entry))
            require(family == 6 or addr[4:] == bytes(12), f"fillers of an IPv4 address: {addr!r}")
            if not is_loopback:
                addrs.append((str(ipaddress.ip_address(addr[: 4 if family == 4 else 16])), port))
        return Address(uuid, addrs)


def _pack_addr(host: str, port: int) -> bytes:
    addr = ipaddress.ip_address(host)
    return _ADDR.pack(addr.version, addr.is_loopback, port, 0, addr.packed)


# ---- The handshake -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The connector's first message."""

    job: str
    connector: bytes
    listener: bytes
    nonce: bytes
    rank: int = -1
    epoch: int = 0
    transports: int = 1 << TRANSPORT_VERBS
    force: int = TRANSPORT_VERBS

    def encode(self) -> bytes:
        """Return RDTH."""
        return _HELLO.pack(
            head(b"RDTH", HELLO_BYTES), b"witness", self.job.encode(), self.connector,
            self.listener, self.nonce, self.epoch, self.rank, self.transports, self.force, 0,
        )  # fmt: skip

    @staticmethod
    def decode(raw: bytes) -> Hello:
        """Read RDTH."""
        check_head(raw, b"RDTH", HELLO_BYTES)
        _, version, job, connector, listener, nonce, epoch, rank, transports, force, floor = (
            _HELLO.unpack(raw)
        )
        text(version)
        require(transports & ~0b1110 == 0 and force <= 3 and floor <= 3, "unknown transports")
        return Hello(text(job), connector, listener, nonce, rank, epoch, transports, force)


def encode_challenge(listener: bytes, nonce: bytes, epoch: int, rank: int) -> bytes:
    """Return RDTC with a mac of zeros, which seal() replaces."""
    return _CHALLENGE.pack(
        head(b"RDTC", CHALLENGE_BYTES), b"witness", listener, nonce, epoch, rank,
        1 << TRANSPORT_VERBS, TRANSPORT_VERBS, 0, bytes(MAC_BYTES),
    )  # fmt: skip


def decode_challenge(raw: bytes) -> tuple[bytes, bytes, int, int]:
    """Read RDTC: the listener's uuid, its nonce, epoch and transports; the mac is judged apart."""
    check_head(raw, b"RDTC", CHALLENGE_BYTES)
    _, version, listener, nonce, epoch, _, transports, _, _, _ = _CHALLENGE.unpack(raw)
    text(version)
    return listener, nonce, epoch, transports


def encode_auth(mac: bytes) -> bytes:
    """Return RDTA."""
    return _AUTH.pack(head(b"RDTA", AUTH_BYTES), mac)


def decode_auth(raw: bytes) -> bytes:
    """Read RDTA: its mac."""
    check_head(raw, b"RDTA", AUTH_BYTES)
    return bytes(raw[8:])


def decode_reject(raw: bytes) -> str:
    """Read RDTX: status and reason, for people."""
    check_head(raw, b"RDTX", REJECT_BYTES)
    return f"status {struct.unpack_from('<i', raw, 8)[0]}: {text(raw[12:])}"


def prove(secret: bytes, label: str, hello: bytes, challenge: bytes) -> bytes:
    """Return the mac of a label over the transcript."""
    transcript = hello + challenge[:-MAC_BYTES]
    return hmac.new(secret, label.encode() + transcript, hashlib.sha256).digest()


# ---- Regions and the path ------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """What a peer needs to reach memory."""

    owner: bytes
    addr: int
    len_bytes: int
    index: int
    generation: int
    segment: int = NO_SEGMENT
    segment_off: int = 0

    def encode(self) -> bytes:
        """Return 64 bytes; the rkey goes by words, never here."""
        raw = _REGION.pack(
            self.owner, self.addr, self.len_bytes, self.segment_off, self.segment, self.index,
            self.generation, 0, 0x5252, WIRE_VERSION,
        )  # fmt: skip
        return raw + struct.pack("<I", _sum(raw))

    @staticmethod
    def decode(raw: bytes) -> Region:
        """Read 64 bytes."""
        require(len(raw) == 64, f"a region of {len(raw)} bytes")
        owner, addr, size, off, segment, index, generation, _, magic, version = _REGION.unpack(
            raw[:60]
        )
        require((magic, version) == (0x5252, WIRE_VERSION), f"a region of {magic:#x}, {version}")
        require(struct.unpack_from("<I", raw, 60)[0] == _sum(raw[:60]), "the sum of a region")
        require(max(addr, off) + size < 1 << 64, "a region leaves 64 bits")
        return Region(owner, addr, size, index, generation, segment, off)


def _sum(raw: bytes) -> int:
    """FNV-1a of 64 bits, its upper half xor its lower."""
    value = 0xCBF29CE484222325
    for byte in raw:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value >> 32 ^ value & 0xFFFFFFFF


@dataclass(frozen=True)
class Path:
    """One side's half of a path."""

    session_id: bytes
    nonce: bytes
    ring: Region
    offer: bytes
    transport: int = TRANSPORT_VERBS

    def encode(self) -> bytes:
        """Return the payload of PATH."""
        fixed = _PATH.pack(
            self.transport, self.session_id, self.nonce, self.ring.encode(), b"", len(self.offer)
        )
        return fixed + self.offer

    @staticmethod
    def decode(raw: bytes) -> Path:
        """Read the payload of PATH."""
        require(_PATH.size <= len(raw) <= _PATH.size + 1024, f"a PATH of {len(raw)} bytes")
        transport, session_id, nonce, ring, reason, size = _PATH.unpack(raw[: _PATH.size])
        text(reason)
        require(size == len(raw) - _PATH.size, f"an offer of {size} bytes in {len(raw)}")
        return Path(session_id, nonce, Region.decode(ring), raw[_PATH.size :], transport)


# ---- Verbs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gid:
    """One entry of a port's table."""

    raw: bytes
    kind: int
    index: int


@dataclass
class Port:
    """One port of an offer."""

    device: str
    number: int
    is_infiniband: int
    mtu: int
    lid: int
    reads_in: int
    reads_out: int
    max_msg_bytes: int
    gids: list[Gid] = field(default_factory=list)
    qps: list[tuple[int, int]] = field(default_factory=list)  # QPN, PSN


@dataclass
class Offer:
    """The words of a verbs path."""

    ports: list[Port]
    window: int
    qp_count: int
    timeout: int = 0xFF
    retry: int = 0xFF
    service_level: int = 0xFF
    traffic_class: int = 0xFF
    pkey: int = 0

    def encode(self) -> bytes:
        """Return the offer of a PATH."""
        raw = _OFFER.pack(
            2, len(self.ports), self.qp_count, self.timeout, self.retry, self.service_level,
            self.traffic_class, self.window, self.pkey,
        )  # fmt: skip
        for port in self.ports:
            raw += _PORT.pack(
                port.device.encode(), port.number, port.is_infiniband, port.mtu, len(port.gids),
                port.lid, port.reads_in, port.reads_out, port.max_msg_bytes,
            )  # fmt: skip
            raw += b"".join(_GID.pack(gid.raw, gid.kind, gid.index) for gid in port.gids)
            raw += b"".join(_QP.pack(*qp) for qp in port.qps)
        return raw

    @staticmethod
    def decode(raw: bytes) -> Offer:
        """Read the offer of a PATH."""
        require(len(raw) >= _OFFER.size, f"an offer of {len(raw)} bytes")
        version, ports, qps, timeout, retry, level, traffic, window, pkey = _OFFER.unpack_from(raw)
        require(
            version == 2 and 1 <= ports <= 4 and 1 <= qps <= 8, f"offer {version} {ports} {qps}"
        )
        require(2 <= window <= 0xFFFF, f"a window of {window}")
        offer = Offer([], window, qps, timeout, retry, level, traffic, pkey)
        at = _OFFER.size
        for _ in range(ports):
            at = _read_port(raw, at, offer)
        require(at == len(raw), f"an offer of {len(raw)} bytes ends at {at}")
        return offer


def _read_port(raw: bytes, at: int, offer: Offer) -> int:
    """Append one port; return where it ends."""
    try:
        device, number, is_ib, mtu, gids, lid, reads_in, reads_out, size = _PORT.unpack_from(
            raw, at
        )
        require(is_ib <= 1 and 1 <= mtu <= 5 and gids <= 6 and size >= 4096, f"port {raw[at:]!r}")
        port = Port(text(device), number, is_ib, mtu, lid, reads_in, reads_out, size)
        at += _PORT.size
        for _ in range(gids):
            port.gids.append(Gid(*_GID.unpack_from(raw, at)))
            at += _GID.size
        for _ in range(offer.qp_count):
            port.qps.append(_QP.unpack_from(raw, at))
            at += _QP.size
    except struct.error as error:
        raise WireError(f"an offer is cut off: {error}") from None
    require(all(qpn < 1 << 24 and psn < 1 << 24 for qpn, psn in port.qps), "more than 24 bits")
    offer.ports.append(port)
    return at


@dataclass(frozen=True)
class Words:
    """What travels between the halves of a lane."""

    kind: int
    link: int = 0
    round: int = 0
    access: int = 0
    segment: int = 0
    index: int = 0
    generation: int = 0
    base: int = 0
    len_bytes: int = 0
    rkeys: tuple[int, ...] = ()
    refusal: int = 0

    def encode(self) -> bytes:
        """Return the payload of LANE_WORDS."""
        fixed = _WORDS.pack(
            self.kind, self.link, self.round, self.access, len(self.rkeys), self.refusal,
            self.segment, self.index, self.generation, self.base, self.len_bytes,
        )  # fmt: skip
        return fixed + struct.pack(f"<{len(self.rkeys)}I", *self.rkeys)

    @staticmethod
    def decode(raw: bytes) -> Words:
        """Read the payload of LANE_WORDS."""
        require(36 <= len(raw) <= 128, f"words of {len(raw)} bytes")
        kind, link, number, access, count, refusal, *rest = _WORDS.unpack(raw[:36])
        require((raw[5], raw[7]) == (0, 0) and len(raw) == 36 + 4 * count, f"words {raw!r}")
        rkeys = struct.unpack(f"<{count}I", raw[36:])
        words = Words(kind, link, number, access, *rest, rkeys, refusal)
        if kind in (WORD_READY, WORD_PROVED, WORD_FAILED):
            require(words == Words(kind, link, number), f"more than a verdict: {words}")
        elif kind == WORD_FLAGS:
            require(words == Words(kind, access=access) and access in (1, 2), f"flags: {words}")
        else:
            require((link, number) == (0, 0) and access in (1, 2, 3), f"not a key: {words}")
        require((kind == WORD_KEY) == (count > 0), f"keys in {words}")
        require((kind == WORD_KEY_REFUSED) == (refusal > 0), f"a refusal in {words}")
        return words
