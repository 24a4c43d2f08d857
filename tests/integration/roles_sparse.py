"""A member that tells of sparse tensors what torch would never make."""

from __future__ import annotations

import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT

SIZE = 4
# Entries, and the index of one; None: nobody asks for it any more.
LIES = {
    "below": (1, -5),
    "above": (1, SIZE),
    "far": (1, 1 << 40),
    "too many": (SIZE + 1, None),
    "endless": (1 << 62, None),
    "fewer than none": (-1, None),
}


def say(*values: int) -> None:
    """Take part in one exchange of the all_reduce below."""
    said = torch.tensor(values)
    dist.all_gather_into_tensor(torch.empty(2 * len(values), dtype=torch.int64), said)


def lies(rank: int, world: int) -> dict[str, str]:
    """Rank 0 sums one entry with a rank 1 that lies; then both are honest."""
    assert world == 2
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    seen = {}
    for name, (count, index) in LIES.items():
        if rank == 0:
            tensor = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (SIZE,))
            try:
                dist.all_reduce(tensor)
                seen[name] = f"{tensor.to_dense()}"
            except RuntimeError as error:
                seen[name] = f"{type(error).__name__}: {error}"
        else:
            say(1, SIZE)
            say(count)
            if index is not None:
                say(index)
                dist.all_gather_into_tensor(torch.empty(2), torch.ones(1))
    tensor = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (SIZE,))
    dist.all_reduce(tensor)
    seen["honest"] = str(tensor.to_dense().tolist())
    dist.destroy_process_group()
    return seen
