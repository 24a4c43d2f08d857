"""What a step frees and asks for again is not given back to the kernel in between."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

# Says, at the beginning and after each statement, whether malloc has the kernel map 31 MiB,
# and in the end whether 96 MiB in tensors that come and go have their pages taken each time.
PROGRAM = """
import ctypes

class Found(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.mallinfo2.restype = Found

def is_mapped():
    before = libc.mallinfo2().hblkhd
    block = libc.malloc(31 << 20)
    assert block
    # It stays: malloc would learn from it if it were freed.
    return libc.mallinfo2().hblkhd - before >= 31 << 20

def faults():
    for _ in range(6):  # where pieces lie changes at first
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(4 << 20) for _ in range(6)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

import resource
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
statements = %r
found = [is_mapped()]
while statements:
    exec(statements.pop(0))
    found.append(is_mapped())
print(found, faults() < 1000)  # of 24576 pages
"""
GROUP = "dist.init_process_group('rdmatensor', store=HashStore(), rank=0, world_size=1)"
# Instead of pages that are taken: whether malloc gives a block at the heap's end back. Tensors may
# lie below something that lives, and then nothing of theirs goes back whatever the limits are.
END = """
def faults():
    libc.free.argtypes = [ctypes.c_void_p]
    block = libc.malloc(200 << 20)
    held = libc.mallinfo2().arena
    libc.free(block)
    return 1000 if libc.mallinfo2().arena < held else 0
"""
APPLY = """
import graph_analysis, rdmatensor.plan
model = torch.nn.Linear(8, 8)
x = torch.randn(4, 8)
plan = graph_analysis.analyze(model, (x,), strategy=graph_analysis.DataParallel(1))
planned = rdmatensor.plan.apply(model, plan, torch.optim.SGD(model.parameters()))
"""


def found(statements: list[str], **environment: str) -> str:
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "RDMATENSOR_")) and name != "GLIBC_TUNABLES"
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % statements],
        env={**others, **environment},
        capture_output=True,
        text=True,
        timeout=50.0,
        check=True,
    )
    return done.stdout.strip()


def test_a_group_has_large_blocks_in_the_heap() -> None:
    assert found([GROUP]) == "[True, False] True"


def test_without_adoption_only_a_plan_has_them_there() -> None:
    assert found([GROUP, APPLY], RDMATENSOR_ADOPT="0") == "[True, True, False] True"


def test_without_hooks_malloc_keeps_its_limits() -> None:
    assert found([GROUP], RDMATENSOR_HOOKS="0").startswith("[True, True] ")


@pytest.mark.parametrize("limit", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"])
def test_limits_of_the_users_stand(limit: str) -> None:
    assert found([GROUP, APPLY], **{limit: "1048576"}) == "[True, True, True] False"


def test_a_user_who_has_nothing_mapped_keeps_that() -> None:
    assert found([GROUP, END], MALLOC_MMAP_MAX_="0") == "[False, False, False] False"


def test_limits_that_the_program_set_stand() -> None:
    ours = "libc.mallopt(-1, 1 << 20)"  # M_TRIM_THRESHOLD
    assert found([ours, GROUP, APPLY]) == "[True, True, True, True] False"
