"""Rows of what is measured from Python."""

from __future__ import annotations

from bench.benchlib.record import Record, number, text
from bench.benchlib.verdict import Row, rate_text, size_text, time_text

_OURS = "rdmatensor"
_SMALL = 8.0
# As it comes it is what the targets were set against; tuned it gives up error handling.
_RIVALS = {"nixl": "NIXL", "nixl tuned": "NIXL tuned"}
_SMALL_TARGET, _LARGE_TARGET = 4.0, 1.5  # how many times better than NIXL, over either path


def p2p(records: list[Record]) -> list[Row]:
    """One path: ours alone, and beside NIXL where it ran; a rival that is absent has a record."""
    ours = [record for record in records if record.get("contestant") == "ours"]
    rivals = [record for record in records if record.get("contestant") in _RIVALS]
    missing = [record for record in records if record.get("missing") is not None]
    rows = [_alone(record) for record in ours]
    rows += [
        _against(record, rival)
        for record in ours
        for rival in rivals
        if (rival["way"], rival["size"]) == (record["way"], record["size"])
    ]
    return rows + [
        Row(f"{text(record, 'path')} beside NIXL", "missing", "-", None, None, note=note)
        for record in missing
        for note in [text(record, "missing")]
    ]


def _name(record: Record) -> str:
    way = "" if record["way"] == "write" else f", {text(record, 'way')}"
    return f"{text(record, 'path')} {size_text(number(record, 'size'))} write + notify, Python{way}"


def _took(record: Record) -> str:
    size, ns = number(record, "size"), number(record, "median_ns")
    return time_text(ns) if size == _SMALL else rate_text(size, ns)


def _alone(record: Record) -> Row:
    is_target = record["path"] == "shm" and number(record, "size") == _SMALL
    return Row(
        _name(record),
        "-",
        _took(record),
        number(record, "median_ns") / 1e3 if is_target else None,
        5.0 if is_target else None,
        better="lower",
        is_absolute=True,
        note="one way; ratio and target in us" if is_target else "",
    )


def _against(record: Record, rival: Record) -> Row:
    is_small = number(record, "size") == _SMALL
    way = "new handle each" if rival["way"] == "write" else "one handle"
    is_judged = rival["contestant"] == "nixl"
    return Row(
        _name(record),
        f"{_took(rival)} {_RIVALS[text(rival, 'contestant')]}, {way}",
        _took(record),
        number(rival, "median_ns") / number(record, "median_ns"),
        (_SMALL_TARGET if is_small else _LARGE_TARGET) if is_judged else None,
    )


def imports(records: list[Record]) -> list[Row]:
    """Importing the package."""
    medians = {text(record, "contestant"): number(record, "median_ns") for record in records}
    return [
        Row(
            "import rdmatensor, without torch",
            f"{time_text(medians['numpy'])} import numpy",
            time_text(medians["rdmatensor"]),
            medians["rdmatensor"] / 1e6,
            100.0,
            better="lower",
            is_absolute=True,
            note="ratio and target in ms",
        ),
        Row(
            "the same, with everything that a Context needs",
            f"{time_text(medians['numpy'])} import numpy",
            time_text(medians["rdmatensor.Context"]),
            None,
            None,
        ),
    ]


def c10d(records: list[Record]) -> list[Row]:
    """all_reduce through torch.distributed beside doing nothing and Gloo, private and arena."""
    medians = {
        (text(record, "contestant"), number(record, "size")): number(record, "median_ns")
        for record in records
    }
    rows = []
    for size in sorted({size for _, size in medians}):
        rows += [
            Row(
                f"all_reduce of {size_text(size)} through torch.distributed{where}",
                f"{time_text(medians[rival, size])} {words}",
                time_text(medians[ours, size]),
                medians[rival, size] / medians[ours, size],
                None,
            )
            for ours, where in (("rdmatensor", ""), ("rdmatensor arena", ", in the arena"))
            for rival, words in (("fake", "a backend that does nothing"), ("gloo", "Gloo"))
            if (ours, size) in medians
        ]
    return rows


def coalesced(records: list[Record]) -> list[Row]:
    """Many small tensors: coalesced beside one by one, and both beside Gloo's."""
    found = {(text(record, "contestant"), text(record, "way")): record for record in records}
    ours = {way: record for (contestant, way), record in found.items() if contestant == _OURS}
    first = next(iter(ours.values()))
    what = f"{number(first, 'tensors'):.0f} x {size_text(number(first, 'size'))}"
    rows = []
    for way, record in ours.items():
        took = number(record, "median_ns")
        rivals = [("gloo", way, "Gloo"), (_OURS, "one by one", "one by one")]
        rows += [
            Row(
                f"all_reduce of {what}, {way}",
                f"{time_text(number(rival, 'median_ns'))} {words}",
                time_text(took),
                number(rival, "median_ns") / took,
                20.0 if (way, other) == ("coalesced", "one by one") else None,
                note="; ".join(
                    [
                        ", ".join([f"{number(record, 'writes'):.0f} writes", *_beside(record)]),
                        *(f"{words}: {', '.join(beside)}" for beside in [_beside(rival)] if beside),
                    ]
                ),
            )
            for backend, other, words in rivals
            if (backend, other) != (_OURS, way)
            for rival in [found[backend, other]]
        ]
    return rows


def _beside(record: Record) -> list[str]:
    """Return what stands beside a median; older results have nothing."""
    words = []
    if "p999" in record:
        words.append(f"p99.9 {time_text(number(record, 'p999'))}")
    if "most_ns" in record:
        most = time_text(number(record, "most_ns"))
        words.append(f"most of {number(record, 'most_of'):.0f} {most}")
    if "cpu_s_per_gb" in record:
        words.append(f"{number(record, 'cpu_s_per_gb'):.3g} CPU s/GB")
    return words
