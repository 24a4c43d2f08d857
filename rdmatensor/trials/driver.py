"""The driver's side: ask the study for a trial, have it run, tell the study how it ended."""

from __future__ import annotations

import hmac
import json
import math
import secrets
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from rdmatensor.trials.launchers import Fleet, Launcher, Local
from rdmatensor.trials.rank import Outcome, Payload, packed_call

_CHALLENGE_BYTES = 32
_METHODS = ("suggest_float", "suggest_int", "suggest_categorical", "report", "should_prune")
_RETRIES = "retries"  # user attributes of a trial
_FAILURE = "failure"

Callback = Callable[[optuna.Study, FrozenTrial], None]


def study(
    path: str | Path,
    *,
    sampler: optuna.samplers.BaseSampler | None = None,
    pruner: optuna.pruners.BasePruner | None = None,
    direction: Literal["minimize", "maximize"] = "minimize",
) -> optuna.Study:
    """Open a study that is kept in a file, or go on with the one that is there.

    Args:
        path: Where; the journal is PATH.journal, and the last part of the path the study's name.
        sampler: Optuna's; None: its default.
        pruner: Optuna's; None: its default.
        direction: Whether small or large values are good.

    Returns:
        The study. Its file suits a network file system; it needs no database server.

    Raises:
        ValueError: The file has a study of the other direction.

    Example:
        >>> searched = study(folder / "students", direction="minimize")
        >>> searched.study_name
        'students'
    """
    file = Path(f"{path}.journal")
    file.parent.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(file)))
    return optuna.create_study(
        storage=storage,
        study_name=Path(path).name,
        load_if_exists=True,
        sampler=sampler,
        pruner=pruner,
        direction=direction,
    )


class _Desk(socketserver.ThreadingTCPServer):
    """Answers the ranks 0 of running trials: one connection for a trial, JSON lines, no pickles."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str) -> None:
        self.token = secrets.token_hex()
        self.trials: dict[int, Trial] = {}
        self.lock = threading.RLock()  # guards the study: samplers are not made for threads
        super().__init__((host, 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="trials desk")

    def __enter__(self) -> _Desk:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def answer(self, number: int, method: str, arguments: dict[str, Any]) -> object:
        """Call a method of a trial's; a category is answered by its index."""
        if method not in _METHODS:
            raise ValueError(f"a trial has no method {method!r}")
        with self.lock:
            found = getattr(self.trials[number], method)(**arguments)
        if method == "suggest_categorical":
            return arguments["choices"].index(found)
        return int(found) if isinstance(found, bool) else found


class _Handler(socketserver.StreamRequestHandler):
    server: _Desk

    def handle(self) -> None:
        challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        self._say(challenge.hex())
        wanted = hmac.digest(bytes.fromhex(self.server.token), challenge, "sha256").hex()
        try:
            proof, number = json.loads(self.rfile.readline(1024))
            if not hmac.compare_digest(str(proof), wanted):
                return
            for line in self.rfile:
                self._answer(int(number), *json.loads(line))
        except (ConnectionError, ValueError, TypeError):  # a rank that died, or a stranger
            return

    def _answer(self, number: int, method: str, arguments: dict[str, Any]) -> None:
        try:
            answer = [False, self.server.answer(number, method, arguments)]
        except Exception as error:  # noqa: BLE001 - of Optuna, for rank 0 to raise
            answer = [True, f"{type(error).__name__}: {error}"]
        self._say(json.dumps(answer))

    def _say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\n")


def optimize(
    train: Callable[..., float | None],
    *,
    study: optuna.Study,
    ranks_per_trial: int,
    n_trials: int,
    args: Sequence[object] = (),
    launcher: Launcher | None = None,
    parallel: int = 1,
    max_retries: int = 0,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Run trials of a study, each as a process group.

    A trial is COMPLETE with what `train` returns on rank 0, or PRUNED if all ranks raised
    optuna.TrialPruned. A trial of which a rank raised or died, or whose ranks ended differently, is
    FAIL: its user attribute "failure" has the reason, and the study goes on.

    Args:
        train: Called as train(trial, *args) on every rank, with a GroupTrial. Functions of the main
            program travel with their globals; those of modules are imported.
        study: One direction; rt.study() makes one.
        ranks_per_trial: Processes of a trial.
        n_trials: Trials to run, in addition to those that the study has.
        args: More arguments of train.
        launcher: Local(), Slurm() or Ray(); None is Local().
        parallel: Trials that run at once.
        max_retries: How often a failed trial runs again with its parameters, as another trial.
        callbacks: Called with the study and each trial that has ended, one at a time.

    Raises:
        ValueError: An argument is wrong.
        KeyboardInterrupt: Ctrl-C; all ranks were killed, and their trials are FAIL.

    Example:
        >>> optimize(train, study=searched, ranks_per_trial=2, n_trials=20)  # doctest: +SKIP
    """
    for name, count, least in (
        ("ranks_per_trial", ranks_per_trial, 1),
        ("n_trials", n_trials, 0),
        ("parallel", parallel, 1),
        ("max_retries", max_retries, 0),
    ):
        if count < least:
            raise ValueError(f"{name}={count}: must be at least {least}")
    if len(study.directions) != 1:
        raise ValueError(f"the study has {len(study.directions)} directions: a trial returns one")
    call = packed_call(train, args)
    fleet = (Local() if launcher is None else launcher).open(ranks_per_trial, parallel)
    run = _Run(study, fleet, n_trials, max_retries, callbacks)
    with _Desk(fleet.bind_host) as run.desk, ThreadPoolExecutor(parallel) as pool:
        lanes = [pool.submit(run.lane, lane, call) for lane in range(parallel)]
        try:
            wait(lanes, return_when=FIRST_EXCEPTION)
        finally:
            run.is_stopped = True
            fleet.close()
    for one in lanes:
        one.result()


class _Run:
    """One call of optimize()."""

    desk: _Desk

    def __init__(
        self,
        study: optuna.Study,
        fleet: Fleet,
        n_trials: int,
        max_retries: int,
        callbacks: Sequence[Callback],
    ) -> None:
        self._study, self._fleet, self._left = study, fleet, n_trials
        self._max_retries, self._callbacks = max_retries, callbacks
        self.is_stopped = False

    def lane(self, lane: int, call: bytes) -> None:
        """Run one trial after the other."""
        while (trial := self._next()) is not None:
            address = (self._fleet.host, self.desk.server_address[1])
            payload = Payload(call, trial.number, address, self.desk.token, tuple(sys.path))
            outcomes: list[Outcome] = []
            try:
                outcomes = self._fleet.run(lane, payload)
            finally:
                self._tell(trial, outcomes)

    def _next(self) -> Trial | None:
        with self.desk.lock:
            if self.is_stopped or self._left == 0:
                return None
            self._left -= 1
            trial = self._study.ask()
            self.desk.trials[trial.number] = trial
            return trial

    def _tell(self, trial: Trial, outcomes: list[Outcome]) -> None:
        with self.desk.lock:
            del self.desk.trials[trial.number]
            words = failure_of(outcomes)
            if words is not None:
                trial.set_user_attr(_FAILURE, "interrupted" if self.is_stopped else words)
                told = self._study.tell(trial, state=TrialState.FAIL)
                self._retry(told)
            elif outcomes[0].kind == "pruned":
                told = self._study.tell(trial, state=TrialState.PRUNED)
            else:
                told = self._study.tell(trial, float(outcomes[0].value))  # type: ignore[arg-type]
            for callback in self._callbacks:
                callback(self._study, told)

    def _retry(self, trial: FrozenTrial) -> None:
        retries = trial.user_attrs.get(_RETRIES, 0)
        if not self.is_stopped and retries < self._max_retries:
            self._study.enqueue_trial(trial.params, user_attrs={_RETRIES: retries + 1})
            self._left += 1


def failure_of(outcomes: Sequence[Outcome]) -> str | None:
    """Return why a trial failed, or None if all ranks ended alike with a value or were pruned."""
    if not outcomes:
        return "the launcher did not start it"
    bad = [
        f"rank {rank} {one.words if one.kind == 'died' else f'raised {one.words}'}"
        for rank, one in enumerate(outcomes)
        if one.kind in ("raised", "died")
    ]
    if bad:
        # A rank that died is the cause; what the others raise follows from it.
        return "; ".join(sorted(bad, key=lambda line: " raised " in line))
    kinds = [one.kind for one in outcomes]
    if len(set(kinds)) > 1:
        ended = ", ".join(f"rank {rank} {kind}" for rank, kind in enumerate(kinds))
        return f"the ranks ended differently: {ended}"
    value = outcomes[0].value
    if kinds[0] == "returned":
        try:
            if math.isfinite(float(value)):  # type: ignore[arg-type]
                return None
        except (TypeError, ValueError):
            pass
        return f"train returned {value!r} on rank 0: expected a finite number"
    return None
