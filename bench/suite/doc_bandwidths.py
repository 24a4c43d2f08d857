"""Generated tables of collectives' bandwidths, by nccl-tests' definitions, and processor time."""

from __future__ import annotations

from bench.benchlib.record import Record, Result, number
from bench.benchlib.verdict import size_text
from bench.suite.collective_cells import Known, by_who, cell_of, row_of
from bench.suite.doc_words import ROOM, head, table
from bench.suite.peers import OURS
from bench.suite.settings import MIB, PLAIN

_WHO = {OURS: "ours", "gloo": "Gloo", "OpenMPI": "Open MPI"}  # by contestant
_NAMES = ("algbw_gb_per_s", "busbw_gb_per_s", "cpu_s_per_gb")
_BUS = _NAMES[1]


def block(*results: Result) -> str:
    """Return a table for each result: from 1 MiB on, of tensors that nobody touches."""
    return "\n\n".join(part for result in results for part in _made(result))


def _made(result: Result) -> list[str]:
    known = [
        one
        for one in result.quietest.records
        if one.get("contestant") in _WHO
        and _BUS in one
        and row_of(one) == PLAIN
        and number(one, "size") >= MIB
    ]
    ours = [one for one in known if one["contestant"] == OURS]
    if not ours:
        return []
    where = f"{ours[0]['transport']}, {ours[0]['ranks']} ranks"
    heads = (f"{where}: algbw, busbw in GB/s, CPU s/GB of a rank", *_WHO.values())
    of_all = by_who(known)
    return [head(result, ours), table(heads, [_row(one, of_all) for one in ours])]


def _row(ours: Record, known: Known) -> tuple[str, ...]:
    beside = [known.get(who, {}).get(cell_of(ours)) for who in _WHO]
    cells = ("-" if one is None else _words(one, ours) for one in beside)
    return f"{ours['op']}, {size_text(number(ours, 'size'))}", *cells


def _words(record: Record, ours: Record) -> str:
    """Return the three figures; bold where somebody moves more a second than we."""
    told = ", ".join(f"{number(record, name):.3g}" if name in record else "-" for name in _NAMES)
    return f"**{told}**" if number(record, _BUS) * ROOM > number(ours, _BUS) else told
