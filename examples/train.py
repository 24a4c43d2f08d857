"""Train two real models on real data over several backends, and compare them.

For each backend this starts `torchrun --nproc-per-node 2` on train_worker.py, which trains
a small CNN on handwritten digits and a character-level transformer on the standard
library's source text with DistributedDataParallel. Then it checks that every run gave
exactly Gloo's loss curve, prints a table of speed and paths, and draws a plot.

Exit status: 0 when every check has passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from launch import RunFailed, torchrun
from plot import save_plot
from report import (
    TIME_MEANING,
    TOLERANCE_REASON,
    Run,
    comparison,
    path_table,
    problems,
    timing_table,
)
from results import load_run

EXAMPLES = Path(__file__).resolve().parent
RANKS = 2
DEFAULT_BACKENDS = "rdmatensor:shm,rdmatensor:tcp,gloo"
TRANSPORTS = ("shm", "tcp", "verbs")
DEFAULT_EPOCHS = 4
QUICK_EPOCHS = 2
TEXT_CHARS = 100_000
QUICK_TEXT_CHARS = 50_000
# Four times what three full runs take on two quiet cores (60 s measured).
DEADLINE_S = 240.0
DUMP_BEFORE_END_S = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    """A backend to train on, with the path that it must take (None: its own choice)."""

    label: str
    backend: str
    transport: str | None
    file_name: str


def parse_targets(text: str) -> list[Target]:
    """Parse "rdmatensor:shm,gloo"; raises ArgumentTypeError on anything unknown."""
    targets: list[Target] = []
    for word in text.split(","):
        backend, _, transport = word.strip().partition(":")
        if backend == "gloo" and not transport:
            label = "Gloo"
        elif backend == "rdmatensor" and transport in ("", *TRANSPORTS):
            label = f"rdmatensor ({transport or 'automatic'})"
        else:
            raise argparse.ArgumentTypeError(
                f"{word!r} is neither gloo nor rdmatensor nor rdmatensor:shm|tcp|verbs"
            )
        same = sum(t.backend == backend and t.transport == (transport or None) for t in targets)
        suffix = f" #{same + 1}" if same else ""
        file_name = "-".join(filter(None, (backend, transport, suffix.strip(" #")))) + ".json"
        targets.append(Target(label + suffix, backend, transport or None, file_name))
    if len(targets) < 2 or all(target.backend != "gloo" for target in targets):
        raise argparse.ArgumentTypeError("needs two runs or more, one of them gloo to compare with")
    return targets


def rank_environment(target: Target) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment.pop("RDMATENSOR_TRANSPORT", None)
    if target.transport is not None:
        environment["RDMATENSOR_TRANSPORT"] = target.transport
    # All ranks are on this host. Without it Gloo looks the host's name up, which needs a network.
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    return environment


def train_on(target: Target, args: argparse.Namespace, *, timeout_s: float) -> Run:
    """Run one backend to its end; raises RunFailed when there is no good one in time."""
    result = args.out / target.file_name
    result.unlink(missing_ok=True)
    torchrun(
        EXAMPLES / "train_worker.py",
        [
            *("--backend", target.backend),
            *("--epochs", str(args.epochs or (QUICK_EPOCHS if args.quick else DEFAULT_EPOCHS))),
            *("--max-text-chars", str(QUICK_TEXT_CHARS if args.quick else TEXT_CHARS)),
            *("--result", str(result)),
            *("--dump-at-s", str(time.monotonic() + timeout_s - DUMP_BEFORE_END_S)),
        ],
        ranks=RANKS,
        environment=rank_environment(target),
        timeout_s=timeout_s,
    )
    return Run(target.label, target.backend, target.transport, load_run(result))


def train_all(args: argparse.Namespace) -> list[Run]:
    """Run every target within one deadline for all of them."""
    deadline_s = time.monotonic() + args.deadline_s
    runs = []
    for number, target in enumerate(args.backends, start=1):
        print(f"[{number}/{len(args.backends)}] {target.label}", flush=True)
        started_s = time.monotonic()
        try:
            runs.append(train_on(target, args, timeout_s=max(1.0, deadline_s - started_s)))
        except RunFailed as error:
            raise RunFailed(f"{target.label}: {error}") from error
        print(f"  done in {time.monotonic() - started_s:.1f} s", flush=True)
    return runs


def report(runs: list[Run], plot: Path) -> int:
    """Print the judgement, the tables and the plot's path; returns the exit status."""
    reference = next(run for run in runs if run.backend == "gloo")
    save_plot(runs, plot)
    print(f"\n{TOLERANCE_REASON}\n\n{comparison(runs, reference)}")
    print(f"\n{timing_table(runs)}\n\n{TIME_MEANING}\n\n{path_table(runs)}\n\nplot: {plot}")
    found = problems(runs, reference)
    for problem in found:
        print(f"FAILED: {problem}")
    if not found:
        print("PASSED: all runs gave the same training")
    return 1 if found else 0


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=positive, help=f"over both data sets ({DEFAULT_EPOCHS})")
    parser.add_argument("--quick", action="store_true", help="less text and fewer epochs")
    parser.add_argument("--backends", type=parse_targets, default=DEFAULT_BACKENDS)
    parser.add_argument("--out", type=Path, default=EXAMPLES.parent / "build" / "demo")
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S, help="for all runs")
    args = parser.parse_args()

    # A plain SIGTERM would leave the ranks running: torchrun gives them their own sessions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        runs = train_all(args)
    except RunFailed as error:
        print(f"FAILED: {error}")
        return 1
    return report(runs, args.out / "loss.png")


if __name__ == "__main__":
    sys.exit(main())
