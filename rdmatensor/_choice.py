"""Buckets, and the algorithms that sum them, chosen again, once, from what was measured.

    step 1   learns where gradients are born; nothing is measured
    step 2   each bucket is sent alone: when gradients are ready, what a bucket takes
    3 and 4  as planned: what the backward pass takes
    after 4  the ranks agree on the numbers, and so on the buckets; then they time each algorithm
             on messages of these buckets' sizes. Where other buckets would end the step earlier, or
             another algorithm is faster, the next backward pass begins with them, in the same
             memory
    after 6  the ranks agree whether steps 5 and 6 were slower than steps 3 and 4, of which the
             faster one counts each time; then all is as planned

All decisions are made by numbers that went through an all_reduce, so all ranks make the same.
"""

from __future__ import annotations

import time
from typing import Literal

import torch
import torch.distributed as dist

from graph_analysis import TransferPlan
from graph_analysis.measured import Measured, choose_again, gradient_buckets
from rdmatensor._algorithms import BY_COSTS, NOISE, Algorithms, fastest
from rdmatensor._plan_agree import check_plan
from rdmatensor._plan_memory import GradientMemory

_SERIAL_STEP = 2
# As many of the one as of the other: the least of two is less than one of them.
_TIMED_STEPS = (3, 4)
_TRIED_STEPS = (5, 6)
_PROBES = 5  # messages of a few bytes, of which the fastest is the latency


class Choice:
    """Measures a planned model's first steps, and says which plan the next one goes by.

    Used by the thread that runs backward, on all ranks of the group alike.
    """

    def __init__(self, plan: TransferPlan, group: dist.ProcessGroup, *, is_wanted: bool) -> None:
        self._planned = plan
        self._current = plan
        self._group = group
        self._step = 1
        self._begin_ns = 0
        self._waited_ns = 0
        self._never_ns = 0  # into the serial step: a gradient that did not come
        self._ready_ns: dict[str, int] = {}
        self._transfers: list[tuple[int, int]] = []
        self._took_ns: dict[int, int] = {}
        self._next: TransferPlan | None = None  # from the next backward pass on
        self._algorithms: Algorithms | None = None
        self._faster: dict[int, str] = {}  # by length in bytes
        is_possible = dist.get_world_size(group) > 1 and bool(gradient_buckets(plan))
        self._is_done = not (is_wanted and is_possible)
        self.text = "as planned" if self._is_done else "measuring"

    @property
    def is_serial(self) -> bool:
        """Whether a bucket is to be waited for where it is sent."""
        return not self._is_done and self._step == _SERIAL_STEP

    def begin(self) -> None:
        """A backward pass begins."""
        if self._is_done:
            return
        self._begin_ns = time.perf_counter_ns()
        self._waited_ns = 0
        if self.is_serial:  # one that raised, or of several the last, may have come before it
            self._ready_ns.clear()
            self._transfers.clear()

    def ready(self, tensor: str) -> None:
        """A gradient of the plan is final."""
        if self.is_serial:
            now = time.perf_counter_ns()
            self._ready_ns[tensor] = now - self._begin_ns - self._waited_ns

    def send_alone(self, flat: torch.Tensor) -> None:
        """Sum a bucket, wait for it, and note what it took."""
        began = time.perf_counter_ns()
        dist.all_reduce(flat, op=dist.ReduceOp.AVG, group=self._group)
        taken = time.perf_counter_ns() - began
        self._waited_ns += taken
        self._transfers.append((flat.nbytes, taken))

    def end_step(self, memory: GradientMemory) -> None:
        """A step that sent is over; may talk to the other ranks."""
        if self._is_done:
            return
        self._took_ns[self._step] = time.perf_counter_ns() - self._begin_ns
        if self._step == _SERIAL_STEP:
            self._never_ns = self._took_ns[self._step] - self._waited_ns
        if self._step == _TIMED_STEPS[-1]:
            self._choose(memory)
        elif self._step == _TRIED_STEPS[-1]:
            self._judge()
        self._step += 1

    def switched(self, memory: GradientMemory) -> TransferPlan | None:
        """Return the plan that this backward pass begins with, if it is another one.

        Gradients that lie in the memory are taken out of it then, and it is for the caller to
        bring them back. Where the program holds one besides, on any rank, the plan stays.
        """
        if self._next is None:
            return None
        chosen, self._next = self._next, None
        if chosen is self._current:
            self._use(self._faster)
            return None
        check_plan(chosen, self._group)
        try:
            memory.lift()
            (agreed,) = self._agree([float(memory.is_free())], "min")
            if agreed != 0.0 and self._step <= _TRIED_STEPS[0]:
                self._use(self._faster)
        except BaseException:
            memory.lower()  # a step that fails takes no gradient along
            raise
        if agreed == 0.0:
            memory.lower()
            self._is_done = True
            self.text += ", but the program holds gradients in their memory: left as they are"
            return None
        self._current = chosen
        return chosen

    def _choose(self, memory: GradientMemory) -> None:
        names = [tensor for bucket in gradient_buckets(self._planned) for tensor in bucket.tensors]
        ready = self._agree(
            [float(self._ready_ns.get(name, self._never_ns)) for name in names], "max"
        )
        # The rank that came last did not wait for others: its time is that of the transfer.
        times = [float(taken) for _, taken in self._transfers]
        latency, *taken = self._agree([self._latency_ns(), *times], "min")
        measured = Measured(
            ready_ns={name: int(value) for name, value in zip(names, ready, strict=True)},
            latency_ns=int(latency),
            transfers=[
                (size, int(value)) for (size, _), value in zip(self._transfers, taken, strict=True)
            ],
        )
        chosen = choose_again(self._planned, measured)
        fits = chosen.arenas[0].peak_bytes <= memory.memory.nbytes
        if not fits:
            chosen = self._planned
        self._faster = self._faster_algorithms(chosen)
        if chosen is self._planned and not self._faster:
            self._is_done = True
            self.text = "as planned: no other buckets would end the step earlier"
            return
        self._next = chosen
        counts = [len(gradient_buckets(plan)) for plan in (self._planned, chosen)]
        self.text = (
            f"chosen again after step {_TIMED_STEPS[-1]}: {counts[1]} buckets for {counts[0]}"
        )
        for size, algorithm in self._faster.items():
            self.text += f", sums of {size} bytes by {algorithm}"

    def _faster_algorithms(self, plan: TransferPlan) -> dict[int, str]:
        algorithms = Algorithms(self._group)
        if not algorithms.are_open():
            return {}
        self._algorithms = algorithms
        sizes = algorithms.sizes_of([bucket.span_bytes for bucket in gradient_buckets(plan)])
        times_ns = [float(taken) for taken in algorithms.times_ns(sizes)]
        return fastest(sizes, self._agree(times_ns, "max")) if sizes else {}

    def _use(self, chosen: dict[int, str]) -> None:
        if self._algorithms is not None:
            self._algorithms.use(chosen)

    def _judge(self) -> None:
        least = [
            float(min(self._took_ns[step] for step in steps))
            for steps in (_TIMED_STEPS, _TRIED_STEPS)
        ]
        planned, again = self._agree(least, "max")
        self._is_done = True
        if again > planned * NOISE:
            self._use(dict.fromkeys(self._faster, BY_COSTS))
            self._next = None if self._current is self._planned else self._planned
            self.text += (
                f", taken back after step {_TRIED_STEPS[-1]}: {again / planned:.2f} of the time"
            )

    def _latency_ns(self) -> float:
        probe = torch.zeros(2)
        taken = []
        for _ in range(_PROBES):
            began = time.perf_counter_ns()
            dist.all_reduce(probe, group=self._group)
            taken.append(time.perf_counter_ns() - began)
        return float(min(taken))

    def _agree(self, numbers: list[float], how: Literal["min", "max"]) -> list[float]:
        """Return the least or the greatest of all ranks; the same bits everywhere."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        operation = dist.ReduceOp.MIN if how == "min" else dist.ReduceOp.MAX
        dist.all_reduce(tensor, op=operation, group=self._group)
        return [float(value) for value in tensor]
