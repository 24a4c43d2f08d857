"""Train by a plan: gradients are born in the arena and leave in the plan's buckets.

    plan = graph_analysis.analyze(model, inputs, strategy=graph_analysis.DataParallel(world))
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    for x, y in data:
        optimizer.zero_grad()
        loss_fn(planned(x), y).backward()
        optimizer.step()

The first step learns which allocation of backward becomes which gradient, and copies each once;
later steps serve those allocations from the plan's places. What does not come as learnt is copied,
counted and learnt anew.

backward() returns when all sums are there, as with DistributedDataParallel, and step() waits for
nothing: between the two a program may read .grad (to clip it, to unscale it, to look for NaN), and
torch tells nobody of that. What communication can hide behind is the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from graph_analysis import TransferPlan
from rdmatensor import _record
from rdmatensor._choice import Choice
from rdmatensor._plan_agree import check_plan, on_all_ranks
from rdmatensor._plan_buffers import SentBuffers
from rdmatensor._plan_costs import Costs, Described
from rdmatensor._plan_memory import Bucket, Gradient, GradientMemory, PlanMismatch, grad_of
from rdmatensor._plan_model import ModelCheck, held_weakly
from rdmatensor.context import default_context
from rdmatensor.distributed import backend_of, load_extension

__all__ = ["Described", "PlanMismatch", "PlannedModel", "apply", "recorded"]


def apply(
    model: torch.nn.Module,
    plan: TransferPlan,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup | None = None,
    *,
    choose_again: bool = True,
    find_unused_parameters: bool = False,
) -> PlannedModel:
    """Let `model` train by `plan`, which DataParallel made for as many ranks as the group has.

    Blocks until all ranks of the group have called it: they compare their plans, and rank 0's
        parameters and buffers become everybody's.
    Ownership: the model and the optimizer stay the caller's; both get hooks until close(). The
        arena keeps one place for each gradient until close(), and longer where a gradient lives,
        and until close() what small buffers are sent from together.
    group: None is the default group. Its CPU backend must be rdmatensor.
    choose_again: the plan's buckets come from assumed costs; let them be made again after the
        third step from what the second measured, and algorithms be timed that sum them, on all
        ranks at the same step. Steps by them and as planned take turns until the tenth; what was
        faster stays, or what is in use if the program holds gradients then (docs/torch.md). By the
        eleventh step all is final, see describe()["choice"].
    find_unused_parameters: a parameter of the plan that no rank used in a step keeps `.grad` as it
        was, None mostly, as with DistributedDataParallel; one small message a step tells. Without
        it such a gradient is zero, which momentum and weight decay act on.
    Raises, on all ranks: PlanMismatch (different plans, a model that is not the plan's; the message
        names the first tensor), InvalidArgument (another strategy, another number of ranks).
    """
    return PlannedModel(
        model,
        plan,
        optimizer,
        group,
        choose_again=choose_again,
        find_unused_parameters=find_unused_parameters,
    )


def recorded(group: dist.ProcessGroup | None = None) -> TransferPlan | None:
    """Return the plan of the step that the backend saw repeat in the group; None if none did.

    Blocks until all ranks of the group have called it, and compares what they recorded.
    A program that calls an optimizer's step() needs two equal steps for it; another one must have
        sent the same tensors, from the same addresses, three times in a row.
    Names: of the gradients and buffers of DistributedDataParallel's and apply()'s modules; others'
        are their operation and its number. Ranks are those of the group.
    A plan in RDMATENSOR_PLAN, of this group and a graph, is merged in (graph_analysis.merge_plans).
    Raises: PlanMismatch (what the ranks recorded, or the plan in RDMATENSOR_PLAN, differs; the
        message names the first tensor), ValueError (the group is another backend's; PlanError:
        what a rank says of its step is damaged, or is none that a plan can say).
    """
    return _record.recorded(backend_of(_chosen(group)))


class PlannedModel:
    """A model that trains by a plan. Call it as the model; all else of the model is there too.

    state_dict() and its keys are the model's. A parameter of the plan that a rank did not use is
    zero there. One that no rank used has a gradient of zero, or, with find_unused_parameters, none.
    A parameter that is not of the plan may be frozen or unused; a gradient of it, as another shape
    of one that is, ends the backward pass with PlanMismatch. So does a second gradient of one in
    the same pass, as of reentrant checkpoints that share it, after the first has left.
    torch.autograd.grad() writes no gradient, and sends nothing.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: TransferPlan,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None,
        *,
        choose_again: bool,
        find_unused_parameters: bool,
    ) -> None:
        self.module = model
        self.plan = plan
        self._group = _chosen(group)
        check_plan(plan, self._group)
        self._choice = Choice(plan, self._group, is_wanted=choose_again)
        self._buffers, self._memory = on_all_ranks(self._laid_out, self._group)
        is_alone = plan.strategy.world_size == 1
        self._check = ModelCheck(model, self._memory.gradients, is_alone=is_alone)
        self._owes_buffers = True
        self._finds_unused = find_unused_parameters
        self._used: set[torch.Tensor] = set()  # in this step's backward passes so far
        self._is_syncing = True
        self._is_in_backward = False
        self._next_bucket = 0
        self._flying: list[tuple[Bucket, torch.Tensor, dist.Work | None]] = []
        self._steps = 0
        self._sent_bytes = 0
        _record.know(model, self._buffers)
        self._root = dist.get_global_rank(self._group, 0)
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=self._root, group=self._group)
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward),
            model.register_forward_hook(self._after_forward),
            optimizer.register_step_pre_hook(self._before_step),
            *self._check.hooks,
        ]
        self._costs = Costs(default_context(), self._memory.counts, self._buffers)
        on_gradient = held_weakly(self._on_gradient)  # the model's own hooks keep us
        for parameter in self._memory.gradients:
            register = parameter.register_post_accumulate_grad_hook
            self._hooks.append(register(on_gradient))  # type: ignore[no-untyped-call]

    def _laid_out(self) -> tuple[SentBuffers, GradientMemory]:
        named = dict(self.module.named_parameters())
        memory = GradientMemory(self.plan, named, default_context())
        return SentBuffers(self.plan, self.module, memory.memory), memory

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the model."""
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        """Everything else is the model's: parameters(), state_dict(), train() and the rest."""
        if name == "module":  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self.module, name)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of the backward passes inside are summed locally, and not sent.

        The first backward pass after it sends the sum, as with DistributedDataParallel.
        """
        before = self._is_syncing
        self._is_syncing = False
        try:
            yield
        finally:
            self._is_syncing = before

    def describe(self) -> Described:
        """Return what was done since apply(): steps that sent, and what they cost.

        "born" and "copied" count gradients that autograd wrote in their place and elsewhere
        ("copied_bytes": of the latter), "traced" the allocations that had to be learnt;
        "sent_bytes" are those of the buckets.
        "posting_s" is the time of the backward pass's thread in the calls that begin sums,
        "ending_s" that in which it waited for the last: besides, others use its cores.
        "choice" says by which "buckets" and algorithms steps go, for good from the eleventh on.
        "last_step" is the last one alone, between the ends of two backward passes, in this whole
        process: counters(), with copies into places, aside them and of packed buffers among
        "copied_bytes".
        """
        counts = self._memory.counts
        return {
            "steps": self._steps,
            "buckets": len(self._memory.buckets),
            "arena_bytes": self._memory.memory.nbytes,
            "sent_bytes": self._sent_bytes,
            "born": counts.born,
            "copied": counts.copied,
            "copied_bytes": counts.copied_bytes,
            "traced": counts.traced,
            "posting_s": self._costs.posting_s,
            "ending_s": self._costs.ending_s,
            "last_step": self._costs.last_step,
            "choice": self._choice.text,
        }

    def close(self) -> None:
        """Take the hooks off; the model is an ordinary one again. Again is harmless.

        Gradients that lie in the arena stay valid.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._memory.end()
        self._buffers.close()

    # ---- forward ---------------------------------------------------------------------------------

    def _before_forward(self, *_: object) -> None:
        if self._is_in_backward:  # that pass ended with an exception, which the caller has seen
            self._abandon()
        if not self._owes_buffers:
            return
        self._buffers.send(self._root, self._group)

    def _abandon(self) -> None:
        """Forget a backward pass that raised: what it has sent is not this step's."""
        self._memory.end()
        self._is_in_backward = False
        self._used.clear()
        flying, self._flying = self._flying, []
        for _, _, work in flying:  # until then others write to the places, or read them
            if work is not None:
                work.wait()

    def _after_forward(self, _module: object, _args: object, output: object) -> None:
        # As with DistributedDataParallel: again after a forward pass that trains and sends.
        self._owes_buffers = self._is_syncing and torch.is_grad_enabled()
        if not torch.is_grad_enabled():
            return
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._on_output_gradient)  # type: ignore[no-untyped-call]

    # ---- backward, on the thread that runs it ----------------------------------------------------

    def _on_output_gradient(self, _grad: torch.Tensor) -> None:
        if load_extension().is_whole_backward():  # not torch.autograd.grad(), which writes none
            self._begin()

    def _begin(self) -> None:
        if self._is_in_backward:
            return
        self._check.check(is_sending=self._is_syncing)
        # Ranks need not agree on passes that send nothing.
        if self._is_syncing and (chosen := self._choice.switched(self._memory)) is not None:
            self._switch(chosen)
        self._memory.begin()
        self._is_in_backward = True
        self._choice.begin()
        self._next_bucket = 0
        for bucket in self._memory.buckets:
            bucket.waiting = set(bucket.gradients)
            bucket.strays.clear()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _switch(self, chosen: TransferPlan) -> None:
        """Go by other buckets from here on, as all ranks do; what lay in the memory is lifted."""
        named = dict(self.module.named_parameters())
        try:
            self._memory = GradientMemory(chosen, named, default_context(), self._memory)
            self._buffers.lay_out(chosen, self._memory.memory)
        except BaseException as error:
            self._memory.lower()
            # Others go by them already, and would sum what has the same length into others.
            backend_of(self._group).break_group(f"could not change its buckets: {error!r}")
            raise
        self.plan = chosen

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        """Autograd has written a parameter's gradient for good."""
        self._begin()  # a loss may use parameters without the model's output
        self._used.add(parameter)
        gradient = self._memory.gradients[parameter]  # type: ignore[index]
        bucket = self._memory.buckets[gradient.bucket]
        if bucket.number < self._next_bucket:  # autograd has added to what the ranks are summing
            raise PlanMismatch(
                f"parameter {gradient.name} had a gradient again, in the same backward pass, after "
                "its first one had left, as where reentrant checkpoints share it: use_reentrant="
                "False adds them up before"
            )
        if not self._memory.settle(gradient):
            bucket.strays.append(gradient)
        bucket.waiting.discard(gradient)
        self._choice.ready(gradient.tensor)
        if self._is_syncing:
            self._send_ready()

    def _send_ready(self) -> None:
        """Send, in the plan's order, which is the same on all ranks, what is complete."""
        buckets = self._memory.buckets
        while self._next_bucket < len(buckets) and not buckets[self._next_bucket].waiting:
            self._send(buckets[self._next_bucket])
            self._next_bucket += 1

    def _send(self, bucket: Bucket) -> None:
        flat = self._memory.leaving(bucket)
        self._sent_bytes += flat.nbytes
        work = None
        with self._costs.posting():
            if self._choice.is_serial:
                self._choice.send_alone(flat)
            else:
                work = dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=self._group, async_op=True)
        self._flying.append((bucket, flat, work))

    def _end(self) -> None:
        """Backward is over."""
        self._memory.end()
        self._is_in_backward = False
        if not self._is_syncing:
            return
        absent = [p for p in self._memory.gradients if p not in self._used and p.grad is None]
        for bucket in self._memory.buckets:
            for gradient in bucket.waiting:
                self._fill_unused(gradient, bucket)
            bucket.waiting.clear()
        self._send_ready()
        if self._finds_unused:
            self._leave_unused(absent)
        self._used.clear()
        self._wait()
        self._steps += 1
        self._choice.end_step(self._memory)
        self._costs.end_step()

    def _fill_unused(self, gradient: Gradient, bucket: Bucket) -> None:
        """A gradient that did not come in this pass: what came in earlier ones, or zero."""
        if gradient.parameter.grad is None:
            if self._memory.is_taken(gradient):
                gradient.parameter.grad = torch.zeros_like(gradient.parameter)
            else:
                gradient.parameter.grad = self._memory.take(gradient).zero_()
        if not self._memory.is_in_place(gradient, grad_of(gradient)):
            self._memory.counts.aside_bytes += gradient.size_bytes
            bucket.strays.append(gradient)

    def _leave_unused(self, absent: list[torch.nn.Parameter]) -> None:
        """Give those that no rank used their lack of a gradient back, once all is sent."""
        is_used = torch.tensor([p in self._used for p in self._memory.gradients], dtype=torch.uint8)
        dist.all_reduce(is_used, op=dist.ReduceOp.MAX, group=self._group)
        by_any = dict(zip(self._memory.gradients, is_used.tolist(), strict=True))
        self._wait()  # nothing reads or writes a place any more
        for parameter in absent:
            if not by_any[parameter]:
                parameter.grad = None

    def _wait(self) -> None:
        flying, self._flying = self._flying, []
        with self._costs.ending():
            for bucket, flat, work in flying:
                if work is not None:
                    work.wait()
                self._memory.arrived(bucket, flat)

    def _before_step(self, *_: object) -> None:
        if self._is_in_backward:
            raise RuntimeError("backward before this step did not end: it raised, or runs still")


def _chosen(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    chosen = dist.group.WORLD if group is None else group
    if chosen is None:
        raise ValueError("init_process_group() has not been called")
    return chosen
