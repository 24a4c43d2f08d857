"""How a model is trained by several ranks: the parts of a loop that are not the same for all.

DistributedDataParallel on either group, a plan, and sums by hand. The last is the oracle where a
plan promises more than DistributedDataParallel has: a sum for each backward pass of several over
one forward pass, a loop that goes on after an error.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import rdmatensor._torch.ddp.gradients
import rdmatensor.plan
from graph_analysis import (
    CostModel,
    DataParallel,
    analyze,
    build_plan,
    plan_from_json,
    plan_to_json,
)
from graph_analysis.capture.step import _module_graph
from tests.fuzz_training.case import Case

# Capture takes ten times as long as all the rest; the others get the plan of a model that torch
# cannot capture.
CAPTURED_OF_HUNDRED = 25
Context = contextlib.AbstractContextManager[Any]
Inputs = tuple[Tensor, Tensor]


class Trained:
    """A model that several ranks train. Here: DistributedDataParallel."""

    def __init__(
        self,
        case: Case,
        model: nn.Module,
        group: dist.ProcessGroup,
        *,
        is_view: bool,
        is_oracle: bool,
    ) -> None:
        cap_mib = case.get("caps")
        self.group = group
        self.wrapped: Any = DistributedDataParallel(
            model,
            process_group=group,
            gradient_as_bucket_view=is_view,
            find_unused_parameters=bool(case.get("finds_unused")),
            static_graph=bool(case.get("static_graph")),
            broadcast_buffers=not case.get("buffers_stay"),
            **({} if cap_mib is None else {"bucket_cap_mb": cap_mib}),
        )
        hook = case.get("comm_hook")
        if hook is not None:
            hooks = default_hooks
            chosen = hooks.allreduce_hook if hook == "allreduce" else hooks.fp16_compress_hook
            self.wrapped.register_comm_hook(group, chosen)
        elif is_oracle and case.world > 2 and case.is_summed_by_rank():
            # Gloo adds three in an order of its own; of two there is one order.
            by_rank = _average_bucket if case.mode == "plan" else _sum_bucket
            self.wrapped.register_comm_hook(group, by_rank)

    def __call__(self, x: Tensor, ids: Tensor) -> Any:
        return self.wrapped(x, ids)

    def no_sync(self) -> Context:
        return self.wrapped.no_sync()

    def ended(self) -> None:
        """A backward pass of this model, and maybe others, is over, and has not raised."""

    def born(self) -> int:
        """Return how many gradients were written where they are sent from."""
        return sum(one["in_place"] for one in rdmatensor._torch.ddp.gradients.told())

    def close(self) -> None:
        self.wrapped = None


class Planned(Trained):
    """A plan. `inputs` are what it is made of."""

    def __init__(
        self,
        case: Case,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: Inputs,
        gloo: dist.ProcessGroup,
    ) -> None:
        assert dist.group.WORLD is not None
        self.group = dist.group.WORLD
        self.wrapped = rdmatensor.plan.apply(
            model,
            _plan_of(case, model, inputs, gloo),
            optimizer,
            find_unused_parameters=bool(case.get("finds_unused")),
        )

    def born(self) -> int:
        return int(self.wrapped.describe()["in_place"])

    def close(self) -> None:
        self.wrapped.close()


def _plan_of(case: Case, model: nn.Module, inputs: Inputs, gloo: dist.ProcessGroup) -> Any:
    """Return the plan: each rank's own, or rank 0's, which takes less time.

    gloo: of all ranks, and patient: a capture takes seconds on a busy machine.
    """
    if not case.get("each_analyzes") and dist.get_rank() != 0:
        texts: list[Any] = [None]
        dist.broadcast_object_list(texts, src=0, group=gloo)
        return plan_from_json(texts[0])
    strategy = DataParallel(case.world, broadcast_buffers=not case.get("buffers_stay"))
    # A latency of none makes a bucket of each gradient.
    cost = CostModel() if case.get("caps") is None else CostModel(latency_ns=case.number() % 2000)
    if case.number("captured") % 100 < CAPTURED_OF_HUNDRED:
        plan = analyze(model, inputs, strategy=strategy, cost=cost)
    else:
        graph = _module_graph(model, "output_sum", "not captured")
        plan = build_plan(graph, strategy, cost=cost)
    if not case.get("each_analyzes"):
        dist.broadcast_object_list([plan_to_json(plan)], src=0, group=gloo)
    else:
        dist.barrier(group=gloo)
    return plan


def average(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the ranks' average of a dense tensor, with the bits that AVG of rdmatensor has.

    It adds in the order of ranks, halves in float32, and divides at the end.
    """
    return _sum(tensor, group, factor=1.0, divisor=dist.get_world_size(group))


def _sum(tensor: Tensor, group: dist.ProcessGroup, *, factor: float, divisor: int) -> Tensor:
    """Return the sum of what is multiplied before, in the order of ranks, divided at the end."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    is_half = real.dtype in (torch.float16, torch.bfloat16)
    own = (real * factor).to(torch.float32 if is_half else real.dtype).contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    total = parts[0]
    for part in parts[1:]:
        total += part
    total = (total / divisor).to(real.dtype)
    return torch.view_as_complex(total) if tensor.is_complex() else total


def _average_bucket(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[Tensor]:
    """Communication hook of DistributedDataParallel: average()."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(average(bucket.buffer(), group))
    return done


def _sum_bucket(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Communication hook of DistributedDataParallel: what it does itself, in the order of ranks."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(_sum(bucket.buffer(), group, factor=1.0 / group.size(), divisor=1))
    return done


# DistributedDataParallel compares the types themselves, which are words in this module.
for _hook in (_average_bucket, _sum_bucket):
    _hook.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[Tensor]})


class ByHand(Trained):
    """Averages after each backward pass, and rank 0's buffers before a forward pass."""

    def __init__(self, case: Case, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.model, self.group = model, group
        self.root = dist.get_global_rank(group, 0)
        self.finds_unused = bool(case.get("finds_unused"))
        self.sends_buffers = not case.get("buffers_stay")
        self.is_syncing, self.owes = True, True
        self.trained = [p for p in model.parameters() if p.requires_grad]
        for tensor in [*model.parameters(), *model.buffers()]:
            self._take_from_root(tensor)

    def _take_from_root(self, tensor: Tensor) -> None:
        value = tensor.detach().contiguous().clone()
        dist.broadcast(value, src=self.root, group=self.group)
        tensor.data.copy_(value)

    def __call__(self, x: Tensor, ids: Tensor) -> Any:
        if self.owes and self.sends_buffers:  # in a checkpoint around the model, too: so does DDP
            for buffer in self.model.buffers():
                self._take_from_root(buffer)
        output = self.model(x, ids)
        self.owes = self.is_syncing and torch.is_grad_enabled()
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Any:
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before

    def ended(self) -> None:
        if self.is_syncing:
            self._average()

    def _average(self) -> None:
        used = torch.tensor([p.grad is not None for p in self.trained], dtype=torch.uint8)
        dist.all_reduce(used, op=dist.ReduceOp.MAX, group=self.group)
        for parameter, is_used in zip(self.trained, used.tolist(), strict=True):
            if not is_used and self.finds_unused:
                continue
            grad = parameter.grad
            if grad is None:
                parameter.grad = grad = torch.zeros_like(parameter)
            total = average(grad.detach().to_dense(), self.group)
            if grad.is_sparse:
                parameter.grad = total.to_sparse(1)
            else:
                grad.data.copy_(total)

    def born(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing stays with the model."""
