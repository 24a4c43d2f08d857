"""The fast lane of a process set: allreduces in an order that all members have agreed on.

An operation that is submitted before its turn waits for it; so does one of the next round. Each
pack of operations is one call of the data path, started by the thread that completes the pack.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch.distributed import ProcessGroup

from rdmatensor.horovod import _execute
from rdmatensor.horovod._entry import Entry, Signature, bytes_of, lane_key_of
from rdmatensor.horovod._wire import Record


@dataclass(slots=True)
class _Pack:
    names: list[str]
    signatures: list[Signature]
    missing: int
    has_bundle: bool
    bundle: _execute.Bundle | None = None


@dataclass(slots=True)
class Lane:
    """The lane on this rank; its controller's lock guards it."""

    group: ProcessGroup
    epoch: int
    packs: list[_Pack]
    places: dict[str, tuple[int, tuple[object, ...]]]  # pack, and lane key
    held: dict[str, Entry] = field(default_factory=dict)  # of this round, not started
    early: dict[str, Entry] = field(default_factory=dict)  # of the next round
    queued: list[Entry] = field(default_factory=list)  # submitted since it is broken
    started: int = 0  # packs, over all rounds
    runs: deque[_execute.Run] = field(default_factory=deque)  # not finished, oldest first
    is_broken: bool = False  # nothing starts any more
    is_resolved: bool = False  # members know which runs are void

    def take(self, entry: Entry) -> bool:
        """Take an operation if it is one of the lane's, and start what is complete."""
        place = self.places.get(entry.name)
        if place is None or place[1] != entry.lane_key:
            return False
        index = place[0]
        turn = self.started % len(self.packs)
        if index < turn or entry.name in self.held:
            if entry.name in self.early:
                return False
            self.early[entry.name] = entry
            return True
        self.held[entry.name] = entry
        pack = self.packs[index]
        pack.missing -= 1
        if index == turn and pack.missing == 0:
            self._start()
        return True

    def _start(self) -> None:
        """Start the packs whose turn it is, as long as they are complete."""
        while True:
            pack = self.packs[self.started % len(self.packs)]
            if pack.missing:
                return
            pack.missing = len(pack.names)
            entries = [self.held.pop(name) for name in pack.names]
            # The bundle is free: an operation is submitted again only after it has ended.
            run = _execute.start_allreduce(
                self.group, list(entries), bundle=pack.bundle, has_bundle=pack.has_bundle
            )
            pack.bundle = run.bundle
            run.position, run.lane = self.started, self
            for entry in entries:
                entry.run = run
            while self.runs and self.runs[0].is_finished:
                self.runs.popleft()
            self.runs.append(run)
            self.started += 1
            if self.started % len(self.packs) == 0:
                self._begin_round()

    def _begin_round(self) -> None:
        early, self.early = self.early, {}
        for name, entry in early.items():
            self.held[name] = entry
            self.packs[self.places[name][0]].missing -= 1

    def start_missing(self, last: int) -> list[_execute.Run]:
        """Take part, without a contribution, in the packs that other members have started."""
        runs = []
        for position in range(self.started, last):
            pack = self.packs[position % len(self.packs)]
            runs.append(
                _execute.start_allreduce(
                    self.group, list(pack.signatures), has_bundle=pack.has_bundle
                )
            )
        return runs

    def waiting(self) -> list[Entry]:
        """Return the operations that have not started."""
        return [*self.held.values(), *self.early.values(), *self.queued]


def make_lane(group: ProcessGroup, record: Record) -> Lane:
    """Make the lane of a lock record."""
    packs, places = [], {}
    for index, pack in enumerate(record["packs"]):
        signatures = [one["s"] for one in pack]
        packs.append(_Pack([one["n"] for one in pack], signatures, len(pack), _bundles(signatures)))
        for one in pack:
            places[one["n"]] = (index, lane_key_of(one["s"]))
    return Lane(group, record["e"], packs, places)


def _bundles(signatures: list[Signature]) -> bool:
    """Return whether small tensors of a pack travel as one: at least two."""
    each = [bytes_of(signature) for signature in signatures if len(signature["shapes"]) == 1]
    return (
        len(each) == len(signatures)
        and sum(size_bytes <= _execute.Bundle.MOST_BYTES for size_bytes in each) > 1
    )
