"""A plan laid out for a model on all ranks of a group: its memory, its buffers and its sums."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch.distributed as dist

from graph_analysis import TransferPlan
from rdmatensor._plan.agree import StartedBucket, check_layouts, on_all_ranks
from rdmatensor._plan.buffers import SentBuffers
from rdmatensor._plan.memory import Counts, GradientMemory
from rdmatensor._plan.model import check_not_sparse
from rdmatensor._plan.planned import Planned, claim, close_plan_before, unclaim
from rdmatensor._plan.spans import spans_of
from rdmatensor._plan.wires import Wires
from rdmatensor.context import default_context


class Layout:
    """What a planned model has in memory for one plan, until close().

    memory, buffers, bound: of the plan; bound has the sums of the memory's buckets, in their order.
    """

    def __init__(
        self,
        planned: Planned,
        plan: TransferPlan,
        group: dist.ProcessGroup,
        arrived: Callable[[int], None],
        counts: Counts,
        wires: Wires,
    ) -> None:
        """Lay the plan out; collective over the group, whose ranks have the same plan.

        arrived: as GradientMemory has it.
        Raises: PlanMismatchError, on all ranks, if the model is not the plan's.
        """
        self._undo = ExitStack()
        root = dist.get_global_rank(group, 0)
        try:
            self.memory = on_all_ranks(partial(self._place, planned, plan, arrived, counts), group)
            check_layouts(self.memory.numbered, group)
            place = self.memory.memory
            make = partial(SentBuffers, plan, planned.module, place, root, group)
            self.buffers = on_all_ranks(make, group)
            self._undo.callback(self.buffers.close)
            self.bound: list[StartedBucket] = []
            for one in wires.bind(self.memory.buckets):
                self.bound.append(one)
                self._undo.callback(one.close)
        except BaseException:
            self.close()
            raise

    def _place(
        self,
        planned: Planned,
        plan: TransferPlan,
        arrived: Callable[[int], None],
        counts: Counts,
    ) -> GradientMemory:
        model = planned.module
        check_not_sparse(model)
        close_plan_before(model)
        spans = spans_of(plan, dict(model.named_parameters()))
        # Under data parallelism all ranks have the same arena.
        size_bytes = plan.arenas[0].peak_bytes if plan.arenas else 0
        memory = GradientMemory(size_bytes, spans, default_context(), arrived, counts)
        self._undo.callback(memory.close)
        claim(planned, memory.numbered)
        self._undo.callback(unclaim, planned, memory.numbered)
        return memory

    def close(self) -> None:
        """Release the memory and the sums. Idempotent. Gradients in the memory stay valid."""
        self._undo.close()
