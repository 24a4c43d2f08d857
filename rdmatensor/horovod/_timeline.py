"""The timeline of rank 0's operations, as Chrome's trace viewer reads it, in Horovod's phases."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from rdmatensor.horovod._entry import Entry

Event = dict[str, object]


class Timeline:
    """Written by stop(). Costs one comparison for each operation while it is off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        self.is_on = False  # whether operations are written down
        self._marks_cycles = False
        self._begin_us = 0.0
        self._ready_us: dict[tuple[int, str], float] = {}
        self._lines: dict[str, int] = {}
        self._events: list[Event] = []

    def start(self, path: str, *, mark_cycles: bool) -> None:
        """Begin a timeline; one that runs is written before."""
        self.stop()
        with self._lock:
            self._begin_us = time.monotonic() * 1e6
            since_us = int(time.time() * 1e6)
            self._events = [
                {"name": "start_time_since_epoch_in_micros", "ph": "M", "pid": -1, "ts": since_us}
            ]
            self._lines, self._ready_us = {}, {}
            self._marks_cycles = mark_cycles
            self._path = Path(path)
            self.is_on = True

    def stop(self) -> None:
        """End the timeline, and write it."""
        with self._lock:
            path, self._path, self.is_on = self._path, None, False
            events, self._events = self._events, []
        if path is not None:
            path.write_text(json.dumps(events), encoding="utf-8")

    def cycle(self) -> None:
        """Mark that decisions of the coordinator have arrived."""
        if self._path is not None and self._marks_cycles:
            self._add({"name": "CYCLE_START", "ph": "i", "pid": -1, "s": "g"}, time.monotonic())

    def ready(self, entry: Entry) -> None:
        """Mark that all ranks have submitted an operation."""
        if self._path is not None:
            self._ready_us[entry.set_id, entry.name] = time.monotonic() * 1e6

    def done(self, entry: Entry) -> None:
        """Mark the end of an operation."""
        if self._path is None:
            return
        begin_us, end_us = entry.since_s * 1e6, time.monotonic() * 1e6
        ready_us = self._ready_us.pop((entry.set_id, entry.name), None)
        phase = entry.kind.upper()
        if ready_us is not None:
            self._span(entry.name, f"NEGOTIATE_{phase}", begin_us, ready_us)
        self._span(entry.name, phase, begin_us if ready_us is None else ready_us, end_us)

    def _span(self, name: str, phase: str, begin_us: float, end_us: float) -> None:
        with self._lock:
            if name not in self._lines:
                self._lines[name] = len(self._lines)
                title = {"name": name}
                self._events.append(
                    {"name": "process_name", "ph": "M", "pid": self._lines[name], "args": title}
                )
            line = self._lines[name]
        event: Event = {"name": phase, "ph": "X", "pid": line, "dur": end_us - begin_us}
        self._add(event, begin_us / 1e6)

    def _add(self, event: Event, at_s: float) -> None:
        with self._lock:
            event["ts"] = at_s * 1e6 - self._begin_us
            self._events.append(event)
