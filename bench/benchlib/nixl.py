"""Where NIXL is, if it is on this machine at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.benchlib.machine import ROOT

VARIABLE = "RDMATENSOR_BENCH_NIXL_PYTHON"
_PROBE_LIMIT_S = 60.0
_DEFAULT = ROOT / "build" / "nixl" / "venv" / "bin" / "python"


def find() -> tuple[Path | None, str]:
    """Return an interpreter that imports NIXL, or None and why there is none."""
    python = Path(os.environ.get(VARIABLE, _DEFAULT))
    if not python.exists():
        return None, (
            f"no interpreter with NIXL: make a venv with `pip install nixl-cu12` and name its "
            f"python in {VARIABLE}"
        )
    # os._exit: the process crashes in Python's own end otherwise, with NIXL 1.5
    probe = "import os, nixl_cu12; os._exit(0)"
    words = [str(python), "-c", probe]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_PROBE_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"NIXL is not imported after {_PROBE_LIMIT_S:g} s"
    if done.returncode != 0:
        return None, f"NIXL does not import: {done.stderr.strip().splitlines()[-1:]}"
    return python, ""


def ways(path: str) -> dict[str, dict[str, str]]:
    """Return contestant -> environment for one path.

    "nixl": as it comes, with error handling between peers; on one host UCX then chooses among all
    its transports. "nixl tuned": see the worker; UCX is held to the path.
    """
    quiet = {"NIXL_LOG_LEVEL": "ERROR"}
    held = {**quiet, "UCX_TLS": f"{path},self"}
    return {"nixl": held if path == "tcp" else quiet, "nixl tuned": held}
