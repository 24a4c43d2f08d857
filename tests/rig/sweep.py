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

import forked  # makes the folder of these known
from roles_sweep import PHASES
from sweep_points import JOB_LIMIT_S, WORLD, Tally, judge, points

POINTS = int(os.environ.get("RDT_TEST_SWEEP", "3"))
SEED = int(os.environ.get("RDT_TEST_SWEEP_SEED", "1"))
# Survivors go two phases further than the victim's, which is to be no step of a plan yet.
AMONG = list(PHASES)[: list(PHASES).index("plan step") - 2]


def main() -> int:
    """Go through the points; 0 if all went as they must."""
    tally = Tally()
    for point in points(POINTS, SEED, ("verbs",), AMONG):
        folder = Path(tempfile.mkdtemp())  # the machine's own, which goes with it
        begun_s = time.monotonic()
        job = forked.start(
            "roles_sweep:a_rank_dies",
            WORLD,
            JOB_LIMIT_S,
            point.environment(),
            point.arguments(folder),
        )
        ranks = job.finish()
        died_in, last_s = judge(point, folder, ranks)
        tally.add(point, died_in, last_s)
        took_s = time.monotonic() - begun_s
        print(f"{point}, rank {point.victim}: hit {died_in}, {took_s:.1f} s", flush=True)
    print(tally, flush=True)
    tally.check(POINTS, AMONG)
    return 0


if __name__ == "__main__":
    sys.exit(main())
