"""What this machine can do with rdmatensor, what is in the way, and which settings are in force."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# Imports in functions: each command loads its own, so that each starts fast.
if TYPE_CHECKING:
    from rdmatensor.doctor import Finding

PORT = 29600  # of --listen

_SUITE = "bench/suite/command.py"


class _ReaderGoneError(Exception):
    """The reader of the output, such as `| head`, has closed it."""


def _say(*lines: str) -> None:
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        raise _ReaderGoneError from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 1 for a problem found here, 2 for misuse."""
    parser = argparse.ArgumentParser(prog="rdmatensor", description=__doc__)
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command")
    doctor = commands.add_parser("doctor", help="check the installation and this machine")
    doctor.add_argument("--json", action="store_true", help="one array of findings, for programs")
    doctor.add_argument(
        "--plan", type=Path, metavar="FILE", help="whether the arena of this plan finds room"
    )
    pair = doctor.add_mutually_exclusive_group()
    pair.add_argument(
        "--listen", nargs="?", type=int, const=PORT, metavar="PORT",
        help=f"wait for the doctor of another host on this port ({PORT}), and test the pair",
    )  # fmt: skip
    pair.add_argument(
        "--peer", type=_peer, metavar="HOST[:PORT]", help="test the pair with one that listens"
    )
    pair.add_argument(
        "--alone", action="store_true",
        help="look at this host only, also where a launcher's variables name other ranks",
    )  # fmt: skip
    commands.add_parser("settings", help="list the environment variables with their values now")
    commands.add_parser("bench", help="compare rdmatensor with other libraries", add_help=False)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["bench"]:
        return _bench(words[1:])  # it has options of its own
    chosen = parser.parse_args(words)
    if chosen.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    try:
        return _settings() if chosen.command == "settings" else _doctor(chosen)
    except _ReaderGoneError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _bench(words: list[str]) -> int:
    """Hand over to the suite, which is in the checkout and not in the installed package."""
    here = Path.cwd()
    candidates = [Path(__file__).resolve().parents[1], here, *here.parents]
    for root in candidates:
        if (root / _SUITE).is_file():
            break
    else:
        print(
            "rdmatensor: the benchmarks do not come with the installed package: they are in bench/ "
            "of the sources; run this from within a checkout",
            file=sys.stderr,
        )
        return 2
    sys.path.append(str(root))  # at the end, so that the installed package is measured
    status: int = importlib.import_module("bench.suite.command").main(words)
    return status


def _version() -> str:
    from rdmatensor._build_stamp import VERSION

    return f"rdmatensor {VERSION}"


def _peer(text: str) -> str:
    from rdmatensor.doctor.pair_store import address_of

    try:
        address_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _doctor(chosen: argparse.Namespace) -> int:
    from rdmatensor.doctor import meet, report

    is_pair = chosen.listen is not None or chosen.peer is not None
    is_rank = not (is_pair or chosen.alone) and meet.is_under_torchrun()
    found: list[Finding] = []
    lines: list[str] | None = []
    status = 0

    def show(findings: Iterable[Finding]) -> None:
        for finding in findings:
            found.append(finding)
            if not chosen.json:
                _say(*report([finding]))

    try:
        lines = _look(chosen, show, is_rank=is_rank, is_pair=is_pair)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    if lines is None:
        return 0  # rank 0 prints all of it, and its status is the job's
    if chosen.json:
        _say_json(found, tells=not is_rank or meet.is_first_of_all())
    elif lines:
        _say(*lines)
    return status or int(any(finding.level == "broken" for finding in found))


def _look(
    chosen: argparse.Namespace,
    show: Callable[[Iterable[Finding]], None],
    *,
    is_rank: bool,
    is_pair: bool,
) -> list[str] | None:
    """Check this host, then pairs with others; return the matrix, None if rank 0 prints it."""
    from rdmatensor.doctor import examine, meet

    own: list[Finding] = []
    told: meet.Report | None = ([], [])
    if not is_rank or meet.is_first_of_host():
        for finding in examine(chosen.plan):
            own.append(finding)
            show([meet.told_of_rank(finding) if is_rank else finding])
    if is_rank:
        told = meet.with_ranks(own)
    elif is_pair:
        told = meet.with_peer(chosen.listen, chosen.peer, own)
    if told is None:
        return None
    show(told[0])
    return told[1]


def _say_json(found: Sequence[Finding], *, tells: bool) -> None:
    """Print one array; on a rank that does not print, problems go to standard error."""
    from dataclasses import asdict

    from rdmatensor.doctor import report

    if tells:
        _say(json.dumps([asdict(finding) for finding in found]))
        return
    wrong = [finding for finding in found if finding.level != "ok"]
    print(*report(wrong), sep="\n", file=sys.stderr, flush=True)


def _settings() -> int:
    from rdmatensor._config.variables import VARIABLES
    from rdmatensor.config import from_environment, native_values
    from rdmatensor.errors import RdmaTensorError

    try:
        settings = from_environment()
    except RdmaTensorError as error:
        print(f"rdmatensor: {error}", file=sys.stderr)
        return 1
    lines = []
    sources = {"SECRET": "environment", "SECRET_FILE": "file"}
    for variable in VARIABLES:
        if variable.name in sources:
            is_set = settings.secret_source == sources[variable.name]
            shown = "(set, not shown)" if is_set else ""
        else:
            shown = _as_set(getattr(settings, str(variable.field)))
        lines += [f"{variable.full_name}={shown}", f"    {variable.form}: {variable.meaning}"]
    for name, value in native_values().items():
        lines += [f"{name}={value}", "    read by the C library, see docs/settings.md"]
    print("\n".join(lines))
    return 0


def _as_set(value: object) -> str:
    """Write a value as it is in the environment."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)
