"""What the workers share: where the ranks meet, cores, and their lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

PATIENCE_S = 60.0


def emit(**record: object) -> None:
    """Print one record."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def pin(rank: int, ranks: int) -> bool:
    """Give this thread, not those that there are already, a core where there is one for each.

    False: there are more ranks than cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    return ranks <= len(cores)


def join_gloo(folder: Path, rank: int, ranks: int, patience: timedelta) -> None:
    """Join torch's default group, on Gloo, by a file of the folder; one compute thread."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    torch.set_num_threads(1)
    store = FileStore(str(folder / "c10d"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)


class Folder:
    """Values of two ranks, in files."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path, self.rank = path, rank

    def swap(self, key: str, mine: bytes) -> bytes:
        """Give mine, return the other rank's; both call it. Raises TimeoutError."""
        draft = self.path / f"{key}.{self.rank}.draft"
        draft.write_bytes(mine)
        draft.rename(self.path / f"{key}.{self.rank}")
        other = self.path / f"{key}.{1 - self.rank}"
        deadline_s = time.monotonic() + PATIENCE_S
        while not other.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the other rank has no {key}")
            time.sleep(0.001)
        return other.read_bytes()
