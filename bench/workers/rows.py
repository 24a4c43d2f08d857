"""How operations are timed: peers in turns, in four ways of using the tensors.

"plain": one set of tensors, which no rank touches between calls, as nccl-tests has it. In the other
ways the ranks write the input and read the output in each iteration, inside what is timed, and the
same loop without the call is timed in the same turn: "same", tensors used again; "fresh", new ones
from torch in each iteration; "arena", used again and allocated in rdmatensor's arena.

A sample is the mean time of `calls` iterations in a row. The clock is read after each of them, some
60 ns, so that tails are those of single calls; the process's own CPU time around all. What each
peer delivers is compared in a pass of its own, first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from bench.workers.operations import Call, Operation

Bind = Callable[[Operation], Call]
PLAIN, SAME, FRESH, ARENA = "plain", "same", "fresh", "arena"
SAMPLE_NS = 2_000_000  # about, where a call is short
MAX_CALLS = 100
# Where ranks share the cores: a sample begins with one rank's turn to run, which not all have at
# once, and should hold many turns of all.
SHARED_FACTOR = 10
MIN_ROUNDS = 3


class Meeting(Protocol):
    """What leads the turns."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def most(self, value: int) -> int:
        """Return the largest of all ranks' values."""


@dataclass(slots=True)
class Samples:
    """Of one peer on one rank. All but loop_ns: per iteration, with communication.

    raw_ns, cpu_ns, loop_ns: of each round, its mean; each_ns: of each iteration. loop_ns: without
    communication.
    """

    raw_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    each_ns: list[int] = field(default_factory=list)
    loop_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Limits:
    """rounds: at most; seconds: after which no further round begins, from the fourth on.

    is_shared: the ranks are more than their cores.
    """

    rounds: int
    seconds: float
    is_shared: bool


def timed(iteration: Call, calls: int) -> tuple[list[int], int]:
    """Nanoseconds of each of `calls` iterations in a row, and CPU nanoseconds of all."""
    now, marks = time.perf_counter_ns, []
    cpu_ns = time.process_time_ns()
    before_ns = now()
    for _ in range(calls):
        iteration()
        marks.append(now())
    cpu_ns = time.process_time_ns() - cpu_ns
    return [after - start for start, after in zip([before_ns, *marks], marks, strict=False)], cpu_ns


def iteration_of(operation: Operation, bind: Bind, way: str, *, is_silent: bool = False) -> Call:
    """Return what is timed; is_silent: the same without communication."""
    if way == PLAIN:
        return bind(operation)
    if way == FRESH:

        def fresh() -> None:
            operation.renew()
            _rewrite(operation, bind(operation), is_silent=is_silent)

        return fresh
    call = bind(operation)
    return lambda: _rewrite(operation, call, is_silent=is_silent)


def _rewrite(operation: Operation, call: Call, *, is_silent: bool) -> None:
    written, read = operation.written, operation.read
    if written is not None:
        written.fill_(1.0)
    if not is_silent:
        call()
    if read is not None:
        torch.sum(read)


def calls_of(iteration: Call, meeting: Meeting, *, is_shared: bool) -> int:
    """Return how many iterations a sample takes, the same on all ranks."""
    if not is_shared:
        each_ns, _ = timed(iteration, 2)
        slowest_ns = meeting.most(min(each_ns))  # the other may have lost its core in one
        return max(1, min(MAX_CALLS, SAMPLE_NS // max(1, slowest_ns)))
    most_calls, calls, is_faster, mean_ns = SHARED_FACTOR * MAX_CALLS, 1, True, 0
    while is_faster and calls < most_calls:  # not all may have had a core before
        calls, before_ns = min(most_calls, 2 * calls), mean_ns
        each_ns, _ = timed(iteration, calls)
        mean_ns = max(1, meeting.most(sum(each_ns) // calls))
        is_faster = before_ns == 0 or mean_ns < 0.9 * before_ns
    return max(1, min(most_calls, SHARED_FACTOR * SAMPLE_NS // mean_ns))


def verify(
    peers: dict[str, Bind], unchecked: set[str], operation: Operation, meeting: Meeting
) -> None:
    """Compare what each peer delivers; leave zeros."""
    for name, bind in peers.items():
        operation.fill()
        meeting.barrier()
        bind(operation)()
        if name not in unchecked and not operation.is_right():
            raise RuntimeError(f"{name}: {operation.name} gave {operation.read}")
    meeting.barrier()
    operation.clear()


def measure(
    peers: dict[str, Bind],
    unchecked: set[str],
    operation: Operation,
    way: str,
    limits: Limits,
    meeting: Meeting,
) -> dict[str, Samples]:
    """Interleaved samples of each peer, after a round that does not count.

    unchecked: those that deliver nothing.
    """
    verify(peers, unchecked, operation, meeting)
    found = {name: Samples() for name in peers}
    calls: dict[str, int] = {}
    for name, bind in peers.items():
        meeting.barrier()
        iteration = iteration_of(operation, bind, way)
        iteration()
        calls[name] = calls_of(iteration, meeting, is_shared=limits.is_shared)
    turns = list(peers.items())
    began_ns = time.perf_counter_ns()
    for number in range(limits.rounds):
        taken_ns = meeting.most(time.perf_counter_ns() - began_ns)
        if number >= MIN_ROUNDS and taken_ns > limits.seconds * 1e9:
            break
        first = number % max(1, len(turns))
        for name, bind in [*turns[first:], *turns[:first]]:
            _turn(found[name], operation, bind, way, calls[name], meeting)
    return found


def _turn(
    into: Samples, operation: Operation, bind: Bind, way: str, calls: int, meeting: Meeting
) -> None:
    """One turn of one peer; a call makes several trips where the operation says so."""
    if way != PLAIN:
        loop = iteration_of(operation, bind, way, is_silent=True)
        meeting.barrier()
        loop()
        each_ns, _ = timed(loop, calls)
        into.loop_ns.append(sum(each_ns) // (calls * operation.trips))
    iteration = iteration_of(operation, bind, way)
    meeting.barrier()
    iteration()
    each_ns, cpu_ns = timed(iteration, calls)
    into.raw_ns.append(sum(each_ns) // (calls * operation.trips))
    into.cpu_ns.append(cpu_ns // (calls * operation.trips))
    into.each_ns += [ns // operation.trips for ns in each_ns]
