"""The options of `rdmatensor horovodrun`: those of Horovod's launcher."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Options that steer MPI, NCCL, Gloo or tuning, of which rdmatensor has none: their names, and how
# many words follow.
_IGNORED: dict[str, int] = {
    **dict.fromkeys(
        (
            *("--gloo", "--mpi", "--jsrun", "--tcp", "--disable-cache", "--autotune"),
            *("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
            *("--hierarchical-allgather", "--no-hierarchical-allgather"),
            *("--torus-allreduce", "--no-torus-allreduce", "--log-hide-timestamp"),
            *("--log-with-timestamp", "--no-autotune", "--mpi-threads-disable"),
            "--no-mpi-threads-disable",
        ),
        0,
    ),
    **dict.fromkeys(
        (
            *("--mpi-args", "--binding-args", "--num-nccl-streams", "--fusion-threshold-mb"),
            *("--cycle-time-ms", "--cache-capacity", "--thread-affinity", "--autotune-log-file"),
            *("--autotune-warmup-samples", "--autotune-steps-per-sample"),
            *("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"),
            *("--gloo-timeout-seconds", "--ccl-bgt-affinity"),
        ),
        1,
    ),
}
# Variables that the ranks read, by the option that sets them.
_VARIABLES = {
    "timeline_filename": "HOROVOD_TIMELINE",
    "stall_check_warning_time_seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "stall_check_shutdown_time_seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "log_level": "HOROVOD_LOG_LEVEL",
    "start_timeout": "HOROVOD_START_TIMEOUT",
    "elastic_timeout": "HOROVOD_ELASTIC_TIMEOUT",
}
_FLAGS = {
    "timeline_mark_cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "no_stall_check": "HOROVOD_STALL_CHECK_DISABLE",
}
# A configuration file groups options; elsewhere their names are those of the command line.
_GROUPED = {
    ("timeline", "filename"): "timeline_filename",
    ("timeline", "mark_cycles"): "timeline_mark_cycles",
    ("stall_check", "warning_time_seconds"): "stall_check_warning_time_seconds",
    ("stall_check", "shutdown_time_seconds"): "stall_check_shutdown_time_seconds",
    ("logging", "level"): "log_level",
    ("elastic", "min_np"): "min_np",
    ("elastic", "max_np"): "max_np",
    ("elastic", "timeout"): "elastic_timeout",
    ("elastic", "reset_limit"): "reset_limit",
    ("elastic", "blacklist_cooldown_range"): "blacklist_cooldown_range",
}
_GROUPS_IGNORED = ("params", "autotune", "library_options")


class _Ignore(argparse.Action):
    """Collects the names of options without effect."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        del parser, values
        namespace.ignored.append(option_string)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; the words after the first one without a dash are the command."""
    parser = argparse.ArgumentParser(
        prog="rdmatensor horovodrun",
        description="Start a program that uses Horovod's API on several ranks.",
        epilog="example: rdmatensor horovodrun -np 4 -H localhost:2,node1:2 python train.py",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "--num-proc", dest="np", type=_positive, metavar="N", help="number of ranks")
    add("-v", "--version", action="store_true", help="print the version and exit")
    add("-cb", "--check-build", action="store_true", help="print what this build has and exit")
    where = parser.add_argument_group("hosts").add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="NAME:SLOTS,...", help="default: localhost:NP")
    where.add_argument(
        "-hostfile", "--hostfile", type=Path, metavar="FILE", help="lines NAME slots=N"
    )
    where.add_argument(
        "--host-discovery-script", metavar="FILE",
        help="elastic: a program that prints lines NAME:SLOTS; it runs once a second",
    )  # fmt: skip
    add("-p", "--ssh-port", type=_positive, metavar="PORT")
    add("-i", "--ssh-identity-file", metavar="FILE")
    add(
        "--network-interfaces", "--network-interface", metavar="NAME[,...]",
        help="listen on this interface only; of several the first",
    )  # fmt: skip
    add(
        "--start-timeout", type=_positive, metavar="S",
        help="seconds for hosts to answer and ranks to meet (default: 30)",
    )  # fmt: skip
    add("--output-filename", type=Path, metavar="FOLDER", help="FOLDER/rank.N/stdout and stderr")
    add("--prefix-output-with-timestamp", action="store_true")
    add("--verbose", action="store_true", help="print each rank's host and command")
    add("--config-file", type=Path, metavar="FILE", help="YAML; options of the command line win")
    add("--log-level", choices=["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"])
    add("--timeline-filename", metavar="FILE")
    add("--timeline-mark-cycles", action="store_true", default=None)
    add("--no-stall-check", action="store_true", default=None)
    add("--stall-check-warning-time-seconds", type=float, metavar="S")
    add("--stall-check-shutdown-time-seconds", type=float, metavar="S")
    _add_elastic(parser)
    for name, words in _IGNORED.items():
        parser.add_argument(name, nargs=words, action=_Ignore, help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    parser.set_defaults(ignored=[])
    return parser


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    elastic = parser.add_argument_group("elastic").add_argument
    elastic("--min-np", "--min-num-proc", dest="min_np", type=_positive, metavar="N")
    elastic("--max-np", "--max-num-proc", dest="max_np", type=_positive, metavar="N")
    elastic("--slots-per-host", "--slots", dest="slots", type=_positive, metavar="N")
    elastic(
        "--elastic-timeout", type=_positive, metavar="S",
        help="seconds to wait for enough slots, and for ranks to meet again (default: 600)",
    )  # fmt: skip
    elastic("--reset-limit", type=_positive, metavar="N", help="give up after N changes of ranks")
    elastic(
        "--blacklist-cooldown-range", nargs=2, type=_positive, metavar=("MIN", "MAX"),
        help="seconds until a host on which a rank failed is used again (default: never)",
    )  # fmt: skip


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive integer")
    return int(text)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line, and the configuration file that it names.

    Raises:
        SystemExit: With 2 and a message, as argparse does.
    """
    parser = make_parser()
    given = parser.parse_args(list(words))
    if given.config_file is not None:
        try:
            _apply(read_config(given.config_file), given)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    if given.version or given.check_build:
        return given
    if given.command[:1] == ["--"]:
        del given.command[0]
    if not given.command:
        parser.error("name the command to run, such as python train.py")
    problem = _complete(given)
    if problem is not None:
        parser.error(problem)
    return given


def _complete(given: argparse.Namespace) -> str | None:
    """Fill in what follows from other options; return what is wrong, if anything."""
    given.is_elastic = given.host_discovery_script is not None or given.min_np is not None
    given.np = given.np or given.min_np
    if given.np is None:
        return "-np N is missing"
    if not given.is_elastic:
        return None if given.max_np is None else "--max-np needs --min-np"
    given.min_np = given.min_np or given.np
    if not given.min_np <= given.np <= (given.max_np or given.np):
        return (
            f"--min-np {given.min_np}, -np {given.np} and --max-np {given.max_np}: must not "
            "decrease in this order"
        )
    return None


def read_config(path: Path) -> dict[str, Any]:
    """Return the options of a configuration file under their names of the command line.

    Raises:
        ValueError: A name is unknown, or PyYAML is missing.
        OSError: The file cannot be read.
    """
    try:
        import yaml
    except ImportError:
        raise ValueError("--config-file needs PyYAML: pip install rdmatensor[horovod]") from None
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    found: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in tree.items():
        entries = value if isinstance(value, Mapping) else {None: value}
        for inner, one in entries.items():
            written = name if inner is None else f"{name}.{inner}"
            if name in _GROUPS_IGNORED or written == "logging.hide_timestamps":
                ignored.append(written)
            elif written == "stall_check.enabled":
                found["no_stall_check"] = not one
            else:
                found[_option(path, name, inner)] = one
    return {**found, "ignored": ignored}


def _option(path: Path, name: str, inner: str | None) -> str:
    """Return the option that an entry of a configuration file sets."""
    known = vars(make_parser().parse_args([])).keys() - {"command", "ignored", "config_file"}
    plain = name.replace("-", "_")
    if inner is None and plain in known:
        return plain
    if inner is not None and (name, inner) in _GROUPED:
        return _GROUPED[name, inner]
    raise ValueError(f"{path}: {name}{'' if inner is None else f'.{inner}'} is not an option")


def _apply(found: dict[str, Any], given: argparse.Namespace) -> None:
    given.ignored.extend(found.pop("ignored"))
    for name, value in found.items():
        if getattr(given, name) in (None, False):
            setattr(given, name, value)


def variables_of(given: argparse.Namespace) -> dict[str, str]:
    """Return the variables by which options reach the ranks."""
    found = {
        variable: str(getattr(given, name))
        for name, variable in _VARIABLES.items()
        if getattr(given, name) is not None
    }
    found.update({variable: "1" for name, variable in _FLAGS.items() if getattr(given, name)})
    if given.network_interfaces is not None:
        found["RDMATENSOR_IFNAME"] = given.network_interfaces.split(",")[0]
    return found
