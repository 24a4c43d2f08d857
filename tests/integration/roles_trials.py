"""What ranks of the trials of test_trials.py run; imported by them from this folder."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import optuna
import psutil
import pytest
import torch
import torch.distributed as dist

import rdmatensor
from rdmatensor.trials import GroupTrial, TrialError

STEPS = 6


def rank_of() -> int:
    return int(os.environ["RANK"])


def meet() -> None:
    """Make the group, and sum over it, so that ranks have reached each other."""
    dist.init_process_group("rdmatensor")
    number = torch.ones(1)
    dist.all_reduce(number)
    assert int(number) == dist.get_world_size()


def suggest(trial: GroupTrial, draw: random.Random) -> object:
    """Ask for a random parameter; `draw` is the same on all ranks."""
    name, low = f"p{draw.randrange(12)}", 1
    kind = draw.randrange(4)
    if kind == 0:
        return trial.suggest_float(f"{name}f", low / 3, draw.choice([2.5, 1e300]))
    if kind == 1:
        return trial.suggest_float(f"{name}l", 1e-9, 1.0, log=True)
    if kind == 2:
        return trial.suggest_int(f"{name}i", -(2**40), 2**40)
    return trial.suggest_categorical(f"{name}c", [None, True, 3, 2.5, "word"])


def random_program(trial: GroupTrial, folder: str) -> float:
    """Make random calls; each rank leaves what it received."""
    meet()
    draw = random.Random(trial.number)
    seen: list[object] = []
    file = Path(folder, f"{trial.number}-{rank_of()}.json")
    for step in range(STEPS):
        seen += [suggest(trial, draw) for _ in range(draw.randrange(4))]
        # Ranks report different values; rank 0's is the study's.
        trial.report(float(draw.random() + rank_of()), step)
        seen.append(trial.should_prune())
        file.write_text(json.dumps([seen, list(trial.params)]))
        if seen[-1]:
            raise optuna.TrialPruned
    return float(trial.number + 100 * rank_of())


def quadratic(trial: GroupTrial) -> float:
    meet()
    x = trial.suggest_float("x", -2, 2)
    k = trial.suggest_categorical("k", ["a", "b"])
    return (x - 0.5) ** 2 + (k == "b") + trial.suggest_int("n", 0, 4)


def plain_quadratic(trial: optuna.Trial) -> float:
    """The same objective for Optuna alone."""
    x = trial.suggest_float("x", -2, 2)
    k = trial.suggest_categorical("k", ["a", "b"])
    return (x - 0.5) ** 2 + (k == "b") + trial.suggest_int("n", 0, 4)


def dies(trial: GroupTrial, dead: list[int | None]) -> float:
    """Of the first trials these ranks are killed, while the others wait for them."""
    meet()
    x = trial.suggest_float("x", 0, 1)
    if dead[trial.number : trial.number + 1] == [rank_of()]:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    return x


def misbehaves(trial: GroupTrial, kinds: list[str]) -> float | None:
    meet()
    what = [*kinds, ""][trial.number]
    if what == "raises" and rank_of() == 1:
        raise LookupError("no such row")
    if what == "prunes alone" and rank_of() == 1:
        raise optuna.TrialPruned
    if what == "asks for another":
        trial.suggest_float(f"x{rank_of()}", 0, 1)
    if what == "is refused":
        trial.suggest_float("x", 1, 0)
    if what == "has no number":
        return None
    return float("nan") if what == "diverges" else 1.0


def before_the_group(trial: GroupTrial) -> float:
    with pytest.raises(TrialError, match=r"call init_process_group\(\)"):
        trial.suggest_float("x", 0, 1)
    return 7.0


def uses(trial: GroupTrial, folder: str) -> float:
    """Leave the ports and the arena's limit of each rank, while another study runs."""
    meet()
    arena = rdmatensor.default_context().settings.arena_max_mib
    ports = [
        one.laddr.port
        for one in psutil.Process().net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    try:
        rdmatensor.default_context().empty(48 << 20, "uint8")
        has_room = True
    except rdmatensor.OutOfMemoryError:
        has_room = False
    file = Path(folder, f"{trial.number}-{rank_of()}.json")
    file.write_text(json.dumps([ports, int(os.environ["MASTER_PORT"]), arena, has_room]))
    time.sleep(0.5)
    dist.barrier()
    return 0.0


def waits(trial: GroupTrial, folder: str) -> float:
    """Wait for the end that a test prepares."""
    meet()
    Path(folder, f"up-{trial.number}-{rank_of()}").write_text(str(os.getpid()))
    time.sleep(600)
    return 0.0


def waits_once(trial: GroupTrial, folder: str) -> float:
    """Wait for an end in the first trial, and return in the others."""
    meet()
    x = trial.suggest_float("x", 0, 1)
    if trial.number == 0:
        waits_for_ever(trial.number, folder)
    return x


def waits_for_ever(number: int, folder: str) -> None:
    Path(folder, f"up-{number}-{rank_of()}").write_text(str(os.getpid()))
    time.sleep(600)
