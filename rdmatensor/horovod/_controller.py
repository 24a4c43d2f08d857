"""The operations of this rank: submitting them, the coordinator's answers, and the waits.

Three kinds of threads. Callers submit and wait. One thread, the *executor*, handles the records of
the coordinator in their order: it starts the data of operations that are ready. On rank 0 another
one serves the coordinator. In a fast lane, callers start the data themselves, and no record
travels.
"""

# over budget: callers and executor share one lock and one table

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import torch
from torch.distributed import ProcessGroup

from rdmatensor.horovod import _execute, _lane
from rdmatensor.horovod._coordinator import Coordinator, Limits
from rdmatensor.horovod._entry import Entry, Mode, bytes_of
from rdmatensor.horovod._server import Server
from rdmatensor.horovod._timeline import Timeline
from rdmatensor.horovod._wire import Channel, Record
from rdmatensor.horovod.exceptions import HorovodInternalError

_TICK_S = 0.5
_LAST_WORDS_S = 10.0


class Controller:
    """See the module. Made by init(), closed by shutdown()."""

    def __init__(
        self,
        rank: int,
        size: int,
        channel: Channel,
        channels: list[Channel],
        group: ProcessGroup,
        limits: Limits,
        make_group: Callable[[list[int]], ProcessGroup | None],
        break_groups: Callable[[str], None],
    ) -> None:
        self.rank, self.size = rank, size
        self.groups: dict[int, ProcessGroup | None] = {0: group}
        self.ranks: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self.waits = 0  # of this rank's callers, so far
        self.lane_operations = 0
        self.negotiated = 0
        self.failure: str | None = None
        self.timeline = Timeline()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: dict[tuple[int, str], Entry] = {}
        self._lanes: dict[int, _lane.Lane] = {}
        self._epochs: dict[int, int] = {0: 0}
        self._channel, self._limits = channel, limits
        self._make_group, self._break_groups = make_group, break_groups
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, name="hvd executor", daemon=True)]
        if channels:
            serve = Server(channels, Coordinator(size, limits)).run
            self._threads.append(threading.Thread(target=serve, name="hvd rank 0", daemon=True))
        for thread in self._threads:
            thread.start()

    # ---- callers -------------------------------------------------------------------------------

    def submit(self, entry: Entry) -> None:
        """Submit an operation; ValueError if one of its name is in flight."""
        request = None
        with self._lock:
            if self.failure is not None:
                raise HorovodInternalError(self.failure)
            if entry.set_id not in self.groups:
                raise ValueError(f"{entry.name}: its process set was removed")
            key = entry.key
            old = self._pending.get(key)
            if old is not None and not (old.is_done or self._try_finish(old)):
                raise ValueError(
                    f"{entry.name}: an operation of this name is in flight on this rank: wait for "
                    "it, or give another name"
                )
            self._pending[key] = entry
            lane = self._lanes.get(entry.set_id)
            if lane is None:
                self.negotiated += 1
                request = self._request_of(entry)
            elif lane.is_broken or not lane.take(entry):
                lane.queued.append(entry)
                self._break(entry.set_id, lane)
            else:
                self.lane_operations += 1
        if request is not None:
            self._send({"t": "ops", "ops": [request]})

    def submit_pack(
        self, lane: _lane.Lane, index: int, entries: list[Entry], flat: torch.Tensor
    ) -> None:
        """Submit the operations of a pack, which are parts of `flat`; as submit()."""
        set_id = entries[0].set_id
        with self._lock:
            is_free = self._pending.keys().isdisjoint(one.key for one in entries)
            if is_free and self._lanes.get(set_id) is lane and not lane.is_broken:
                self._pending.update((one.key, one) for one in entries)
                if lane.take_pack(index, entries, flat):
                    self.lane_operations += len(entries)
                    return
                for one in entries:
                    del self._pending[one.key]
        for one in entries:
            self.submit(one)

    def lane_of(self, set_id: int) -> _lane.Lane | None:
        """Return the fast lane of a process set, if it is in one."""
        lane = self._lanes.get(set_id)
        return None if lane is None or lane.is_broken else lane

    def _reduce_next(self, single: _lane.Single, output: torch.Tensor) -> bool:
        """Reduce a tensor in place if it is the next in its lane, and wait; False: submit it."""
        lane, entry = single.lane, None
        with self._lock:
            if self._lanes.get(single.set_id) is not lane or not lane.is_next(single):
                return False
            if self.timeline.is_on or (
                self._pending and (single.set_id, single.name) in self._pending
            ):
                return False
            self.waits += 1
            self.lane_operations += 1
            try:
                work = single.reduce(output)
            except RuntimeError as error:
                self._fail(str(error))
                raise HorovodInternalError(self.failure) from None
            if work is None:
                lane.advance()
            else:
                entry = Entry(
                    single.set_id, single.name, "allreduce", [output], [output], single.signature
                )
                self._pending[entry.key] = entry
                lane.note_next(_execute.Run([entry], [work], lane.group.size()))
        if entry is None:
            _execute.finish_outputs([output], single.signature, lane.group.size())
        else:
            self.wait(entry)
        return True

    def wait(self, entry: Entry) -> object:
        """Wait for an operation; return its result."""
        if not entry.is_done:
            self._wait(entry)
        if entry.error is not None:
            raise HorovodInternalError(entry.error)
        return entry.result

    def _wait(self, entry: Entry) -> None:
        self.waits += 1
        while not entry.is_done:
            run = entry.run
            if run is not None and run.position >= 0:
                self._wait_in_lane(run)
                continue
            with self._lock:
                if not (entry.is_done or (entry.run is not None and entry.run.position >= 0)):
                    self._leave_if_held(entry)  # also of a lane that begins meanwhile
                    self._changed.wait()

    def _wait_in_lane(self, run: _execute.Run) -> None:
        try:
            run.wait()
        except RuntimeError as error:
            self._fail(str(error))
            return
        with self._lock:
            self._finish_in_lane(run)

    def _finish_in_lane(self, run: _execute.Run) -> None:
        """Finish a run whose data is there; if members leave the lane, they decide about it."""
        lane = run.lane
        while not (run.is_finished or run.is_void or self.failure):
            if not lane.is_broken or lane.is_resolved:
                self._finish(run)
            else:
                self._changed.wait()

    def poll(self, entry: Entry) -> bool:
        """Return whether wait() would not wait."""
        if entry.is_done:
            return True
        with self._lock:
            if self._try_finish(entry):
                return True
            self._leave_if_held(entry)
        return entry.is_done

    def _try_finish(self, entry: Entry) -> bool:
        run = entry.run
        if run is None or run.position < 0 or not run.is_ready():
            return False
        if run.lane.is_broken and not run.lane.is_resolved:
            return False
        self._wait_in_lane(run)
        return entry.is_done

    def _leave_if_held(self, entry: Entry) -> None:
        """Leave the lane if it holds an operation that is waited for: what it waits for is not."""
        lane = self._lanes.get(entry.set_id)
        if lane is not None and entry.run is None and not entry.is_done:
            self._break(entry.set_id, lane)

    def _finish(self, run: _execute.Run) -> None:
        run.finish()
        for entry in run.entries:
            self._pending.pop(entry.key, None)
            self.timeline.done(entry)
        self._changed.notify_all()

    def _break(self, set_id: int, lane: _lane.Lane) -> None:
        if not lane.is_broken:
            lane.is_broken = True
            self._send({"t": "break", "p": set_id, "e": lane.epoch, "g": lane.started})

    def _request_of(self, entry: Entry) -> Record:
        is_reduced = entry.kind == "allreduce"
        return {
            "p": entry.set_id,
            "e": self._epochs[entry.set_id],
            "n": entry.name,
            "k": entry.kind,
            "s": entry.signature,
            "b": bytes_of(entry.signature) if is_reduced else 0,
            "g": entry.is_gradient,
            "w": self.waits,
            "a": time.monotonic() - entry.since_s,
        }

    def _send(self, record: Record) -> None:
        try:
            self._channel.send(record)
        except OSError as error:
            self._fail(f"rank 0 has died or left: {error}")

    def counters(self) -> dict[str, int]:
        """Return the counts of this rank since init()."""
        return {
            "control_messages": self._channel.sent,
            "negotiated_operations": self.negotiated,
            "lane_operations": self.lane_operations,
            "waits": self.waits,
        }

    # ---- the executor --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_over:
                if self._channel.has_record(_TICK_S):
                    self._handle(self._channel.receive())
                else:
                    self._tick()
        except (EOFError, OSError):
            self._fail("rank 0 has died or left without hvd.shutdown()")
        except Exception as error:
            self._fail(f"rank {self.rank} failed: {type(error).__name__}: {error}")
            raise
        finally:
            with contextlib.suppress(OSError):
                self._channel.close()

    def _handle(self, record: Record) -> None:
        getattr(self, f"_on_{record['t']}")(record)

    def _tick(self) -> None:
        """Leave a lane in which something waits too long: the coordinator then sees for whom."""
        if not self._limits.stall_s:
            return
        before_s = time.monotonic() - self._limits.stall_s
        with self._lock:
            for set_id, lane in self._lanes.items():
                started = [
                    entry for run in lane.runs if not run.is_finished for entry in run.entries
                ]
                if any(entry.since_s < before_s for entry in [*lane.waiting(), *started]):
                    self._break(set_id, lane)

    def _on_do(self, record: Record) -> None:
        set_id, operations = record["p"], record["ops"]
        with self._lock:
            self.timeline.cycle()
            kind = operations[0]["k"]
            entries = [self._pending.get((set_id, one["n"])) for one in operations]
            for entry in entries:
                if entry is not None:
                    self.timeline.ready(entry)
        if kind == "add_process_set":
            self._add_set(operations[0], entries[0])
            return
        if kind == "remove_process_set":
            self._remove_set(operations[0], entries[0])
            return
        with self._lock:
            run = self._start(set_id, operations, entries)
        try:
            run.wait()
        except RuntimeError as error:
            self._fail(str(error))
            return
        with self._lock:
            self._finish(run)

    def _start(
        self, set_id: int, operations: list[Record], entries: list[Entry | None]
    ) -> _execute.Run:
        """Start the data of operations; those without an entry are of ranks that have joined."""
        group = self.groups[set_id]
        assert group is not None, "the coordinator tells members only"
        kind, first = operations[0]["k"], operations[0]
        entry = entries[0]
        if kind == "allreduce":
            parts = [
                one if one is not None else operation["s"]
                for one, operation in zip(entries, operations, strict=True)
            ]
            return self._started(_execute.start_allreduce(group, parts, is_zero=True))
        assert entry is not None, "only an allreduce is possible while ranks have joined"
        if kind == "broadcast":
            root = self.ranks[set_id].index(first["s"]["root"])
            run = _execute.start_broadcast(group, entry, root)
        elif kind == "allgather":
            run = _execute.start_allgather(group, entry, first["x"])
        elif kind == "alltoall":
            run = _execute.start_alltoall(group, entry, first["x"])
        elif kind == "reducescatter":
            run = _execute.start_reducescatter(group, entry)
        else:
            assert kind == "barrier", kind
            run = _execute.Run([entry], [], group.size())
        return self._started(run)

    @staticmethod
    def _started(run: _execute.Run) -> _execute.Run:
        for entry in run.entries:
            entry.run = run
        return run

    def _add_set(self, operation: Record, entry: Entry | None) -> None:
        assert entry is not None, "no rank has joined"
        ranks = operation["s"]["ranks"]
        group = self._make_group(ranks)
        with self._lock:
            set_id = operation["x"]
            self.groups[set_id], self.ranks[set_id] = group, tuple(ranks)
            self._epochs[set_id] = 0
            self._end(entry, set_id)

    def _remove_set(self, operation: Record, entry: Entry | None) -> None:
        assert entry is not None, "no rank has joined"
        with self._lock:
            set_id = operation["x"]
            self._drop_lane(set_id)
            for one in [one for one in self._pending.values() if one.set_id == set_id]:
                self._end(one, None, f"{one.name}: its process set was removed")
            self.ranks.pop(set_id, None)
            self.groups.pop(set_id, None)
            self._end(entry, set_id)

    def _end(self, entry: Entry, result: object, why: str | None = None) -> None:
        """End one operation; under the lock."""
        if why is None:
            entry.finish(result)
        else:
            entry.fail(why)
        self._pending.pop(entry.key, None)
        self.timeline.done(entry)
        self._changed.notify_all()

    def _on_error(self, record: Record) -> None:
        with self._lock:
            entry = self._pending.get((record["p"], record["n"]))
            if entry is not None:
                self._end(entry, None, record["why"])

    def _on_joined(self, record: Record) -> None:
        with self._lock:
            entry = self._pending.get((0, "join"))
            if entry is not None:
                self._end(entry, record["last"])

    # ---- fast lanes ----------------------------------------------------------------------------

    def _on_lock(self, record: Record) -> None:
        set_id = record["p"]
        group = self.groups[set_id]
        assert group is not None, "the coordinator tells members only"
        with self._lock:
            lane = self._lanes[set_id] = _lane.make_lane(group, record)
            _lane.add_singles(set_id, lane, self._reduce_next)
            self._epochs[set_id] = record["e"]
            for entry in self._pending_of(set_id):
                if lane.is_broken or not lane.take(entry):
                    lane.queued.append(entry)
                    self._break(set_id, lane)
            self._changed.notify_all()

    def _pending_of(self, set_id: int) -> list[Entry]:
        """Return the operations that have not started."""
        return [
            entry for entry in self._pending.values() if entry.set_id == set_id and not entry.run
        ]

    def _on_broken(self, record: Record) -> None:
        with self._lock:
            lane = self._lanes.get(record["p"])
            if lane is None or lane.is_broken:
                return  # this rank's own record is the answer
            lane.is_broken = True
            self._send({"t": "at", "p": record["p"], "e": lane.epoch, "g": lane.started})

    def _on_resume(self, record: Record) -> None:
        set_id = record["p"]
        with self._lock:
            lane = self._lanes.get(set_id)
            if lane is None:
                return  # all has failed
            missing = lane.start_missing(record["last"])
            partial = [run for run in lane.runs if run.position >= record["first"]]
        try:
            for run in [*missing, *partial]:
                run.wait()
        except RuntimeError as error:
            self._fail(str(error))
            return
        mode = Mode.CARRY if self.rank == record["carrier"] else Mode.VOID
        with self._lock:
            for run in partial:
                run.is_void = True
                run.unpack()
                for entry in run.entries:
                    entry.run, entry.mode = None, mode
            lane.is_resolved = True
            self._drop_lane(set_id)
            self._epochs[set_id] = record["e"]
            requests = [self._request_of(entry) for entry in self._pending_of(set_id)]
            self.negotiated += len(requests)
            self._changed.notify_all()
        if requests:
            self._send({"t": "ops", "ops": requests})

    # ---- the end -------------------------------------------------------------------------------

    def _on_down(self, record: Record) -> None:
        with self._lock:  # lanes are left: what all have started will end well
            runs = [entry.run for entry in self._pending.values() if entry.run is not None]
        try:
            for run in runs:
                run.wait()
        except RuntimeError as error:
            self._fail(str(error))
        with self._lock:
            for run in runs:
                if not run.is_finished:
                    self._finish(run)
            self.failure = (
                f"hvd.shutdown() was called on rank {record['rank']}: call hvd.init() again"
            )
            self._fail_all(self.failure)
        self._send({"t": "ok"})

    def _on_over(self, _record: Record) -> None:
        self._is_over = True

    def _on_fatal(self, record: Record) -> None:
        self._fail(record["why"])
        self._is_over = True

    def _fail(self, why: str) -> None:
        """End all operations, now and later."""
        with self._lock:
            if self.failure is None:
                self.failure = why
                self._break_groups(why)
                with contextlib.suppress(OSError):
                    self._channel.send({"t": "failed", "why": why})
            self._fail_all(self.failure)

    def _fail_all(self, why: str) -> None:
        for entry in list(self._pending.values()):
            self._end(entry, None, why)
        for set_id in list(self._lanes):
            self._drop_lane(set_id)
        self._changed.notify_all()

    def _drop_lane(self, set_id: int) -> None:
        lane = self._lanes.pop(set_id, None)
        if lane is not None:
            _lane.drop_singles(lane)

    def close(self) -> None:
        """Tell all ranks that this one leaves; wait until they have finished what has started."""
        self._send({"t": "bye"})
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)
        self.timeline.stop()
