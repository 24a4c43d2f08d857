"""A peer by wire.md, once it is authenticated: side channel, proof, messages, keys."""

from __future__ import annotations

import collections
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyverbs.enums as e
import witness_wire as wire
from pyverbs.mr import MR
from witness_handshake import WAIT_S
from witness_pipe import await_unread
from witness_verbs import EXPOSED, WINDOW, Device, Lane
from witness_wire import Offer, Path, Region, WireError, Words, require

BEAT_S = 1.0
SLICE_S = 0.002
FILL = 0xA5  # memory that nobody has written


# ---- The session ---------------------------------------------------------------------------------


@dataclass
class Exposed:
    """Memory that the peer may write."""

    mr: Any
    region: Region

    def bytes_now(self) -> bytes:
        """What lies there."""
        return bytes(self.mr.read(self.region.len_bytes, 0))


class Session:
    """One authenticated connection and its lane; setup() proves it."""

    def __init__(
        self, sock: socket.socket, device: Device, qp_count: int, uuid: bytes, peer: bytes,
        is_connector: bool,
    ) -> None:  # fmt: skip
        sock.setblocking(False)
        self._sock, self._held = sock, b""
        self.uuid, self.peer = uuid, peer
        self._device = device
        self._is_connector = is_connector
        self.lane = Lane(device, qp_count, is_connector)
        self._beat_at = time.monotonic() + BEAT_S
        self._exposed: dict[int, Exposed] = {}
        self.ring = self.expose(wire.RING_BYTES)
        self.path_in: Path | None = None
        self.is_over = self.has_left = False
        self.heard_ready = self.said_ready = False
        self.round = 0
        self._ready_rounds: set[int] = set()  # the peer may be a round ahead of us
        self._verdicts: dict[int, int] = {}
        self.keys: dict[tuple[int, int, int, int], Words] = {}
        self.asked: list[Words] = []
        self.revoked: list[tuple[int, int]] = []
        self._came: list[collections.deque[int]] = [collections.deque() for _ in self.lane.qps]
        self.messages: collections.deque[int] = collections.deque()
        self._owed = self._tx_messages = self._tx_window = 0
        self.restocked_by_peer = self.restocked_by_us = 0

    # ---- memory ------------------------------------------------------------------------------

    def expose(self, size_bytes: int) -> Exposed:
        """Register memory that the peer may write, and nothing else."""
        mr = MR(self._device.pd, size_bytes, EXPOSED)
        mr.write(bytes([FILL]) * size_bytes, size_bytes)
        index = len(self._exposed) + 1  # 0 names no region
        region = Region(self.uuid, mr.buf, size_bytes, index, 1)
        self._exposed[index] = Exposed(mr, region)
        return self._exposed[index]

    def exposed(self, index: int) -> Exposed:
        """Return what expose() made."""
        return self._exposed[index]

    def _grant(self, get: Words) -> None:
        held = self._exposed.get(get.index)
        self.asked.append(get)
        is_known = get.segment == wire.NO_SEGMENT and held is not None and get.generation == 1
        if held is None or not is_known or get.access == wire.MAY_READ:
            answer = Words(
                wire.WORD_KEY_REFUSED, access=get.access, segment=get.segment, index=get.index,
                generation=get.generation, refusal=1,
            )  # fmt: skip
        else:
            require(get.len_bytes == 0, f"a length in a question: {get}")
            answer = Words(
                wire.WORD_KEY, access=get.access, segment=get.segment, index=get.index,
                generation=get.generation, base=held.mr.buf, len_bytes=held.region.len_bytes,
                rkeys=(held.mr.rkey,),
            )  # fmt: skip
        self._send_words(answer)

    # ---- the side channel --------------------------------------------------------------------

    def _send(self, kind: int, payload: bytes = b"") -> None:
        raw = wire.FRAME_HEAD.pack(kind, 0, len(payload)) + payload
        while raw:
            select.select([], [self._sock], [], WAIT_S)
            raw = raw[self._sock.send(raw) :]

    def _send_words(self, words: Words) -> None:
        self._send(wire.FRAME_LANE_WORDS, words.encode())

    def _read(self) -> None:
        try:
            while not self.is_over:
                got = self._sock.recv(1 << 16)
                self._held += got
                self.is_over = not got
        except BlockingIOError:
            pass
        while len(self._held) >= wire.FRAME_HEAD.size:
            kind, zero, size = wire.FRAME_HEAD.unpack_from(self._held)
            require(zero == 0 and size <= 4096, f"a frame of {kind}, {zero}, {size}")
            if len(self._held) < wire.FRAME_HEAD.size + size:
                break
            payload = self._held[wire.FRAME_HEAD.size :][:size]
            self._held = self._held[wire.FRAME_HEAD.size + size :]
            self._on_frame(kind, payload)
        if self.is_over and not self.has_left:
            raise WireError("the peer closed the side channel without a GOODBYE")

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == wire.FRAME_PATH:
            require(self.path_in is None, "a second PATH")
            self.path_in = Path.decode(payload)
        elif kind == wire.FRAME_LANE_WORDS:
            self._on_words(Words.decode(payload))
        elif kind == wire.FRAME_READY:
            require(not payload and not self.heard_ready, "READY twice, or with a payload")
            self.heard_ready = True
        elif kind == wire.FRAME_REVOKE:
            self._send(wire.FRAME_REVOKED, payload)  # what is sent is acknowledged: send() waits
            gone = struct.unpack("<II", payload)
            self.revoked.append(gone)
            self.keys = {key: words for key, words in self.keys.items() if key[2:] != gone}
        elif kind == wire.FRAME_GOODBYE:
            self.has_left = True
        elif kind == wire.FRAME_DEATH:
            require(len(payload) == 408, f"a DEATH of {len(payload)} bytes")
            require(payload[:16] not in (self.peer, self.uuid), f"DEATH: {wire.text(payload[24:])}")
        elif kind == wire.FRAME_PATH_FAILED:
            raise WireError(f"the peer gives the path up: {wire.text(payload)}")
        else:
            require(kind == wire.FRAME_HEARTBEAT, f"a frame of kind {kind}")

    def _on_words(self, words: Words) -> None:
        key = (words.access, words.segment, words.index, words.generation)
        if words.kind == wire.WORD_KEY_GET:
            self._grant(words)
        elif words.kind in (wire.WORD_KEY, wire.WORD_KEY_REFUSED):
            require(key not in self.keys, f"a key that nobody asked for: {words}")
            self.keys[key] = words
        elif words.kind != wire.WORD_FLAGS:  # leave for flags, of which none are sent
            is_ready = words.kind == wire.WORD_READY  # it may be of the next round
            ahead = words.round - self.round
            require(words.link == 0 and 0 <= ahead <= is_ready, f"out of turn: {words}")
            if is_ready:
                self._ready_rounds.add(words.round)
            else:
                self._verdicts[words.round] = words.kind

    # ---- the loop ----------------------------------------------------------------------------

    def pump(self, until: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
        """Take what comes, and send heartbeats, until something is so."""
        deadline = time.monotonic() + limit_s
        while not until():
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"{what}: not within {limit_s:.0f} s")
            if now >= self._beat_at and not self.has_left:
                self._beat_at = now + BEAT_S
                self._send(wire.FRAME_HEARTBEAT)
            if not self._poll() and not self.is_over:
                select.select([self._sock], [], [], SLICE_S)
            self._read()

    def _poll(self) -> int:
        got = self.lane.poll()
        for index, imm in got:
            self.lane.stock(index)
            if imm & 0xFFFF0000 == wire.NOTIFY_RESTOCKED:
                require(index == 0, f"RESTOCKED on QP {index}")
                self._tx_window += imm & 0xFFFF
                self.restocked_by_peer += 1
                open_now = self._tx_window - self._tx_messages
                require(open_now <= self.lane.peer.window, f"a window of {open_now}")
            else:
                self._came[index].append(imm)
        while all(self._came):
            imms = [came.popleft() for came in self._came]
            require(len(set(imms)) == 1, f"one message, these immediates: {imms}")
            self._deliver(imms[0])
        return len(got)

    def _deliver(self, imm: int) -> None:
        self._owed += 1
        if imm == wire.NOTIFY_PROBE:
            require(not self.said_ready and self.path_in is not None, "a probe out of turn")
            nonce = bytes(self.ring.mr.read(16, 0))
            require(nonce == self.path_in.nonce, "the probe brought another nonce than PATH")
            self.said_ready = True
            self._send(wire.FRAME_READY)
        else:
            self.messages.append(imm)
        if self._owed >= WINDOW // 2:
            here = (self.lane.scratch, 0, 0)
            opcode = e.IBV_WR_RDMA_WRITE_WITH_IMM
            self.lane.post(0, opcode, here, (0, 0), wire.NOTIFY_RESTOCKED | self._owed)
            self._owed = 0
            self.restocked_by_us += 1

    # ---- set-up ------------------------------------------------------------------------------

    def _send_path(self, session_id: bytes, nonce: bytes) -> int:
        payload = Path(session_id, nonce, self.ring.region, self.lane.offer.encode()).encode()
        self._send(wire.FRAME_PATH, payload)
        return wire.FRAME_HEAD.size + len(payload)

    def setup(self, is_deaf: bool = False) -> None:
        """Exchange PATHs, prove the path; a deaf listener hears PATH and READY at once."""
        nonce, session_id = secrets.token_bytes(16), secrets.token_bytes(16)
        if not self._is_connector:
            size = self._send_path(session_id, nonce)
            if is_deaf:
                await_unread(self._sock, size + wire.WORDS_BYTES, WAIT_S)
        self.pump(lambda: self.path_in is not None, "the peer's PATH")
        path = self.path_in
        require(path is not None and path.transport == wire.TRANSPORT_VERBS, "a path of no verbs")
        if self._is_connector:
            session_id = path.session_id
            self._send_path(session_id, nonce)
        require(path.session_id == session_id, "a PATH of another session")
        require(path.ring.owner == self.peer, "a ring that is not the peer's own")
        require(path.ring.len_bytes >= wire.RING_BYTES, f"a ring of {path.ring.len_bytes} bytes")
        peer = Offer.decode(path.offer)
        self._tx_window = peer.window
        self.lane.meet(peer)
        self._prove()
        self.write(path.ring, 0, nonce, wire.NOTIFY_PROBE)
        self.pump(lambda: self.said_ready and self.heard_ready, "READY both ways")

    def _prove(self) -> None:
        """Go through the pairs until both sides have proved one."""
        for number in range(len(self.lane.pairs)):
            self.round = number
            self.lane.raise_qps(number)
            self._send_words(Words(wire.WORD_READY, 0, number))
            self.pump(lambda: number in self._ready_rounds, "the peer's READY")  # noqa: B023
            wr_id = self.lane.post(0, e.IBV_WR_RDMA_WRITE, (self.lane.scratch, 0, 0), (0, 0))
            self.pump(lambda: wr_id in self.lane.done, "the first write's completion")  # noqa: B023
            is_proved = self.lane.done.pop(wr_id)[0] == e.IBV_WC_SUCCESS
            own = wire.WORD_PROVED if is_proved else wire.WORD_FAILED
            self._send_words(Words(own, 0, number))
            self.pump(lambda: number in self._verdicts, "the peer's verdict")  # noqa: B023
            if own == self._verdicts[number] == wire.WORD_PROVED:
                return
        raise WireError("no pair of GIDs was proved")

    # ---- what the witness does to the peer ---------------------------------------------------

    def key_of(self, region: Region, access: int) -> Words:
        """Ask for a key; the answer may be KEY_REFUSED."""
        key = (access, region.segment, region.index, region.generation)
        if key not in self.keys:
            get = Words(wire.WORD_KEY_GET, 0, 0, *key)
            self._send_words(get)
            self.pump(lambda: key in self.keys, f"the answer to {get}")
        return self.keys[key]

    def reach(self, region: Region, off: int, access: int) -> tuple[int, int]:
        """Return address and rkey of a byte of the peer's."""
        words = self.key_of(region, access)
        require(words.kind == wire.WORD_KEY, f"no key: {words}")
        require(len(words.rkeys) == len(self.lane.peer.ports), f"keys for other ports: {words}")
        begin = 0 if region.segment == wire.NO_SEGMENT else region.segment_off
        require(begin + region.len_bytes <= words.len_bytes, f"{region} leaves {words}")
        return words.base + begin + off, words.rkeys[self.lane.peer_port]

    def write(self, region: Region, off: int, data: bytes, imm: int) -> None:
        """Write with a notification, over all QPs, and wait until it is acknowledged."""
        addr, rkey = self.reach(region, off, wire.MAY_WRITE)
        self.pump(lambda: self._tx_messages < self._tx_window, "room in the peer's window")
        self._tx_messages += 1
        source = MR(self._device.pd, max(len(data), 8), e.IBV_ACCESS_LOCAL_WRITE)
        source.write(data, len(data))
        part = -(-len(data) // len(self.lane.qps))
        posted = []
        for index in range(len(self.lane.qps)):
            at = min(index * part, len(data))
            size = min(part, len(data) - at)
            opcode = e.IBV_WR_RDMA_WRITE_WITH_IMM
            target = (addr + at, rkey)
            posted.append(self.lane.post(index, opcode, (source, at, size), target, imm))
        self.pump(lambda: all(wr_id in self.lane.done for wr_id in posted), "completions")
        ends = [self.lane.done.pop(wr_id) for wr_id in posted]
        require(all(end[0] == e.IBV_WC_SUCCESS for end in ends), f"a write ended with {ends}")
        source.close()

    def touch(self, opcode: int, target: tuple[int, int], data: bytes) -> tuple[int, bytes]:
        """Read or write some bytes of the peer's on the first QP; return status and the bytes."""
        local = MR(self._device.pd, len(data), e.IBV_ACCESS_LOCAL_WRITE)
        local.write(data, len(data))
        wr_id = self.lane.post(0, opcode, (local, 0, len(data)), target)
        self.pump(lambda: wr_id in self.lane.done, "the completion of an access")
        got = bytes(local.read(len(data), 0))
        local.close()
        return self.lane.done.pop(wr_id)[0], got

    def leave(self) -> None:
        """Say GOODBYE, wait for the peer's, and release everything."""
        self._send(wire.FRAME_GOODBYE)
        self.pump(lambda: self.has_left, "the peer's GOODBYE")
        self.drop()

    def drop(self) -> None:
        """Be gone without a word."""
        self._sock.close()
        self.lane.close()
        for held in self._exposed.values():
            held.mr.close()
