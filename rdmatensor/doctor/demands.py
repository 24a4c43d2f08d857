"""Settings that a job uses later, tried by the code that the job itself runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rdmatensor.config import Settings
from rdmatensor.doctor.cures import cure
from rdmatensor.doctor.finding import Finding, broken, ok
from rdmatensor.doctor.loopback import DEADLINE_S, for_trial
from rdmatensor.errors import RdmaTensorError

# Imports in functions load numpy or the C library: what the doctor finds first does not need them.
if TYPE_CHECKING:
    from rdmatensor.transfer import Transfer

_OF_COLLECTIVES = ("RDMATENSOR_ALGO", "RDMATENSOR_DETERMINISTIC")
_TABLE = "RDMATENSOR_COST_TABLE"  # read if it exists, otherwise written
_JOB = "doctor"


def check(settings: Settings, native: Mapping[str, str]) -> Iterator[Finding]:
    """Try what is set: a folder for traces, ranges of ports, how collectives run.

    native: the variables that the C library reads itself.
    """
    if settings.trace_dir is not None:
        folder = settings.trace_dir
        yield _tried("trace", lambda: _check_folder(folder), f"{folder} can be written to")
    if settings.ports is not None:
        yield _tried("ports", lambda: _open(settings, "ports"), _of_range(settings.ports))
    if settings.metrics_ports is not None:
        text = _of_range(settings.metrics_ports)
        yield _tried("metrics", lambda: _open(settings, "metrics_ports"), text)
    names = [*_OF_COLLECTIVES, *([_TABLE] if Path(native.get(_TABLE, "")).is_file() else [])]
    asked = [f"{name}={native[name]}" for name in names if name in native]
    if asked:
        yield _tried("collectives", lambda: _sum(settings), f"a sum goes by {', '.join(asked)}")


def _tried(subject: str, call: Callable[[], None], text: str) -> Finding:
    try:
        call()
    except RdmaTensorError as error:
        return broken(subject, str(error), cure(error))
    return ok(subject, text)


def _of_range(ports: tuple[int, int]) -> str:
    return f"one of {ports[0]} to {ports[1]} is free; each process of a host needs one"


def _check_folder(folder: str) -> None:
    from rdmatensor import trace

    trace.check_folder(folder)


def _open(settings: Settings, field: str) -> None:
    """Open a context with one of the fields that trials leave out."""
    from rdmatensor.context import Context

    with Context(replace(for_trial(settings, "auto"), **{field: getattr(settings, field)})):
        pass


def _sum(settings: Settings) -> None:
    """Start an all_reduce of two ranks, both of this process: it accepts the settings, or does not.

    The ranks are distinguished by their contexts; if one is refused, nothing has started.
    """
    import numpy as np

    from rdmatensor.context import Context
    from rdmatensor.group import Group

    secret, chosen = secrets.token_bytes(16), for_trial(settings, "auto")
    tensors = [np.ones(1, "float32") for _ in range(2)]
    with ExitStack() as stack:
        contexts = [stack.enter_context(Context(chosen)) for _ in tensors]
        for rank, context in enumerate(contexts):
            context.add_job(_JOB, secret, rank=rank)
        addresses = [context.address for context in contexts]
        groups = [
            stack.enter_context(
                Group(
                    context._core,
                    name=_JOB,
                    job=_JOB,
                    members=[0, 1],
                    rank=rank,
                    addresses=addresses,
                    timeout_s=DEADLINE_S,
                )
            )
            for rank, context in enumerate(contexts)
        ]  # fmt: skip
        pairs = zip(groups, tensors, strict=True)
        ends = [_end(transfer) for transfer in [group.all_reduce(one) for group, one in pairs]]
    for error in filter(None, ends):  # the first is of the rank that reads the settings
        raise error
    if [float(tensor[0]) for tensor in tensors] != [2.0, 2.0]:
        raise RdmaTensorError("RDT_EINTERNAL", "all_reduce", f"the sum of 1 and 1 is {tensors}")


def _end(transfer: Transfer) -> RdmaTensorError | None:
    try:
        transfer.wait(DEADLINE_S)
    except RdmaTensorError as error:
        return error
    return None
