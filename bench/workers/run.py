"""Start a worker: run.py NAME RANK FOLDER OPTIONS, the options in JSON; pairs.run_ranks() does it.

A worker is a module of this folder, with OPTIONS, all of them with their defaults, and main().
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

# At the end: rdmatensor is found where it is installed, not in the sources.
sys.path.append(str(Path(__file__).resolve().parents[2]))


def main(name: str, rank: str, folder: str, options: str) -> None:
    worker, given = importlib.import_module(f"bench.workers.{name}"), json.loads(options)
    unknown = given.keys() - worker.OPTIONS.keys()
    if unknown:
        raise ValueError(f"{name} has no options {', '.join(sorted(unknown))}")
    whole = {**worker.OPTIONS, **given}
    worker.main(SimpleNamespace(rank=int(rank), folder=Path(folder), **whole))


if __name__ == "__main__":
    main(*sys.argv[1:])
