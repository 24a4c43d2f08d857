"""Dense models: parameters and gradients in the arena, where servers read and write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol, cast

import torch

from rdmatensor._native.arguments import invalid, whole
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.context import Context
from rdmatensor.errors import TransferTimeoutError
from rdmatensor.memory import RemoteRegion
from rdmatensor.ps.rules import Rule

SPLIT_BYTES = 4 << 20
_FLOAT_BYTES = 4
_POLL_S = 0.001

Ask = Callable[[int, dict[str, object]], dict[str, object]]
Post = Callable[[str, Callable[[CData, CData], int]], None]


class _Hooked(Protocol):
    """A parameter's method, which torch does not annotate."""

    def register_post_accumulate_grad_hook(self, hook: Callable[[torch.Tensor], None]) -> object:
        """Call hook after each backward pass."""


class Dense:
    """A model whose parameters servers hold and update; made by Worker.dense().

    The parameters become views of one array in the arena, and their gradients of another. A piece
    of the gradients is written to its server when the backward pass has filled it; step() waits
    for the new values, which the servers write into the parameters.

    Attributes:
        floats: Number of parameters.
        pieces: Number of pieces of split_bytes.

    Threads: one at a time, and the backward pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        context: Context,
        split_bytes: int,
        post: Post,
        tick: Callable[[float], int],
    ) -> None:
        self._params = [one for one in model.parameters() if one.requires_grad]
        _check(self._params)
        self._split = max(1, whole(split_bytes, "dense", "split_bytes") // _FLOAT_BYTES)
        self._post, self._tick = post, tick
        self.floats = sum(one.numel() for one in self._params)
        self.pieces = -(-self.floats // self._split)
        self._array = context.zeros(self.floats)
        self._values = torch.from_numpy(self._array)
        self._gradients = torch.from_numpy(context.zeros(self.floats))
        self.region = context.export(self._array)
        self._number = -1
        self._views = list(self._adopt())
        self._waits = [0] * self.pieces  # parameters whose gradient is not there yet
        self._is_pushed = [False] * self.pieces
        self._reset()
        self._hooks = [
            cast("_Hooked", one).register_post_accumulate_grad_hook(self._hook(index))
            for index, one in enumerate(self._params)
        ]

    def _adopt(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Move the parameters into the arena; yield each one's offset and gradient."""
        offset = 0
        for one in self._params:
            span = slice(offset, offset + one.numel())
            view = self._values[span].view(one.shape)
            view.copy_(one.detach())
            one.data = view
            one.grad = self._gradients[span].view(one.shape)
            yield offset, one.grad
            offset = span.stop

    def _pieces_of(self, index: int) -> range:
        offset, view = self._views[index]
        if view.numel() == 0:
            return range(0)
        return range(offset // self._split, (offset + view.numel() - 1) // self._split + 1)

    def _reset(self) -> None:
        self._waits = [0] * self.pieces
        for index in range(len(self._params)):
            for piece in self._pieces_of(index):
                self._waits[piece] += 1
        self._is_pushed = [False] * self.pieces

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def has_gradient(_param: torch.Tensor) -> None:
            self._take(index)
            for piece in self._pieces_of(index):
                self._waits[piece] -= 1
                # A second backward pass in the step adds to it: then it is written again.
                self._is_pushed[piece] = False
                if self._waits[piece] == 0:
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

    def _push(self, piece: int, *, is_first: bool = False) -> None:
        first = piece * self._split
        count = min(self._split, self.floats - first)

        def post(ptr: CData, err: CData) -> int:
            status: int = lib.rdt_ps_worker_push_dense(
                ptr, self._number, first, count, int(is_first), err
            )
            return status

        self._post("push", post)
        self._is_pushed[piece] = True

    def push(self) -> None:
        """Write the gradients that the backward pass has not written yet; zeros where none is.

        They must not change until the next Worker.clock().

        Raises:
            PeerError: A server died.
        """
        for index in range(len(self._params)):
            self._take(index)
        for piece in reversed(range(self.pieces)):
            if not self._is_pushed[piece]:
                self._push(piece)

    def step(self, lr_scale: float = 1.0) -> int:
        """End a step: push(), Worker.clock(), and gradients of zero.

        Args:
            lr_scale: As for Worker.clock().

        Returns:
            The number of steps of this worker.

        Raises:
            TransferTimeoutError: Another worker did not end its step in time.
            PeerError: A server, or a worker without which the job ends, died.
        """
        self.push()
        steps = self._tick(lr_scale)
        self.zero()
        return steps

    def zero(self) -> None:
        """Set the gradients to zero for the next step; after Worker.clock()."""
        self._gradients.zero_()
        self._reset()

    def attach(
        self, ask: Ask, servers: int, rank: int, rule: Rule, name: str, timeout_s: float
    ) -> None:
        """Make the model on the servers, and exchange first values; Worker.dense() calls this."""
        starts = [
            min(self.floats, self._split * (self.pieces * server // servers))
            for server in range(servers)
        ] + [self.floats]
        ids, slots = ffi.new("uint32_t[]", servers), ffi.new("struct rdt_remote_region[]", servers)
        for server in range(servers):
            count = starts[server + 1] - starts[server]
            answer = ask(server, {
                "call": "dense", "name": name, "rule": rule._spec(), "count": count,
                "params_off": starts[server], "params": self.region.encode().hex(),
            })  # fmt: skip
            ids[server] = int(str(answer["id"]))
            region = RemoteRegion.decode(bytes.fromhex(str(answer["slot"])))
            slots[server] = region._c_struct[0]
        self._number = self._add(starts, ids, slots)
        if rank == 0:
            self._gradients.copy_(self._values)
            for piece in range(self.pieces):
                self._push(piece, is_first=True)
        deadline_s = time.monotonic() + timeout_s
        for server in range(servers):
            while not ask(server, {"call": "first values", "name": name})["is_ready"]:
                if time.monotonic() >= deadline_s:
                    raise TransferTimeoutError(
                        "RDT_ETIMEDOUT", "dense", f"worker 0 has not made {name!r} in time"
                    )
                time.sleep(_POLL_S)
        self.zero()

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


def _check(params: list[torch.nn.Parameter]) -> None:
    if not params:
        raise invalid("dense", "the model has no parameters that require gradients")
    for one in params:
        if one.dtype != torch.float32 or one.device.type != "cpu":
            raise invalid(
                "dense", f"a parameter is {one.dtype} on {one.device}, not float32 on cpu"
            )
