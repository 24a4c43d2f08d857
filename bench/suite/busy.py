"""Collectives, send and training steps on a busy machine: rdmatensor and Gloo.

A turn is a set of fresh processes in which both backends have a loop of each cell, one after the
other, with the same burners (bench/workers/busy.py). A sample is the mean of one loop, so the
samples of a cell are its rounds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number
from bench.suite import rounds, samples
from bench.suite.collectives import OPERATIONS, by_key, over_ranks
from bench.suite.peers import OURS, Peer
from bench.suite.settings import Settings

TOPIC = "busy"
GLOO = "gloo"
DDP, WAIT = "ddp", "wait"
CALLS = (*OPERATIONS, DDP, WAIT)
KINDS = {"spin": "spinning", "nap": "napping", "matmul": "in matmul"}
IDLE = "no burners"
_QUICK_CALLS = ("all_reduce", WAIT)
_BURNERS = (0, 2, 4)
_KINDS = ("spin",)
_RANKS, _QUICK_RANKS = (2, 4), (2,)
_BETWEEN_MS, _QUICK_BETWEEN_MS = (0.0, 2.0), (0.0,)
_ROUNDS, _QUICK_ROUNDS = 5, 3
_LOOP_S = 0.25  # tens of time slices, so that a loop in which ranks wait for a core shows it
_AROUND_S = 0.15  # about, for the barriers and the comparison around a loop
_START_S = 10.0  # about, of a turn's processes and its burners
_SLACK = 3  # a run that takes so many times what was estimated begins no further round
_TURN_PATIENCE_S = 7200.0


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each backend and cell.

    Raises RuntimeError if the options leave nothing to measure.
    """
    numbers = _RANKS if settings.ranks is None else (settings.ranks,)
    if settings.is_quick and settings.ranks is None:
        numbers = _QUICK_RANKS
    backends = [OURS, *(peer.name for peer in peers)]
    turns, estimate_s = [], 0.0
    for ranks in numbers:
        words = words_of(settings, ranks)
        if not words:
            continue
        estimate_s += seconds_of(words, len(backends)) * len(settings.transports)
        for transport in settings.transports:
            what = f"{ranks} ranks, {transport}"
            turn = _Turn(what, ranks, transport, (*words, "--backends", ",".join(backends)))
            turns.append((what, functools.partial(turn.take, progress)))
    if not turns:
        raise RuntimeError("send is of two ranks: --ranks 2")
    count = settings.rounds or (_QUICK_ROUNDS if settings.is_quick else _ROUNDS)
    estimate_s *= count
    sys.stderr.write(f"{TOPIC}: about {estimate_s / 60:.0f} min: {count} rounds\n")
    found, failed = rounds.take(turns, count, _SLACK * estimate_s, progress)
    return [{**one, "cores": settings.cores} for one in samples.merge(found)] + failed


def words_of(settings: Settings, ranks: int) -> tuple[str, ...]:
    """Return the options of a turn's workers; none for only a send, which is of two ranks."""
    default = _QUICK_CALLS if settings.is_quick else CALLS
    calls = [name for name in settings.calls or default if name != "send" or ranks == 2]
    if not calls:
        return ()
    between_ms = settings.between_ms or (_QUICK_BETWEEN_MS if settings.is_quick else _BETWEEN_MS)
    loads = [
        f"{kind}:{count}"
        for count in settings.burners or _BURNERS
        for kind in ((settings.kinds or _KINDS) if count else ("none",))
    ]
    return (
        *("--ranks", str(ranks), "--calls", ",".join(calls), "--loads", ",".join(loads)),
        *("--sizes", ",".join(map(str, settings.sizes_of(TOPIC)))),
        *("--between-ms", ",".join(f"{time:g}" for time in between_ms)),
        *("--seconds", str(_LOOP_S)),
    )


def seconds_of(words: Sequence[str], backends: int) -> float:
    """Return about how long a turn with these options takes."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    calls = options["--calls"].split(",")
    loads, sizes, between = (
        len(options[name].split(",")) for name in ("--loads", "--sizes", "--between-ms")
    )
    alone = sum(name in (DDP, WAIT) for name in calls)
    barriers = calls.count("barrier")
    cells = alone + between * (barriers + sizes * (len(calls) - alone - barriers))
    return _START_S + loads * cells * backends * (_LOOP_S + _AROUND_S)


class _Turn:
    """Fresh processes of one number of ranks and one path; each turn is another round."""

    def __init__(self, what: str, ranks: int, transport: str, words: Sequence[str]) -> None:
        self._what, self._ranks, self._transport, self._words = what, ranks, transport, words
        self._round = 0

    def take(self, progress: rounds.Progress) -> list[Record]:
        progress.say(f"round {self._round + 1}: {self._what}", is_round=True)
        printed = run_ranks(
            TOPIC,
            self._ranks,
            *self._words,
            *("--round", str(self._round)),
            environment={"RDMATENSOR_TRANSPORT": self._transport},
            timeout_s=_TURN_PATIENCE_S,
        )
        self._round += 1
        return [record_of(of_ranks, self._transport) for of_ranks in by_key(printed).values()]


def record_of(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one cell: times of the slowest rank, processor time of all ranks together.

    Of a wait that is the processor time of the rank that used most: each waits for itself.
    """
    first = of_ranks[0]
    join = max if first["op"] == WAIT else sum
    middle = {
        name: samples.quantile(over_ranks(of_ranks, name, max), 0.5)
        for name in ("p50_ns", "p99_ns")
    }
    shared = ("contestant", "op", "size", "moved_bytes", "ranks", "kind", "burners", "between_ms")
    fields: Record = {
        "topic": TOPIC,
        "peer": first["contestant"],
        "transport": transport,
        "language": "torch",
        "timed": timed_of(first),
        **{name: first[name] for name in shared},
        **middle,
        "call_cpu_ns": samples.quantile(over_ranks(of_ranks, "cpu_ns", join), 0.5),
    }
    calls = {"samples": min(over_ranks(of_ranks, "calls", min))}
    record = samples.turn(fields, over_ranks(of_ranks, "raw_ns", max))
    return {**record, **calls}


def timed_of(record: Record) -> str:
    """Return what else used the cores: burners, and the ranks' computing between calls."""
    count, between_ms = int(number(record, "burners")), number(record, "between_ms")
    burners = f"{count} {KINDS[str(record['kind'])]}" if count else IDLE
    return f"{burners}, {between_ms:g} ms between" if between_ms else burners
