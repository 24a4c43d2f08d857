"""What the rig's command line may say."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MEANS = ("device", "rxe", "kvm", "tcg")
TIMEOUT_S = 600.0
MEMORY_MB = 2048  # of each guest; 2 CPUs and 24 GiB must do for several runs at once
CPU = "max"
OUT = Path(__file__).resolve().parents[2] / "build" / "rig" / "out"
REORDER_DELAY = "1ms"  # netem reorders by sending some packets ahead of the delayed others

EPILOG = """The command finds in its environment: RIG_MEANS, RIG_HOST (0 or 1), RIG_HOSTS, RIG_ADDR,
RIG_PEER_ADDR, RIG_DEVICE, RIG_GID_INDEX; with a word for each link RIG_ADDRS, RIG_PEER_ADDRS,
RIG_DEVICES, RIG_IFNAMES; RIG_OUT, a folder whose files come back, and RIG_SHARED, one that both
hosts see. rig-cable and rig-shape are on its PATH. Exit status: the command's, on two hosts the
worse; 123 if a machine's kernel died under it; 124 after the deadline; 125 if the rig itself
failed; 2 for a wrong option; 128 + N after signal N."""


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line."""

    command: tuple[str, ...]
    hosts: int
    links: int
    netem: str  # words for tc netem, or empty
    rate: str  # of each link and direction, or empty
    timeout_s: float
    out: Path
    means: str  # one of MEANS or "auto"
    kernel: str
    cpus: int  # of each guest
    cpu: str  # QEMU's words for one that is emulated
    memory_mb: int
    is_verbose: bool


def parse(argv: Sequence[str]) -> Options:
    """Return the options; leaves with status 2 and a reason if they make no sense."""
    parser = _parser()
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:split])
    command = tuple(words[split + 1 :])
    if not command:
        parser.error("no command: put it after --")
    netem = _netem(given)
    if given.hosts == 1 and (netem or given.rate):
        parser.error(
            "--loss, --duplicate, --reorder, --delay and --rate need --hosts 2: "
            "what one host sends to itself never meets a cable"
        )
    if given.means in ("device", "rxe") and given.hosts == 2:
        parser.error(f"--means {given.means} has one host only")
    return Options(
        command=command,
        hosts=given.hosts,
        links=given.links,
        netem=netem,
        rate=given.rate or "",
        timeout_s=given.timeout,
        out=given.out.absolute(),
        means=given.means,
        kernel=given.kernel,
        cpus=given.cpus or (2 if given.hosts == 1 else 1),
        cpu=given.cpu,
        memory_mb=given.memory,
        is_verbose=given.verbose,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ci/rig/run.sh",
        usage="%(prog)s [OPTIONS] -- COMMAND...",
        description="Run a command with a working RDMA device.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    percent = _form(r"(100|\d{1,2}(\.\d+)?)%", "1%")
    add("--hosts", type=int, choices=(1, 2), default=1, help="machines that run the command")
    add("--links", type=int, choices=(1, 2), default=1, help="rxe devices and cables of a host")
    add("--loss", type=percent, help="packets lost in each direction, such as 1%%")
    add("--duplicate", type=percent, help="packets that arrive twice")
    add("--reorder", type=percent, help="packets that overtake the ones before")
    add("--delay", type=_form(r"\d+(us|ms|s)", "5ms"), help="in each direction")
    add("--rate", type=_form(r"\d+(\.\d+)?[kmg]bit", "100mbit"), help="of each link")
    add("--timeout", type=_seconds, default=TIMEOUT_S, help="seconds from the machines' start on")
    add("--out", type=Path, default=OUT, help="the folder for RIG_OUT")
    add("--means", choices=("auto", *MEANS), default="auto", help="what gives the device")
    add("--kernel", choices=("6.12", "6.1"), default="6.12", help="series of Debian's kernels")
    add("--cpus", type=_count, default=0, help="of each machine; 2, or 1 where there are two")
    add("--cpu", type=_form(r"\w[\w.,=-]*", "max,avx=off"), default=CPU, help="that is emulated")
    add("--memory", type=_count, default=MEMORY_MB, metavar="MB", help="of each machine")
    add("--verbose", action="store_true", help="show each console at the end")
    return parser


def _form(pattern: str, example: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form {example}")
        return text

    return checked


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?s?", text) or float(text.rstrip("s")) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return float(text.rstrip("s"))


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _netem(given: argparse.Namespace) -> str:
    delay = given.delay or (REORDER_DELAY if given.reorder else "")
    parts = (
        ("delay", delay),
        ("loss", given.loss),
        ("duplicate", given.duplicate),
        ("reorder", given.reorder),
    )
    return " ".join(f"{word} {value}" for word, value in parts if value)
