"""Where an interpreter is that imports a rival, if one is on this machine at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.benchlib.machine import ROOT

PROBE_LIMIT_S = 60.0


def find(name: str, variable: str, package: str, imports: str) -> tuple[Path | None, str]:
    """Return an interpreter that imports a rival, or None and why there is none.

    variable: of the environment, names the interpreter; else that of build/NAME/venv counts.
    """
    python = Path(os.environ.get(variable, ROOT / "build" / name.lower() / "venv/bin/python"))
    if not python.exists():
        return None, (
            f"no interpreter with {name}: make a venv with `pip install {package}` and name its "
            f"python in {variable}"
        )
    # os._exit: the process crashes in Python's own end otherwise, with NIXL 1.5
    words = [str(python), "-c", f"import os, {imports}; os._exit(0)"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=PROBE_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"{name} is not imported after {PROBE_LIMIT_S:g} s"
    if done.returncode != 0:
        return None, f"{name} does not import: {done.stderr.strip().splitlines()[-1:]}"
    return python, ""
