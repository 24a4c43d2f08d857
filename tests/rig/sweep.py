"""Ranks of torch that end over verbs: killed, stopped and by an exception; the others name them.

Usage, within the rig: sweep.py; RDT_TEST_SWEEP=N goes through N points instead of three, and from
20 on a phase that no end has hit counts. The job and the judgement are those of
tests/integration/test_sweep.py. Imports torch once, and forks every rank: in an emulated machine
an import takes half a minute. For the same reason nothing is planned here.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
import jobs
import launcher
from roles_sweep import PHASES
from sweep_points import JOB_LIMIT_S, WORLD, Point, Tally, judge, points

POINTS = int(os.environ.get("RDT_TEST_SWEEP", "3"))
SEED = int(os.environ.get("RDT_TEST_SWEEP_SEED", "1"))
# Survivors go two phases further than the victim's, which is to be no step of a plan yet.
AMONG = list(PHASES)[: list(PHASES).index("plan step") - 2]


def start(point: Point, folder: Path) -> jobs.Job:
    """Fork a process that forks the ranks; it returns from here as each of them, and ends there."""
    out = folder / "out"
    out.mkdir()
    request = launcher.Request(
        role="roles_sweep:a_rank_dies",
        world=WORLD,
        out=str(out),
        timeout_s=JOB_LIMIT_S,
        is_imported_first=True,
        environment={**os.environ, **point.environment()},
        arguments=point.arguments(folder),
    )
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.exit(launcher.run_job(request))
    return jobs.Job(os.pidfd_open(pid), out, WORLD, JOB_LIMIT_S)


def main() -> int:
    """Go through the points; 0 if all went as they must."""
    tally = Tally()
    for point in points(POINTS, SEED, ("verbs",), AMONG):
        folder = Path(tempfile.mkdtemp())  # the machine's own, which goes with it
        begun_s = time.monotonic()
        ranks = start(point, folder).finish()
        died_in, last_s = judge(point, folder, ranks)
        tally.add(point, died_in, last_s)
        took_s = time.monotonic() - begun_s
        print(f"{point}, rank {point.victim}: hit {died_in}, {took_s:.1f} s", flush=True)
    print(tally, flush=True)
    tally.check(POINTS, AMONG)
    return 0


if __name__ == "__main__":
    sys.exit(main())
