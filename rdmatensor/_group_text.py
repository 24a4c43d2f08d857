"""The result of describe() under torch.distributed, as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rdmatensor._describe_text import text_of
from rdmatensor.distributed import describe

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup


def describe_text(group: ProcessGroup | None = None) -> str:
    """Return rdmatensor.describe(group) as lines of text; raises as that does."""
    return text_of(describe(group))
