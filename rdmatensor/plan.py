"""Train by a plan: gradients are allocated in the arena and sent in the plan's buckets.

For example::

    plan = graph_analysis.analyze(model, inputs, strategy=graph_analysis.DataParallel(world))
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    for x, y in data:
        optimizer.zero_grad()
        loss_fn(planned(x), y).backward()
        optimizer.step()

The first step learns which allocation of backward becomes which gradient, and copies each once.
Later steps serve those allocations from the plan's places. An allocation that differs is copied,
counted and learnt again.

backward() returns when all sums have arrived, as with DistributedDataParallel. A program may read
.grad between backward() and step().
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

from graph_analysis import Mask, TransferPlan, thin
from rdmatensor._backend.extension import load_extension
from rdmatensor._backend.groups import backend_of
from rdmatensor._plan.agree import broadcast_all, check_plan, on_all_ranks, refuse
from rdmatensor._plan.costs import Costs, Described
from rdmatensor._plan.layout import Layout
from rdmatensor._plan.memory import Counts
from rdmatensor._plan.model import ModelCheck, ModuleHook, held_weakly, tensors_in
from rdmatensor._plan.planned import claim, unclaim
from rdmatensor._plan.step import Step
from rdmatensor._plan.wires import Wires
from rdmatensor._record import names, recorder
from rdmatensor.context import default_context
from rdmatensor.errors import PlanMismatchError

__all__ = ["Described", "PlanMismatchError", "PlannedModel", "apply", "recorded"]


def apply(
    model: torch.nn.Module,
    plan: TransferPlan,
    optimizer: torch.optim.Optimizer,
    group: dist.ProcessGroup | None = None,
    *,
    find_unused_parameters: bool = False,
    wire: Literal["exact", "bf16", "q8", "auto"] = "exact",
    allow: Sequence[Literal["bf16", "q8"]] = ("bf16", "q8"),
) -> PlannedModel:
    """Make `model` train by `plan`, which DataParallel made for as many ranks as the group has.

    Blocks until all ranks of the group have called it: they compare their plans, and all take rank
    0's parameters and buffers. A plan that the model has already is closed.

    Ownership:
        The model and the optimizer stay the caller's. Both get hooks until close(), which a copy of
        the model does not have. The arena keeps one place for each gradient until close(), and
        longer while a gradient is there, and until close() the memory from which small buffers are
        sent together.

    Args:
        model: The model.
        plan: The plan, the same on all ranks; also one that graph_analysis.thin() made.
        optimizer: The optimizer of the model's parameters.
        group: None is the default group. Its CPU backend must be rdmatensor.
        find_unused_parameters: A parameter of the plan that no rank used in a step keeps `.grad` as
            it was, mostly None, as with DistributedDataParallel; one small message a step is sent
            for it. Otherwise such a gradient is zero, which momentum and weight decay act on. Also
            needed if ranks use different parameters and a backward pass has other collectives on
            the group.
        wire: How buckets of float32 travel, the same on all ranks; see
            rdmatensor.compress.all_reduce(). "auto" times sums of each bucket of 256 KiB or more
            and takes the fastest lossy wire if that needs less than 0.9 of the exact time.
        allow: The lossy wires that "auto" may take.

    Returns:
        The model that trains by the plan.

    Raises:
        PlanMismatchError: On all ranks: plans differ, the model is not the plan's, a layer has
            sparse gradients, or another model's plan sends a parameter; it names the first tensor.
        InvalidArgumentError: On all ranks: another strategy, or another number of ranks.
        ValueError: A wire is unknown; ranks that know the wires they were given raise RuntimeError.

    Example:
        >>> model, inputs = torch.nn.Linear(4, 2), (torch.ones(3, 4),)
        >>> plan = graph_analysis.analyze(model, inputs, strategy=graph_analysis.DataParallel(1))
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> planned = apply(model, plan, optimizer)
        >>> planned(*inputs).sum().backward()
        >>> optimizer.step()
        >>> planned.close()
    """
    return PlannedModel(
        _unplanned(model),
        plan,
        optimizer,
        group,
        find_unused_parameters=find_unused_parameters,
        wire=wire,
        allow=allow,
    )


def recorded(group: dist.ProcessGroup | None = None) -> TransferPlan | None:
    """Return the plan of the step that the backend saw repeat in the group; None if none did.

    Blocks until all ranks of the group have called it, and compares what they recorded.
    A program that calls an optimizer's step() needs two equal steps for it. Any other program must
    have sent the same tensors, from the same addresses, three times in a row.
    Gradients and buffers of DistributedDataParallel's and apply()'s modules have names; other
    tensors are named by their operation and its number. Ranks are those of the group.

    Args:
        group: None is the default group.

    Returns:
        The plan, the same on every rank, or None.

    Raises:
        PlanMismatchError: The ranks recorded different steps; it names the first tensor that
            differs.
        ValueError: The group is another backend's.
        PlanError: A rank's description of its step is damaged, or cannot be part of a plan.

    Example:
        >>> recorded() is None  # no step has repeated yet
        True
    """
    return recorder.recorded(backend_of(_chosen(group)))


class PlannedModel:
    """A model that trains by a plan. Call it as the model; it has all attributes of the model.

    state_dict() and its keys are the model's, and a copy of it is a copy of the model.
    A forward pass begins with rank 0's buffers, as with DistributedDataParallel. A pass in eval
    mode, or without gradients, does not communicate, so that a rank may evaluate alone; called
    through the model itself it uses the rank's own buffers.
    A parameter of the plan that a rank did not use counts as zero there. One that no rank used has
    a gradient of zero, or, with find_unused_parameters, none.
    A parameter outside the plan may be frozen or unused. A gradient of it, or a gradient of a
    planned parameter in another shape, ends the backward pass with PlanMismatchError. So does a
    second gradient in the same pass after the first was sent, for example by reentrant checkpoints
    that share a parameter. If ranks do not agree on such an error, it ends the group.
    torch.autograd.grad() writes no gradient, and sends nothing.

    Attributes:
        module: The model.
        plan: The plan; after thin() the thin one.

    Example:
        >>> planned = rdmatensor.plan.apply(model, plan, optimizer)  # doctest: +SKIP
        >>> loss_fn(planned(inputs), target).backward()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: TransferPlan,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None,
        *,
        find_unused_parameters: bool,
        wire: str = "exact",
        allow: Sequence[str] = (),
    ) -> None:
        self.module = model
        self.plan = plan
        self._dense = plan
        self._wanted: TransferPlan | None = None  # from the next forward pass that trains on
        self._failure: BaseException | None = None  # of the last change of plan
        self._finds_unused = find_unused_parameters
        self._group = _chosen(group)
        self._wires = on_all_ranks(partial(Wires, wire, allow, self._group), self._group)
        words = self._wires.words
        check_plan(plan, self._group, words, find_unused_parameters=find_unused_parameters)
        self._undo = ExitStack()  # what close() and another layout undo
        self._hooks: list[Any] = []
        self._outputs: Any = WeakIdKeyDictionary()  # hooks of tensors that the model returned
        self._owes_buffers = True
        self._is_called = False  # through this object, not the model
        self._counts = Counts()
        self._costs: Costs | None = None
        self._step: Step
        try:
            self._set_up(plan)
        except BaseException:
            self.close()
            raise
        self._hooks += [
            model.register_forward_pre_hook(ModuleHook(self._before_forward)),
            model.register_forward_hook(ModuleHook(self._after_forward)),
            optimizer.register_step_pre_hook(ModuleHook(self._before_step)),
        ]

    def _set_up(self, plan: TransferPlan) -> None:
        """Lay a plan out, on which all ranks agree; collective."""
        is_first, model = self._costs is None, self.module
        arrived = held_weakly(self._on_gradient)
        layout = Layout(self, plan, self._group, arrived, self._counts, self._wires)
        self._undo.callback(layout.close)
        self._memory, self._buffers = layout.memory, layout.buffers
        if self._costs is None:
            root = dist.get_global_rank(self._group, 0)
            broadcast_all([*model.parameters(), *model.buffers()], root, self._group)
            self._costs = Costs(default_context(), self._counts, layout.buffers)
        else:
            self._costs.go_on_with(layout.buffers)
        check = ModelCheck(model, layout.memory.gradients, held_weakly(self._on_unplanned))
        for hook in check.hooks:
            self._undo.callback(hook.remove)
        step = Step(layout.memory, layout.bound, layout.buffers, check, self._group, self._costs)
        step.finds_unused = self._finds_unused
        if not is_first:
            step.follow(self._step)
        self._check, self._step = check, step
        names.know(model, layout.buffers)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the model."""
        before, self._is_called = self._is_called, True
        try:
            return self.module(*args, **kwargs)
        finally:
            self._is_called = before

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        """Return an attribute of the model: parameters(), state_dict(), train() and the rest."""
        if name == "module":  # before __init__ has set it
            raise AttributeError(name)
        return getattr(self.module, name)

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        """Copy or pickle as the model: an ordinary model without a plan."""
        return operator.itemgetter(0), ([self.module],)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Sum the gradients of the backward passes inside locally, and do not send them.

        The first backward pass after it sends the sum, as with DistributedDataParallel.

        Yields:
            Nothing.

        Example:
            >>> with planned.no_sync():  # doctest: +SKIP
            ...     loss_fn(planned(first), target).backward()
        """
        before = self._step.is_syncing
        self._step.is_syncing = False
        try:
            yield
        finally:
            self._step.is_syncing = before

    def thin(self, masks: Mapping[str, Mask]) -> None:
        """Send only the live blocks of gradients, from the next forward pass that trains on.

        Does not communicate. That forward pass does: the ranks compare their masks and announce the
        new places, and a rank with other masks is a PlanMismatchError on all. So all ranks call
        this before the same forward pass; if some do not, the ranks wait for each other until the
        group's timeout, or fail. If the new places cannot be made, for example for want of memory,
        that pass raises, and each later one that trains raises RuntimeError until the program calls
        apply() or close().
        After the backward pass a gradient holds the sums of its live blocks and zero elsewhere, so
        that an optimizer does not move masked weights but by weight decay or momentum.
        compress.run() calls this in each round.

        Args:
            masks: Parameter name -> its mask. They replace all masks before; gradients of other
                parameters are sent whole.

        Raises:
            ArgumentError: As graph_analysis.thin().

        Example:
            >>> planned.thin({"fc.weight": Mask((1, 16), live=(0, 9))})  # doctest: +SKIP
        """
        self._wanted = thin(self._dense, masks)

    def _change_plan(self) -> None:
        """Train by the plan that thin() asked for; collective."""
        if self._wanted is None or self._step.is_running():
            return
        # If the ranks differ this raises, and again in the next pass.
        words = self._wires.words
        check_plan(self._wanted, self._group, words, find_unused_parameters=self._finds_unused)
        if self._wanted.fingerprint() != self.plan.fingerprint():
            try:
                self._undo.close()
                self._set_up(self._wanted)
            except BaseException as error:
                self._fail(error)
                raise
            self.plan = self._wanted
        self._wanted = None

    def _fail(self, error: BaseException) -> None:
        """Have each forward pass that trains raise, until close(): nothing would be summed."""
        self.close()
        self._failure = error
        self._hooks = [self.module.register_forward_pre_hook(ModuleHook(self._before_forward))]
        claim(self, self._memory.numbered)  # so that apply() closes this
        self._undo.callback(unclaim, self, self._memory.numbered)

    def describe(self) -> Described:
        """Return what was done since apply(): steps that sent, and what they cost.

        "in_place" and "copied" count gradients that autograd wrote in their place and elsewhere
        ("copied_bytes": of the latter), "traced" the allocations that had to be learnt;
        "sent_bytes" are those of the buckets, "thinned_bytes" the live blocks copied into them and
        out of them.
        "posting_s" is the time of the backward pass's thread in the calls that start sums,
        "ending_s" that in which it waited for the last sum.
        "wires" has the wire of each bucket, and with wire="auto" why it is that.
        "last_step" is the last one alone, between the ends of two backward passes, in this whole
        process: counters(), where "copied_bytes" includes copies into places, of buckets not sent
        in place, of packed buffers and of live blocks.

        Returns:
            A dictionary with these keys.

        Example:
            >>> planned.describe()["steps"]  # doctest: +SKIP
            10
        """
        counts, costs = self._counts, self._step.costs
        return {
            "steps": self._step.count,
            "buckets": len(self._memory.buckets),
            "arena_bytes": self._memory.size_bytes,
            "sent_bytes": self._step.sent_bytes,
            "in_place": counts.in_place,
            "copied": counts.copied,
            "copied_bytes": counts.copied_bytes,
            "traced": counts.traced,
            "thinned_bytes": counts.thinned_bytes,
            "posting_s": costs.posting_s,
            "ending_s": costs.ending_s,
            "wires": list(self._wires.reasons),
            "last_step": costs.last_step,
        }

    def wire_state(self) -> dict[str, Any]:
        """Return what lossy wires lost so far, for a checkpoint. Each rank has its own.

        Returns:
            Tensors, by bucket.

        Example:
            >>> planned.wire_state()  # doctest: +SKIP
            {'plan': '6d2b...', 'residuals': [None]}
        """
        return self._wires.state(self.plan)

    def load_wire_state(self, state: Mapping[str, Any]) -> None:
        """Take what wire_state() returned on this rank, for the same plan.

        Masks are part of the plan: after thin(), call this when a forward pass has trained by them,
        before its backward pass.

        Args:
            state: A bucket without a residual begins at zero.

        Raises:
            ValueError: It belongs to another model or plan; nothing is taken.

        Example:
            >>> planned.load_wire_state(planned.wire_state())  # doctest: +SKIP
        """
        self._wires.load(state, self.plan)

    def close(self) -> None:
        """Remove the hooks; the model is an ordinary one again. Idempotent.

        Gradients in the arena stay valid.

        Example:
            >>> planned.close()  # doctest: +SKIP
        """
        for hook in [*self._hooks, *self._outputs.values()]:
            hook.remove()
        self._hooks = []
        self._failure = None
        self._outputs.clear()
        self._undo.close()

    # ---- hooks of the model and the optimizer ----------------------------------------------------

    def _before_forward(self, *_: object) -> None:
        if self._failure is not None:
            if self._trains():
                raise RuntimeError(
                    f"the plan that thin() asked for could not be laid out ({self._failure!r}): "
                    "call apply() again, or close()"
                ) from self._failure
            return
        if not self._trains():
            self._buffers.before_evaluation(shows=self._is_called)
            return
        self._change_plan()
        try:
            self._buffers.before_training(is_owed=self._owes_buffers)
        except PlanMismatchError as error:
            raise refuse(error, self._group) from None

    def _trains(self) -> bool:
        """Whether a forward pass is one of all ranks; any other pass is an evaluation.

        One through the bare module while it is frozen, as a GAN's discriminator is while the
        generator trains, brings no gradient and is an evaluation too.
        """
        is_one = self._is_called or not self._check.is_frozen()
        return self.module.training and torch.is_grad_enabled() and is_one

    def _after_forward(self, _module: object, _args: object, output: object) -> None:
        if self._trains():
            # As with DistributedDataParallel: again after a forward pass that trains and sends.
            self._owes_buffers = self._step.is_syncing
            if not self._check.is_frozen():
                self._step.sends_next = self._step.is_syncing
        else:
            self._buffers.after_evaluation()
        if not torch.is_grad_enabled() or self._check.is_frozen():
            return
        outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        if self._trains():
            self._step.expect(outputs)
        for tensor in outputs:
            if tensor not in self._outputs:
                register: Any = tensor.register_hook
                self._outputs[tensor] = register(held_weakly(self._on_output_gradient))

    def _before_step(self, *_: object) -> None:
        if self._step.is_open():
            raise RuntimeError("backward before this step did not end: it raised, or runs still")

    # ---- hooks of a backward pass, on the thread that runs it ------------------------------------

    def _on_output_gradient(self, _grad: torch.Tensor) -> None:
        if load_extension().is_whole_backward():  # not torch.autograd.grad(), which writes none
            self._step.begin()

    def _on_gradient(self, number: int) -> None:
        self._step.begin()  # a loss may use parameters without the model's output
        self._step.on_gradient(number)

    def _on_unplanned(self, parameter: torch.Tensor) -> None:
        if dist.get_world_size(self._group) > 1:
            self._step.refuse(self._check.unplanned(parameter))


def _unplanned(model: object) -> torch.nn.Module:
    """Return the model inside a planned model, or the model itself."""
    return cast("torch.nn.Module", model.module if isinstance(model, PlannedModel) else model)


def _chosen(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    chosen = dist.group.WORLD if group is None else group
    if chosen is None:
        raise ValueError("init_process_group() has not been called")
    return chosen
