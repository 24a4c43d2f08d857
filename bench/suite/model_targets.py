"""How a planned training step should stand beside the others', and whether it does.

A target is met or missed where all that chance could have made of it (draws.py) lies on one side of
its limit; else it is undecided, and with fewer turns than draws are made of it always is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.suite import copies, draws, exposure, samples
from bench.suite.draws import Verdict
from bench.suite.models import CONTESTANTS, apart, cell_of, exposures, planned_of


@dataclass(frozen=True, slots=True)
class Target:
    """How the planned step should stand beside another's.

    rivals: contestants; the fastest of them counts, in each model.
    of: whole steps, the other's over ours; or exposed times, ours over the other's.
    share: of the models, in which it should hold.
    """

    name: str
    rivals: tuple[str, ...]
    of: str
    limit: float
    share: float = 1.0

    def holds(self, figure: float) -> bool:
        """Whether the figure meets it."""
        return figure >= self.limit if self.of == "step" else figure <= self.limit

    @property
    def words(self) -> str:
        """What is wanted."""
        return f">= {self.limit:g}" if self.of == "step" else f"<= {self.limit:g}"


def _target(rival: str, of: str, limit: float) -> Target:
    return Target(CONTESTANTS[rival], (CONTESTANTS[rival],), of, limit)


_SERVERS = (CONTESTANTS["grpc_cpp"], CONTESTANTS["grpc"])
TARGETS = (
    Target("the better server over gRPC", _SERVERS, "step", 2.0, share=4 / 6),
    _target("variant", "step", 1.5),
    _target("adopted", "step", 0.97),  # no slower, but for noise
    _target("copied", "exposed", 0.5),
    _target("gloo", "exposed", 0.2),
)


def figure_of(planned: Record, rival: Record, target: Target) -> float | None:
    """Return what a target is about; None without the floor, or where one of them exposes nothing.

    A step that was no slower than the one without communication says nothing: noise was larger.
    """
    if target.of == "step":
        return number(rival, "median_ns") / number(planned, "median_ns")
    if any("exposed_ns" not in one or number(one, "exposed_ns") <= 0 for one in (planned, rival)):
        return None
    return number(planned, "exposed_ns") / number(rival, "exposed_ns")


def verdicts(records: Sequence[Record], rates: Sequence[Record] = ()) -> list[str]:
    """Say for each target where it is met, and where not, with the share of compute there.

    Also where noise is too large for either, and how far it reaches. rates: of the copy variant
    beside UCX in the same run, which decide whether it is a rival at all.
    """
    planned = planned_of(records)
    exposed = exposures(records)
    lines = apart(records)
    for target in TARGETS:
        for transport in dict.fromkeys(text(record, "transport") for record in records):
            pairs = [
                (planned[cell], one)
                for cell, one in _best_of(records, target.rivals).items()
                if one["transport"] == transport and cell in planned
            ]
            if not pairs:
                continue
            is_variant = target.rivals == (CONTESTANTS["variant"],)
            tail = f"; {copies.standing(rates, transport)}" if is_variant else ""
            told = (
                [_of_steps(target, ours, other) for ours, other in pairs]
                if target.of == "step"
                else [_of_exposed(target, ours, other, exposed) for ours, other in pairs]
            )
            lines += [f"{transport}, {_head(target, told)}{tail}"]
            lines += [f"    {one.words}" for one in told if one.words]
    return lines


def _best_of(records: Sequence[Record], rivals: tuple[str, ...]) -> dict[object, Record]:
    """Return the fastest of some contestants in each cell."""
    best: dict[object, Record] = {}
    for record in records:
        cell = cell_of(record)
        if record["contestant"] in rivals and (
            cell not in best or number(record, "median_ns") < number(best[cell], "median_ns")
        ):
            best[cell] = record
    return best


@dataclass(frozen=True, slots=True)
class _Told:
    """What is said of one model; words: empty where there is nothing to add."""

    model: str
    verdict: Verdict
    words: str


def _head(target: Target, told: Sequence[_Told]) -> str:
    """Return a line for all models; of those that it wants a share of also whether that is so."""
    held = sum(one.verdict == "met" for one in told)
    undecided = [one.model for one in told if one.verdict == "undecided"]
    wanted = target.share * len(told)
    share = ""
    if target.share < 1 and held < len(told):
        if held >= wanted:
            share = ", enough"
        elif held + len(undecided) >= wanted:
            share = ", which may be enough"
    what = "its step over ours" if target.of == "step" else "our exposed time over its"
    return (
        f"{target.name}, {what} {target.words}: {held} of {len(told) - len(undecided)} models"
        + share
        + (f"; undecided: {', '.join(undecided)}" if undecided else "")
    )


def _of_steps(target: Target, planned: Record, rival: Record) -> _Told:
    ratio = draws.ratio(rival, planned)
    verdict, name = ratio.judged(target.limit), text(planned, "op")
    if verdict == "met":
        return _Told(name, verdict, "")
    doubt = ", undecided" if verdict == "undecided" else ""
    if ratio.value >= target.limit:
        return _Told(name, verdict, f"{name}{doubt}: {ratio.words}")
    return _Told(name, verdict, _shortfall(planned, ratio.words, doubt))


def _of_exposed(
    target: Target,
    planned: Record,
    rival: Record,
    exposed: Mapping[tuple[object, ...], exposure.Exposed],
) -> _Told:
    name = text(planned, "op")
    ours, theirs = (exposed.get(samples.key_of(one)) for one in (planned, rival))
    if ours is None or theirs is None:  # without their floors
        return _Told(name, "undecided", "")
    verdict = exposure.judge(ours, theirs, target.limit)
    if verdict == "missed":
        figure = f"{ours.ns / theirs.ns:.2f}"
        return _Told(name, verdict, f"{_shortfall(planned, figure)}; {ours.words}")
    if verdict == "met" and not ours.may_be_nothing:
        return _Told(name, verdict, "")
    doubt = "; ours may be noise alone" if ours.may_be_nothing else ""
    return _Told(name, verdict, f"{name}, {verdict}: {ours.words}, its {theirs.words}{doubt}")


def _shortfall(planned: Record, figure: str, doubt: str = "") -> str:
    words = f"{planned['op']}{doubt}: {figure}"
    if "share" not in planned:
        return words
    compute = min(1.0, 1 - number(planned, "share"))  # noise may say more
    return f"{words}; compute is {100 * compute:.0f} % of the planned step"
