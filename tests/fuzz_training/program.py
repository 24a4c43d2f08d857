"""The training loop of a case, the same text for each way to train."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.fuzz_training.case import Case
from tests.fuzz_training.hooks import register
from tests.fuzz_training.judge import Value, value_of
from tests.fuzz_training.model import Model, batch_of, losses, part_of
from tests.fuzz_training.moments import Asked, Moments, pause
from tests.fuzz_training.pieces import Keeps
from tests.fuzz_training.wraps import Trained

Tensors = dict[str, Tensor]
LR = 0.05


class Part:
    """A model of the program, with its optimizer."""

    def __init__(self, case: Case, model: Model, rank: int) -> None:
        self.model = model
        with torch.no_grad():  # rank 0's values shall become everybody's
            # Without their broadcasts DDP leaves buffers alone, where a plan sends them once.
            buffers = [] if case.get("buffers_stay") else list(model.buffers())
            for tensor in [*model.parameters(), *buffers]:
                if tensor.is_floating_point() or tensor.is_complex():
                    tensor.add_(0.01 * rank)
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.later = parameters[::2] if case.get("group_later") else []
        kept = [p for p in parameters if all(p is not one for one in self.later)]
        self.optimizer = _optimizer(case, kept or parameters)
        if not kept:
            self.later = []
        self.trained: Any = None


def _optimizer(case: Case, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    kind = case.get("optimizer")
    # Sums of three differ in their last bits, and Adam divides by what may be as small.
    if kind == "adamw" and case.world == 2 and not case.has("sparse") and not case.has("complex"):
        return torch.optim.AdamW(parameters, lr=0.01)
    momentum = 0.9 if kind == "momentum" and not case.has("sparse") else 0.0
    return torch.optim.SGD(parameters, lr=0.0 if kind == "lr0" else LR, momentum=momentum)


class Program:
    """One run of a case on one rank. `wrap` makes a part's trained model of it and its inputs."""

    def __init__(
        self,
        case: Case,
        rank: int,
        wrap: Callable[[Part, tuple[Tensor, Tensor]], Trained],
        init_again: Callable[[], None],
    ) -> None:
        self.case, self.rank = case, rank
        self._wrap, self._init_again = wrap, init_again
        self.born = 0
        self.held: list[Tensor] = []
        self.extra: Tensors = {}
        Keeps.kept.clear()
        first = Model(case)
        self.parts = [Part(case, first, rank)]
        if case.get("second") is not None:
            second = Model(case, "second")
            if case.get("second") == "shared":
                second.head = first.head
            self.parts.append(Part(case, second, rank))
        for part in self.parts:
            self._each_hook(part, "before")
            self._wrap_part(part)
            self._each_hook(part, "after")
            if case.get("compiled"):
                part.model.compile(backend="aot_eager")
        self.ema = {name: p.detach().clone() for name, p in first.named_parameters()}

    def _each_hook(self, part: Part, when: str) -> None:
        register(self.case, part.model, when, self.held)

    def _wrap_part(self, part: Part) -> None:
        pauses, Moments.pauses = Moments.pauses, None  # no part of the captured graph
        unused = self.case.get("unused")
        part.model.use(0 if unused is not None and self.case.number("seen") % 4 == 0 else -1)
        part.trained = self._wrap(part, batch_of(self.case, self.rank, "analysis"))
        part.model.use(-1)
        Moments.pauses = pauses

    def run(self) -> Iterator[dict[str, Value]]:
        """Yield the values after each step."""
        for step in range(self.case.steps):
            self._change(step)
            self._one(step)
            yield self._values()
        self.born = sum(part.trained.born() for part in self.parts)
        for part in self.parts:
            part.trained.close()

    # ---- what changes between steps --------------------------------------------------------------

    def _change(self, step: int) -> None:
        case = self.case
        if step in (case.get("wrap_again"), case.get("init_again")):
            for part in self.parts:
                part.trained.close()
                part.trained = None
            if step == case.get("init_again"):
                self._init_again()
            for part in self.parts:
                self._wrap_part(part)
        for part in self.parts:
            self._change_part(part, step)

    def _change_part(self, part: Part, step: int) -> None:
        case = self.case
        if step == 1 and part.later:
            part.optimizer.add_param_group({"params": part.later})
        parameters = list(part.model.parameters())
        if step == 2 and case.get("frozen_later"):
            parameters[0].requires_grad_(requires_grad=False)
        if step == 2 and case.get("unfrozen_later"):
            part.model.requires_grad_()
        if step == 1 and case.get("data") is not None:
            for one in parameters:
                one.data = one.data if case.get("data") == "same" else one.data.clone()

    # ---- one step --------------------------------------------------------------------------------

    def _one(self, step: int) -> None:
        case = self.case
        parts = self.parts
        if case.get("second") in ("by_turns", "shared"):
            parts = [self.parts[step % 2]]
        way = case.get("zero")
        if way != "late" and not (way == "every_other" and step % 2 == 1):
            self._zero(parts)
        self._use(step)
        Moments.is_raising = step == case.get("raises")
        try:
            micros = case.get("micro") or 1
            for micro in range(micros - 1):
                with contextlib.ExitStack() as stack:
                    for part in parts:
                        stack.enter_context(part.trained.no_sync())
                    self._pass(parts, step, micro)
            self._pass(parts, step, micros - 1)
        except Asked:
            self._zero(parts)  # what a pass that raised has left is nobody's gradient
            return
        finally:
            Moments.is_raising = False
        self._before_update(parts)
        for part in parts:
            part.optimizer.step()
        self._after_update(step)
        if way == "late":
            self._zero(parts)

    def _use(self, step: int) -> None:
        way = self.case.get("unused")
        number = {None: -1, "by_rank": step + self.rank, "by_step": step, "first_only": 0}[way]
        for part in self.parts:
            part.model.use(number)

    def _zero(self, parts: list[Part]) -> None:
        way = self.case.get("zero")
        for part in parts:
            if way in (None, "zeros", "every_other", "late"):
                part.optimizer.zero_grad(set_to_none=way != "zeros")
                continue
            for parameter in part.model.parameters():
                if way == "none_by_hand":
                    parameter.grad = None
                elif way == "new_zeros" and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
                elif way == "zeros_by_hand" and parameter.grad is not None:
                    with torch.no_grad():
                        parameter.grad.zero_()

    def _forward(self, parts: list[Part], step: int, micro: int, turn: int) -> tuple[Tensor, ...]:
        case = self.case
        x, ids = batch_of(case, self.rank, step, micro, turn)
        torch.manual_seed(case.number("dropout", self.rank, step, micro, turn))
        x.requires_grad_(
            case.get("checkpoint") is not None or case.get("passes") == "input_penalty"
        )
        self.x, output = x, x
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(case.get("autocast"))):
            for part in parts:
                entering = output if isinstance(output, Tensor) else part_of(output)
                pause()
                if case.get("checkpoint") == "whole":
                    output = checkpoint(part.trained, entering, ids, use_reentrant=False)
                else:
                    output = part.trained(entering, ids)
        found = losses(output)
        if case.get("tensor_hook") == "output" and found[0].requires_grad:
            part_of(output).register_hook(lambda grad: 0.5 * grad)
        return found

    def _pass(self, parts: list[Part], step: int, micro: int) -> None:
        way = self.case.get("passes")
        backward = self._backward_of(parts)
        first, second = self._forward(parts, step, micro, 0)
        loss = first + 0.1 * second
        self.loss = loss.detach().clone()
        if way == "two_losses":
            backward(first, retain_graph=True)
            backward(second)
            return
        if way == "retain":
            backward(loss, retain_graph=True)
            backward(loss)
        elif way in ("two_forwards", "sum_of_two"):
            other = sum(self._forward(parts, step, micro, 1))
            if way == "sum_of_two":
                backward(loss + other)
            else:
                backward(loss)
                backward(other)
        elif way in ("penalty", "input_penalty"):
            backward(loss + self._penalty(parts, loss))
        else:
            backward(loss, create_graph=bool(self.case.get("create_graph")))

    def _penalty(self, parts: list[Part], loss: Tensor) -> Tensor:
        of: list[Tensor] = [self.x]
        if self.case.get("passes") == "penalty":
            of = [p for part in parts for p in part.model.parameters() if p.requires_grad]
        grads = torch.autograd.grad(loss, of, create_graph=True, allow_unused=True)
        return 0.01 * sum(g.abs().float().square().sum() for g in grads if g is not None)

    def _backward_of(self, parts: list[Part]) -> Callable[..., None]:
        def run(loss: Tensor, **options: Any) -> None:
            pause()
            if self.case.get("thread"):
                _on_thread(loss, options)
            else:
                loss.backward(**options)
            for part in parts:
                part.trained.ended()

        return run

    # ---- between backward and the next step ------------------------------------------------------

    def _before_update(self, parts: list[Part]) -> None:
        case = self.case
        pause()
        if case.get("reduced"):
            self.extra["loss"] = self.loss
            # Gloo adds three in an order of its own.
            op = dist.ReduceOp.SUM if case.world == 2 else dist.ReduceOp.MAX
            dist.all_reduce(self.loss, op=op, group=parts[0].trained.group)
        if case.get("held") == "views":
            for view in self.held:
                view.mul_(0.9)
        for part in parts:
            dense = [
                p for p in part.model.parameters() if p.grad is not None and not p.grad.is_sparse
            ]
            if case.get("clip") == "norm":
                torch.nn.utils.clip_grad_norm_([p for p in dense if not p.is_complex()], 0.5)
            elif case.get("clip") == "value":
                torch.nn.utils.clip_grad_value_([p for p in dense if not p.is_complex()], 0.05)
            elif case.get("clip") == "replaced":
                for parameter in dense:
                    parameter.grad = parameter.grad * 0.5

    def _after_update(self, step: int) -> None:
        case, first = self.case, self.parts[0]
        if case.get("ema"):
            for name, parameter in first.model.named_parameters():
                self.ema[name].mul_(0.9).add_(parameter.detach(), alpha=0.1)
        if case.get("held") is not None and step in (0, 1, 3):
            self._hold(first.model, case.get("held"))
        who = {"first": 0, "last": case.world - 1, "all": self.rank}.get(case.get("evaluate"))
        if who == self.rank:
            first.model.eval()
            with torch.no_grad():
                first.model(*batch_of(case, self.rank, "evaluated", step))
            first.model.train()
        if step == 1 and case.get("copied") is not None:
            self._copy(first.model, case.get("copied"))

    def _hold(self, model: Model, how: str) -> None:
        for parameter in model.parameters():
            grad = parameter.grad
            if grad is None or grad.is_sparse:
                continue
            if how == "views":
                self.held.append(grad.detach().view(-1) if grad.is_contiguous() else grad.detach())
            else:
                self.held.append(grad if how == "gradients" else grad.data)

    def _copy(self, model: Model, how: str) -> None:
        """A copy of the model is an ordinary model."""
        try:
            if how == "deepcopy":
                twin = copy.deepcopy(model)
            else:
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                twin = torch.load(file, weights_only=False)
            twin.zero_grad()
            sum(losses(twin(*batch_of(self.case, self.rank, "copied")))).backward()
        except Exception as error:  # noqa: BLE001 - which one is judged
            self.extra["copy raised"] = torch.tensor(zlib.crc32(type(error).__name__.encode()))
            return
        for name, parameter in twin.named_parameters():
            if parameter.grad is not None:
                self.extra[f"copy {name}.grad"] = parameter.grad

    def _values(self) -> dict[str, Value]:
        """Return copies: who keeps a gradient itself keeps the next one out of its place."""
        found: Tensors = {}
        for number, part in enumerate(self.parts):
            for name, parameter in part.model.named_parameters():
                found[f"{number} {name}"] = parameter
                if parameter.grad is not None:
                    found[f"{number} {name}.grad"] = parameter.grad
            for name, buffer in part.model.named_buffers():
                found[f"{number} buffer {name}"] = buffer
        if self.case.get("ema"):
            found.update({f"ema {name}": value for name, value in self.ema.items()})
        # A plan moves a gradient to its place after the hooks: what these keep may be either.
        is_kept = self.case.get("accumulated_hook") == "keep"
        if self.held and not (is_kept and self.case.mode == "plan"):
            found.update({f"held {n}": value for n, value in enumerate(self.held[:40])})
        return {name: value_of(tensor) for name, tensor in {**found, **self.extra}.items()}


def _on_thread(loss: Tensor, options: dict[str, Any]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            loss.backward(**options)
        except BaseException as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    other = threading.Thread(target=run)
    other.start()
    other.join()
    if raised:
        raise raised[0]
