"""Train real models on real data over several backends, in turns, and compare them.

For each backend this starts train_worker.py on two ranks by torchrun. It trains a small CNN on
handwritten digits, a character-level transformer on the standard library's source text, and a wide
perceptron with 68 MB of gradients, with DistributedDataParallel. The backends take turns of an
epoch, so that all meet the same machine. Then every run must have Gloo's loss in each step and
Gloo's final weights, bit for bit. A table has the times, a picture the curves.

Exit status: 0 when every check has passed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import RunFailed, Torchrun
from load import Load, LoadMeter, total
from plot import save_plot
from report import (
    RANKS,
    TIME_MEANING,
    Run,
    comparison,
    load_words,
    problems,
    timing_table,
)
from results import load_run
from turns import Turn, TurnServer, hand_out

EXAMPLES = Path(__file__).resolve().parent
DEFAULT_BACKENDS = "rdmatensor:shm,rdmatensor:tcp,gloo"
TRANSPORTS = ("shm", "tcp", "verbs")
# Four times what three full runs take on two free cores.
DEADLINE_S = 360.0
DUMP_BEFORE_END_S = 3.0
LOAD_SAMPLE_S = 1.0


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


def start(target: Target, address: Path, args: argparse.Namespace, deadline_s: float) -> Torchrun:
    """Start the ranks of one backend; each waits for its turn."""
    result = args.out / target.file_name
    result.unlink(missing_ok=True)
    return Torchrun(
        EXAMPLES / "train_worker.py",
        [
            *("--backend", target.backend, "--label", target.label),
            *(["--quick"] if args.quick else []),
            *("--turns", str(address), "--result", str(result)),
            *("--dump-at-s", str(deadline_s - DUMP_BEFORE_END_S)),
        ],
        ranks=RANKS,
        environment=rank_environment(target),
    )


class Clock:
    """Progress lines with the time since the start."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._start_s), 60)
        print(f"[{minutes}:{seconds:02}] {text}", flush=True)


def watch(jobs: Sequence[tuple[Target, Torchrun]], deadline_s: float) -> Callable[[], None]:
    """Return what raises RunFailed once a job has ended badly or the time is over."""

    def check() -> None:
        for target, job in jobs:
            try:
                job.check()
            except RunFailed as error:
                raise RunFailed(f"{target.label}: {error}") from error
        if time.monotonic() > deadline_s:
            raise RunFailed("no end within --deadline-s")

    return check


def train_all(args: argparse.Namespace, clock: Clock) -> tuple[list[Run], list[Turn]]:
    """Train over every backend, in turns, within one deadline; returns the runs and the turns."""
    deadline_s = time.monotonic() + args.deadline_s
    turns: list[Turn] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdt-demo-")))
        server = stack.enter_context(TurnServer(folder / "turns"))
        jobs = [
            (target, stack.enter_context(start(target, folder / "turns", args, deadline_s)))
            for target in args.backends
        ]
        check = watch(jobs, deadline_s)
        clock.say(f"starting {RANKS} ranks for each: {', '.join(t.label for t, _ in jobs)}")
        asking = server.accept([target.label for target, _ in jobs], RANKS, check)
        meter = LoadMeter(lambda: (pid for _, job in jobs for pid in job.pids()))
        clock.say("all ranks are ready; they take turns of an epoch")
        for done in hand_out(asking, meter, check):
            turns += done
            clock.say(round_words(done))
        for target, job in jobs:
            try:
                job.finish(max(1.0, deadline_s - time.monotonic()))
            except RunFailed as error:
                raise RunFailed(f"{target.label}: {error}") from error
    runs = [Run(t.label, t.backend, t.transport, load_run(args.out / t.file_name)) for t, _ in jobs]
    return runs, turns


def round_words(done: Sequence[Turn]) -> str:
    """One line for a turn of each backend."""
    asked = done[0].request
    times = ", ".join(f"{turn.request.run} {turn.seconds:.1f} s" for turn in done)
    load = total([turn.load for turn in done])
    busy = f"  (busy: other processes used {load.cores():.1f} cores)" if load.is_busy() else ""
    return f"{asked.model}, turn {asked.turn} of {asked.turns}: {times}{busy}"


def sample_load() -> Load:
    """Measure other processes while no rank runs."""
    meter = LoadMeter(lambda: ())
    time.sleep(LOAD_SAMPLE_S)
    return meter.end()


def report(runs: list[Run], turns: list[Turn], plot: Path) -> int:
    """Print the judgement, the table and the picture's path; returns the exit status."""
    reference = next(run for run in runs if run.backend == "gloo")
    load = load_words(total([turn.load for turn in turns]))
    save_plot(runs, load, plot)
    print(f"\n{comparison(runs, reference)}\n{load}")
    print(
        f"\n{timing_table(runs, reference)}\n\n{TIME_MEANING}\n\npicture: {os.path.relpath(plot)}"
    )
    found = problems(runs, reference)
    for problem in found:
        print(f"FAILED: {problem}")
    if not found:
        print("PASSED: the same training, bit for bit, in all runs")
    return 1 if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less text and fewer turns")
    parser.add_argument("--backends", type=parse_targets, default=DEFAULT_BACKENDS)
    parser.add_argument("--out", type=Path, default=EXAMPLES.parent / "build" / "demo")
    parser.add_argument("--deadline-s", type=float, default=DEADLINE_S, help="for all runs")
    args = parser.parse_args()

    # A plain SIGTERM would leave the ranks running: torchrun gives them their own sessions.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.out.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    clock.say(f"{load_words(sample_load())}; this takes 1 to 2 minutes on two free cores")
    try:
        runs, turns = train_all(args, clock)
    except RunFailed as error:
        print(f"FAILED: {error}")
        return 1
    return report(runs, turns, args.out / "loss.png")


if __name__ == "__main__":
    sys.exit(main())
