"""Dense models: parameters and gradients in the arena, where servers read and write them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, cast

import torch

from rdmatensor._native.arguments import invalid, whole
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.context import Context
from rdmatensor.errors import ClosedError, TransferTimeoutError
from rdmatensor.ps.calls import Kind, flag, number, region
from rdmatensor.ps.kv import KV
from rdmatensor.ps.rules import Rule
from rdmatensor.ps.spec import Shape

SPLIT_BYTES = 4 << 20
_FLOAT_BYTES = 4
_POLL_S = 0.001

Post = Callable[[str, Callable[[CData, CData], int]], None]


class Ask(Protocol):
    """Asks the program that runs one replica of a server; Worker._ask_replica()."""

    def __call__(
        self, connection: int, request: dict[str, object], **kinds: Kind
    ) -> dict[str, Any] | None:
        """Return the answer; None: that one is lost, and the worker goes on without it."""


class _Hooked(Protocol):
    """A parameter's method, which torch does not annotate."""

    def register_post_accumulate_grad_hook(
        self, hook: Callable[[torch.Tensor], None]
    ) -> _Removable:
        """Call hook after each backward pass."""


class _Removable(Protocol):
    """The handle of a hook."""

    def remove(self) -> None:
        """Remove the hook."""


class Dense:
    """A model whose parameters servers hold and update; made by Worker.dense().

    The parameters become views of one array in the arena, and their gradients of another. A piece
    of the gradients is written to its server when the backward pass has filled it, and again by
    push() if its gradients have changed since, such as by clip_grad_norm_(). Changes through
    `.data`, numpy or inference mode are not seen: make them through the gradient. Only step() and
    push() have gradients applied; step() waits for the new values, which the servers write into
    the parameters. Frozen parameters and buffers begin as worker 0's; each worker keeps its own.

    Attributes:
        floats: Number of parameters.
        pieces: Number of pieces of split_bytes.

    Threads:
        One at a time, and the backward pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        context: Context,
        split_bytes: int,
        post: Post,
        tick: Callable[[float], int],
    ) -> None:
        named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        self._params = [one for _, one in named]
        _check(self._params)
        self._model, self._names = model, [name for name, _ in named]
        # Bytes of a write must not change if they are compared, as a second backward pass would.
        self._is_early = context.settings.verify == "off"
        self._split = max(1, whole(split_bytes, "dense", "split_bytes") // _FLOAT_BYTES)
        self._post, self._tick = post, tick
        self.floats = sum(one.numel() for one in self._params)
        self.pieces = -(-self.floats // self._split)
        self._array = context.zeros(self.floats)
        self._values = torch.from_numpy(self._array)
        self._slots = context.zeros(self.floats)
        self._gradients = torch.from_numpy(self._slots)
        self.region = context.export(self._array)
        self._number = -1
        self._hooks: list[_Removable] = []
        self._is_released = False
        self._stepper: ThreadPoolExecutor | None = None
        self._own = [(one.data, one.grad) for one in self._params]  # until _attach() has succeeded
        self._views = list(self._adopt())
        self._members: list[list[int]] = [[] for _ in range(self.pieces)]
        for index in range(len(self._params)):
            for piece in self._pieces_of(index):
                self._members[piece].append(index)
        self._reset()
        self._hooks.extend(
            cast("_Hooked", one).register_post_accumulate_grad_hook(self._hook(index))
            for index, one in enumerate(self._params)
        )

    def _adopt(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Move the parameters into the arena; yield each one's offset and gradient.

        Views of one tensor share the count of their changes: each gradient is a tensor of its own.
        """
        offset = 0
        for one in self._params:
            span = slice(offset, offset + one.numel())
            view = self._values[span].view(one.shape)
            view.copy_(one.detach())
            one.data = view
            one.grad = torch.from_numpy(self._slots[span]).view(one.shape)
            yield offset, one.grad
            offset = span.stop

    def _pieces_of(self, index: int) -> range:
        offset, view = self._views[index]
        if view.numel() == 0:
            return range(0)
        return range(offset // self._split, (offset + view.numel() - 1) // self._split + 1)

    def _reset(self) -> None:
        # Parameters whose gradient is not there yet, and the changes of what was written.
        self._waits = [len(members) for members in self._members]
        self._written: list[int | None] = [None] * self.pieces

    def _changes(self, piece: int) -> int:
        """Count the changes of a piece's gradients so far."""
        return sum(self._views[index][1]._version for index in self._members[piece])

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def has_gradient(_param: torch.Tensor) -> None:
            self._take(index)
            for piece in self._pieces_of(index):
                self._waits[piece] -= 1
                if self._waits[piece] == 0 and self._is_early:
                    self._push(piece)

        return has_gradient

    def _take(self, index: int) -> None:
        """Bring a gradient into its place, if zero_grad() or the user has replaced it."""
        param, (_, view) = self._params[index], self._views[index]
        if param.grad is None:
            view.zero_()
        elif param.grad.data_ptr() != view.data_ptr():
            view.copy_(param.grad)
        param.grad = view

    def _push(self, piece: int) -> None:
        first = piece * self._split
        count = min(self._split, self.floats - first)

        def post(ptr: CData, err: CData) -> int:
            status: int = lib.rdt_ps_worker_push_dense(ptr, self._number, first, count, err)
            return status

        self._post("push", post)
        self._written[piece] = self._changes(piece)

    def push(self) -> None:
        """Have the next Worker.clock() apply the gradients; zeros where a parameter has none.

        Writes those that the backward pass has not written, or that have changed since. They must
        not change until that clock().

        Raises:
            ClosedError: release() was called.
            PeerError: A server died.

        Example:
            >>> model(torch.ones(1, 2)).sum().backward()
            >>> dense.push()
            >>> w.clock()
            1
        """
        if not self._hooks:
            raise ClosedError("RDT_ECLOSED", "push", f"{self!r} was released or closed")
        for index in range(len(self._params)):
            self._take(index)
        for piece in reversed(range(self.pieces)):
            if self._written[piece] != self._changes(piece):
                self._push(piece)
        self._post(
            "push", lambda ptr, err: int(lib.rdt_ps_worker_commit_dense(ptr, self._number, err))
        )

    def step(self, lr_scale: float = 1.0) -> int:
        """End a step: push(), Worker.clock(), and gradients of zero.

        Args:
            lr_scale: As for Worker.clock().

        Returns:
            The number of steps of this worker.

        Raises:
            TransferTimeoutError: Another worker did not end its step in time.
            PeerError: A server, or a worker without which the job ends, died.

        Example:
            >>> model(torch.ones(1, 2)).sum().backward()
            >>> dense.step()
            1
        """
        self.push()
        return self._end_step(lr_scale)

    def step_async(self, lr_scale: float = 1.0) -> Future[int]:
        """Begin to end a step as step() does; a thread waits for it.

        Use the time for what does not touch the model, such as reading the next samples. Until
        result() the parameters and gradients must not be used, and other operations of this worker
        wait.

        Args:
            lr_scale: As for Worker.clock().

        Returns:
            The future; its result is that of step(), or its exception.

        Raises:
            ClosedError: release() was called.
            PeerError: A server died.

        Example:
            >>> model(torch.ones(1, 2)).sum().backward()
            >>> ending = dense.step_async()
            >>> ending.result()
            1
        """
        self.push()
        if self._stepper is None:
            self._stepper = ThreadPoolExecutor(1, "rdmatensor step")
        return self._stepper.submit(self._end_step, lr_scale)

    def _end_step(self, lr_scale: float) -> int:
        steps = self._tick(lr_scale)
        self.zero()
        return steps

    def zero(self) -> None:
        """Set the gradients to zero for the next step; after Worker.clock().

        Example:
            >>> dense.push()
            >>> w.clock()
            1
            >>> dense.zero()
        """
        self._gradients.zero_()
        self._reset()

    def release(self) -> None:
        """Give the parameters memory of their own, with their values and no gradients; idempotent.

        The model then outlives the worker; the servers keep their values.

        Example:
            >>> dense.release()
            >>> model.weight.grad is None
            True
        """
        self._restore([(one.data.clone(), None) for one in self._params])
        self._own = []

    def _unhook(self) -> None:
        """Leave the model's backward passes alone; Worker.close() calls this."""
        if self._stepper is not None:
            self._stepper.shutdown(wait=False, cancel_futures=True)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _undo(self) -> None:
        """Give the parameters back what they had; Worker.dense() calls this if it fails."""
        self._restore(self._own)

    def _restore(self, own: list[tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        if self._is_released:
            return
        self._is_released = True
        self._unhook()
        for one, (data, grad) in zip(self._params, own, strict=True):
            one.grad = None
            one.data = data
            one.grad = grad
        _ignore_in_ddp(self._model, [], self._names)

    def _others(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield frozen parameters and buffers, with their names in the model."""
        adopted = {id(one) for one in self._params}
        for name, one in (*self._model.named_parameters(), *self._model.named_buffers()):
            if id(one) not in adopted:
                yield name, one

    def _spec(self) -> list[object]:
        """Describe what the workers' models have in common."""
        others = [(name, one.dtype, tuple(one.shape)) for name, one in self._others()]
        shapes = [tuple(one.shape) for one in self._params]
        digests = (hashlib.sha256(repr(one).encode()).hexdigest() for one in (shapes, others))
        return [self.floats, *digests]

    def _share(self, kv: KV, name: str, rank: int, timeout_s: float) -> None:
        """Give all workers worker 0's frozen parameters and buffers; Worker.dense() calls this."""
        for key, one in self._others():
            if rank == 0:
                kv.put(f"{name}/{key}", one.detach())
            else:
                with torch.no_grad():
                    one.copy_(kv.get(f"{name}/{key}", wait=timeout_s))

    def _attach(
        self, ask: Ask, shape: Shape, rank: int, rule: Rule, name: str, timeout_s: float
    ) -> None:
        """Make the model on the servers, and exchange first values; Worker.dense() calls this."""
        servers, connections = shape.servers, range(shape.connections)
        starts = [
            min(self.floats, self._split * round(self.floats * server / (servers * self._split)))
            for server in range(servers)
        ] + [self.floats]
        spec = self._spec()
        ids = ffi.new("uint32_t[]", shape.connections)
        slots = ffi.new("struct rdt_remote_region[]", shape.connections)
        for one in connections:
            server = one % servers
            count = starts[server + 1] - starts[server]
            answer = ask(one, {
                "call": "dense", "name": name, "rule": rule._spec(), "count": count,
                "params_off": starts[server], "params": self.region.encode().hex(),
                "model": spec,
            }, id=number, slot=region)  # fmt: skip
            if answer is not None:
                ids[one] = answer["id"]
                slots[one] = answer["slot"]._c_struct[0]
        self._number = self._add(starts, ids, slots)
        if rank == 0:
            self._gradients.copy_(self._values)
            for piece in range(self.pieces):
                self._push(piece)
        self._await_first(ask, connections, name, timeout_s)
        if rank == 0:
            for request in self._parameters(name):
                for one in connections[::servers]:
                    ask(one, request)
        self.zero()
        self._own = []
        _ignore_in_ddp(self._model, self._names, [])

    def _await_first(self, ask: Ask, connections: range, name: str, timeout_s: float) -> None:
        """Wait until the servers have sent the first values."""
        deadline_s = time.monotonic() + timeout_s
        request: dict[str, object] = {"call": "first values", "name": name}
        for one in connections:
            while (answer := ask(one, request, is_ready=flag)) and not answer["is_ready"]:
                if time.monotonic() >= deadline_s:
                    raise TransferTimeoutError(
                        "RDT_ETIMEDOUT", "dense", f"worker 0 has not made {name!r} in time"
                    )
                time.sleep(_POLL_S)

    def _parameters(self, name: str) -> Iterator[dict[str, object]]:
        """Yield requests, each within a slot, with names and shapes for a checkpoint."""
        for first, (one, param) in enumerate(zip(self._names, self._params, strict=True)):
            some = [[one, list(param.shape)]]
            yield {"call": "parameters", "name": name, "first": first, "parameters": some}

    def _add(self, starts: list[int], ids: CData, slots: CData) -> int:
        number, spans = ffi.new("uint32_t *"), ffi.new("uint64_t[]", starts)
        gradients = ffi.cast("float *", self._gradients.data_ptr())

        def post(ptr: CData, err: CData) -> int:
            status: int = lib.rdt_ps_worker_add_dense(
                ptr, gradients, self.floats, spans, ids, slots, number, err
            )
            return status

        self._post("dense", post)
        return int(number[0])

    def __repr__(self) -> str:
        return f"<Dense of {self.floats} parameters in {self.pieces} pieces>"


def _ignore_in_ddp(model: torch.nn.Module, names: list[str], no_more: list[str]) -> None:
    """Keep DistributedDataParallel from reducing gradients that the servers average."""
    known: list[str] = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    model._ddp_params_and_buffers_to_ignore = [  # type: ignore[assignment]
        one for one in dict.fromkeys([*known, *names]) if one not in no_more
    ]


def _check(params: list[torch.nn.Parameter]) -> None:
    if not params:
        raise invalid("dense", "the model has no parameters that require gradients")
    for one in params:
        if one.dtype != torch.float32 or one.device.type != "cpu":
            raise invalid(
                "dense", f"a parameter is {one.dtype} on {one.device}, not float32 on cpu"
            )
