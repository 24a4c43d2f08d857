"""The options of `rdmatensor bench`, and what they ask for."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.benchlib.units import size_text
from bench.suite import busy, crossover, links, lossy, models, peers, ps
from bench.suite.settings import (
    ASKED_FOR,
    PLAIN,
    ROWS,
    SECONDS,
    TCP,
    TOPICS,
    TRANSPORTS,
    VERBS,
    Settings,
)

_MAX_RANKS = 128
_MAX_BURNERS = 64
_MAX_BYTES = 1 << 30  # of messages in a row


def _peers(text: str) -> list[str]:
    wanted = [] if text == "none" else text.split(",")
    unknown = [name for name in wanted if name not in peers.names()]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not a peer; they are {', '.join(peers.names())}"
        )
    return wanted


def _words_of(what: str, known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def words(text: str) -> tuple[str, ...]:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is no {what}; they are {', '.join(known)}"
            )
        return tuple(dict.fromkeys(text.split(",")))

    return words


def _burners(text: str) -> tuple[int, ...]:
    counts = tuple(0 if word == "0" else _positive(word) for word in text.split(","))
    if max(counts) > _MAX_BURNERS:
        raise argparse.ArgumentTypeError(f"{max(counts)} is more than {_MAX_BURNERS}")
    return tuple(dict.fromkeys(counts))


def _times(text: str) -> tuple[float, ...]:
    times = (0.0 if word == "0" else _above_zero(word) for word in text.split(","))
    return tuple(dict.fromkeys(times))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _ranks(text: str) -> int:
    ranks = _positive(text)
    if not 2 <= ranks <= _MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{ranks} is not from 2 to {_MAX_RANKS}")
    return ranks


def _size(text: str) -> int:
    """Read 4096, 4K, 4k or 4KiB; units are of 1,024."""
    found = re.fullmatch(r"([0-9]+)([kmg]?)(?:i?b)?", text.lower())
    value = int(found[1]) << 10 * " kmg".index(found[2] or " ") if found else 0
    if not 1 <= value <= _MAX_BYTES:
        most = f"1 to {size_text(_MAX_BYTES)}, as 512, 4K or 1M"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes from {most}")
    return value


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_size, text.split(",")))


def _one_of(what: str, known: Sequence[str]) -> Callable[[str], str]:
    return lambda text: _words_of(what, known)(text)[0]


_ALL_MODELS = ",".join(models.NAMES)
# Name of an option -> its metavar, its help, its type, and the topics that it is for; none: all.
# Where none of these is measured it would change nothing.
OPTIONS: dict[str, tuple[str, str, Callable[[str], Any], tuple[str, ...]]] = {
    "peers": (
        "NAMES",
        f"Peers that take turns with rdmatensor, from {','.join(peers.names())}, or none "
        "(default: all that are installed).",
        _peers,
        (),
    ),
    "transport": (
        "PATH",
        "Path of rdmatensor: shm, tcp, or in the rig verbs (default: shm and tcp in turn).",
        _one_of("transport", (*TRANSPORTS, VERBS)),
        (),
    ),
    "link": (
        "RATE",
        "Rate of the loopback interface, as 500mbit, over tcp and as root (default: unlimited).",
        str,
        (),
    ),
    "rounds": (
        "N",
        "Turns of each peer (default: up to 10, with --quick 5; fewer where they last long).",
        _positive,
        (),
    ),
    "seconds": (
        "S",
        "Seconds of each topic after which no further round begins (default: "
        f"{', '.join(f'{topic} {whole:.0f}' for topic, (_, whole) in SECONDS.items())}).",
        _above_zero,
        (),
    ),
    "sizes": (
        "BYTES",
        "Bytes of each message, or of a dense model of ps, as 8,4K,1M (default: of p2p 8 B to 64 "
        "MiB, in a row to 1 GiB; of ps 1, 16 and 64 MiB).",
        _sizes,
        ("p2p", "collectives", "scale", "busy", "hosts", "lossy", "ps"),
    ),
    "ranks": (
        "N",
        "Number of ranks, of setup the largest (default: collectives 2, 4, 8 and 16, setup 128, "
        "models 2, busy and lossy 2 and 4); of the crossover of ps the number of workers.",
        _ranks,
        ("collectives", "setup", "models", "busy", "lossy", "ps"),
    ),
    "rows": (
        "NAMES",
        f"Ways to use the tensors, from {','.join((PLAIN, *ROWS))} (default: all of 2 ranks, plain "
        "of more).",
        _words_of("row", (PLAIN, *ROWS)),
        ("collectives",),
    ),
    "models": (
        "NAMES",
        f"Models, from {_ALL_MODELS} (default: the six of the paper).",
        _words_of("model", models.NAMES),
        ("models",),
    ),
    "converge": (
        "NAME",
        "Model whose loss over time is measured too (default: none).",
        _one_of("model", models.NAMES),
        ("models",),
    ),
    "plans": (
        "DIR",
        "Folder of plans, on two hosts (default: they are made, which takes minutes).",
        Path,
        ("models",),
    ),
    "rate": (
        "RATE",
        f"Rate of a link between hosts, as tc has it (default: links {links.RATE}, models 8mbit, "
        f"ps {crossover.RATE}, lossy {', '.join(lossy.RATES)} in turn).",
        str,
        ("links", "lossy", "models", "ps"),
    ),
    "layout": (
        "DIGITS",
        "The host of each rank, a digit each (default: 0011).",
        str,
        ("hosts",),
    ),
    "nic_gbit": (
        "GBIT",
        "Rate of a NIC in 10^9 bit/s, for the model between hosts (default: TCP as measured).",
        _above_zero,
        ("scale",),
    ),
    "nic_latency_us": ("US", "Its latency one way in microseconds.", _above_zero, ("scale",)),
    "calls": (
        "NAMES",
        f"Calls, of busy from {','.join(busy.CALLS)} (default: all, with --quick all_reduce,wait), "
        f"of ps from {','.join(ps.CALLS)} (default: rows,dense).",
        _words_of("call", (*busy.CALLS, *ps.CALLS)),
        ("busy", "ps"),
    ),
    "kinds": (
        "NAMES",
        f"Kinds of burners, from {','.join(busy.KINDS)} (default: spin).",
        _words_of("kind of burner", tuple(busy.KINDS)),
        ("busy",),
    ),
    "burners": (
        "NUMBERS",
        f"Numbers of burners, each up to {_MAX_BURNERS} (default: busy 0,2,4, ps 0,2).",
        _burners,
        ("busy", "ps"),
    ),
    "between_ms": (
        "MS",
        "Milliseconds of computing between two calls (default: 0,2, with --quick 0).",
        _times,
        ("busy",),
    ),
}


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of `rdmatensor bench`."""
    parser = argparse.ArgumentParser(
        prog="rdmatensor bench",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "topic",
        nargs="?",
        choices=(*TOPICS, *ASKED_FOR),
        help=f"What to measure (default: {', '.join(TOPICS)}).",
    )
    parser.add_argument(
        "--quick", action="store_true", help="Fewer sizes and turns: two minutes in all."
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="Keep everything in FILE, raw samples too."
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="Write a page with plots into DIR."
    )
    groups: dict[tuple[str, ...], argparse._ActionsContainer] = {(): parser}
    for name, (metavar, what, kind, topics) in OPTIONS.items():
        if topics not in groups:
            groups[topics] = parser.add_argument_group(f"options of {', '.join(topics)}")
        option = f"--{name.replace('_', '-')}"
        groups[topics].add_argument(option, type=kind, metavar=metavar, help=what)
    return parser


def settings_of(chosen: argparse.Namespace) -> Settings:
    """Return the settings that the options ask for."""
    given = {name: getattr(chosen, name) for name in OPTIONS}
    nic = given.pop("nic_latency_us"), given.pop("nic_gbit")
    transport, topics = given.pop("transport"), (chosen.topic,)
    if given.pop("link") is not None:
        transport = TCP
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "rate" in fields:
        fields["link_rate"] = fields.pop("rate")
    return Settings(
        topics=TOPICS if chosen.topic is None else topics,
        is_quick=chosen.quick,
        transports=TRANSPORTS if transport is None else (transport,),
        nic=None if nic[1] is None else nic,
        **fields,
    )


def refuse_ignored(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """End with status 2 where an option would change nothing."""
    topics = settings_of(chosen).topics
    for name, (*_, of) in OPTIONS.items():
        if of and getattr(chosen, name) and not set(of) & set(topics):
            option = "--" + name.replace("_", "-")
            parser.error(f"{option} is of {', '.join(of)}, not of {', '.join(topics)}")
