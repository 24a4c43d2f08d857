"""Backward passes of a planned model: when buckets are sent, and what a pass waits for."""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import suppress
from typing import NoReturn

import torch
import torch.distributed as dist

from rdmatensor._backend.groups import backend_of
from rdmatensor._plan.agree import LABELS, StartedBucket, refuse
from rdmatensor._plan.buffers import SentBuffers
from rdmatensor._plan.costs import Costs
from rdmatensor._plan.memory import Bucket, Gradient, GradientMemory
from rdmatensor._plan.model import ModelCheck
from rdmatensor.errors import PlanMismatchError

_PASSES = 8  # passes that labels distinguish: a rank that raised is one or two passes off
_applied: Counter[int] = Counter()  # number of plans applied to each group so far


class _Pass:
    """A backward pass. Autograd's engine keeps it alive until the pass is over or has raised."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def end(self) -> None:
        self._step.end()


class Step:
    """The backward passes of one planned model.

    One thread uses it at a time: the one that runs backward, or the model's forward pass.
    """

    def __init__(
        self,
        memory: GradientMemory,
        bound: list[StartedBucket],
        buffers: SentBuffers,
        check: ModelCheck,
        group: dist.ProcessGroup,
        costs: Costs,
    ) -> None:
        """Make one for a group; collective over it."""
        self.is_syncing = True
        self.sends_next: bool | None = None  # whether the next pass sends, by its forward pass
        self._sends = True  # whether the running pass sends
        self.finds_unused = False
        self.count = 0
        self.sent_bytes = 0
        self.costs = costs
        self._memory = memory
        self._bound = bound  # of memory.buckets, in their order
        self._buffers = buffers
        self._check = check
        self._group = group
        self._running: weakref.ref[_Pass] | None = None
        self._has_raised = False
        self._next_bucket = 0
        self._unreached: set[int] | None = None  # by the next pass; None: unknown
        self._left_out: set[int] = set()  # by the pass that runs
        self._filled: set[int] = set()  # of those, the ones that it set to zero
        self._flying: list[tuple[Bucket, torch.Tensor, dist.Work]] = []
        number = backend_of(group).number
        self._plan_number = _applied[number]
        _applied[number] += 1
        self._passes_sent = 0

    def follow(self, before: Step) -> None:
        """Go on where the step of another layout of the same model ended."""
        self.is_syncing, self.sends_next = before.is_syncing, before.sends_next
        self.count, self.sent_bytes = before.count, before.sent_bytes

    def is_running(self) -> bool:
        """Whether a backward pass is running."""
        return self._running is not None

    def is_open(self) -> bool:
        """Whether a backward pass is running, or the last one has raised."""
        return self._running is not None or self._has_raised

    def _dropped(self, running: weakref.ref[_Pass]) -> None:
        """Autograd has dropped a pass that has not ended: it raised.

        Its sums still arrive, in what the program next has in .grad, so wait for them.
        """
        if running is self._running:
            self._fail()

    def _fail(self) -> None:
        """Clean up after a pass that raised."""
        self._running = None
        self._has_raised = True
        self._memory.end()
        self._passes_sent += 1 if self._next_bucket > 0 else 0
        for bucket, flat, work in self._flying:  # each: peers may write its place until its end
            with suppress(RuntimeError):  # of the group, whose next operation reports it
                work.wait()
                self._memory.arrived(bucket, flat)
        self._flying.clear()
        with suppress(RuntimeError):
            self._buffers.forget()
        for number in self._filled:  # they had none, and the pass brought none
            self._memory.numbered[number].parameter.grad = None
        self._filled.clear()
        self._memory.forget()

    def refuse(self, error: PlanMismatchError) -> NoReturn:
        """Raise the error; if this pass sends, the other ranks fail too."""
        raise refuse(error, self._group) if self._sends else error

    def expect(self, outputs: list[torch.Tensor]) -> None:
        """Find parameters that the next pass may not reach, from a forward pass's outputs."""
        if not self.finds_unused or self._running is not None:
            return
        unreached = self._memory.unreached(outputs)
        self._unreached = unreached if self._unreached is None else self._unreached & unreached

    def begin(self) -> bool:
        """Begin a pass unless one is running.

        Returns:
            Whether it began now.

        Raises:
            PlanMismatchError: The model does not match the plan any more.
        """
        if self._running is not None:
            return False
        if self._flying:  # a signal ended the wait of a pass that raised
            self._fail()
        # As with DistributedDataParallel, the forward pass decides, if there was one.
        sends, self.sends_next = self.sends_next, None
        self._sends = self.is_syncing if sends is None else sends
        self._next_bucket = 0
        try:
            self._check.check(is_sending=self._sends)
        except PlanMismatchError as error:
            self._has_raised = True
            self.refuse(error)
        for bucket in self._memory.buckets:
            bucket.waiting = set(bucket.gradients)
        unreached, self._unreached = self._unreached or set(), None
        self._left_out = unreached if self._sends else set()
        self._filled.clear()
        for number in self._left_out:
            self._leave_out(self._memory.numbered[number])
        self._memory.begin()  # after those: what they allocate is not backward's
        current = _Pass(self)
        torch.autograd.Variable._execution_engine.queue_callback(current.end)
        self._running = weakref.ref(current, self._dropped)
        self._has_raised = False
        return True

    def _leave_out(self, gradient: Gradient) -> None:
        """Do not let a bucket wait for a parameter that the pass will not reach."""
        if gradient.parameter.grad is None:
            self._filled.add(gradient.number)
        self._fill_unused(gradient)
        self._memory.buckets[gradient.bucket].waiting.discard(gradient)

    def on_gradient(self, number: int) -> None:
        """Handle a gradient that autograd and all hooks of the program have written."""
        gradient = self._memory.numbered[number]
        bucket = self._memory.buckets[gradient.bucket]
        if bucket.number < self._next_bucket:  # autograd has added to what the ranks are summing
            self.refuse(self._too_late(gradient))
        try:
            self._memory.settle(gradient)
        except PlanMismatchError as error:
            self.refuse(error)
        bucket.waiting.discard(gradient)
        self._filled.discard(number)
        if self._sends:
            self._send_ready()

    def _too_late(self, gradient: Gradient) -> PlanMismatchError:
        if gradient.number in self._left_out:
            return PlanMismatchError(
                f"parameter {gradient.name} had a gradient after its bucket had left: no output of "
                "the model leads to it, which find_unused_parameters=True takes for unused; let "
                "the model return what the loss uses"
            )
        return PlanMismatchError(
            f"parameter {gradient.name} had a gradient again, in the same backward pass, "
            "after its first one had left, as where reentrant checkpoints share it: "
            "use_reentrant=False adds them up before"
        )

    def _send_ready(self) -> None:
        """Send the complete buckets, in the plan's order, which is the same on all ranks."""
        buckets = self._memory.buckets
        while self._next_bucket < len(buckets) and not buckets[self._next_bucket].waiting:
            self._send(buckets[self._next_bucket])
            self._next_bucket += 1

    def _send(self, bucket: Bucket) -> None:
        flat = self._memory.leaving(bucket)
        self.sent_bytes += flat.nbytes
        with self.costs.posting():
            work = self._bound[bucket.number].start(flat, self._label(bucket.number))
        self._flying.append((bucket, flat, work))

    def _label(self, bucket: int) -> int:
        """Return a label for a bucket by plan, pass and number: sizes may be equal."""
        of_pass = self._plan_number * _PASSES + self._passes_sent % _PASSES
        return 1 + (of_pass * 1021 + bucket) % LABELS

    def end(self) -> None:
        """End the backward pass."""
        try:
            self._memory.end()
            if self._sends:
                self._end_sums()
        except BaseException:
            self._fail()
            raise
        self._running = None

    def _end_sums(self) -> None:
        # Gradients of earlier passes, which sent nothing, are in .grad.
        is_absent = [
            g.parameter.grad is None or g.number in self._filled for g in self._memory.numbered
        ]
        for bucket in self._memory.buckets:
            for gradient in bucket.waiting:
                self._fill_unused(gradient)
            bucket.waiting.clear()
        self._send_ready()
        try:
            self._buffers.begin_send()
        except PlanMismatchError as error:
            self.refuse(error)
        if self.finds_unused:
            self._leave_unused(is_absent)
        self._wait()
        self._buffers.end_send()
        self._passes_sent += 1
        self.count += 1
        self.costs.end_step()

    def _fill_unused(self, gradient: Gradient) -> None:
        """Handle a gradient that this pass did not make: keep the one there is, or set zero."""
        if gradient.parameter.grad is None:
            self._memory.fill(gradient)

    def _leave_unused(self, is_absent: list[bool]) -> None:
        """Set the gradients that no rank used back to None, once all is sent."""
        is_used = torch.tensor([not one for one in is_absent], dtype=torch.uint8)
        dist.all_reduce(is_used, op=dist.ReduceOp.MAX, group=self._group)
        self._wait()  # no operation reads or writes a place any more
        for gradient, is_used_by_any in zip(self._memory.numbered, is_used.tolist(), strict=True):
            if not is_used_by_any:
                gradient.parameter.grad = None

    def _wait(self) -> None:
        """Wait for the sums in flight. A signal interrupts; a later wait continues."""
        with self.costs.ending():
            while self._flying:
                bucket, flat, work = self._flying[0]
                work.wait()
                try:
                    self._memory.arrived(bucket, flat)
                except PlanMismatchError as error:
                    self.refuse(error)
                del self._flying[0]
