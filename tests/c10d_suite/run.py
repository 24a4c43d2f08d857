"""Run PyTorch's own c10d tests, from the installed wheel, against a backend.

python tests/c10d_suite/run.py [BACKEND] --run two|three|four|lists [--shard 0/4] [-k PATTERN]
python tests/c10d_suite/run.py gloo --run two --record   # writes the baseline

Exit status 1 on any failure, error or hang, on a test that Gloo passes and that did not, and on a
baseline of another torch.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import outcome
import torch
import upstream
from outcome import Baseline, Recorder
from settings import CANNOT_PASS, RUNS, Run, Shard, select

BASELINES = Path(__file__).with_name("baselines")
LOGS = Path(__file__).parents[2] / "build" / "logs"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backend", nargs="?", default="rdmatensor")
    parser.add_argument("--run", choices=sorted(RUNS), required=True)
    parser.add_argument("--shard", type=Shard.parse, default=Shard(), help="I/N: every N-th test")
    parser.add_argument("-k", dest="pattern", default="", help="regular expression for names")
    parser.add_argument("--timeout-s", type=int, default=90, help="of each test")
    parser.add_argument("--record", action="store_true", help="write the baseline of this run")
    parser.add_argument("--baselines", type=Path, default=BASELINES, help="of another torch")
    parser.add_argument("--log", type=Path, help="for the words of the ranks")
    return parser.parse_args()


def divert_output(log: Path) -> Callable[[str], None]:
    """Send what this process and its ranks write to a file; return what still reaches the user."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    user = os.fdopen(os.dup(1), "w", encoding="utf-8")
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)

    def say(line: str) -> None:
        print(line, file=user, flush=True)

    return say


def run_tests(arguments: argparse.Namespace, run: Run, folder: Path, log: Path) -> int:
    say = divert_output(log)
    case = upstream.load(arguments.backend, run, folder, arguments.timeout_s)
    every = [name for name in dir(case) if name.startswith("test")]
    wanted = select(every, run, arguments.shard, arguments.pattern)
    recorder = Recorder(len(wanted), say)
    gc.collect()
    gc.freeze()  # the ranks are forked, and would look at every object of torch's
    start_s = time.monotonic()
    for name in wanted:
        case(name).run(recorder)
    seconds = time.monotonic() - start_s
    title = f"{arguments.backend}, run {run.name}, {run.world} ranks"
    say(f"{title}: {outcome.totals(recorder.outcomes)} in {seconds:.0f} s")
    path: Path = arguments.baselines / f"{run.name}.json"
    if arguments.record:
        outcome.write_baseline(path, torch.__version__, recorder.outcomes)
        return 0
    baseline = Baseline.load(path)
    found = outcome.problems(recorder.outcomes, wanted, baseline, run.persona)
    if baseline.torch != torch.__version__:
        found.append(f"the baseline is of torch {baseline.torch}, this is {torch.__version__}")
    if not recorder.outcomes or len(recorder.outcomes) != len(wanted):
        found.append(f"{len(recorder.outcomes)} of {len(wanted)} tests ended")
    for name in sorted(set(CANNOT_PASS).intersection(wanted)):
        say(f"cannot pass: {name}: {CANNOT_PASS[name]}")
    for line in found:
        say(line)
    if found:
        say(f"{title}: {len(found)} problems; the words of the ranks: {log}")
    return 1 if found else 0


def main() -> int:
    arguments = parse()
    run = RUNS[arguments.run]
    log = arguments.log or LOGS / f"c10d-suite-{arguments.backend}-{run.name}.log"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many ranks as cores, or more
    with tempfile.TemporaryDirectory(prefix="c10d-suite") as folder:
        return run_tests(arguments, run, Path(folder), log)


if __name__ == "__main__":
    sys.exit(main())
