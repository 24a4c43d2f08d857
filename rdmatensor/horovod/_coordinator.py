"""What rank 0 decides for all: which operations are ready, in which order, and which fail.

A state machine without threads and without sockets: records of ranks go in, records for ranks come
out. Each process set has a table of operations by name. An operation is ready when all members of
its set have requested it; then all members execute it, in the order in which they became ready.

When the same allreduces have been executed in two successive rounds, the set gets a *fast lane*:
their order is fixed, and members execute them without requests. A member that needs anything else
leaves the lane, which all members then do: each reports how far it has come, and gets the positions
between which the members differ. The table starts again with an epoch that requests carry, so that
requests from before are recognised.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from rdmatensor.horovod._entry import OP_NAMES, Signature, bytes_of, must_agree
from rdmatensor.horovod._wire import Record

_SETTLE_S = 0.4  # for all members to request again what was in a fast lane

log = logging.getLogger("rdmatensor.horovod")


@dataclass(slots=True)
class Limits:
    """Settings of the job, from HOROVOD_* variables of rank 0."""

    fusion_bytes: int = 128 << 20
    lane_bytes: int = 4 << 20  # of a pack of the fast lane
    bucket_bytes: int = 25 << 20  # of one of gradients, as DistributedDataParallel has them
    first_bucket_bytes: int = 1 << 20  # so that sums begin early
    stall_s: float = 60.0  # 0: no check
    stall_shutdown_s: float = 1800.0


@dataclass(slots=True)
class _Wanted:
    """An operation that some members have requested."""

    kind: str
    since_s: float
    seen_s: float  # since_s may be before: the operation was in a fast lane
    requests: dict[int, Record] = field(default_factory=dict)
    is_reported: bool = False


@dataclass(slots=True)
class _Done:
    """An operation of the current round."""

    signature: Signature
    waits: dict[int, int]  # how often each member had waited when it requested it
    is_gradient: bool  # of an optimizer, on all members


@dataclass(slots=True)
class _Set:
    ranks: tuple[int, ...]
    table: dict[str, _Wanted] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)  # in the order of their calls
    epoch: int = 0
    round: dict[str, _Done] = field(default_factory=dict)
    round_before: dict[str, _Done] = field(default_factory=dict)
    has_lane: bool = False
    positions: dict[int, int] | None = None  # of the members, while they leave the lane


class Coordinator:
    """The decisions; see the module."""

    def __init__(self, size: int, limits: Limits) -> None:
        self._limits = limits
        self._size = size
        self._sets = {0: _Set(tuple(range(size)))}
        self._next_set = 1
        self._out: list[tuple[int, Record]] = []
        self._ready: list[tuple[int, str]] = []
        self._left_by: int | None = None  # the rank that called shutdown()
        self._agreed: set[int] | None = None
        self.is_over = False

    # ---- records in ----------------------------------------------------------------------------

    def feed(self, rank: int, record: Record, now_s: float) -> None:
        """Take a record of a rank."""
        kind = record["t"]
        if kind == "ops":
            for one in record["ops"]:
                self._request(rank, one, now_s)
        elif kind in ("break", "at"):
            self._position(rank, record)
        elif kind == "failed":
            if not self.is_over:
                self.fail(record["why"])
        elif kind == "bye":
            self._begin_end(rank)
        elif kind == "ok":
            self._end_agreed(rank)

    def gone(self, rank: int) -> None:
        """A rank's connection has ended."""
        if not self.is_over:
            self.fail(f"rank {rank} has died or left without hvd.shutdown()", rank)

    def fail(self, why: str, rank: int | None = None) -> None:
        """End the job's operations on all ranks."""
        self._out += [
            (one, {"t": "fatal", "why": why, "rank": rank})
            for one in range(self._size)
            if one != rank
        ]
        self.is_over = True

    def flush(self) -> list[tuple[int, Record]]:
        """Return the records to send, each with its rank; called when no record is waiting."""
        self._flush_ready()
        out, self._out = self._out, []
        return out

    # ---- requests ------------------------------------------------------------------------------

    def _request(self, rank: int, request: Record, now_s: float) -> None:
        found = self._sets.get(request["p"])
        if found is None or self._left_by is not None or self.is_over:
            return  # the set was removed, or all end
        if request["e"] != found.epoch:
            return  # its rank has taken it into a lane, or requests it again
        name = request["n"]
        if request["k"] == "join":
            self._join(found, rank)
            return
        wanted = found.table.setdefault(name, _Wanted(request["k"], now_s, now_s))
        wanted.since_s = min(wanted.since_s, now_s - request["a"])
        wanted.requests[rank] = request
        self._check(request["p"], name)

    def _join(self, found: _Set, rank: int) -> None:
        found.joined.append(rank)
        found.round_before, found.round = {}, {}
        if len(found.joined) == len(found.ranks):
            self._flush_ready()
            self._tell(found, {"t": "joined", "last": rank})
            found.joined = []
            return
        for name in list(found.table):
            self._check(0, name)

    def _check(self, set_id: int, name: str) -> None:
        """Put an operation among those that are ready, if it is."""
        found = self._sets[set_id]
        wanted = found.table[name]
        if wanted.kind != "allreduce" and set(found.joined) - set(wanted.requests):
            del found.table[name]
            why = (
                f"{name}: {wanted.kind} is not possible while ranks {sorted(found.joined)} have "
                "joined: only allreduce is"
            )
            error = {"t": "error", "p": set_id, "n": name, "why": why}
            self._out += [(rank, error) for rank in wanted.requests]
        elif len(wanted.requests) + len(set(found.joined) - set(wanted.requests)) == len(
            found.ranks
        ):
            self._ready.append((set_id, name))

    # ---- decisions -----------------------------------------------------------------------------

    def _flush_ready(self) -> None:
        ready, self._ready = self._ready, []
        group: list[Record] = []
        for set_id, name in ready:
            found = self._sets.get(set_id)
            if found is None or name not in found.table:
                continue  # executed, or taken into a lane
            if name in found.round and self._ends_round(found):
                group = self._send_group(group)
                self._lock(set_id, found)
                continue
            wanted = found.table.pop(name)
            why = self._fault(name, wanted)
            if why:
                group = self._send_group(group)
                self._tell(found, {"t": "error", "p": set_id, "n": name, "why": why})
                continue
            operation = self._operation(set_id, name, found, wanted)
            if group and not self._fits(group, operation):
                group = self._send_group(group)
            group.append(operation)
        self._send_group(group)

    def _send_group(self, group: list[Record]) -> list[Record]:
        if group:
            found = self._sets[group[0]["p"]]
            self._tell(found, {"t": "do", "p": group[0]["p"], "ops": group})
            if group[0]["k"] == "remove_process_set":
                del self._sets[group[0]["x"]]
        return []

    def _fits(self, group: list[Record], operation: Record) -> bool:
        first = group[0]
        size_bytes = sum(one["bytes"] for one in [*group, operation])
        return (
            first["k"] == operation["k"] == "allreduce"
            and first["p"] == operation["p"]
            and _can_share(first["s"], operation["s"])
            and size_bytes <= self._limits.fusion_bytes
        )

    def _operation(self, set_id: int, name: str, found: _Set, wanted: _Wanted) -> Record:
        requests = wanted.requests
        first = next(iter(requests.values()))
        operation: Record = {"p": set_id, "n": name, "k": wanted.kind, "s": first["s"]}
        operation["bytes"] = first["b"]
        if wanted.kind == "allgather":
            shapes = [requests[rank]["s"]["shapes"] for rank in found.ranks]
            operation["x"] = [[shape[i][0] for shape in shapes] for i in range(len(shapes[0]))]
        elif wanted.kind == "alltoall":
            operation["x"] = [requests[rank]["s"]["splits"] for rank in found.ranks]
        elif wanted.kind == "add_process_set":
            operation["x"] = self._next_set
            self._sets[self._next_set] = _Set(tuple(first["s"]["ranks"]))
            self._next_set += 1
        elif wanted.kind == "remove_process_set":
            operation["x"] = first["s"]["id"]
        self._note(found, name, wanted)
        return operation

    def _fault(self, name: str, wanted: _Wanted) -> str:
        """Return how the members disagree, or nothing."""
        kinds = {request["k"] for request in wanted.requests.values()}
        if len(kinds) > 1:
            return f"{name}: ranks submit different operations: {sorted(kinds)}"
        ranks = sorted(wanted.requests)
        parts = [must_agree(wanted.kind, wanted.requests[rank]["s"]) for rank in ranks]
        for rank, part in zip(ranks, parts, strict=True):
            for label, value in part.items():
                if value != parts[0][label]:
                    return (
                        f"{name}: ranks disagree on {label}: {_shown(label, parts[0][label])} on "
                        f"rank {ranks[0]}, {_shown(label, value)} on rank {rank}"
                    )
        return ""

    # ---- the fast lane -------------------------------------------------------------------------

    def _note(self, found: _Set, name: str, wanted: _Wanted) -> None:
        """Take an operation into the set's current round."""
        requests = wanted.requests
        if wanted.kind != "allreduce" or found.joined:
            found.round_before, found.round = {}, {}
            return
        waits = {rank: request["w"] for rank, request in requests.items()}
        is_gradient = all(request["g"] for request in requests.values())
        found.round[name] = _Done(next(iter(requests.values()))["s"], waits, is_gradient)

    def _ends_round(self, found: _Set) -> bool:
        """Return whether the round is the last one again, and nothing else is wanted."""
        one, other = found.round, found.round_before
        repeats = one.keys() == other.keys() and all(
            one[name].signature == other[name].signature for name in one
        )
        found.round_before, found.round = found.round, {}
        return repeats and found.table.keys() <= found.round_before.keys() and not found.joined

    def _lock(self, set_id: int, found: _Set) -> None:
        packs: list[list[Record]] = []
        last: _Done | None = None
        size_bytes, gradient_packs = 0, 0
        for name, done in found.round_before.items():
            own_bytes = bytes_of(done.signature)
            limit_bytes = self._limits.lane_bytes
            if done.is_gradient:
                first, later = self._limits.first_bucket_bytes, self._limits.bucket_bytes
                limit_bytes = first if gradient_packs < 2 else later
            is_next = (
                last is not None
                and last.waits == done.waits
                and last.is_gradient == done.is_gradient
                and _can_share(last.signature, done.signature)
                and size_bytes + own_bytes <= limit_bytes
            )
            if not is_next:
                packs.append([])
                size_bytes = 0
                gradient_packs += done.is_gradient
            packs[-1].append({"n": name, "s": done.signature, "g": done.is_gradient})
            size_bytes += own_bytes
            last = done
        found.table, found.round, found.round_before = {}, {}, {}
        found.has_lane, found.positions = True, None
        found.epoch += 1
        self._tell(found, {"t": "lock", "p": set_id, "e": found.epoch, "packs": packs})

    def _position(self, rank: int, record: Record) -> None:
        found = self._sets.get(record["p"])
        if found is None or not found.has_lane or record["e"] != found.epoch:
            return
        if found.positions is None:
            self._leave_lane(record["p"], found)
        assert found.positions is not None
        found.positions[rank] = record["g"]
        if len(found.positions) < len(found.ranks):
            return
        last = max(found.positions.values())
        found.epoch += 1
        found.has_lane = False
        self._tell(
            found,
            {
                "t": "resume",
                "p": record["p"],
                "e": found.epoch,
                "first": min(found.positions.values()),
                "last": last,
                "carrier": min(one for one, at in found.positions.items() if at == last),
            },
        )
        found.positions = None
        self._end_if_left()

    def _leave_lane(self, set_id: int, found: _Set) -> None:
        found.positions = {}
        self._tell(found, {"t": "broken", "p": set_id, "e": found.epoch})

    # ---- the end -------------------------------------------------------------------------------

    def _begin_end(self, rank: int) -> None:
        if self._left_by is not None or self.is_over:
            return
        self._flush_ready()
        self._left_by = rank
        for set_id, found in self._sets.items():
            if found.has_lane and found.positions is None:
                self._leave_lane(set_id, found)
        self._end_if_left()

    def _end_if_left(self) -> None:
        if self._left_by is None or self._agreed is not None:
            return
        if any(found.has_lane for found in self._sets.values()):
            return
        self._agreed = set()
        self._tell(self._sets[0], {"t": "down", "rank": self._left_by})

    def _end_agreed(self, rank: int) -> None:
        if self._agreed is None:
            return
        self._agreed.add(rank)
        if len(self._agreed) == self._size:
            self._tell(self._sets[0], {"t": "over"})
            self.is_over = True

    # ---- stalls --------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Report what has waited too long for some ranks."""
        limits = self._limits
        if self.is_over or self._left_by is not None:
            return
        for found in self._sets.values():
            for name, wanted in found.table.items():
                waited_s = now_s - wanted.since_s
                if now_s - wanted.seen_s < _SETTLE_S:
                    continue
                if limits.stall_shutdown_s and waited_s > limits.stall_shutdown_s:
                    self.fail(f"{self._stall(found, name, wanted, waited_s)}; giving up")
                    return
                if limits.stall_s and waited_s > limits.stall_s and not wanted.is_reported:
                    wanted.is_reported = True
                    log.warning("%s", self._stall(found, name, wanted, waited_s))

    def _stall(self, found: _Set, name: str, wanted: _Wanted, waited_s: float) -> str:
        there = sorted(wanted.requests)
        missing = [one for one in found.ranks if one not in wanted.requests]
        return (
            f"stalled: {name} was submitted by ranks {there} and not by ranks {missing} for "
            f"{waited_s:.0f} s; all ranks of a process set must submit the same names"
        )

    def _tell(self, found: _Set, record: Record) -> None:
        self._out += [(rank, record) for rank in found.ranks]


def _can_share(one: Signature, other: Signature) -> bool:
    """Return whether two allreduces can be one call: a second factor decides who divides."""
    return (
        one["op"] == other["op"]
        and one["postscale"] == other["postscale"]
        and len({*one["dtypes"], *other["dtypes"]}) == 1
    )


def _shown(label: str, value: object) -> object:
    return OP_NAMES[value] if label == "op" and isinstance(value, int) else value


def set_ranks(ranks: Sequence[int]) -> str:
    """Return the name under which members agree on a process set."""
    return ",".join(str(rank) for rank in ranks)
