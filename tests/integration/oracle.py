"""What a case of the comparison with Gloo is given, and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=40)
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One run of a case. folder: of all ranks, empty at the beginning."""

    rank: int
    world: int
    backend: str
    folder: Path
    store: dist.Store

    def data(self, *shape: int, salt: int = 0, rank: int | None = None) -> torch.Tensor:
        """Random numbers, of this rank unless said."""
        seed = 1000 * (self.rank if rank is None else rank) + salt
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
