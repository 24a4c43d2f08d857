"""Messages in a row of others: gRPC C++ by calls and by a stream, and ucx_perftest one way.

Of gRPC a sample is the time for each message of one direction, as in streams.py, and who sends has
an answer to each; the other direction is asked for by the same client, as far ahead as messages are
in flight. ucx_perftest prints one figure a run, and its processor time has its start in it: that of
a run of one message is taken off, and where it is more than half of all nothing is said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from bench.benchlib import programs
from bench.benchlib.record import Record, number
from bench.benchlib.units import size_text
from bench.suite import rounds, samples, streams
from bench.suite.peers import GRPC_PROGRAM
from bench.suite.settings import MIB, Settings

GRPC_MOST_BYTES = 256 * MIB  # its copies of a larger one would need many times as much memory
_GRPC_KINDS = {"row": "gRPC C++ unary", "row-each": "gRPC C++ stream"}
_UCX_TESTS = {"UCX put": "ucp_put_bw", "UCX tag": "tag_bw"}
# Columns of its row, of a test that measures rates: iterations, then a message's typical, average
# and overall time, then rates.
TYPICAL, OVERALL = 1, 3
_PATIENCE_S = 120.0


def _depths(size: int) -> tuple[int, ...]:
    return streams.DEPTHS if size <= streams.DEEP_MOST_BYTES else streams.DEPTHS[:1]


def _fields(
    contestant: str, peer: str, transport: str, size: int, depth: int, ways: str, **how: str
) -> Record:
    timed = streams.timed_of(depth, ways)
    fields = samples.p2p_fields(contestant, peer, transport, size, timed=timed, **how)
    return {**fields, "depth": depth, "ways": ways}


def grpc_turns(
    settings: Settings, address: str, sizes: Sequence[int]
) -> Iterator[tuple[str, rounds.Turn]]:
    """Return its turns: it has TCP only, so that each counts beside all of our paths."""
    for size in sizes:
        for depth in _depths(size) if size <= GRPC_MOST_BYTES else ():
            for ways in streams.WAYS:
                for kind, name in _GRPC_KINDS.items():
                    words = grpc_words(kind, address, size, depth, ways, is_quick=settings.is_quick)
                    turn = functools.partial(_grpc, words, name, settings.transports)
                    yield f"{name}, {streams.timed_of(depth, ways)}, {size_text(size)}", turn


def without_room(sizes: Sequence[int]) -> list[Record]:
    """Return a record for each size that gRPC is not asked for."""
    return [
        {
            "topic": "p2p",
            "peer": f"gRPC C++, messages of {size_text(size)} in a row",
            "missing": f"no message of more than {size_text(GRPC_MOST_BYTES)} is sent by it here",
            "get": "",
        }
        for size in sizes
        if size > GRPC_MOST_BYTES
    ]


def grpc_words(
    kind: str, address: str, size: int, depth: int, ways: str, *, is_quick: bool
) -> list[str]:
    """Return the program's arguments."""
    count, times = streams.counts_of(size, depth, is_quick=is_quick)
    both = "both" if ways == "both ways" else "one"
    return [kind, address, *map(str, (size, count, depth, times)), both]


def _grpc(words: list[str], name: str, transports: Sequence[str]) -> list[Record]:
    (found,) = programs.run_words([str(GRPC_PROGRAM), *words], timeout_s=_PATIENCE_S)
    return [grpc_record(found, name, transport) for transport in transports]


def grpc_record(found: Record, name: str, transport: str) -> Record:
    """Return the record of a turn beside one of our paths from what the program printed."""
    fields = _fields(
        name,
        "grpc-cpp",
        transport,
        int(number(found, "size")),
        int(number(found, "depth")),
        streams.WAYS[found["both"] is True],
        language="C++",
        wait=samples.WAITS["sleep"],
        over="tcp",
    )
    costs = {name: number(found, name) for name in samples.COSTS}
    raw_us = found["raw_us"]
    assert isinstance(raw_us, list)
    return samples.turn({**fields, **costs}, [us * 1000 for us in raw_us])


def ucx_turns(
    settings: Settings, transport: str, path: str, sizes: Sequence[int]
) -> Iterator[tuple[str, rounds.Turn]]:
    """Return the turns of ucx_perftest, which has messages one way only; path: UCX_TLS."""
    for size in sizes:
        for depth in _depths(size):
            for name, test in _UCX_TESTS.items():
                fields = _fields(
                    name,
                    "ucx",
                    transport,
                    size,
                    depth,
                    streams.WAYS[False],
                    language="C",
                    wait=samples.WAITS["spin"],
                )
                count, times = streams.counts_of(size, depth, is_quick=settings.is_quick)
                words = ["-t", test, "-s", str(size), "-O", str(depth)]
                turn = functools.partial(
                    ucx_turn, words, fields, path, count * times, is_quick=settings.is_quick
                )
                yield f"{name}, {streams.timed_of(depth, 'one way')}, {size_text(size)}", turn


def ucx_turn(
    words: list[str],
    fields: Record,
    path: str,
    count: int,
    column: int = OVERALL,
    *,
    is_quick: bool = False,
) -> list[Record]:
    """Return the record of a turn of so many messages; column: of its row, what a message takes.

    is_quick: without processor time, of whose messages most would be its start's.
    """

    def run(messages: int, warm: int) -> programs.Spent:
        many = [*words, "-n", str(messages), "-w", str(warm)]
        return programs.run_ucx_spent(many, path, programs.free_port(), _PATIENCE_S)

    warm = max(int(number(fields, "depth")), count // 10)
    one = None if is_quick else run(1, 0)
    all_of_them = run(count, warm)
    return [ucx_record(fields, one, all_of_them, count + warm, column)]


def ucx_record(
    fields: Record,
    one: programs.Spent | None,
    many: programs.Spent,
    count: int,
    column: int = OVERALL,
) -> Record:
    """Return the record of a turn; one: what a run of one message spent; count: of the other."""
    gb = number(fields, "size") * count / 1e9
    single_s = one.cpu_s if one is not None else many.cpu_s
    spent = [several - single for several, single in zip(many.cpu_s, single_s, strict=True)]
    is_told = all(own > single for own, single in zip(spent, single_s, strict=True))
    costs = zip(samples.COSTS, (own / gb for own in spent), strict=True) if is_told else ()
    took_us = programs.ucx_figures(many.output)[column]
    return samples.turn({**fields, **dict(costs)}, [took_us * 1000])
