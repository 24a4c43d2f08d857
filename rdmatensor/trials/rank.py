"""The rank's side of a trial: rank 0 asks the driver, and broadcasts the answer."""

from __future__ import annotations

import hmac
import json
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, cast

import cloudpickle
import optuna
import torch
import torch.distributed as dist

Choice = None | bool | int | float | str
_REASON_MAX = 2000  # characters of a failure that the study keeps
_CONNECT_S = 60.0
_FAILED, _INT, _FLOAT = range(3)


class TrialError(RuntimeError):
    """The driver refused a call, or ranks called differently; the message says which."""


@dataclass(frozen=True)
class Payload:
    """What a rank needs: the call, pickled, and where the driver answers."""

    call: bytes
    number: int
    address: tuple[str, int]
    token: str
    path: Sequence[str]  # of the driver's modules


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. words: of a failure; value: what rank 0 returned."""

    kind: Literal["returned", "pruned", "raised", "died"]
    words: str = ""
    value: object = None


class _Line:
    """Rank 0's connection to the driver: a line of JSON each way for a call."""

    def __init__(self, payload: Payload) -> None:
        self._socket = socket.create_connection(payload.address, timeout=_CONNECT_S)
        self._socket.settimeout(None)  # a sampler takes its time; a dead driver ends the connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._lines = self._socket.makefile("rwb")
        # The driver challenges, so that the token never crosses the network.
        challenge = bytes.fromhex(self._read().decode())
        proof = hmac.digest(bytes.fromhex(payload.token), challenge, "sha256").hex()
        self._lines.write(json.dumps([proof, payload.number]).encode() + b"\n")

    def _read(self) -> bytes:
        self._lines.flush()
        line = self._lines.readline()
        if not line:
            raise TrialError("the driver of the study has ended, or refused this rank's token")
        return line.strip()

    def ask(self, method: str, arguments: Mapping[str, object]) -> object:
        self._lines.write(json.dumps([method, arguments]).encode() + b"\n")
        is_refused, answer = json.loads(self._read())
        if is_refused:
            raise TrialError(f"{method}(): {answer}")
        return answer

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class GroupTrial:
    """A trial as its ranks see it: optuna's Trial, with the same answers on every rank.

    Ranks make the same calls in the same order, after `init_process_group()`. optimize() makes it.

    Attributes:
        number: The trial's number in its study.
        params: What was suggested so far, by name.
    """

    def __init__(self, number: int, line: _Line | None) -> None:
        self.number = number
        self.params: dict[str, Choice] = {}
        self._line = line  # None: not rank 0

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Suggest a float between two bounds, both included.

        Args:
            name: The parameter's name.
            low: Lower bound.
            high: Upper bound.
            step: Distance of values; None: any.
            log: Draw in the logarithm's domain.

        Returns:
            The value, with the same bits on all ranks.

        Raises:
            TrialError: Optuna refused the arguments, or ranks asked for different things.

        Example:
            >>> trial.suggest_float("rate", 0.25, 0.25)
            0.25
        """
        bounds = {"name": name, "low": float(low), "high": float(high), "step": step, "log": log}
        value = self.params[name] = float(self._agree("suggest_float", bounds))
        return value

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """Suggest an integer between two bounds, both included.

        Args:
            name: The parameter's name.
            low: Lower bound.
            high: Upper bound.
            step: Distance of values.
            log: Draw in the logarithm's domain.

        Returns:
            The value, the same on all ranks.

        Raises:
            TrialError: As for suggest_float().

        Example:
            >>> trial.suggest_int("width", 8, 8)
            8
        """
        bounds = {"name": name, "low": int(low), "high": int(high), "step": step, "log": log}
        value = self.params[name] = int(self._agree("suggest_int", bounds))
        return value

    def suggest_categorical(self, name: str, choices: Sequence[Choice]) -> Choice:
        """Suggest one of several values.

        Args:
            name: The parameter's name.
            choices: None, booleans, numbers and strings.

        Returns:
            The choice, the same on all ranks.

        Raises:
            TrialError: As for suggest_float().

        Example:
            >>> trial.suggest_categorical("rule", ["sgd"])
            'sgd'
        """
        index = self._agree("suggest_categorical", {"name": name, "choices": list(choices)})
        value = self.params[name] = choices[int(index)]
        return value

    def report(self, value: float, step: int) -> None:
        """Report an intermediate value of rank 0; the other ranks' values are not used.

        Args:
            value: The objective so far.
            step: When, such as the epoch.

        Raises:
            TrialError: Optuna refused it, on rank 0.

        Example:
            >>> trial.report(0.5, step=0)
        """
        if self._line is not None:
            self._line.ask("report", {"value": float(value), "step": int(step)})

    def should_prune(self) -> bool:
        """Return whether the study's pruner ends this trial: decided once, equal on all ranks.

        Returns:
            True: raise optuna.TrialPruned, on every rank.

        Raises:
            TrialError: The driver has ended, or ranks asked for different things.

        Example:
            >>> trial.should_prune()
            False
        """
        return bool(self._agree("should_prune", {}))

    def _agree(self, method: str, arguments: Mapping[str, object]) -> int | float:
        """Ask on rank 0 and return its answer; each rank checks that it asked for the same."""
        said = json.dumps([method, arguments]).encode()
        (digest,) = struct.unpack("<q", blake2b(said, digest_size=8).digest())
        record = torch.tensor([digest, _FAILED, 0])  # int64
        failure: TrialError | None = None
        if self._line is not None:
            try:
                record[1:] = torch.tensor(_packed(self._line.ask(method, arguments)))
            except TrialError as error:
                failure = error
        world = int(os.environ["WORLD_SIZE"])
        if world > 1:
            if not dist.is_initialized():
                raise TrialError(f"call init_process_group() before {method}(): ranks must agree")
            dist.broadcast(record, 0)
        theirs, kind, bits = record.tolist()
        if failure is not None:
            raise failure
        if theirs != digest:
            raise TrialError(
                f"rank {os.environ['RANK']} called {method}({dict(arguments)}), and rank 0 made "
                "another call: all ranks must make the same calls in the same order"
            )
        if kind == _FAILED:
            raise TrialError(f"rank 0 could not ask the driver for {method}(): see its error")
        return (
            bits if kind == _INT else cast("float", struct.unpack("<d", struct.pack("<q", bits))[0])
        )


def _packed(answer: object) -> tuple[int, int]:
    """Return an answer's kind and its 64 bits."""
    if isinstance(answer, float):
        return _FLOAT, struct.unpack("<q", struct.pack("<d", answer))[0]
    if isinstance(answer, int) and -(2**63) <= answer < 2**63:
        return _INT, int(answer)
    raise TrialError(f"the driver answered {answer!r}, which no rank can receive")


def packed_call(train: Callable[..., object], arguments: Sequence[object]) -> bytes:
    """Pickle the call: functions of the main program travel by value."""
    return cast("bytes", cloudpickle.dumps((train, tuple(arguments))))


def run_rank(payload: Payload) -> Outcome:
    """Run one rank of a trial, in a process whose environment has RANK and WORLD_SIZE.

    Args:
        payload: The call and the driver's address.

    Returns:
        How it ended; exceptions of the call are part of it.
    """
    sys.path[:] = [*payload.path, *(one for one in sys.path if one not in payload.path)]
    try:
        train, arguments = pickle.loads(payload.call)
        line = _Line(payload) if os.environ["RANK"] == "0" else None
        value = train(GroupTrial(payload.number, line), *arguments)
        if line is not None:
            line.close()
        outcome = Outcome("returned", value=None if line is None else value)
    except optuna.TrialPruned:
        outcome = Outcome("pruned")
    except BaseException as error:  # noqa: BLE001 - the study has the words, the log the rest
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}"
        return Outcome("raised", words[:_REASON_MAX])
    if dist.is_initialized():
        dist.destroy_process_group()
    return outcome


def run_in_environment(
    payload: Payload, environment: Mapping[str, str], log: str | None
) -> Outcome:
    """Run one rank with these variables set, and its output in a file if one is given."""
    os.environ.update(environment)
    if log is not None:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with Path(log).open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    return run_rank(payload)
