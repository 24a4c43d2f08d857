"""A process that keeps a core busy until it is killed or its parent ends.

    burner.py KIND PARENT_PID [--folder DIR]

It prints a line when it begins. The folder is only a name for who searches for its processes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import children

_WORK_S = 0.001  # of a nap, and its sleep
_WIDTH = 512  # of matmul: 1 MiB each, large enough that BLAS uses both of its threads


def spin() -> Callable[[], object]:
    """Return a step that does nothing."""
    return lambda: None


def nap() -> Callable[[], object]:
    """Return a step that works for a millisecond and then sleeps for one."""

    def step() -> None:
        end_s = time.perf_counter() + _WORK_S
        while time.perf_counter() < end_s:
            pass
        time.sleep(_WORK_S)

    return step


def matmul() -> Callable[[], object]:
    """Return a multiplication of matrices; the environment limits its threads to two."""
    import numpy as np

    one = np.ones((_WIDTH, _WIDTH), dtype=np.float32)
    out = np.empty_like(one)
    return lambda: np.matmul(one, one, out=out)


KINDS: dict[str, Callable[[], Callable[[], object]]] = {
    "spin": spin,
    "nap": nap,
    "matmul": matmul,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("parent", type=int)
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    children.end_with(arguments.parent)
    step = KINDS[arguments.kind]()
    step()
    sys.stdout.write("burning\n")
    sys.stdout.flush()
    while True:
        step()


if __name__ == "__main__":
    main()
