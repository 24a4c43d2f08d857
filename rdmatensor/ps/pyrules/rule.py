"""Rules in Python: their classes, and how processes compare them."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from types import CodeType
from typing import TYPE_CHECKING

from rdmatensor._native.arguments import invalid, whole_in
from rdmatensor._native.ffi import lib
from rdmatensor.errors import MismatchError
from rdmatensor.ps.rules import Custom

if TYPE_CHECKING:
    import torch

_known: dict[str, type[PythonRule]] = {}


class PythonRule:
    """A rule of your own, over torch tensors; derive from it. Slower than the rules in C.

    Servers find the class by its name: define it at the top of a module that they import too, such
    as the program itself. A rule with parameters is a dataclass, whose fields are numbers, texts,
    True, False or None. All workers and servers must have the same code and parameters.

    Attributes:
        initial: What the state begins with.
        is_mean: True: "sync" averages the pushes of several workers. False: it sums them.

    Example:
        >>> @dataclass
        ... class Momentum(PythonRule):
        ...     lr: float
        ...
        ...     def state(self, dim):
        ...         return dim
        ...
        ...     def apply(self, values, state, gradients, step, lr_scale):
        ...         state.mul_(0.9).add_(gradients)
        ...         values.sub_(self.lr * lr_scale * state)
        >>> mine = w.table("mine", 2, rows=10, rule=Momentum(lr=0.1))
        >>> mine.push([3], torch.ones(1, 2))
        >>> w.clock(), mine.pull([3])
        (1, tensor([[-0.1000, -0.1000]]))
    """

    initial: float = 0.0
    is_mean: bool = True

    def __init_subclass__(cls, **options: object) -> None:
        """Note the class, so that a server finds it."""
        super().__init_subclass__(**options)
        _known[name_of(cls)] = cls

    def state(self, dim: int) -> int:
        """Return the number of floats of state that a row has; checkpoints have them.

        Args:
            dim: Floats of a row.

        Returns:
            The number; 0 in this class.

        Example:
            >>> PythonRule().state(16)
            0
        """
        del dim
        return 0

    def apply(
        self,
        values: torch.Tensor,
        state: torch.Tensor,
        gradients: torch.Tensor,
        step: int,
        lr_scale: float,
    ) -> None:
        """Change values and state in place; a server calls this once a step, for all pushed rows.

        It must not call a Worker or Server. If it raises an exception, no row is changed, and the
        job ends: all processes get an error that names the table, the rule and the exception.

        Args:
            values: Rows of shape (n, dim), float32.
            state: Their state, of shape (n, state(dim)), float32.
            gradients: What was pushed, of shape (n, dim): summed for a row that was pushed several
                times, and averaged as is_mean says.
            step: Steps in which the table was pushed, from 1 on.
            lr_scale: Of Worker.clock().

        Example:
            >>> rule.apply(torch.zeros(1, 2), torch.zeros(1, 0), torch.ones(1, 2), 1, 1.0)
        """
        raise NotImplementedError(f"{type(self).__name__} has no apply()")


def name_of(cls: type[PythonRule]) -> str:
    """Return the name by which servers find a class; the program's module has one name."""
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{module}.{cls.__qualname__}"


def described(rule: PythonRule, dim: int) -> Custom:
    """Check a rule, and return what processes compare.

    Raises:
        InvalidArgumentError: Its state or a parameter is wrong.
    """
    cls, values = type(rule), dict(vars(rule))
    names: set[str] = {one.name for one in fields(rule)} if is_dataclass(rule) else set()
    for name, value in values.items():
        if name not in names:
            raise invalid("table", f"{cls.__name__}.{name}: expected a field of a @dataclass")
        is_scalar = value is None or isinstance(value, (bool, int, float, str))
        if not is_scalar or (isinstance(value, float) and not math.isfinite(value)):
            raise invalid(
                "table",
                f"{cls.__name__}.{name}={value!r} is not a finite number, a text, True, False or "
                "None",
            )
    floats = whole_in(rule.state(dim), lib.RDT_PS_STATE_MAX, "table", f"{cls.__name__}.state()")
    return Custom(
        "CUSTOM",
        initial=rule.initial,
        name=name_of(cls),
        parameters=json.dumps(values, sort_keys=True),
        digest=_digest(cls),
        state_floats=floats,
        is_sum=not rule.is_mean,
    )


def found(wanted: Custom, dim: int) -> PythonRule:
    """Make the rule that a worker has described.

    Raises:
        InvalidArgumentError: This process has no class of that name.
        MismatchError: The class differs here.
    """
    cls = _known.get(wanted.name)
    if cls is None:
        raise invalid(
            "table",
            f"rule {wanted.name!r} is not known here: define it at the top of a module that "
            "servers import before they join",
        )
    rule = cls(**json.loads(wanted.parameters))
    own = described(rule, dim)
    if own != wanted:
        raise MismatchError(
            "RDT_EMISMATCH",
            "table",
            f"rule {wanted.name!r} is {wanted} on a worker, and {own} here",
        )
    return rule


def _digest(cls: type[PythonRule]) -> str:
    """Return a digest of the code of a class and of those above it; of no line numbers."""
    state = hashlib.sha256()
    for one in cls.__mro__[: cls.__mro__.index(PythonRule)]:
        for name, value in sorted(vars(one).items()):
            code = getattr(getattr(value, "__func__", value), "__code__", None)
            if isinstance(code, CodeType) and code.co_filename != "<string>":  # of a dataclass
                state.update(f"{name} {_code(code)}".encode())
    return state.hexdigest()


def _code(code: CodeType) -> str:
    """Return what a function does, as text."""
    constants = sorted(_constant(one) for one in code.co_consts)
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, frozenset):  # whose order differs between processes
        return repr(sorted(map(repr, value)))
    return repr(value)
