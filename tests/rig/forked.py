"""Jobs of several ranks in the rig: torch is imported once, and every rank forked.

In an emulated machine an import takes half a minute. The ranks are those of tests/integration.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
import jobs
import launcher


def start(
    role: str,
    world: int,
    limit_s: float,
    environment: Mapping[str, str],
    arguments: Mapping[str, Any],
) -> jobs.Job:
    """Fork a process that forks the ranks; it returns from here as each of them, and ends there."""
    out = Path(tempfile.mkdtemp())  # the machine's own, which goes with it
    request = launcher.Request(
        role=role,
        world=world,
        out=str(out),
        timeout_s=limit_s,
        is_imported_first=True,
        environment={**os.environ, **environment},
        arguments=dict(arguments),
    )
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.exit(launcher.run_job(request))
    return jobs.Job(os.pidfd_open(pid), out, world, limit_s)
