"""Where Mooncake's transfer engine is, if it is on this machine at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.benchlib.machine import ROOT

VARIABLE = "RDMATENSOR_BENCH_MOONCAKE_PYTHON"
PACKAGE = "mooncake-transfer-engine-non-cuda"
_PROBE_LIMIT_S = 60.0
_DEFAULT = ROOT / "build" / "mooncake" / "venv" / "bin" / "python"


def find() -> tuple[Path | None, str]:
    """Return an interpreter that imports the engine, or None and why there is none."""
    python = Path(os.environ.get(VARIABLE, _DEFAULT))
    if not python.exists():
        return None, (
            f"no interpreter with Mooncake: make a venv with `pip install {PACKAGE}` and name its "
            f"python in {VARIABLE}"
        )
    probe = "import os, numpy, mooncake.engine; os._exit(0)"
    words = [str(python), "-c", probe]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_PROBE_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return None, f"Mooncake is not imported after {_PROBE_LIMIT_S:g} s"
    if done.returncode != 0:
        return None, f"Mooncake does not import: {done.stderr.strip().splitlines()[-1:]}"
    return python, ""
