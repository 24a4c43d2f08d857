"""How the loss of one model falls over seconds, by each contestant: the same steps, but when.

All train on the same batches from the same parameters, so that losses by step are the same, which
the worker asserts; what differs is when. The first steps count too, with all that a contestant
settles in them; getting ready before them does not.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from typing import cast

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import rounds, samples
from bench.suite.settings import Settings

TOPIC = "convergence"
STEPS = 60
RATE = 0.3
REACHED = (0.5, 0.1)  # shares of the first loss, of which the table has the times
# In the worker's words; who is no way to train, or one of those in another dress, stays out.
CONTESTANTS = ("planned", "adopted", "gloo", "grpc_cpp", "grpc")


def measure(
    settings: Settings,
    turns: Sequence[tuple[str, str]],
    names: dict[str, tuple[str, str]],
    divisor: int,
    progress: rounds.Progress,
) -> list[Record]:
    """Let all train; return a record for each contestant and path.

    turns: the worker's names of contestants, and their paths. names: of contestant and peer.
    """
    with tempfile.TemporaryDirectory(prefix="rdt-bench-curves-") as kept:
        turn = functools.partial(_turn, settings, turns, names, divisor, kept, itertools.count())
        count = settings.rounds or 3
        found, failed = rounds.take(
            [(f"{settings.converge} learns", turn)], count, settings.seconds_of("models"), progress
        )
    broken = {record["peer"]: record for record in found if "missing" in record}
    return [
        *samples.merge([one for one in found if "missing" not in one]),
        *broken.values(),
        *failed,
    ]


def _turn(
    settings: Settings,
    turns: Sequence[tuple[str, str]],
    names: dict[str, tuple[str, str]],
    divisor: int,
    kept: str,
    numbers: Iterator[int],
) -> list[Record]:
    first = next(numbers) % len(turns)
    about, *printed = run_ranks(
        "models",
        1,
        "--curve",
        *("--model", settings.converge),
        *("--divisor", str(divisor)),
        *("--ranks", str(settings.ranks or 2)),
        *("--steps", str(STEPS)),
        *("--rate", str(RATE)),
        *("--kept", kept),
        *("--turns", ",".join(f"{who}:{path}" for who, path in [*turns[first:], *turns[:first]])),
        timeout_s=900.0,
    )
    return [
        record_of(one, about, names[text(one, "contestant")], transport)
        for one in printed
        for transport in ([text(one, "transport")] if one["transport"] else settings.transports)
    ]


def record_of(printed: Record, about: Record, name: tuple[str, str], transport: str) -> Record:
    """Return one turn of one contestant; name: what tables call it, and its peer."""
    if "failed" in printed:
        missing = f"{rounds.FAILED} {printed['failed']}"
        return {"topic": TOPIC, "peer": f"{name[0]}, {transport}", "missing": missing, "get": ""}
    fields: Record = {
        "topic": TOPIC,
        "contestant": name[0],
        "peer": name[1],
        "transport": transport,
        "op": about["model"],
        "size": about["parameter_bytes"],
        "ranks": about["ranks"],
        "language": "torch",
        "timed": f"a step of {about['batch']} a rank that learns, slowest rank",
        "divisor": about["divisor"],
        "losses": printed["losses"],
        "off": printed["off"],
    }
    return samples.turn(fields, samples.raw_of(printed))


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


def rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line of a table for each contestant: seconds, and how many times as long as ours."""
    planned = {one["transport"]: one for one in records if one["contestant"] == "planned"}
    found = []
    for record in records:
        ours = planned.get(record["transport"])
        whole_s = seconds_of(record)[-1]
        found.append(
            (
                f"{record['op']}, {record['transport']}, {record['ranks']} ranks",
                text(record, "contestant"),
                f"{losses_of(record)[0]:.3g}",
                f"{losses_of(record)[-1]:.3g}",
                *(_time(reached_s(record, share)) for share in REACHED),
                f"{whole_s:.3g} s",
                f"{times(record, ours):.2f}" if ours else "-",
                "same" if number(record, "off") == 0 else f"{number(record, 'off'):.1g}",
            )
        )
    return found


def times(record: Record, planned: Record) -> float:
    """Return how many times as long as planned somebody needs for all steps."""
    return seconds_of(record)[-1] / seconds_of(planned)[-1]


TIMES = "times planned"
HEADS = (
    *("", "who", "first loss", "last"),
    *(f"{100 * share:.0f} % of it after" for share in REACHED),
    *("all steps", TIMES, "losses off Gloo's"),
)


def _time(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3g} s"
