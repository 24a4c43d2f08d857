"""Where Mooncake's transfer engine is, if it is on this machine at all."""

from __future__ import annotations

from pathlib import Path

from bench.benchlib import interpreters

VARIABLE = "RDMATENSOR_BENCH_MOONCAKE_PYTHON"
PACKAGE = "mooncake-transfer-engine-non-cuda"


def find() -> tuple[Path | None, str]:
    """Return an interpreter that imports the engine, or None and why there is none."""
    return interpreters.find("Mooncake", VARIABLE, PACKAGE, "numpy, mooncake.engine")
