"""How a server applies a rule in Python: the C library calls it with the rows of a step."""

from __future__ import annotations

import logging

import torch

from rdmatensor._native.ffi import OK, CData, ffi, lib
from rdmatensor.ps.pyrules.rule import PythonRule, found
from rdmatensor.ps.rules import Custom, Rule

_FLOAT_BYTES = 4
_log = logging.getLogger("rdmatensor.ps")


class Applier:
    """The rule of one table of a server; it lives as long as the server.

    Attributes:
        handle: What the C library calls it by.
        failure: The exception that the rule has raised, or None.
    """

    def __init__(self, wanted: Custom, table: str, dim: int) -> None:
        self._rule: PythonRule = found(wanted, dim)
        self._name = f"table {table!r}, rule {wanted.name}"
        self.handle: CData = ffi.new_handle(self)
        self.failure: BaseException | None = None

    def apply(self, batch: CData, err: CData) -> int:
        """Apply the rule to copies of the rows, and write them back if it has succeeded."""
        try:
            self._apply(batch)
        except BaseException as error:  # noqa: BLE001 - the job ends with it
            self.failure = error
            _log.error("%s: the rule has failed", self._name, exc_info=error)
            return _refuse(err, f"{self._name}: {type(error).__name__}: {error}")
        return OK

    def _apply(self, batch: CData) -> None:
        count = int(batch.count)
        places = [
            _tensor(batch.values, count, int(batch.dim)),
            _tensor(batch.state, count, int(batch.state_floats)),
            _tensor(batch.gradients, count, int(batch.dim)),
        ]
        # A rule may keep a tensor, and the library's memory ends with the call.
        values, state, gradients = (one.clone() for one in places)
        with torch.no_grad():
            result: object = self._rule.apply(  # type: ignore[func-returns-value]
                values, state, gradients, int(batch.step), float(batch.lr_scale)
            )
        if result is not None:
            raise TypeError("apply() returned a value: it changes values and state in place")
        for place, one in zip(places[:2], (values, state), strict=True):
            if one.shape != place.shape:
                raise ValueError(f"apply() made {tuple(place.shape)} rows {tuple(one.shape)}")
            place.copy_(one)


class Appliers:
    """The rules in Python of a server's tables, which live as long as the server."""

    def __init__(self) -> None:
        self._all: list[Applier] = []

    def fill(self, opts: CData, rule: Rule, table: str, dim: int) -> None:
        """Have a table's description name its rule, if that is in Python.

        Raises:
            InvalidArgumentError: This process does not know the rule.
            MismatchError: It differs here.
        """
        if isinstance(rule, Custom):
            self._all.append(Applier(rule, table, dim))
            opts.apply, opts.apply_arg = lib.rdtpy_apply_rule, self._all[-1].handle

    def failure(self) -> BaseException | None:
        """Return the exception that a rule has raised."""
        return next((one.failure for one in self._all if one.failure is not None), None)


def _tensor(floats: CData, rows: int, columns: int) -> torch.Tensor:
    """Return a tensor over memory of the library."""
    if rows * columns == 0:
        return torch.empty(rows, columns)
    memory = ffi.buffer(floats, rows * columns * _FLOAT_BYTES)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, columns)


def _refuse(err: CData, message: str) -> int:
    """Fill the error that all processes get."""
    ffi.memmove(err, b"\0" * ffi.sizeof("struct rdt_error"), ffi.sizeof("struct rdt_error"))
    err.status, err.peer_rank = lib.RDT_ECANCELED, lib.RDT_RANK_UNKNOWN
    err.message = message.encode(errors="backslashreplace")[: len(err.message) - 1]
    return int(lib.RDT_ECANCELED)


def _apply_rule(arg: CData, batch: CData, err: CData) -> int:
    applier: Applier = ffi.from_handle(arg)
    return applier.apply(batch, err)


ffi.def_extern(name="rdtpy_apply_rule", error=lib.RDT_EINTERNAL)(_apply_rule)
