"""Buckets, and the algorithms that sum them, chosen again, once, from what was measured.

    step 1    learns where gradients are born; nothing is measured
    step 2    each bucket is sent alone: when gradients are ready, what a bucket takes
    step 3    as planned: what the backward pass takes
    after 3   the ranks agree on the numbers, and so on the buckets; then they time each algorithm
              on messages of these buckets' sizes. Where other buckets would end the step earlier,
              or another algorithm is faster, the next backward pass begins with them, in the same
              memory
    4 to 10   by the choice, by the choice, as planned, as planned, and again, so that each planned
              step has one by the choice beside it, and each as many before as behind it: a machine
              that becomes slower or faster meanwhile, or is busy for some steps, decides nothing
    after 10  the ranks agree whether the choice was faster, beyond noise; what is faster stays, and
              nothing is measured any more

Of each step the slowest rank's time counts.
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
_CHOSEN_AFTER = 3
_PAIRS = ((3, 4), (6, 5), (7, 8), (10, 9))  # neighbours: as planned, and by the choice
_AS_PLANNED_AFTER, _BY_CHOICE_AFTER = (5, 9), 7
_DECIDED_AFTER = 10
_PAIRS_FASTER = 3  # so many must be
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
        self._again = plan  # what was chosen
        self._is_compared = False  # it, with the other ranks'
        self._next: bool | None = None  # from the next backward pass on: by the choice, or not
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
        if self._step == _CHOSEN_AFTER:
            self._choose(memory)
        elif self._step == _DECIDED_AFTER:
            self._judge()
        elif self._step in _AS_PLANNED_AFTER:
            self._next = False
        elif self._step == _BY_CHOICE_AFTER:
            self._next = True
        self._step += 1

    def switched(self, memory: GradientMemory) -> TransferPlan | None:
        """Return the plan that this backward pass begins with, if it is another one.

        Gradients that lie in the memory are taken out of it then, and it is for the caller to
        bring them back. Where the program holds one besides, on any rank, the plan stays.
        """
        if self._next is None:
            return None
        is_again, self._next = self._next, None
        chosen = self._again if is_again else self._planned
        is_other = chosen is not self._current
        if is_other and not self._is_free(chosen, memory):
            return None
        try:
            self._use(is_again)
        except BaseException:
            if is_other:
                memory.lower()  # a step that fails takes no gradient along
            raise
        self._current = chosen
        return chosen if is_other else None

    def _use(self, is_again: bool) -> None:
        """Let sums go by the algorithms of the choice, or by what they cost as planned."""
        if self._algorithms is not None:
            by_costs = dict.fromkeys(self._faster, BY_COSTS)
            self._algorithms.use(self._faster if is_again else by_costs)

    def _is_free(self, chosen: TransferPlan, memory: GradientMemory) -> bool:
        """Whether other places can be used from here on: on all ranks, or on none."""
        if not self._is_compared:
            check_plan(chosen, self._group)
            self._is_compared = True
        failed: Exception | None = None
        try:
            try:
                memory.lift()
            except Exception as error:  # noqa: BLE001  the others wait for this rank's word
                failed = error
            is_free = failed is None and memory.is_free()
            (agreed,) = self._agree([float(is_free)], "min")
        except BaseException:
            memory.lower()
            raise
        if agreed != 0.0:
            return True
        memory.lower()
        if failed is not None:
            raise failed
        self._is_done = True
        now = "as planned" if chosen is self._again else "as chosen again"
        self.text += f", but the program holds gradients in their memory: left {now}"
        return False

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
            why = "no other buckets would end the step earlier" if fits else "no room for others"
            self.text = f"as planned: {why}"
            return
        self._again, self._next = chosen, True
        counts = [len(gradient_buckets(plan)) for plan in (self._planned, chosen)]
        self.text = f"chosen again after step {_CHOSEN_AFTER}: {counts[1]} buckets for {counts[0]}"
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

    def _judge(self) -> None:
        """Keep the choice if it was faster, beyond noise: in most pairs, and at its best."""
        took_ns = [float(self._took_ns[step]) for pair in _PAIRS for step in pair]
        agreed = self._agree(took_ns, "max")
        planned, chosen = agreed[::2], agreed[1::2]
        pairs = zip(planned, chosen, strict=True)
        count = sum(by_choice * NOISE < as_planned for as_planned, by_choice in pairs)
        share = min(chosen) / min(planned)
        is_kept = count >= _PAIRS_FASTER and share * NOISE < 1.0
        if is_kept:
            self._next = True
        self._is_done = True
        self.text += (
            f", {'kept' if is_kept else 'taken back'} after step {self._step}: "
            f"{share:.2f} of the time, faster in {count} of {len(_PAIRS)} pairs"
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
