"""The witness's side of RDMA, by Debian's pyverbs: QPs of one port, raised and used by wire.md."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import Any

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
from witness_wire import Gid, Offer, Port, require

WINDOW = 64  # small: a run passes it several times
RECEIVES = WINDOW + 2  # two of RESTOCKED may be unseen
SENDS = 64
PAIRS_MAX = 4
GIDS_MAX = 6
ROCE_V2 = 2
UNSET = 0xFF
TIMEOUT, RETRY, RNR_RETRY, RNR_TIMER, HOPS = 17, 6, 6, 12, 64
PSN_STEP = 0x100000
PSN_MASK = 0xFFFFFF
PORT = 1
SENT = 1 << 32  # wr_id of what was sent; below it the QP whose receive it was

EXPOSED = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE


class Device:
    """One device, its PD, and what its port offers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.context = Context(name=name)
        self.pd = PD(self.context)
        port, device = self.context.query_port(PORT), self.context.query_device()
        self.mtu, self.lid, self.max_msg_bytes = port.active_mtu, port.lid, port.max_msg_sz
        self.reads_in = min(device.max_qp_rd_atom, 16)
        self.reads_out = min(device.max_qp_init_rd_atom, 16)
        self.gids = sorted(self._gids(), key=_gid_score, reverse=True)[:GIDS_MAX]

    def _gids(self) -> list[Gid]:
        found = []
        for entry in self.context.query_gid_table(256):
            raw = ipaddress.IPv6Address(entry.gid_str()).packed
            if entry.port_num == PORT and any(raw):
                found.append(Gid(raw, entry.gid_type, entry.gid_index))
        return found

    def close(self) -> None:
        """Give the device back."""
        self.pd.close()
        self.context.close()


# ---- Which pair of GIDs --------------------------------------------------------------------------


def _traits(gid: Gid) -> tuple[int, bool, bool]:
    is_mapped = gid.raw[:12] == bytes(10) + b"\xff\xff"
    is_link_local = gid.raw[0] == 0xFE and gid.raw[1] & 0xC0 == 0x80
    return gid.kind, is_mapped, is_link_local


def _gid_score(gid: Gid) -> int:
    kind, is_mapped, is_link_local = _traits(gid)
    score = 64 if kind == ROCE_V2 else 0
    if is_mapped:
        return score + 32
    if gid.raw[0] & 0xFE == 0xFC:
        return score + 8
    return score if is_link_local else score + 16


def _pair_score(a: Gid, b: Gid) -> int:
    if _traits(a) != _traits(b):
        return 0
    _, is_mapped, is_link_local = _traits(a)
    prefix = 15 if is_mapped else 8
    is_one_net = not is_link_local and a.raw[:prefix] == b.raw[:prefix]
    return 1 + (128 if is_one_net else 0) + _gid_score(a) + _gid_score(b)


def list_pairs(own: Port, peer: Port, is_connector: bool) -> list[tuple[int, int]]:
    """Return pairs of indices into the two offers' GIDs, best first, as both sides see them."""
    scored = []
    for i, a in enumerate(own.gids):
        for j, b in enumerate(peer.gids):
            score = _pair_score(a, b)
            if score > 0:
                scored.append((-score, (i, j) if is_connector else (j, i), (i, j)))
    return [pair for _, _, pair in sorted(scored)[:PAIRS_MAX]]


def pick_port(own: Port, peer: Offer, is_connector: bool) -> int:
    """Return the peer's port that our only one is paired with."""
    best = []
    for number, port in enumerate(peer.ports):
        pairs = list_pairs(own, port, is_connector)
        if pairs:
            i, j = pairs[0]
            best.append((-_pair_score(own.gids[i], port.gids[j]), number))
    require(bool(best), "no port of the peer's can be reached from ours")
    return min(best)[1]


# ---- A lane --------------------------------------------------------------------------------------


class Lane:
    """The QPs to one peer, on one link, and their completions."""

    def __init__(self, device: Device, qp_count: int, is_connector: bool) -> None:
        self._device = device
        self._is_connector = is_connector
        self.cq = CQ(device.context, qp_count * (SENDS + RECEIVES))
        self._psns = [secrets.randbits(24) for _ in range(qp_count)]
        cap = QPCap(SENDS, RECEIVES, 1, 1, 0)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.qps = [QP(device.pd, init) for _ in range(qp_count)]
        self.scratch = MR(device.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
        self.own = Port(
            device.name, PORT, 0, device.mtu, device.lid, device.reads_in, device.reads_out,
            device.max_msg_bytes, device.gids,
            [(qp.qp_num, psn) for qp, psn in zip(self.qps, self._psns)],  # noqa: B905
        )  # fmt: skip
        self.offer = Offer([self.own], WINDOW, qp_count)
        self._sent = 0
        self.done: dict[int, tuple[int, int]] = {}  # by wr_id: status, vendor code

    def meet(self, peer: Offer) -> None:
        """Choose the link and its pairs."""
        require(peer.qp_count == len(self.qps), f"{peer.qp_count} QPs, not {len(self.qps)}")
        self.peer = peer
        self.peer_port = pick_port(self.own, peer, self._is_connector)
        self.pairs = list_pairs(self.own, peer.ports[self.peer_port], self._is_connector)

    def raise_qps(self, number: int) -> None:
        """Bring all QPs to RTS by the pair of a round."""
        for index in range(len(self.qps)):
            self._to_init(index)
            for _ in range(RECEIVES):
                self.stock(index)
            self._to_rtr(index, number)
            self._to_rts(index, number)

    def _to_init(self, index: int) -> None:
        self.qps[index].modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        attr = QPAttr(qp_state=e.IBV_QPS_INIT)
        attr.pkey_index, attr.port_num = 0, PORT
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        mask = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS
        self.qps[index].modify(attr, mask)

    def _agreed(self, name: str, otherwise: int) -> int:
        ours, theirs = getattr(self.offer, name), getattr(self.peer, name)
        first, second = (ours, theirs) if self._is_connector else (theirs, ours)
        return next((value for value in (first, second) if value != UNSET), otherwise)

    def _to_rtr(self, index: int, number: int) -> None:
        own_gid, peer_gid = self.pairs[number]
        peer = self.peer.ports[self.peer_port]
        qpn, psn = peer.qps[index]
        dgid = str(ipaddress.IPv6Address(peer.gids[peer_gid].raw).exploded)
        route = GlobalRoute(
            dgid=GID(dgid), sgid_index=self.own.gids[own_gid].index, hop_limit=HOPS,
            traffic_class=self._agreed("traffic_class", 0),
        )  # fmt: skip
        attr = QPAttr(qp_state=e.IBV_QPS_RTR)
        attr.path_mtu = min(self.own.mtu, peer.mtu)
        attr.dest_qp_num, attr.rq_psn = qpn, (psn + number * PSN_STEP) & PSN_MASK
        attr.max_dest_rd_atomic = min(self.own.reads_in, peer.reads_out)
        attr.min_rnr_timer = RNR_TIMER
        attr.ah_attr = AHAttr(
            port_num=PORT, is_global=1, dlid=peer.lid, sl=self._agreed("service_level", 0), gr=route
        )
        mask = e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN
        mask |= e.IBV_QP_RQ_PSN | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER
        self.qps[index].modify(attr, mask)

    def _to_rts(self, index: int, number: int) -> None:
        peer = self.peer.ports[self.peer_port]
        attr = QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.timeout, attr.retry_cnt = (
            self._agreed("timeout", TIMEOUT),
            self._agreed("retry", RETRY),
        )
        attr.rnr_retry = RNR_RETRY
        attr.sq_psn = (self._psns[index] + number * PSN_STEP) & PSN_MASK
        attr.max_rd_atomic = min(self.own.reads_out, peer.reads_in)
        mask = e.IBV_QP_STATE | e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY
        self.qps[index].modify(attr, mask | e.IBV_QP_SQ_PSN | e.IBV_QP_MAX_QP_RD_ATOMIC)

    # ---- work requests ---------------------------------------------------------------------------

    def stock(self, index: int) -> None:
        """Post one receive, for an immediate."""
        # pyverbs wants an SGE with each; nothing is received into it
        sge = SGE(self.scratch.buf, 0, self.scratch.lkey)
        self.qps[index].post_recv(RecvWR(wr_id=index, num_sge=1, sg=[sge]))

    def post(
        self, index: int, opcode: int, source: tuple[Any, int, int], target: tuple[int, int],
        imm: int = 0,
    ) -> int:  # fmt: skip
        """Post one signaled request and return its wr_id; source: MR, offset, length."""
        mr, off, size = source
        self._sent += 1
        wr = SendWR(
            wr_id=SENT + self._sent, opcode=opcode, num_sge=1,
            sg=[SGE(mr.buf + off, size, mr.lkey)], imm_data=socket.htonl(imm),
            send_flags=e.IBV_SEND_SIGNALED,
        )  # fmt: skip
        wr.set_wr_rdma(target[1], target[0])
        self.qps[index].post_send(wr)
        return SENT + self._sent

    def poll(self) -> list[tuple[int, int]]:
        """Take completions; return what was received, as (QP's index, immediate)."""
        _, completions = self.cq.poll(16)
        got = []
        for wc in completions or []:
            if wc.wr_id >= SENT:
                self.done[wc.wr_id] = (wc.status, wc.vendor_err)
            elif wc.status == e.IBV_WC_SUCCESS:
                require(wc.opcode == e.IBV_WC_RECV_RDMA_WITH_IMM, f"a receive of {wc.opcode}")
                require(bool(wc.wc_flags & e.IBV_WC_WITH_IMM), "a receive without an immediate")
                got.append((wc.wr_id, socket.ntohl(wc.imm_data)))
            # else flushed: a round that is over, or an error that its sender reports
        return got

    def close(self) -> None:
        """Destroy the QPs, then what they used."""
        for qp in self.qps:
            qp.close()
        self.scratch.close()
        self.cq.close()
