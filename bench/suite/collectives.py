"""Collectives, and send, of torch.distributed: rdmatensor, Gloo, a backend that does nothing; MPI.

A turn is a set of fresh processes in which the backends alternate (bench/workers/collectives.py);
MPI has a turn of its own, since mpirun starts its processes. Bandwidths are nccl-tests': algbw is
size / time; busbw is algbw times a factor that makes the operations comparable with the speed of
what connects the ranks.

`bench hosts`: ranks with the same digit in the layout share memory; others take each other for
remote (RDMATENSOR_TEST_HOST) and use TCP over loopback. Each algorithm is a name of its own;
"auto" is the library's choice. All ranks share this machine's cores: the work is compared, not a
network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from bench.benchlib import mpi
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import rounds, samples, verbs
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import PLAIN, ROWS, VERBS, Settings

OPERATIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"),
    *("reduce", "gather", "scatter", "send", "barrier"),
)
COPY_FLOOR = "copy floor"
NOTHING = "does nothing"
HOSTS = "hosts"
_LAYOUT = "0011"
_HOSTS_OPERATIONS = ("all_reduce", "broadcast", "barrier")
ALGORITHMS = ("hierarchical", "auto", "messages", "ring", "halving-doubling", "tree")
_VERBS_OPERATIONS = ("all_reduce", "all_gather")
_TURN_PATIENCE_S = 900.0
_BACKENDS = {"floor": "fake", "gloo": "gloo"}  # of a peer
_MPI = "mpi"
# Worker's name -> name in tables, peer, how it waits.
_WHO = {
    RDMATENSOR: (RDMATENSOR, RDMATENSOR, "spins, then sleeps"),
    "gloo": ("gloo", "gloo", "sleeps"),
    "fake": (NOTHING, "floor", "never"),
    "copies": (COPY_FLOOR, "floor", "never"),
    _MPI: ("OpenMPI", _MPI, ""),
}
TIMED = {
    PLAIN: "mean of calls in a row, slowest rank",
    "same": "the same tensors, written and read by the ranks",
    "fresh": "new tensors, written and read by the ranks",
    "arena": "tensors born in the arena, written and read by the ranks",
}


def bus_factor(operation: str, ranks: int) -> float:
    """Return busbw / algbw by nccl-tests' definitions."""
    share = (ranks - 1) / ranks
    factors = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0, "send": 1.0}
    return factors.get(operation, share)


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each backend, operation, size and path."""
    is_short = settings.is_quick or VERBS in settings.transports
    default = (2,) if is_short else (2, 4, 8, 16)
    numbers = default if settings.ranks is None else (settings.ranks,)
    present = [peer.name for peer in peers]
    backends = [RDMATENSOR, *(_BACKENDS[name] for name in present if name in _BACKENDS)]
    turns: list[tuple[str, rounds.Turn]] = []
    for ranks in numbers:
        for transport in settings.transports:
            what = f"{ranks} ranks, {transport}"
            copies = ["copies"] if "floor" in present and transport == "shm" else []
            words = words_of(settings, ranks, is_first=ranks == numbers[0])
            torch = functools.partial(_torch_turn, transport, ranks, backends + copies, words)
            turns.append((what, torch))
            if _MPI in present and transport != VERBS:
                mpi_turn = functools.partial(_mpi_turn, transport, ranks, words)
                turns.append((f"MPI, {what}", mpi_turn))
    if VERBS in settings.transports and verbs.PERFTEST in present:
        turns += verbs.write_turns(settings)
    seconds = settings.seconds_of("collectives")
    found, failed = rounds.take(
        turns, settings.rounds_of(), seconds, progress, is_strict=settings.is_quick
    )
    merged = samples.merge(found)
    return [with_bandwidth({**one, "cores": settings.cores}) for one in merged] + failed


def measure_hosts(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all algorithms, and Gloo, have their turns with the ranks of a layout."""
    layout = settings.layout or _LAYOUT
    backends = [f"{RDMATENSOR}:{name}" for name in ALGORITHMS] + [peer.name for peer in peers]
    words = {"layout": layout, "ranks": len(layout), "backends": backends, "forked": True}
    words |= {"operations": _HOSTS_OPERATIONS, "rounds": 8, "sizes": settings.sizes_of(HOSTS)}

    def turn() -> list[Record]:
        printed = run_ranks("collectives", 1, words, timeout_s=_TURN_PATIENCE_S)
        found = []
        for of_ranks in by_key(printed).values():
            record = record_of(of_ranks, "shm within hosts, tcp between")
            name = text(of_ranks[0], "name").removeprefix(f"{RDMATENSOR}:")
            found.append({**record, "topic": HOSTS, "name": name, "layout": layout})
        return found

    count = settings.rounds or 3
    turns = [(layout, turn)]
    records, failed = rounds.take(turns, count, settings.seconds_of(HOSTS), progress)
    return [with_bandwidth(one) for one in samples.merge(records)] + failed


def words_of(settings: Settings, ranks: int, *, is_first: bool) -> dict[str, Any]:
    """Return the options of all workers of a turn; is_first: of the fewest ranks.

    Rows that were not asked for are measured with those only, and send only of two ranks.
    """
    is_short = settings.is_quick or VERBS in settings.transports
    ways = settings.rows or ((PLAIN, *ROWS) if is_first and not is_short else (PLAIN,))
    known = _VERBS_OPERATIONS if VERBS in settings.transports else OPERATIONS
    operations = [name for name in known if name != "send" or ranks == 2]
    return {
        "ranks": ranks,
        "operations": operations,
        "rows": ways,
        "sizes": settings.sizes_of("collectives"),
        "row_sizes": settings.sizes_of("rows"),
        "rounds": 8 if is_short else 20,
        "seconds": 0.05 if is_short else 0.6,
    }


def with_bandwidth(record: Record) -> Record:
    """Add both bandwidths, in 10^9 bytes a second, and processor time of as many bytes.

    A barrier has none. What the ranks do themselves with their tensors is not part of it.
    """
    if record["op"] == "barrier":
        return record
    moved, ranks = number(record, "moved_bytes"), int(number(record, "ranks"))
    found = dict(record)
    if "call_cpu_ns" in record:
        found["cpu_s_per_gb"] = number(record, "call_cpu_ns") / moved
    taken_ns = net_ns(record)
    if taken_ns > 0:
        factor = bus_factor(text(record, "op"), ranks)
        found["algbw_gb_per_s"] = round(moved / taken_ns, 6)
        found["busbw_gb_per_s"] = round(moved / taken_ns * factor, 6)
    return found


def net_turns(record: Record) -> list[list[float]]:
    """Return each turn's samples without the same loop's median that does not communicate.

    They may be below 0. Each is without that of its own turn, as what slows a turn down slows both.
    """
    is_of_many = "turns" in record  # a turn by itself has only samples
    turns = samples.turns_of(record) if is_of_many else [samples.raw_of(record)]
    loops_ns = [number(record, "loop_ns") if "loop_ns" in record else 0.0] * len(turns)
    if samples.LOOPS in record:
        loops_ns = cast("list[float]", record[samples.LOOPS])
    by_turn = zip(turns, loops_ns, strict=True)
    return [[ns - loop_ns for ns in of_turn] for of_turn, loop_ns in by_turn]


def net_samples(record: Record) -> Sequence[float]:
    """Return the samples of all turns, as net_turns() has them."""
    return [ns for of_turn in net_turns(record) for ns in of_turn]


def net_ns(record: Record) -> float:
    """Return the median of net_samples()."""
    return samples.quantile(net_samples(record), 0.5)


def _torch_turn(
    transport: str, ranks: int, backends: list[str], words: dict[str, Any]
) -> list[Record]:
    is_forked = transport == VERBS  # an emulated machine takes half a minute to import torch
    printed = run_ranks(
        "collectives",
        1 if is_forked else ranks,
        {**words, "forked": is_forked, "backends": backends},
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [record_of(of_ranks, transport) for of_ranks in by_key(printed).values()]


def _mpi_turn(transport: str, ranks: int, words: dict[str, Any]) -> list[Record]:
    options = {**words, "mpi": True}
    printed = mpi.run("collectives", ranks, transport, options, _TURN_PATIENCE_S)
    return [record_of(of_ranks, transport) for of_ranks in by_key(printed).values()]


def by_key(printed: list[Record]) -> dict[tuple[object, ...], list[Record]]:
    """Bring together what the ranks print of the same thing."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in printed:
        key = tuple(record.get(name) for name in ("name", "op", "size", "ranks", "row"))
        found.setdefault(key, []).append(record)
    return found


def record_of(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one thing: each sample is that of the slowest rank, CPU time that of all ranks.

    The tails are of single calls, again of the slowest rank of each.
    """
    first = of_ranks[0]
    name, peer, waits = _WHO[text(first, "name").partition(":")[0]]
    ranks = int(number(first, "ranks"))
    shared = {key: first[key] for key in ("op", "size", "moved_bytes", "row")}
    fields: Record = {
        "topic": "collectives",
        "name": name,
        "peer": peer,
        "transport": transport,
        **shared,
        "ranks": ranks,
        "language": "torch",
        "timed": TIMED[text(first, "row")],
        "waits": waits or mpi.waits(ranks),
        "call_cpu_ns": samples.quantile(over_ranks(of_ranks, "cpu_ns", sum), 0.5),
    }
    loops_ns = over_ranks(of_ranks, "loop_ns", max)
    if loops_ns:
        fields["loop_ns"] = samples.quantile(loops_ns, 0.5)
    each_ns = over_ranks(of_ranks, "each_ns", max)
    return samples.turn(fields, over_ranks(of_ranks, "raw_ns", max), calls_ns=each_ns)


def over_ranks(
    of_ranks: list[Record], name: str, join: Callable[[tuple[int, ...]], int]
) -> list[int]:
    """Return what each round, or call, was for all ranks together."""
    several = (cast("list[int]", one[name]) for one in of_ranks)
    return [join(of) for of in zip(*several, strict=True)]
