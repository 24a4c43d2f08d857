"""Where no thread can be had: an exception where there is somebody to hear it, never abort()."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

_PROLOGUE = """
    import sys
    import torch
    import torch.distributed as dist
    from no_threads import forbid_threads
    from rdmatensor import default_context
    from rdmatensor.config import from_environment

    def make_group():
        dist.init_process_group("rdmatensor", store=dist.HashStore(), rank=0, world_size=1)
        return dist.group.WORLD._get_backend(torch.device("cpu"))
"""


def run_alone(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROLOGUE) + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RDMATENSOR_LOOPBACK": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
    return done.stdout.strip()


def test_a_group_that_gets_no_threads_is_refused() -> None:
    code = """
        default_context()
        forbid_threads()
        try:
            make_group()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
    """
    assert "no thread for requests to the store" in run_alone(code)


def test_an_operation_dropped_where_there_are_no_threads_ends() -> None:
    code = """
        backend = make_group()
        work = backend.recv([torch.zeros(8)], 0, 7)
        forbid_threads()
        del work  # pending: its tensors are left to somebody else
        backend.send([torch.ones(8)], 0, 7).wait()
        dist.destroy_process_group()
        default_context().close()
        print("closed")
    """
    assert run_alone(code) == "closed"
