"""What of a training step goes to communication, by part, as far as the library counts it.

A step's backward thread is held in the calls that begin a bucket's sum ("posting"), and at the end
until the last sum is there ("ending"): of steps by a plan, where both are ours. Sums and copies of
payload are counted whichever thread makes them, those calls included; "waiting" is that of all
threads in the library's waits, and system calls that wake a sleeper are counted.

Page faults are those of all contestants' ranks: of memory that malloc gives back to the kernel in a
step and asks for again, two microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from bench.benchlib.record import Record, text
from bench.benchlib.units import time_text
from bench.suite import samples

_TIMES = {
    "posting_s": "posting",
    "ending_s": "ending",
    "summing_s": "summing",
    "copying_s": "copying",
    "wait_s": "waiting",
}
_WAKEUPS = "wakeups_sent"
_FAULTS = "page_faults"
HEADS = ("a step, mean of ranks", "who", *_TIMES.values(), "wake-ups")


def parts_of(record: Record) -> dict[str, float]:
    """Return a record's parts; older files have none."""
    return cast("dict[str, float]", record.get("parts", {}))


def has_faults(record: Record) -> bool:
    """Return whether somebody counted them; older files have none."""
    return _FAULTS in parts_of(record)


def merged(turns: Sequence[Record]) -> dict[str, float]:
    """Return of each part the median of the turns."""
    return {
        name: samples.quantile([parts_of(one)[name] for one in turns], 0.5)
        for name in parts_of(turns[0])
    }


def rows(records: Sequence[Record], name_of: Callable[[Record], str]) -> list[tuple[str, ...]]:
    """Return a row for each record of ours that has parts."""
    found = []
    for record in records:
        parts = parts_of(record)
        if _WAKEUPS in parts:
            times = [time_text(1e9 * parts[name]) if name in parts else "-" for name in _TIMES]
            who = text(record, "contestant")
            found.append((name_of(record), who, *times, f"{parts[_WAKEUPS]:.1f}"))
    return found


def faults(
    records: Sequence[Record], name_of: Callable[[Record], str]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of how many page faults each contestant's step has, by models."""
    told = [one for one in records if has_faults(one)]
    names = list(dict.fromkeys(text(one, "contestant") for one in told))
    found: dict[str, dict[str, str]] = {}
    for one in told:
        of_model = found.setdefault(name_of(one), dict.fromkeys(names, ""))
        of_model[text(one, "contestant")] = f"{parts_of(one)[_FAULTS]:.0f}"
    rows = [(model, *by_name.values()) for model, by_name in found.items()]
    return ("page faults a step, mean of ranks", *names), rows
