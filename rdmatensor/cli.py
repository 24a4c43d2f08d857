"""Check an installation, list settings, plan a step, ask running servers, compare speeds."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

# Imports in functions: each command loads its own, so that each starts fast.
if TYPE_CHECKING:
    from rdmatensor.doctor import Finding

PORT = 29600  # of --listen
SCHEMA = 1  # of --json: raised when a key is removed or changes its meaning

_SUITE = "bench/suite/command.py"
_GUIDE = "Guides and reference: the folder docs/ of the sources."
_EXIT_CODES = """exit status:
  0    nothing is broken
  1    something is broken, or a setting is wrong
  2    an argument is wrong
  130  ended by Ctrl-C
  141  the reader of the output closed it, as `| head` does
"""


class _ReaderGoneError(Exception):
    """The reader of the output, such as `| head`, has closed it."""


def _say(*lines: str) -> None:
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        raise _ReaderGoneError from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words of the command; None takes the process's own.

    Returns:
        The exit status: 0 for success, 1 for a problem that was found, 2 for misuse.

    Example:
        >>> main(["settings", "--json"])
        {"schema": 1, ...
        0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] in (["bench"], ["plan"], ["horovodrun"]):  # they have options of their own
        return {"bench": _bench, "plan": _plan, "horovodrun": _horovodrun}[words[0]](words[1:])
    parser = _parser()
    chosen = parser.parse_args(words)
    if chosen.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    run = {"settings": _settings, "doctor": _doctor, "ps": _ps_status}[chosen.command]
    try:
        return run(chosen)
    except _ReaderGoneError:
        return _without_reader()


def _without_reader() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="rdmatensor",
        description=__doc__,
        formatter_class=raw,
        epilog="examples:\n"
        "  rdmatensor doctor                 check this machine\n"
        "  rdmatensor settings               list the environment variables with their values\n"
        "  rdmatensor plan model:make --world 4 -o plan.json\n\n" + _GUIDE,
    )
    parser.add_argument("--version", action="version", version=f"rdmatensor {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_doctor(
        commands.add_parser(
            "doctor",
            help="check the installation and this machine",
            description="Check the installation and this machine: versions, settings, RDMA "
            "devices, memory, limits. Each transport is tried with real writes.",
            formatter_class=raw,
            epilog="examples:\n"
            "  rdmatensor doctor\n"
            "  rdmatensor doctor --listen             on the first of two hosts\n"
            "  rdmatensor doctor --peer first-host    on the second\n"
            "  torchrun --nproc-per-node 4 -m rdmatensor doctor\n\n" + _EXIT_CODES,
        )
    )
    settings = commands.add_parser(
        "settings",
        help="list the environment variables with their values now",
        description="List all environment variables with their values now, and check them. Each "
        "value is printed as it is set; the second line has its form, its default and its scope.",
        formatter_class=raw,
        epilog="examples:\n"
        "  rdmatensor settings\n"
        "  rdmatensor settings --json | python -m json.tool\n\n" + _EXIT_CODES,
    )
    settings.add_argument("--json", action="store_true", help="print one object, for programs")
    _add_ps(commands.add_parser("ps", help="ask the parameter servers of this host"))
    commands.add_parser(
        "plan", help="plan the transfers of a training step before it runs", add_help=False
    )
    commands.add_parser("bench", help="compare rdmatensor with other libraries", add_help=False)
    commands.add_parser(
        "horovodrun",
        help="start a program that uses Horovod's API on several ranks",
        add_help=False,
    )
    return parser


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument(
        "--json", action="store_true", help="print one object with all findings, for programs"
    )
    doctor.add_argument(
        "--plan", type=_plan_file, metavar="FILE",
        help="check that the arena required by this plan fits into memory",
    )  # fmt: skip
    pair = doctor.add_mutually_exclusive_group()
    pair.add_argument(
        "--listen", nargs="?", type=_port, const=PORT, metavar="PORT",
        help=f"wait for the doctor of another host on this port, and test the pair "
        f"(default: {PORT})",
    )  # fmt: skip
    pair.add_argument(
        "--peer", type=_peer, metavar="HOST[:PORT]",
        help="test the pair with the doctor that listens there",
    )  # fmt: skip
    pair.add_argument(
        "--alone", action="store_true",
        help="check only this host, even if RANK and WORLD_SIZE are set",
    )  # fmt: skip


def _add_ps(ps: argparse.ArgumentParser) -> None:
    status = ps.add_subparsers(dest="action", metavar="ACTION", required=True).add_parser(
        "status",
        help="print the state of each server, and who holds the others",
        description="Ask the parameter servers that run on this host as this user, also if their "
        "jobs are stuck: tables, bytes, each worker's step, and the workers that others wait for. "
        "Each server knows all workers, whichever host they are on.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  rdmatensor ps status\n"
        "  rdmatensor ps status --json | python -m json.tool\n\n"
        "exit status:\n"
        "  0    each server has answered\n"
        "  1    there is none, or one has not answered within 2 s\n",
    )
    status.add_argument("--json", action="store_true", help="print one object, for programs")


# ---- arguments -----------------------------------------------------------------------------------


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"port {text} is not in 1..65535")
    return int(text)


def _peer(text: str) -> str:
    from rdmatensor.doctor.pair_store import address_of

    try:
        address_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _plan_file(text: str) -> Path:
    from rdmatensor.doctor import plan_arena_bytes

    try:
        plan_arena_bytes(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error.strerror}") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is not a plan: {error}; make one with: rdmatensor plan ... -o {text}"
        ) from None
    return Path(text)


# ---- bench, plan, horovodrun ---------------------------------------------------------------------


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


def _plan(words: list[str]) -> int:
    from graph_analysis.__main__ import main as plan_main

    try:
        return plan_main(words, prog="rdmatensor plan")
    except BrokenPipeError:
        return _without_reader()


def _horovodrun(words: list[str]) -> int:
    from rdmatensor.horovod.runner.command import main as launch_main

    return launch_main(words)


def _version() -> str:
    from rdmatensor._build_stamp import VERSION

    return str(VERSION)


# ---- doctor --------------------------------------------------------------------------------------


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
    levels: Counter[str] = Counter(finding.level for finding in found)
    if chosen.json:
        _say_json(found, levels, tells=not is_rank or meet.is_first_of_all())
    else:
        counts = ", ".join(f"{levels[level]} {level}" for level in ("ok", "slower", "broken"))
        ended = " (ended by Ctrl-C)" if status else ""
        _say(*lines, f"{len(found)} checks: {counts}{ended}")
    return status or int(levels["broken"] > 0)


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


def _say_json(found: Sequence[Finding], levels: Mapping[str, int], *, tells: bool) -> None:
    """Print one object; on a rank that does not print, problems go to standard error."""
    from dataclasses import asdict

    from rdmatensor.doctor import report

    if tells:
        summary = {level: levels[level] for level in ("ok", "slower", "broken")}
        findings = [asdict(finding) for finding in found]
        _say(_json(findings=findings, summary=summary))
        return
    wrong = [finding for finding in found if finding.level != "ok"]
    print(*report(wrong), sep="\n", file=sys.stderr, flush=True)


def _json(**members: object) -> str:
    return json.dumps({"schema": SCHEMA, "version": _version(), **members})


# ---- settings ------------------------------------------------------------------------------------


def _settings(chosen: argparse.Namespace) -> int:
    from rdmatensor._config.variables import NATIVE_VARIABLES, VARIABLES
    from rdmatensor.config import check_native, from_environment, native_values
    from rdmatensor.errors import RdmaTensorError

    try:
        settings, native = from_environment(), native_values()
        check_native()
    except RdmaTensorError as error:
        print(f"rdmatensor: {error}", file=sys.stderr)
        return 1
    sources = {"SECRET": "environment", "SECRET_FILE": "file"}
    values = {}
    for variable in VARIABLES:
        if variable.name in sources:
            is_set = settings.secret_source == sources[variable.name]
            values[variable] = "(set, not shown)" if is_set else ""
        else:
            values[variable] = _as_set(getattr(settings, str(variable.field)))
    for variable in NATIVE_VARIABLES:
        default = "" if variable.default == "unset" else variable.default
        values[variable] = native.get(variable.full_name, default)
    rows = [
        {
            "name": variable.full_name,
            "value": value,
            "kind": variable.kind,
            "form": variable.form,
            "default": variable.default,
            "scope": variable.scope,
            "is_set": bool(os.environ.get(variable.full_name)),
            "meaning": variable.meaning,
        }
        for variable, value in values.items()
    ]
    if chosen.json:
        _say(_json(settings=rows))
    else:
        _say(*(line for row in rows for line in _lines(row)))
    return 0


def _lines(row: dict[str, object]) -> list[str]:
    is_set = "set here; " if row["is_set"] else ""
    meaning = str(row["meaning"]).replace("`", "")
    return [
        f"{row['name']}={row['value']}",
        f"    {is_set}{row['form']}; default: {row['default']}; scope: {row['scope']}",
        f"    {meaning}",
    ]


def _as_set(value: object) -> str:
    """Write a value as it is in the environment."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


# ---- ps ------------------------------------------------------------------------------------------


def _ps_status(chosen: argparse.Namespace) -> int:
    from rdmatensor._observe.ps_text import text_of_servers
    from rdmatensor._observe.reports import ask_all

    reports = ask_all("ps")
    if chosen.json:
        _say(_json(servers=reports))
    else:
        _say(*(text_of_servers(reports) or ["no parameter server of this user runs here"]))
    return int(not reports or any("error" in one for one in reports))
