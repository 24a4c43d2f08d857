"""The gradients of an optimizer on their way through the ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from rdmatensor._plan.memory import Counts
from rdmatensor.horovod import _runtime
from rdmatensor.horovod._entry import Entry
from rdmatensor.horovod.process_sets import ProcessSet
from rdmatensor.horovod.torch import _submit
from rdmatensor.horovod.torch._buckets import Bucket, Buckets, Part
from rdmatensor.horovod.torch._forms import CompressorLike
from rdmatensor.horovod.torch.compression import Compression
from rdmatensor.horovod.torch.handles import synchronize
from rdmatensor.horovod.torch.reductions import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)

Named = list[tuple[str, torch.Tensor]]
Group = tuple[torch.Tensor, ...]
Waiter = Callable[[], object]


class Reducer:
    """The reduction of an optimizer's gradients, from the hooks of backward() to step().

    In a fast lane they travel in buckets, otherwise each alone, or with its group.
    """

    def __init__(
        self,
        named: Named,
        groups: list[Group],
        compression: CompressorLike,
        passes: int,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.names = {parameter: name for name, parameter in named}
        self.passes = passes
        self.compression, self.op, self.process_set = compression, op, process_set
        # An average divides by the number of ranks after the sum.
        self.factors = (1.0 / predivide, predivide)
        self.sparse_as_dense = sparse_as_dense
        self.parts = [Part(group, self.names[group[0]], passes) for group in groups]
        self.is_sending = False
        self.counts = Counts()
        self._buckets = Buckets(self.counts, self.ready)
        self._by_name = {f"allreduce.{part.name}": part for part in self.parts}
        self._is_plain = compression is Compression.none

    def listen(self) -> None:
        """Have backward() call ready()."""
        known = weakref.ref(self)  # parameters outlive the optimizer

        def hook_of(part: Part, index: int) -> Callable[[torch.Tensor], None]:
            def hook(_: torch.Tensor) -> None:
                if not part.is_placed[index]:  # else its memory reports it
                    reducer = known()
                    if reducer is not None:
                        reducer.ready(part, index)

            return hook

        for part in self.parts:
            for index, parameter in enumerate(part.parameters):
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    hook_of(part, index)
                )

    def reset(self) -> None:
        """Forget the gradients of an unfinished step."""
        self.is_sending = False
        for part in self.parts:
            part.wait = None
            part.left = [self.passes] * len(part.left)
        self._buckets.reset()

    def expect(self) -> None:
        """Prepare for the next step: for the lane as it is now, and for allocations."""
        if not _runtime.is_on():
            return
        set_id = self.process_set.process_set_id
        lane = None
        if self._is_plain and set_id is not None:
            lane = _runtime.controller().lane_of(set_id)
        if lane is not self._buckets.lane:
            for part in self.parts:
                if part.entry is None or part.entry.set_id != set_id:
                    self._entry(part)
            self._buckets.follow(lane, self._by_name)
        self._buckets.expect()

    def ready(self, part: Part, index: int) -> None:
        """Take note that a backward pass has added to a gradient."""
        left = part.left
        if left[index] <= 0:
            raise AssertionError(
                f"the gradient of {self.names[part.parameters[index]]} was computed more than "
                f"backward_passes_per_step={self.passes} times before step(): give "
                "DistributedOptimizer() the number of passes"
            )
        left[index] -= 1
        if any(left):
            return
        bucket = part.bucket
        if bucket is None:
            self._send(part)
            return
        self.is_sending = True
        bucket.missing -= 1
        if bucket.missing == 0:
            self._send_bucket(bucket)

    def synchronize(self) -> None:
        """Send what was not sent, as it is or as zeros; wait for all sums."""
        try:
            for bucket in self._buckets.all:
                if not bucket.is_sent:
                    self._send_bucket(bucket)
            for part in self.parts:
                if part.bucket is None and part.wait is None:
                    self._send(part)
            for bucket in self._buckets.all:
                if bucket.flat is not None:
                    self._wait_for(bucket)
            for part in self.parts:
                if part.wait is not None:
                    part.wait()
        finally:
            self.reset()
        self.expect()

    def _send_bucket(self, bucket: Bucket) -> None:
        self.is_sending = bucket.is_sent = True
        flat, lane = bucket.gather(), self._buckets.lane
        if flat is None or lane is None:
            for part in bucket.parts:
                self._send(part)
            return
        _runtime.controller().submit_pack(lane, bucket.index, bucket.entries, flat)

    @staticmethod
    def _wait_for(bucket: Bucket) -> None:
        controller = _runtime.controller()
        for entry in bucket.entries:
            if not entry.is_done or entry.error is not None:
                controller.wait(entry)
        bucket.scatter()

    def _send(self, part: Part) -> None:
        self.is_sending = True
        for one in part.parameters:
            if one.grad is None:  # another rank may have one
                one.grad = torch.zeros_like(one, memory_format=torch.contiguous_format)
        part.wait = self._sent_as_it_is(part) or self._sent(part)

    def _sent_as_it_is(self, part: Part) -> Waiter | None:
        """Reduce gradients in place, which no compression and no layout prevents."""
        grads = [_gradient(one) for one in part.parameters]
        if not self._is_plain or not all(
            grad.layout is torch.strided
            and grad.is_contiguous()
            and (grad.dtype, grad.shape) == kind
            for grad, kind in zip(grads, part.kinds, strict=True)
        ):
            return None
        entry, controller = part.entry, _runtime.controller()
        if entry is None or not entry.is_done:
            entry = self._entry(part)
        entry.renew([_submit.check(grad) for grad in grads])
        controller.submit(entry)

        def wait() -> None:
            controller.wait(entry)
            entry.drop()  # the gradients are the program's

        return wait

    def _entry(self, part: Part) -> Entry:
        """Give a part the operation that it uses in all steps."""
        set_id = _submit.set_id_of(self.process_set)
        dtypes, shapes = zip(*part.kinds, strict=True)
        signature, lane_key = _submit.reduction(dtypes, shapes, self.op, *self.factors)
        name = _runtime.full_name(set_id, "allreduce", part.name)
        entry = Entry(set_id, name, "allreduce", [], [], signature, lane_key)
        entry.is_list, entry.is_gradient, entry.is_done = len(shapes) > 1, True, True
        part.entry = entry
        return entry

    def _sent(self, part: Part) -> Waiter:
        group = part.parameters
        options: dict[str, Any] = {"op": self.op, "process_set": self.process_set}
        if len(group) == 1 and _gradient(group[0]).is_sparse:
            return self._sent_sparse(group[0], part.name)
        pairs = [self.compression.compress(_dense(_gradient(one))) for one in group]
        sent = [_contiguous(tensor) for tensor, _ in pairs]
        options["prescale_factor"], options["postscale_factor"] = self.factors
        if len(group) == 1:
            handle = allreduce_async_(sent[0], name=part.name, **options)
        else:
            handle = grouped_allreduce_async_(sent, name=part.name, **options)

        def wait() -> None:
            found = synchronize(handle)
            results = [found] if len(group) == 1 else found
            for one, result, (_, ctx) in zip(group, results, pairs, strict=True):
                self._put(one, self.compression.decompress(result, ctx))

        return wait

    def _sent_sparse(self, parameter: torch.Tensor, name: str) -> Waiter:
        gradient = _gradient(parameter)
        if not self.sparse_as_dense:
            result = sparse_allreduce_async(gradient, name, self.op, self.process_set)
            return lambda: self._put(parameter, result())
        compressed, ctx = self.compression.compress(gradient.to_dense())
        prescale, postscale = self.factors
        handle = allreduce_async_(
            compressed,
            name=name,
            op=self.op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=self.process_set,
        )

        def wait() -> None:
            dense = self.compression.decompress(synchronize(handle), ctx)
            self._put(parameter, dense.to_sparse())

        return wait

    @staticmethod
    def _put(parameter: torch.Tensor, reduced: torch.Tensor) -> None:
        gradient = _gradient(parameter)
        if gradient.is_sparse:
            parameter.grad = reduced.to(gradient.dtype)
        elif gradient.data_ptr() != reduced.data_ptr():
            gradient.copy_(reduced)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()
