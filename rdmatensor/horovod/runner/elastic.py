"""An elastic job: the launcher finds hosts, starts ranks, and publishes a plan for each epoch."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rdmatensor.horovod.runner import hosts
from rdmatensor.horovod.runner.hosts import Host, Slot
from rdmatensor.horovod.runner.launch import (
    Launch,
    Meeting,
    ended_by_signals,
    how_ended,
    say,
    shared_variables,
    threads_of,
)
from rdmatensor.horovod.runner.workers import Worker, Workers, is_local

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_LOOK_S = 1.0  # between runs of the discovery script
_STEP_S = 0.25
_SCRIPT_S = 30.0
# For the launcher to see a rank's death after other ranks saw it, so that one epoch follows.
_SEE_S = 1.0
_FAILED = 1


@dataclass(frozen=True)
class Limits:
    """Numbers of an elastic job. most: None for all slots; cooldown_s: None for never."""

    least: int
    most: int | None
    timeout_s: float
    resets: int | None
    cooldown_s: float | None


def discover_by(script: str, slots: int | None) -> Callable[[], list[Host]]:
    """Return a function that runs a discovery script; it raises ValueError or OSError."""

    def run() -> list[Host]:
        done = subprocess.run(
            script, shell=True, capture_output=True, text=True, timeout=_SCRIPT_S, check=False
        )
        if done.returncode != 0:
            raise ValueError(f"the discovery script failed: {done.stderr.strip()}")
        return hosts.parse_discovered(done.stdout, slots)

    return run


@dataclass
class Elastic:
    """One elastic job."""

    job: Launch
    limits: Limits
    discover: Callable[[], list[Host]]
    is_fixed: bool = False  # the discovery finds the same hosts each time
    _found: list[Host] = field(default_factory=list)
    _order: list[str] = field(default_factory=list)  # of hosts in use, the oldest first
    _excluded: dict[str, float] = field(default_factory=dict)  # until when, by host
    _plan: dict[str, Slot] = field(default_factory=dict)
    _running: dict[str, Worker] = field(default_factory=dict)
    _epoch: int = 0
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _complaint: str = ""
    _short_since_s: float | None = None
    _failed_since_s: float | None = None

    def run(self) -> int:
        """Run it to its end; return the exit status."""
        self._look()
        are_local = self.is_fixed and all(is_local(host.name) for host in self._found)
        self._meeting = meeting = Meeting(is_open=not are_local)
        self._variables = {
            **shared_variables(self.job.variables),
            "HOROVOD_ELASTIC": "1",
            "HOROVOD_ELASTIC_TIMEOUT": f"{self.limits.timeout_s:g}",
        }
        with ended_by_signals(), Workers(self.job.output, self.job.ssh) as self._workers:
            self._store: TCPStore = meeting.serve()
            return self._serve()

    def _serve(self) -> int:
        looked_s = time.monotonic()
        while True:
            is_stale = self._reap()
            if is_stale is None:
                return self._finish()
            if time.monotonic() - looked_s > _LOOK_S:
                self._look()
                looked_s = time.monotonic()
            if problem := self._step(is_stale=is_stale or self._is_failure_old()):
                say(f"{problem}: giving up")
                return _FAILED
            if not self._running:
                time.sleep(_STEP_S)

    def _step(self, *, is_stale: bool) -> str | None:
        """Begin an epoch if it is time; return why the job cannot go on, if it cannot."""
        wanted = self._wanted()
        if wanted is not None and (is_stale or self._places(wanted) != self._places_now()):
            if self.limits.resets is not None and self._epoch > self.limits.resets:
                return f"the ranks changed more than {self.limits.resets} times (--reset-limit)"
            self._publish(wanted)
            self._short_since_s = self._failed_since_s = None
        elif wanted is None and (is_stale or not self._plan):
            if self.is_fixed and self.limits.cooldown_s is None:
                return f"fewer than {self.limits.least} slots are left"
            self._short_since_s = self._short_since_s or time.monotonic()
        since_s = self._short_since_s
        if since_s is not None and time.monotonic() - since_s > self.limits.timeout_s:
            return (
                f"fewer than {self.limits.least} slots for {self.limits.timeout_s:g} s "
                "(--elastic-timeout)"
            )
        return None

    # ---- hosts

    def _look(self) -> None:
        """Run the discovery; what it found last stays if it fails."""
        try:
            self._found = self.discover()
            self._complaint = ""
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                say(self._complaint)

    def _usable(self) -> list[Host]:
        now_s = time.monotonic()
        found = {one.name: one for one in self._found if self._excluded.get(one.name, 0) <= now_s}
        self._order = [name for name in self._order if name in found]
        self._order += [name for name in found if name not in self._order]
        return [found[name] for name in self._order]

    def _wanted(self) -> list[Slot] | None:
        usable = self._usable()
        most = sum(host.slots for host in usable) if self.limits.most is None else self.limits.most
        try:
            return hosts.assign(usable, self.limits.least, max(most, self.limits.least))
        except ValueError:
            return None

    @staticmethod
    def _places(slots: Sequence[Slot]) -> list[tuple[str, int]]:
        return [(slot.host, slot.local_rank) for slot in slots]

    def _places_now(self) -> list[tuple[str, int]]:
        return self._places(sorted(self._plan.values(), key=lambda slot: slot.rank))

    # ---- ranks

    def _reap(self) -> bool | None:
        """Take ranks that have ended: whether the plan is stale; None: a rank is done."""
        is_stale = False
        for worker, code in self._workers.events(_STEP_S):
            del self._running[worker.label]
            slot = self._plan.get(worker.label)
            if slot is None:
                continue  # it has left, as its plan said
            if code == 0:
                return None
            say(f"rank {slot.rank} on {slot.host} {how_ended(code)}; its host is not used again")
            cooldown_s = self.limits.cooldown_s
            self._excluded[slot.host] = time.monotonic() + (
                float("inf") if cooldown_s is None else cooldown_s
            )
            self._order.remove(slot.host)
            is_stale = True
            self._plan = {name: one for name, one in self._plan.items() if one.host != slot.host}
        return is_stale

    def _finish(self) -> int:
        """Wait for the other ranks of the plan, of which one is done."""
        status = 0
        for worker, code in self._workers.events(self.limits.timeout_s):
            slot = self._plan.get(worker.label)
            if code != 0 and slot is not None:
                say(f"rank {slot.rank} on {slot.host} {how_ended(code)} while others were done")
                status = _FAILED
        return status

    def _is_failure_old(self) -> bool:
        """Return whether ranks say that the epoch has failed, and none of them has died since."""
        from rdmatensor.horovod.elastic.worker import key_of_failure

        if self._epoch == 0 or not self._store.check([key_of_failure(self._epoch)]):
            return False
        self._failed_since_s = self._failed_since_s or time.monotonic()
        return time.monotonic() - self._failed_since_s > _SEE_S

    def _publish(self, wanted: Sequence[Slot]) -> None:
        """Begin an epoch: running ranks keep their hosts, missing ones are started."""
        from rdmatensor.horovod.elastic.worker import WORKER, key_of_epoch, key_of_plan

        free: dict[str, list[str]] = {}
        for name, slot in sorted(self._plan.items(), key=lambda item: item[1].rank):
            if name in self._running:
                free.setdefault(slot.host, []).append(name)
        plan: dict[str, Slot] = {}
        new: list[tuple[str, Slot]] = []
        for slot in wanted:
            if free.get(slot.host):
                plan[free[slot.host].pop(0)] = slot
            else:
                new.append((f"{slot.host}.{next(self._numbers)}", slot))
        self._plan = {**plan, **dict(new)}
        self._epoch += 1
        published = {
            name: {
                "rank": slot.rank,
                "size": slot.size,
                "host": slot.host,
                "environment": slot.environment(),
            }
            for name, slot in self._plan.items()
        }
        self._store.set(key_of_plan(self._epoch), json.dumps(published))
        self._store.set(key_of_epoch(), str(self._epoch))
        for name, slot in new:
            variables = {**self._variables, **self._meeting.variables(slot.host), WORKER: name}
            variables.update(**slot.environment(), **threads_of(slot))
            self._running[name] = self._workers.start(name, slot.host, self.job.command, variables)
