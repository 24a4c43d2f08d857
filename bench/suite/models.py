"""Training steps of the paper's six models, with each way to move the gradients.

A round has each model once: all peers, in fresh processes, which stand side by side where there is
memory for them and take blocks of a few steps in turns (bench/workers/models.py). Each block is a
turn of samples. What does not go over rdmatensor's transports runs once and counts for each of
them. What a step takes beyond the same step without communication is exposed to it (of a step by a
plan, one whose gradients lie in their places too, which is faster than new memory for each); with
as many ranks as cores nothing hides, so processor time stands in the same row.

--converge MODEL: one more training, on batches that have something to learn. Losses by step are the
same for all, which the worker asserts; what differs is when. The first steps count too.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import cast

from bench.benchlib import rig
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import time_text
from bench.suite import rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import COPIES, RDMATENSOR, Peer
from bench.suite.settings import MIB, Settings

TOPIC, CONVERGENCE = "models", "convergence"
OF_THE_PAPER = ("alexnet", "inception_v3", "vgg16", "lstm", "gru", "fcn5")
NAMES = (*OF_THE_PAPER, "layers")  # the last one where it is named: a bucket for each layer
QUICK_NAMES = ("lstm", "fcn5")  # where other topics want their time too
QUICK_DIVISOR = 4  # of all widths: about a sixteenth of the parameters
_RANKS = 2
_STEPS, _QUICK_STEPS, _BLOCKS = 3, 2, 3  # of a turn, and turns of a round
_TURN_PATIENCE_S = 1800.0
PLANNED = "planned"
FLOOR, PLANNED_FLOOR = "no communication", "no communication, planned"
# The worker's name -> name in tables, its peer, and whether it goes over rdmatensor's transports.
TRAINERS = {
    "planned": (PLANNED, RDMATENSOR, True),
    "adopted": ("DDP", RDMATENSOR, True),
    "copied": ("DDP, not adopted", RDMATENSOR, True),
    "variant": ("copy variant", COPIES, True),
    "gloo": ("DDP on Gloo", "gloo", False),
    "grpc_cpp": ("server over gRPC, C++", "grpc-cpp", False),
    "floor": (FLOOR, "floor", False),
    "planned_floor": (PLANNED_FLOOR, "floor", False),
}
CURVED = ("planned", "adopted", "gloo", "grpc_cpp")  # those whose losses are followed
STEPS, RATE = 60, 0.3
REACHED = (0.5, 0.1)  # shares of the first loss, of which the table has the times
# Of a step's parts, what tables have: bench/README.md says what each is.
_PARTS = {
    "posting_s": "posting",
    "ending_s": "ending",
    "summing_s": "summing",
    "copying_s": "copying",
    "wait_s": "waiting",
}


def names_of(settings: Settings) -> tuple[str, ...]:
    """Return the models to be measured."""
    if settings.models:
        return settings.models
    is_alone = settings.topics == (TOPIC,)
    return OF_THE_PAPER if is_alone or not settings.is_quick else QUICK_NAMES


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each model, peer and path."""
    present = {peer.name for peer in peers}
    if rig.hosts() == 2:
        from bench.suite import rig_models

        return rig_models.measure(settings, present, progress)
    refused: list[Record] = []
    if COPIES in present and (settings.ranks or _RANKS) > 2:
        why = "each of its ranks sends all to every other: of more than two that is too much"
        refused = [{"topic": TOPIC, "peer": COPIES, "missing": why, "get": ""}]
        present.discard(COPIES)
    seconds = settings.seconds_of(TOPIC)
    with tempfile.TemporaryDirectory(prefix="rdt-bench-models-") as kept:
        turns = [
            (name, functools.partial(_turn, settings, name, present, kept, itertools.count()))
            for name in names_of(settings)
        ]
        count = settings.rounds_of()
        found, failed = rounds.take(turns, count, seconds, progress, is_strict=settings.is_quick)
        if settings.converge:
            curve = functools.partial(_curve, settings, present, kept, itertools.count())
            more = rounds.take(
                [(f"{settings.converge} learns", curve)], settings.rounds or 3, seconds, progress
            )
            found, failed = found + more[0], failed + more[1]
    measured = samples.merge([record for record in found if "missing" not in record])
    broken = {text(record, "peer"): record for record in found if "missing" in record}
    return with_shares(measured) + list(broken.values()) + failed + refused


def worker_turns(transports: Sequence[str], present: set[str]) -> list[tuple[str, str]]:
    """Return names and transports of one turn; "" for those that have no choice."""
    return [
        (who, transport)
        for who, (_, peer, is_over) in TRAINERS.items()
        if peer == RDMATENSOR or peer in present
        for transport in (transports if is_over else ("",))
    ]


def _worker(
    settings: Settings,
    model: str,
    turns: list[tuple[str, str]],
    kept: str,
    place: int,
    **more: object,
) -> tuple[Record, list[tuple[Record, str]]]:
    """Return what the worker prints of the model, and of each peer with the paths it counts for.

    place: another peer begins each turn, since who is first, or after whom, should not count.
    """
    first = place % len(turns)
    order = [*turns[first:], *turns[:first]]
    about, *printed = run_ranks(
        "models",
        1,
        {
            "model": model,
            "ranks": settings.ranks or _RANKS,
            "kept": kept,
            "divisor": QUICK_DIVISOR if settings.is_quick else 1,
            "turns": order,
            **more,
        },
        timeout_s=_TURN_PATIENCE_S,
    )
    return about, [
        (one, transport)
        for one in printed
        for transport in ([text(one, "transport")] if one["transport"] else settings.transports)
    ]


def _turn(
    settings: Settings, model: str, present: set[str], kept: str, places: Iterator[int]
) -> list[Record]:
    place = next(places)
    steps = _QUICK_STEPS if settings.is_quick else _STEPS
    about, printed = _worker(
        settings,
        model,
        worker_turns(settings.transports, present),
        kept,
        place,
        steps=steps,
        blocks=_BLOCKS,
    )
    return [record for one, path in printed for record in records_of(one, about, path, place)]


def _curve(settings: Settings, present: set[str], kept: str, places: Iterator[int]) -> list[Record]:
    turns = [turn for turn in worker_turns(settings.transports, present) if turn[0] in CURVED]
    more = {"curve": True, "steps": STEPS, "rate": RATE}
    about, printed = _worker(settings, settings.converge, turns, kept, next(places), **more)
    return [curve_of(one, about, path) for one, path in printed]


def _fields(printed: Record, about: Record, transport: str, topic: str) -> Record:
    name, peer, _ = TRAINERS[text(printed, "name")]
    learns = " that learns" if topic == CONVERGENCE else ""
    return {
        "topic": topic,
        "name": name,
        "peer": peer,
        "transport": transport,
        "op": about["model"],
        "size": about["parameter_bytes"],
        "ranks": about["ranks"],
        "language": "torch",
        "timed": f"a step of {about['batch']} a rank{learns}, slowest rank",
        "divisor": about["divisor"],
    }


def _failure_of(printed: Record, about: Record, topic: str) -> Record:
    who = f"{TRAINERS[text(printed, 'name')][0]}, {about['model']}"
    missing = f"{rounds.FAILED} {printed['failed']}"
    return {"topic": topic, "peer": who, "missing": missing, "get": ""}


def records_of(printed: Record, about: Record, transport: str, start: int) -> list[Record]:
    """Return the turns of one peer, or its failure; about: what the worker prints of the model.

    start: which of the processes' starts they belong to.
    """
    if "failed" in printed:
        return [_failure_of(printed, about, TOPIC)]
    kept = ("distance", "parts", "cpu_ns", "memory_bytes", "arena_bytes", "beside")
    fields = _fields(printed, about, transport, TOPIC)
    more = {name: printed[name] for name in kept if printed.get(name) not in (None, "", {})}
    blocks = cast("list[list[int]]", printed["blocks_ns"])
    return [{**samples.turn(fields, one), **more, "start": start} for one in blocks]


def curve_of(printed: Record, about: Record, transport: str) -> Record:
    """Return one turn of one peer that learns, or its failure."""
    if "failed" in printed:
        return _failure_of(printed, about, CONVERGENCE)
    fields = _fields(printed, about, transport, CONVERGENCE)
    more = {"losses": printed["losses"], "off": printed["off"]}
    return samples.turn({**fields, **more}, samples.raw_of(printed))


def cell_of(record: Record) -> tuple[object, ...]:
    """Return what those share who are compared."""
    return tuple(record.get(key) for key in ("topic", "op", "transport", "size", "ranks", "timed"))


def with_shares(records: Sequence[Record]) -> list[Record]:
    """Add what of each step is exposed to communication, where its floor took part."""
    floors = {(*cell_of(one), one["name"]): one for one in records}
    found = []
    for one in records:
        record, floor = one, floors.get((*cell_of(one), FLOOR))
        if record["name"] == PLANNED:
            floor = floors.get((*cell_of(record), PLANNED_FLOOR), floor)
        if floor is not None and record["peer"] != "floor":
            took_ns = number(record, "median_ns")
            exposed_ns = took_ns - number(floor, "median_ns")
            share = round(exposed_ns / took_ns, 4)
            record = {**one, "exposed_ns": exposed_ns, "share": share}
        found.append(record)
    return found


# ---- Tables -------------------------------------------------------------------------------------

HEADS = (
    *("", "who", "p50", "p10", "p90", "exposed", "share", "CPU a step"),
    *("memory MiB", "arena MiB", "times planned", "from Gloo's"),
)


def _name(record: Record) -> str:
    """A model, its parameters, and by how much its widths were divided."""
    scaled = "" if record["divisor"] == 1 else f", widths / {record['divisor']}"
    mib = number(record, "size") / MIB
    return f"{record['op']} {mib:.1f} MiB{scaled}, {record['transport']}, {record['ranks']} ranks"


def _signed(ns: float) -> str:
    return f"-{time_text(-ns)}" if ns < 0 else time_text(ns)


def _mib(record: Record, name: str) -> str:
    return f"{number(record, name) / MIB:.0f}" if record.get(name) else "-"


def show(records: Sequence[Record]) -> str:
    """Time of a step, what communication costs of it, memory; where a step goes; page faults."""
    steps = sorted(records, key=lambda one: (NAMES.index(text(one, "op")), text(one, "transport")))
    planned = {cell_of(one): one for one in steps if one["name"] == PLANNED}
    lines, parts = [], []
    for one in steps:
        own = planned.get(cell_of(one))
        has_distance = one["peer"] != "floor" and "distance" in one
        lines.append(
            (
                _name(one),
                text(one, "name"),
                *(time_text(samples.figure(one, name)) for name in ("median_ns", "p10", "p90")),
                _signed(number(one, "exposed_ns")) if "share" in one else "-",
                f"{100 * number(one, 'share'):.0f} %" if "share" in one else "-",
                time_text(number(one, "cpu_ns")),
                *(_mib(one, name) for name in ("memory_bytes", "arena_bytes")),
                f"{number(one, 'median_ns') / number(own, 'median_ns'):.2f}" if own else "-",
                f"{number(one, 'distance'):.1g}" if has_distance else "-",
            )
        )
        of_step = cast("dict[str, float]", one.get("parts", {}))
        if of_step:
            times = [time_text(1e9 * of_step[name]) if name in of_step else "-" for name in _PARTS]
            counts = [
                f"{of_step[name]:.1f}" if name in of_step else "-"
                for name in ("wakeups_sent", "page_faults")
            ]
            parts.append((_name(one), text(one, "name"), *times, *counts))
    heads = ("a step, mean of ranks", "who", *_PARTS.values(), "wake-ups", "page faults")
    tables = [layout(HEADS, lines), layout(heads, parts) if parts else "", *apart(steps)]
    return "\n\n".join(table for table in tables if table)


def apart(records: Sequence[Record]) -> list[str]:
    """Name those of each model that had turns while others had none, for want of memory."""
    lines = []
    for model in NAMES:
        beside = {
            text(one, "name"): min(
                int(number(turn, "beside"))
                for turn in cast("list[Record]", one["turns"])
                if "beside" in turn
            )
            for one in records
            if one["op"] == model and "beside" in cast("list[Record]", one["turns"])[0]
        }
        fewer = [who for who, others in beside.items() if others < max(beside.values())]
        if fewer:
            lines.append(
                f"{model}: there was no memory for all at once; in minutes of their own: "
                + ", ".join(fewer)
            )
    return lines


CURVE_HEADS = (
    *("", "who", "first loss", "last"),
    *(f"{100 * share:.0f} % of it after" for share in REACHED),
    *("all steps", "times planned", "losses off Gloo's"),
)


def losses_of(record: Record) -> list[float]:
    """Return the loss before each step."""
    return cast("list[float]", record["losses"])


def seconds_of(record: Record) -> list[float]:
    """Return when the loss before each step was known, from the start; of the turn in the middle.

    A loss is there once its step began: the first at 0.
    """
    of_turns = sorted(samples.turns_of(record), key=sum)
    ends_ns = itertools.accumulate(of_turns[(len(of_turns) - 1) // 2][:-1])
    return [0.0, *(ns / 1e9 for ns in ends_ns)]


def reached_s(record: Record, share: float) -> float | None:
    """Return when the loss was below a share of the first, and stayed there; None: never."""
    losses = losses_of(record)
    above = [step for step, loss in enumerate(losses) if loss > share * losses[0]]
    first = above[-1] + 1 if above else 0
    return seconds_of(record)[first] if first < len(losses) else None


def curve_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line for each peer that learns: seconds, and the ratio to those of planned."""
    planned = {one["transport"]: one for one in records if one["name"] == PLANNED}
    found = []
    for record in records:
        own = planned.get(record["transport"])
        whole_s = seconds_of(record)[-1]
        times = [reached_s(record, share) for share in REACHED]
        found.append(
            (
                f"{record['op']}, {record['transport']}, {record['ranks']} ranks",
                text(record, "name"),
                f"{losses_of(record)[0]:.3g}",
                f"{losses_of(record)[-1]:.3g}",
                *("never" if seconds is None else f"{seconds:.3g} s" for seconds in times),
                f"{whole_s:.3g} s",
                f"{whole_s / seconds_of(own)[-1]:.2f}" if own else "-",
                "same" if number(record, "off") == 0 else f"{number(record, 'off'):.1g}",
            )
        )
    return found


def show_curves(records: Sequence[Record]) -> str:
    """When each peer's loss had fallen how far."""
    return layout(CURVE_HEADS, curve_rows(records))
