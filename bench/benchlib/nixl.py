"""Where NIXL is, if it is on this machine at all, and in which ways it is measured."""

from __future__ import annotations

from pathlib import Path

from bench.benchlib import interpreters

VARIABLE = "RDMATENSOR_BENCH_NIXL_PYTHON"


def find() -> tuple[Path | None, str]:
    """Return an interpreter that imports NIXL, or None and why there is none."""
    return interpreters.find("NIXL", VARIABLE, "nixl-cu12", "nixl_cu12")


def ways(path: str) -> dict[str, dict[str, str]]:
    """Return contestant -> environment for one path.

    "nixl": as it comes, with error handling between peers; on one host UCX then chooses among all
    its transports. "nixl tuned": see the worker; UCX is held to the path.
    """
    quiet = {"NIXL_LOG_LEVEL": "ERROR"}
    held = {**quiet, "UCX_TLS": f"{path},self"}
    return {"nixl": held if path == "tcp" else quiet, "nixl tuned": held}
