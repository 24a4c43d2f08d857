"""The fast lane of a process set: allreduces in an order that all members have agreed on.

An operation that is submitted before its turn waits for it; so does one of the next round. Each
pack of operations is one call of the data path, started by the thread that completes the pack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed import ProcessGroup

from rdmatensor.horovod import _bundle, _execute
from rdmatensor.horovod._entry import Entry, Signature, bytes_of, lane_key_of
from rdmatensor.horovod._wire import Record


@dataclass(slots=True)
class Pack:
    """Operations that are one call of the data path."""

    names: list[str]
    signatures: list[Signature]
    missing: int
    has_bundle: bool
    is_whole: bool  # gradients: all travel in one bundle
    bundle: _bundle.Bundle | None = None
    given: tuple[list[Entry], torch.Tensor] | None = (
        None  # all at once, with the tensor that holds them
    )


@dataclass(slots=True, eq=False)
class Single:
    """A pack of one tensor, and what a call of its name must give to be the same operation."""

    set_id: int
    pack: int
    name: str
    signature: Signature
    dtype: torch.dtype
    shape: torch.Size
    op: int
    prescale: float
    postscale: float
    lane: Lane
    reduce: Callable[[torch.Tensor], Any]  # in place, at once; returns a Work if that takes longer
    reduce_next: Callable[[Single, torch.Tensor], bool] = lambda *_: False  # the controller's


singles: dict[tuple[int, str], Single] = {}  # of all lanes, by set and the name without its kind


@dataclass(slots=True)
class Lane:
    """The lane on this rank; its controller's lock guards it."""

    group: ProcessGroup
    epoch: int
    packs: list[Pack]
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

    def take_pack(self, index: int, entries: list[Entry], flat: torch.Tensor) -> bool:
        """Take all operations of a pack, which are parts of `flat`; False: one by one."""
        turn = self.started % len(self.packs)
        pack = self.packs[index]
        if index < turn or pack.missing < len(pack.names):
            return False
        pack.missing, pack.given = 0, (entries, flat)
        if index == turn:
            self._start()
        return True

    def is_next(self, single: Single) -> bool:
        """Return whether it is the turn of a single tensor's pack, of which nothing is held."""
        return (
            not self.is_broken
            and single.pack == self.started % len(self.packs)
            and self.packs[single.pack].missing == 1
        )

    def note_next(self, run: _execute.Run) -> None:
        """Take note of what a single tensor's pack has started."""
        self._note(run)
        self.advance()

    def advance(self) -> None:
        """Go on after the pack whose turn it was."""
        self.started += 1
        turn = self.started % len(self.packs)
        if turn == 0 and self.early:
            self._begin_round()
        if self.packs[turn].missing == 0:
            self._start()

    def _note(self, run: _execute.Run) -> None:
        run.position, run.lane = self.started, self
        for entry in run.entries:
            entry.run = run
        while self.runs and self.runs[0].is_finished:
            self.runs.popleft()
        self.runs.append(run)

    def _start(self) -> None:
        """Start the packs whose turn it is, as long as they are complete."""
        while True:
            pack = self.packs[self.started % len(self.packs)]
            if pack.missing:
                return
            pack.missing = len(pack.names)
            self._note(self._started(pack))
            self.started += 1
            if self.started % len(self.packs) == 0:
                self._begin_round()

    def _started(self, pack: Pack) -> _execute.Run:
        if pack.given is not None:
            (entries, flat), pack.given = pack.given, None
            return _execute.start_flat(self.group, entries, flat)
        # The bundle is free: an operation is submitted again only after it has ended.
        run = _execute.start_allreduce(
            self.group,
            [self.held.pop(name) for name in pack.names],
            bundle=pack.bundle,
            has_bundle=pack.has_bundle,
            is_whole=pack.is_whole,
        )
        pack.bundle = run.bundle
        return run

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
                    self.group,
                    list(pack.signatures),
                    has_bundle=pack.has_bundle,
                    is_whole=pack.is_whole,
                )
            )
        return runs

    def waiting(self) -> list[Entry]:
        """Return the operations that have not started."""
        given = [one for pack in self.packs if pack.given for one in pack.given[0]]
        return [*self.held.values(), *self.early.values(), *self.queued, *given]


def make_lane(group: ProcessGroup, record: Record) -> Lane:
    """Make the lane of a lock record."""
    packs, places = [], {}
    for index, pack in enumerate(record["packs"]):
        signatures = [one["s"] for one in pack]
        is_whole = bool(pack[0]["g"])
        has_bundle = is_whole or _bundles(signatures)
        names = [one["n"] for one in pack]
        packs.append(Pack(names, signatures, len(pack), has_bundle, is_whole))
        for one in pack:
            places[one["n"]] = (index, lane_key_of(one["s"]))
    return Lane(group, record["e"], packs, places)


def add_singles(
    set_id: int, lane: Lane, reduce_next: Callable[[Single, torch.Tensor], bool]
) -> None:
    """Let calls of a lane's single tensors be found."""
    for index, pack in enumerate(lane.packs):
        name, signature = pack.names[0], pack.signatures[0]
        if len(pack.names) > 1 or len(signature["shapes"]) > 1:
            continue
        singles[set_id, name.removeprefix("allreduce.")] = Single(
            set_id,
            index,
            name,
            signature,
            getattr(torch, signature["dtypes"][0]),
            torch.Size(signature["shapes"][0]),
            signature["op"],
            signature["prescale"],
            signature["postscale"],
            lane,
            _execute.reducer_at_once(lane.group, signature),
            reduce_next,
        )


def drop_singles(lane: Lane) -> None:
    """Forget the single tensors of a lane that has ended."""
    for key in [key for key, one in singles.items() if one.lane is lane]:
        del singles[key]


def _bundles(signatures: list[Signature]) -> bool:
    """Return whether small tensors of a pack travel as one: at least two."""
    each = [bytes_of(signature) for signature in signatures if len(signature["shapes"]) == 1]
    return (
        len(each) == len(signatures)
        and sum(size_bytes <= _bundle.MOST_BYTES for size_bytes in each) > 1
    )
