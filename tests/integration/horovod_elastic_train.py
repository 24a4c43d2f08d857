"""What ranks of an elastic job run: horovod_elastic_train.py FOLDER KILL.

Rank 0 leaves a line per batch in FOLDER/log: batch, number of ranks, weight. The job ends once
FOLDER/stop exists. KILL: "RANK:BATCH" of a rank that is killed before that batch, once, or "none".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

folder, kill = Path(sys.argv[1]), sys.argv[2]
hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(model.weight, float(hvd.rank() + 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)


def is_over() -> bool:
    seen = torch.tensor([int(hvd.rank() == 0 and (folder / "stop").exists())])
    return bool(hvd.broadcast(seen, 0, name="stop"))


def die_if_told(batch: int) -> None:
    if kill == f"{hvd.rank()}:{batch}" and not (folder / "killed").exists():
        (folder / "killed").write_text(os.environ["HOROVOD_ELASTIC_WORKER"])
        os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while not is_over():
        die_if_told(state.batch)
        # Each batch adds 1 to the weight, however many ranks there are.
        model.weight.grad = hvd.allreduce(torch.full((1, 1), -1.0), name="grad")
        optimizer.step()
        if hvd.rank() == 0:
            with (folder / "log").open("a") as log:
                log.write(f"{state.batch} {hvd.size()} {model.weight.item():g}\n")
        state.batch += 1
        state.commit()
        time.sleep(0.05)


state = hvd.elastic.TorchState(model, optimizer, batch=0)
resets: list[int] = []
state.register_reset_callbacks([lambda: resets.append(hvd.size())])
train(state)
print("weight", f"{model.weight.item():g}", "batch", state.batch, "size", hvd.size(), flush=True)
hvd.shutdown()
