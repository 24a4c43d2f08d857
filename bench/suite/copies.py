"""The copy variant of `bench models` beside UCX, one way and in a row.

A rival that we made ourselves has to be as fast as what others would use in its place, or to beat
it says nothing: at least 0.9 of the rate of UCX's tagged or active messages of the same sizes over
the same path. UCX sends out of one buffer and receives into one again and again, which caches may
hold, and so does the variant; what it moves of tensors that each have their own memory stands
beside. Between processes of one host UCX copies once where the kernel lets it; "two copies" is UCX
by way of shared memory, as the variant goes. Each side has a core.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from bench.benchlib import programs
from bench.benchlib.pairs import run_pair
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import rounds, samples
from bench.suite.peers import COPIES, Peer
from bench.suite.settings import KIB, MIB, VERBS, Settings

TOPIC = "copies"
VARIANT, OWN = "copy variant", "copy variant, tensors of their own"
UCX, ACTIVE, TWO_COPIES = "UCX tag", "UCX active messages", "UCX tag, two copies"
_RIVALS = {UCX: "tag_bw", ACTIVE: "ucp_am_bw", TWO_COPIES: "tag_bw"}  # -> ucx_perftest's test
HEADS = ("tensors in a row", VARIANT, OWN, *_RIVALS, *(f"variant / {who}" for who in _RIVALS))
_SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
_QUICK_SIZES = (MIB, 16 * MIB)
_VERBS_SIZES = (256 * KIB, MIB, 4 * MIB)
_VOLUME = 128 * MIB  # of UCX's messages, and of a step of the variant
_UCX_PATHS = {"shm": "sm,self", "tcp": "tcp,self", "verbs": "rc_v,ud_v,self"}
_TWO_COPIES = "posix,sysv,self"  # without the kernel's copy out of another process
_IN_PIECES = {"UCX_RNDV_THRESH": "inf"}  # nor the peer's mapping of what is sent
_PATIENCE_S = 60.0


def measure(
    settings: Settings, peers: Sequence[Peer], progress: rounds.Progress, seconds: float = 0.0
) -> list[Record]:
    """Let all have their turns; return a record for each of them, path and size."""
    sizes = settings.sizes or (_QUICK_SIZES if settings.is_quick else _SIZES)
    if VERBS in settings.transports:
        sizes = settings.sizes or _VERBS_SIZES
        os.environ |= {
            "UCX_NET_DEVICES": f"{os.environ['RIG_DEVICE']}:1",
            "UCX_IB_GID_INDEX": os.environ["RIG_GID_INDEX"],
        }
    has_ucx = any(peer.name == "ucx" for peer in peers)
    turns: list[tuple[str, rounds.Turn]] = []
    for path in settings.transports:
        turns += [
            (f"{who}, {path}", functools.partial(_variant, who, path, sizes))
            for who in (VARIANT, OWN)
        ]
        rivals = _RIVALS if path == "shm" else (UCX, ACTIVE)
        for who in rivals if has_ucx else ():
            turns += [
                (f"{who}, {path} {size_text(size)}", functools.partial(_ucx, who, path, size))
                for size in sizes
            ]
    count = settings.rounds or 3
    seconds = seconds or settings.seconds_of(TOPIC)
    found, failed = rounds.take(turns, count, seconds, progress, is_strict=settings.is_quick)
    return samples.merge(found) + failed


def record_of(who: str, path: str, size: int, raw_ns: Sequence[float]) -> Record:
    """Return one turn; raw_ns: of one tensor."""
    fields: Record = {
        "topic": TOPIC,
        "contestant": who,
        "peer": "ucx" if who in _RIVALS else COPIES,
        "transport": path,
        "size": size,
        "timed": "a tensor of many in a row",
    }
    return samples.turn(fields, raw_ns)


def _variant(who: str, path: str, sizes: Sequence[int]) -> list[Record]:
    printed = run_pair(
        "copy_rate",
        *("--sizes", ",".join(map(str, sizes))),
        *("--volume", str(_VOLUME)),
        *(["--same"] if who == VARIANT else []),
        environment={"RDMATENSOR_TRANSPORT": path},
        timeout_s=300.0,  # an emulated machine takes half a minute to import torch
    )
    return [
        record_of(
            who,
            path,
            int(number(one, "size")),
            [ns / number(one, "tensors") for ns in samples.raw_of(one)],
        )
        for one in printed
    ]


def _ucx(who: str, path: str, size: int) -> list[Record]:
    words = ["-t", _RIVALS[who], "-s", str(size), "-n", str(max(5, _VOLUME // size)), "-w", "5"]
    is_copying = who == TWO_COPIES
    printed = programs.run_ucx(
        words,
        _TWO_COPIES if is_copying else _UCX_PATHS[path],
        programs.free_port(),
        _PATIENCE_S,
        _IN_PIECES if is_copying else {},
    )
    return [record_of(who, path, size, [each_ns(printed)])]


def each_ns(printed: str) -> float:
    """Return the time of one message of all, by ucx_perftest's last line of CSV."""
    return programs.ucx_figures(printed)[3] * 1000


def _cells(records: Sequence[Record]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the rates of each path and size, in 10^9 bytes a second."""
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        size = int(number(record, "size"))
        cell = cells.setdefault((text(record, "transport"), size), {})
        cell[text(record, "contestant")] = size / number(record, "median_ns")
    return dict(sorted(cells.items()))


def rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line of a table for each path and size: GB/s, and the variant's over UCX's."""
    return [
        (
            f"{path} {size_text(size)}",
            *(f"{rates[who]:.2f} GB/s" if who in rates else "-" for who in (VARIANT, OWN)),
            *(f"{rates[who]:.2f} GB/s" if who in rates else "-" for who in _RIVALS),
            *(
                f"{rates[VARIANT] / rates[who]:.2f}" if {VARIANT, who} <= set(rates) else "-"
                for who in _RIVALS
            ),
        )
        for (path, size), rates in _cells(records).items()
    ]
