"""Ranks of torch that end over verbs: killed, stopped and by an exception; the others name them.

Usage, within the rig: sweep.py; RDT_TEST_SWEEP=N goes through N points instead of three, and from
20 on a phase that no end has hit counts. The jobs and the judgement are those of
tests/integration/test_abort.py and test_sweep.py. Imports torch once, and forks every rank: in an
emulated machine an import takes half a minute. What a plan needs takes another minute: the few
points of each run keep to the phases before it. From a point for each phase on all may be hit, and
before them groups are aborted, shut down and destroyed, with the next of the same processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import forked  # makes the folder of these known
import jobs
import launcher
from meeting import SCALE
from roles_abort import judge_ended
from roles_plan import plan_of
from roles_sweep import PHASES, PLAN_VARIABLE
from sweep_points import JOB_LIMIT_S, WORLD, Tally, judge, points

from graph_analysis.plan_json import plan_to_json

POINTS = int(os.environ.get("RDT_TEST_SWEEP", "3"))
SEED = int(os.environ.get("RDT_TEST_SWEEP_SEED", "1"))
# Survivors go two phases further than the victim's, which is to be no step of a plan yet.
UNPLANNED = list(PHASES)[: list(PHASES).index("plan step") - 2]
IS_LONG = len(PHASES) <= POINTS
# Of those in roles_abort.WAYS; each is a group for works in flight, and one for none.
WAYS = ["abort after Ctrl-C", "abort from a thread", "abort, then shutdown", "shutdown twice"]
ENDED_LIMIT_S = 60.0 * SCALE


def end_groups() -> None:
    """Two ranks end groups in several ways, and make the next."""
    begun_s = time.monotonic()
    store = f"{tempfile.mkdtemp()}/store"
    arguments = {"store": store, "is_connected": True, "ways": WAYS}
    verbs = {"RDMATENSOR_TRANSPORT": "verbs"}
    ranks = forked.start("roles_abort:ended", 2, ENDED_LIMIT_S, verbs, arguments).finish()
    judge_ended(jobs.results(ranks), WAYS)
    print(f"{', '.join(WAYS)}: ok, {time.monotonic() - begun_s:.1f} s", flush=True)


def write_plan() -> Path:
    """Make the plan of the model that planned steps have, and have imported what they need."""
    launcher.import_once()
    path = Path(tempfile.mkdtemp()) / "plan.json"
    pid = os.fork()  # it begins threads, which the ranks would miss
    if pid == 0:
        path.write_text(plan_to_json(plan_of("mlp", WORLD)), encoding="utf-8")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise AssertionError(f"no plan was made: status {status}")
    return path


def main() -> int:
    """Go through the points; 0 if all went as they must."""
    among = list(PHASES) if IS_LONG else UNPLANNED
    if IS_LONG:
        end_groups()
        os.environ[PLAN_VARIABLE] = str(write_plan())
    tally = Tally()
    for point in points(POINTS, SEED, ("verbs",), among):
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
    tally.check(POINTS, among)
    return 0


if __name__ == "__main__":
    sys.exit(main())
