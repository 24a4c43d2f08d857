"""PyTorch's own tests of torch.distributed, from the installed wheel, made to take any backend.

The suite skips by the variable BACKEND when it defines its classes, and asks for it again in the
bodies of tests. So it is imported under a name that it knows, the persona; afterwards its BACKEND
is the real name, which also equals the persona.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import cpu_for_gpu
import torch
import torch.distributed as dist
from settings import Run
from torch.testing._internal import common_distributed

_SUITE = "torch.testing._internal.distributed.distributed_test"
_MEETING_S = 60  # of the suite's meetings by files; its own 10 s are too few on a busy machine
_EXIT_S = 3.0  # for a rank that was told to end


class Name(str):
    """The name of a backend that also equals the one that the suite knows."""

    __slots__ = ("persona",)
    persona: str

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == self.persona

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _set_environment(run: Run, folder: Path, timeout_s: int) -> None:
    os.environ.update(
        BACKEND=run.persona,
        WORLD_SIZE=str(run.world),
        TEMP_DIR=str(folder),
        INIT_METHOD=f"file://{folder / 'shared_init'}",  # env:// makes it skip a test
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(timeout_s),
    )


def _open_gates(run: Run, backend: str, timeout_s: int) -> None:
    common_distributed.TIMEOUT_DEFAULT = timeout_s
    common_distributed.TIMEOUT_OVERRIDE.clear()
    if run.has_few_ranks:
        common_distributed.skip_if_small_worldsize = lambda function: function
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        features = common_distributed.DistTestCases.backend_feature
        features[feature] |= {backend, run.persona}
    if run.uses_cpu_for_gpu:
        cpu_for_gpu.install()


def _own_monitored_barrier(suite: Any) -> None:
    """torch's refuses every name but Gloo's: the tests get the backend's own door.

    They pass seconds where a timedelta is asked for, as torch lets them.
    """
    from rdmatensor.distributed import monitored_barrier

    def barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        limit = timedelta(seconds=timeout) if isinstance(timeout, float) else timeout
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            monitored_barrier(group, limit, wait_all_ranks)

    suite.dist.monitored_barrier = barrier
    dist.distributed_c10d.monitored_barrier = barrier


def load(backend: str, run: Run, folder: Path, timeout_s: int) -> type[Any]:
    """Import and change the suite; return its case, to be made with the name of a test.

    folder: for its files. timeout_s: of each test.
    """
    _set_environment(run, folder, timeout_s)
    torch.set_num_threads(1)
    _open_gates(run, backend, timeout_s)
    suite = importlib.import_module(_SUITE)
    name = Name(backend)
    name.persona = run.persona
    suite.BACKEND = name
    os.environ["BACKEND"] = backend
    for profiled in ("", "CUDA_", "SEND_RECV_"):
        names = getattr(suite, f"{profiled}PROFILING_SUPPORTED_BACKENDS")
        if backend not in names:
            names.append(backend)
    suite.default_pg_timeout = min(suite.default_pg_timeout, timeout_s)
    sync = suite.Barrier.sync.__func__
    suite.Barrier.sync = classmethod(
        lambda cls, wait_for=None, timeout=_MEETING_S: sync(cls, wait_for, timeout)
    )
    if backend != run.persona and backend == "rdmatensor":
        _own_monitored_barrier(suite)
    return _case_of(suite)


def _case_of(suite: Any) -> type[Any]:
    dist_tests: Any = suite.DistributedTest._DistTestBase

    class TestSuite(suite.TestDistBackend, dist_tests):
        """Ranks are forked: torch has been imported once, and a test takes 0.3 s instead of 4."""

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def tearDown(self) -> None:
            ranks = list(self.processes)
            super().tearDown()  # tells those that are left to end
            for rank in ranks:
                rank.join(_EXIT_S)
                if rank.is_alive():
                    rank.kill()
                    rank.join(_EXIT_S)

    return TestSuite
