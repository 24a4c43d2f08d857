"""Compare training on rdmatensor with training on Gloo, seed by seed.

python -m tests.fuzz_training --seeds 0:100 --mode plan --transport shm --world 2

Prints each failure with the command that repeats it, and exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy: ranks are forked from here
os.environ["MKL_CBWR"] = "COMPATIBLE"  # sums that do not depend on where a matrix lies

from tests.fuzz_training.case import MODES, Case, make_case  # noqa: E402 - see above
from tests.fuzz_training.pool import Pool  # noqa: E402 - see above
from tests.fuzz_training.run import Summary, Verdict, judge, minimised  # noqa: E402 - see above

TRIES_MINIMISING = 3  # a race shows now and then


def main() -> int:
    arguments = _arguments()
    summary, start_s = Summary(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(arguments.world, arguments.transport, Path(folder))
        try:
            for case in _cases(arguments):
                if arguments.seconds and time.monotonic() - start_s > arguments.seconds:
                    break
                verdict = judge(case, pool)
                summary.add(case, verdict)
                if verdict.kind == "failed":
                    _tell(case, verdict, arguments, pool)
                elif arguments.verbose:
                    print(f"seed {case.seed}: {verdict.kind} {verdict.words[:200]}; {case}")
        finally:
            pool.stop()
    _tell_summary(summary, arguments, time.monotonic() - start_s)
    return 1 if summary.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.fuzz_training", description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="FIRST:END, or numbers with commas")
    parser.add_argument("--case", help="a case in JSON, instead of seeds")
    parser.add_argument("--cases", type=Path, help="a file with a case in each line")
    parser.add_argument("--mode", choices=MODES, default="plan")
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no case after so many")
    parser.add_argument("--repeat", type=int, default=1, help="run each case so often")
    parser.add_argument("--minimise", action="store_true", help="take out what a failure needs not")
    parser.add_argument("--without", default="", help="pieces and features left out, with commas")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    return parser.parse_args()


def _cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.case:
        return [Case.from_json(arguments.case)] * arguments.repeat
    if arguments.cases:
        lines = arguments.cases.read_text(encoding="utf-8").splitlines()
        return [Case.from_json(line) for line in lines] * arguments.repeat
    if ":" in arguments.seeds:
        first, end = arguments.seeds.split(":")
        seeds = list(range(int(first), int(end)))
    else:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    names = set(arguments.without.split(","))
    return [
        make_case(seed, arguments.mode, arguments.world).without(names)
        for seed in seeds
        for _ in range(arguments.repeat)
    ]


def _tell(case: Case, verdict: Verdict, arguments: argparse.Namespace, pool: Pool) -> None:
    way = f"--mode {arguments.mode} --transport {arguments.transport} --world {arguments.world}"
    is_made = case == make_case(case.seed, case.mode, case.world)
    what = f"--seeds {case.seed}:{case.seed + 1}" if is_made else f"--case '{case.to_json()}'"
    command = f"python -m tests.fuzz_training {what} {way}"
    print(f"seed {case.seed}: {command}\n  {case}\n  {verdict.words}", flush=True)
    pool.stop()
    if not arguments.minimise:
        return

    def is_failing(one: Case) -> bool:
        for _ in range(TRIES_MINIMISING):
            found = judge(one, pool)
            if found.kind == "failed":
                return True
        return False

    smaller = minimised(case, is_failing)
    found = judge(smaller, pool)
    print(f"  smaller: {smaller}\n  --case '{smaller.to_json()}'\n  {found.words}", flush=True)
    pool.stop()


def _tell_summary(summary: Summary, arguments: argparse.Namespace, seconds: float) -> None:
    kinds: collections.Counter[str] = summary.kinds
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    way = f"{arguments.mode} over {arguments.transport}, {arguments.world} ranks"
    print(f"{way}: {sum(kinds.values())} cases in {seconds:.0f} s: {told}")
    print(f"  {summary.born} gradients of a rank were written where they are sent from")
    for words, count in summary.words.most_common():
        print(f"  {count} {words}")
    if summary.failures:
        print(f"  failed: {','.join(str(case.seed) for case, _ in summary.failures)}")


if __name__ == "__main__":
    sys.exit(main())
