"""RDMATENSOR_HOOKS=0: a group changes nothing else in the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

# Prints what is another thing than before there was a group, and what the group tells.
PROGRAM = """
import json
import sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer

def now():
    return {
        **{
            name: getattr(DistributedDataParallel, name)
            for name in ("_ddp_init_helper", "_pre_forward", "_post_forward")
        },
        "sys.meta_path": list(sys.meta_path),
        "hooks of optimizers": list(optimizer._global_optimizer_post_hooks),
    }

before = now()
dist.init_process_group("rdmatensor", store=HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(128, 128))
steps = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    steps.zero_grad()
    model(torch.ones(2, 128)).sum().backward()
    steps.step()
import rdmatensor
from torch.distributed.pipelining import stage

told = rdmatensor.distributed.describe()
changed = [name for name, value in now().items() if value != before[name]]
if any(hasattr(value, "_is_adopting") for value in vars(stage._PipelineStageBase).values()):
    changed.append("stages")
print(json.dumps([changed, told["adopted"], told["plan"]["state"]]))
"""


def changed(**environment: str) -> list[object]:
    others = {k: v for k, v in os.environ.items() if not k.startswith("RDMATENSOR_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**others, **environment},
        capture_output=True,
        text=True,
        timeout=50.0,
        check=True,
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_one_setting_leaves_all_as_it_is() -> None:
    assert changed(RDMATENSOR_HOOKS="0") == [[], [], "off"]


def test_without_it_they_are_what_the_table_says() -> None:
    names, adopted, state = changed()
    assert names == [
        "_ddp_init_helper",
        "_pre_forward",
        "_post_forward",
        "sys.meta_path",
        "hooks of optimizers",
        "stages",
    ]
    assert adopted
    assert state == "locked"
