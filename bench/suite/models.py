"""Training steps of the paper's six models, beside who else could move the gradients.

A round has each model once: all contestants, in fresh processes, which stand side by side where
there is memory for them and take blocks of a few steps in turns (bench/workers/models.py). Each
block is a turn of samples. What does not go over our transports runs once and counts beside each of
them. What a step takes beyond the same step without communication is exposed to it (of a
step by a plan, one whose gradients lie in their places too, which is faster than new memory for
each); with as many ranks as cores nothing hides, so processor time stands beside.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from bench.benchlib import rig
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import breakdown, convergence, copies, exposure, rounds, samples
from bench.suite.peers import COPIES, OURS, Peer
from bench.suite.settings import Settings

OF_THE_PAPER = ("alexnet", "inception_v3", "vgg16", "lstm", "gru", "fcn5")
NAMES = (*OF_THE_PAPER, "layers")  # the last one where it is named: a bucket for each layer
QUICK_NAMES = ("lstm", "fcn5")  # where other topics want their time too
QUICK_DIVISOR = 4  # of all widths: about a sixteenth of the parameters
_RANKS = 2
# Of a contestant's turns: their steps, and how many there are in a round.
_QUICK_STEPS, _FULL_STEPS = 2, 3
_QUICK_BLOCKS, _FULL_BLOCKS = 3, 3
_TURN_PATIENCE_S = 1800.0
# Of all processes: processor time of a step; memory that they hold for it (Pss), and what of that
# lies in our arenas.
_SPENT = ("cpu_ns", "memory_bytes", "arena_bytes")
PLANNED = "planned"
FLOOR = "no communication"
PLANNED_FLOOR = "no communication, planned"
# The worker's name -> ours in tables; in this order.
CONTESTANTS = {
    "planned": PLANNED,
    "adopted": "DDP",
    "copied": "DDP, not adopted",
    "variant": "copy variant",
    "gloo": "DDP on Gloo",
    "grpc_cpp": "server over gRPC, C++",
    "grpc": "server over gRPC, Python",
    "floor": FLOOR,
    "planned_floor": PLANNED_FLOOR,
}
FLOORS = (FLOOR, PLANNED_FLOOR)
# Those whose gradients lie where a plan has them.
_BY_A_PLAN = (PLANNED,)
_PEERS = {
    "variant": COPIES,
    "gloo": "gloo",
    "grpc_cpp": "grpc-cpp",
    "grpc": "grpc-python",
    "floor": "floor",
    "planned_floor": "floor",
}
# What does not go over our transports.
_WITHOUT_PATH = ("gloo", "grpc_cpp", "grpc", "floor", "planned_floor")


def names_of(settings: Settings) -> tuple[str, ...]:
    """Return the models to be measured."""
    if settings.models:
        return settings.models
    is_alone = settings.topics == ("models",)
    return OF_THE_PAPER if is_alone or not settings.is_quick else QUICK_NAMES


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each model, contestant and path."""
    present = {peer.name for peer in peers}
    if rig.hosts() == 2:
        from bench.suite import rig_models

        return rig_models.measure(settings, present, progress)
    refused = refusals(settings, present)
    present -= {text(record, "peer") for record in refused}
    with tempfile.TemporaryDirectory(prefix="rdt-bench-models-") as kept:
        turns = [
            (name, functools.partial(_turn, settings, name, present, kept, itertools.count()))
            for name in names_of(settings)
        ]
        seconds = settings.seconds_of("models")
        found, failed = rounds.take(
            turns, settings.rounds_of(), seconds, progress, is_strict=settings.is_quick
        )
    broken = [failure_of(record) for record in found if "failed" in record]
    measured = [record for record in found if "failed" not in record]
    once = {text(record, "peer"): record for record in broken}
    curves = _curves(settings, present, progress) if settings.converge else []
    beside: list[Record] = []
    if _has_rates(settings, present):
        beside = copies.measure(settings, peers, progress, seconds / 4)
    steps = with_shares(merge(measured)) + list(once.values())
    return steps + failed + refused + curves + beside


def _has_rates(settings: Settings, present: set[str]) -> bool:
    """Whether there is time for the copy variant's rate beside UCX's, and both are there."""
    has_time = not settings.is_quick or settings.topics == ("models",)
    has_cores = settings.cores >= 2  # one for each side
    return has_time and has_cores and {COPIES, "ucx"} <= present


def _curves(settings: Settings, present: set[str], progress: rounds.Progress) -> list[Record]:
    turns = [
        (who, path)
        for who, path in worker_turns(settings.transports, present)
        if who in convergence.CONTESTANTS
    ]
    names = {who: (CONTESTANTS[who], _PEERS.get(who, OURS)) for who, _ in turns}
    divisor = QUICK_DIVISOR if settings.is_quick else 1
    return convergence.measure(settings, turns, names, divisor, progress)


def refusals(settings: Settings, present: set[str]) -> list[Record]:
    """Return a record for each peer whose row would not be fair, and why."""
    if COPIES not in present or (settings.ranks or _RANKS) <= 2:
        return []
    why = "each of its ranks sends all to every other: of more than two that is more than ours do"
    return [{"topic": "models", "peer": COPIES, "missing": why, "get": ""}]


def worker_turns(transports: Sequence[str], present: set[str]) -> list[tuple[str, str]]:
    """Return contestants and transports of one turn; none for those that have no choice."""
    return [
        (contestant, transport)
        for contestant in CONTESTANTS
        if contestant not in _PEERS or _PEERS[contestant] in present
        for transport in (("",) if contestant in _WITHOUT_PATH else transports)
    ]


def rotated(turns: list[tuple[str, str]], number: int) -> list[tuple[str, str]]:
    """Let another contestant begin each turn: who is first, or after whom, should not count."""
    first = number % len(turns)
    return [*turns[first:], *turns[:first]]


def _turn(
    settings: Settings, name: str, present: set[str], kept: str, numbers: Iterator[int]
) -> list[Record]:
    ranks = settings.ranks or _RANKS
    divisor = QUICK_DIVISOR if settings.is_quick else 1
    start = next(numbers)
    chosen = rotated(worker_turns(settings.transports, present), start)
    about, *printed = run_ranks(
        "models",
        1,
        *("--model", name),
        *("--divisor", str(divisor)),
        *("--ranks", str(ranks)),
        *("--steps", str(_QUICK_STEPS if settings.is_quick else _FULL_STEPS)),
        *("--blocks", str(_QUICK_BLOCKS if settings.is_quick else _FULL_BLOCKS)),
        *("--kept", str(Path(kept))),
        *("--turns", ",".join(f"{contestant}:{transport}" for contestant, transport in chosen)),
        timeout_s=_TURN_PATIENCE_S,
    )
    return [
        record
        for one in printed
        for transport in ([text(one, "transport")] if one["transport"] else settings.transports)
        for record in (
            [{**one, "model": name}]
            if "failed" in one
            else records_of(one, about, transport, start)
        )
    ]


def failure_of(printed: Record) -> Record:
    """Return the record of a contestant that failed; the others of its turn went on."""
    who = f"{CONTESTANTS[text(printed, 'contestant')]}, {printed['model']}"
    missing = f"{rounds.FAILED} {printed['failed']}"
    return {"topic": "models", "peer": who, "missing": missing, "get": ""}


def records_of(printed: Record, about: Record, transport: str, start: int) -> list[Record]:
    """Return the turns of one contestant; about: what the worker says of the model.

    start: which of the processes' starts they belong to.
    """
    contestant = text(printed, "contestant")
    fields: Record = {
        "topic": "models",
        "contestant": CONTESTANTS[contestant],
        "peer": _PEERS.get(contestant, OURS),
        "transport": transport,
        "op": about["model"],
        "size": about["parameter_bytes"],
        "ranks": about["ranks"],
        "language": "torch",
        "timed": f"a step of {about['batch']} a rank, slowest rank",
        "divisor": about["divisor"],
        **({"distance": printed["distance"]} if "distance" in printed else {}),
        **({"parts": printed["parts"]} if printed.get("parts") else {}),
    }
    spent = {name: printed[name] for name in _SPENT}
    blocks = cast("list[list[int]]", printed["blocks_ns"])
    shared: Record = {"start": start, "beside": printed["beside"]}
    if printed["choice"]:
        shared["choice"] = printed["choice"]
    return [{**samples.turn(fields, one), **spent, **shared} for one in blocks]


def merge(found: Sequence[Record]) -> list[Record]:
    """As samples.merge(); of processor time, memory and parts, the median of the turns."""
    turns: dict[tuple[object, ...], list[Record]] = {}
    for record in found:
        turns.setdefault(samples.key_of(record), []).append(record)
    return [
        {
            **record,
            **{
                name: samples.quantile([number(one, name) for one in of_key], 0.5)
                for name in _SPENT
            },
            **({"parts": breakdown.merged(of_key)} if "parts" in record else {}),
        }
        for record in samples.merge(found)
        for of_key in [turns[samples.key_of(record)]]
    ]


def with_shares(records: Sequence[Record]) -> list[Record]:
    """Add what of each step is exposed to communication, where the floor took part."""
    exposed = exposures(records)
    found = []
    for record in records:
        one = exposed.get(samples.key_of(record))
        if one is None:
            found.append(record)
            continue
        share = one.ns / number(record, "median_ns")
        found.append({**record, "exposed_ns": one.ns, "share": round(share, 4)})
    return found


def exposures(records: Sequence[Record]) -> dict[tuple[object, ...], exposure.Exposed]:
    """Return what each step exposes, by samples.key_of(); of those whose floor took part.

    Files from before there was a floor with gradients in their places have the other one only.
    """
    floors = {
        (*cell_of(one), one["contestant"]): one for one in records if one["contestant"] in FLOORS
    }
    found = {}
    for record in records:
        if record["contestant"] in FLOORS:
            continue
        floor = floors.get((*cell_of(record), FLOOR))
        if record["contestant"] in _BY_A_PLAN:
            floor = floors.get((*cell_of(record), PLANNED_FLOOR), floor)
        if floor is not None:
            found[samples.key_of(record)] = exposure.of(record, floor)
    return found


def apart(records: Sequence[Record]) -> list[str]:
    """Say of each model who had turns while some of the others had none, for want of memory."""
    besides = {
        samples.key_of(record): min(
            int(number(one, "beside")) for one in cast("list[Record]", record["turns"])
        )
        for record in records
        if all("beside" in one for one in cast("list[Record]", record["turns"]))
    }
    lines = []
    for name in NAMES:
        of_model = [one for one in records if one["op"] == name and samples.key_of(one) in besides]
        most = max((besides[samples.key_of(one)] for one in of_model), default=0)
        fewer = [one for one in of_model if besides[samples.key_of(one)] < most]
        if fewer:
            who = ", ".join(dict.fromkeys(text(one, "contestant") for one in fewer))
            why = "there was no memory for all at once"
            lines.append(f"{name}: {why}; in minutes of theirs: {who}")
    return lines


def cell_of(record: Record) -> tuple[object, ...]:
    """Return what contestants share who are compared."""
    return tuple(record.get(key) for key in ("op", "transport", "size", "ranks", "timed"))


def place_of(record: Record) -> tuple[int, str]:
    """Return where a record stands in tables: by model and path."""
    return NAMES.index(text(record, "op")), text(record, "transport")


def planned_of(records: Sequence[Record]) -> dict[tuple[object, ...], Record]:
    """Return the planned record of each cell."""
    return {cell_of(one): one for one in records if one["contestant"] == PLANNED}
