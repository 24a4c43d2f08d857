"""`python -m rdmatensor.horovod train.py ...`: run a program in which `import horovod` works."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from rdmatensor.horovod.runner.finder import append_finder


def main() -> int:
    """Run the program that the first argument names, as `python` would."""
    if len(sys.argv) < 2:
        print("usage: python -m rdmatensor.horovod PROGRAM.py [ARGUMENT]...", file=sys.stderr)
        return 2
    del sys.argv[0]
    append_finder()
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
