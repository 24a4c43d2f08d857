"""One rank: it has a group of each backend, and runs what it is asked for until its pipe closes."""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import signal
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

import rdmatensor._torch.ddp.gradients
from tests.fuzz_training.case import Case
from tests.fuzz_training.judge import Value
from tests.fuzz_training.moments import Moments
from tests.fuzz_training.program import Part, Program
from tests.fuzz_training.wraps import ByHand, Inputs, Planned, Trained

GROUP_TIMEOUT = timedelta(seconds=20)
ORACLE_TIMEOUT = timedelta(seconds=60)  # also of a rank that captures a graph meanwhile
USUAL_LEAST_BYTES = rdmatensor._torch.ddp.gradients.LEAST_BYTES
LEAST_BYTES = 4  # in most cases gradients of any size are allocated in DDP's buckets


@dataclass
class Outcome:
    """What a rank saw: values after each step, and the error that ended the program."""

    steps: list[dict[str, Value]] = field(default_factory=list)
    error: str = ""  # its type
    words: str = ""
    where: str = ""
    born: int = 0  # gradients that were written where they are sent from


class Groups:
    """The group under test, which is the default one, and one of Gloo."""

    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.count = 0
        self.store = dist.FileStore(str(folder / "store"), world)
        self.begin()

    def begin(self) -> None:
        dist.init_process_group(
            "rdmatensor",
            store=dist.PrefixStore(str(self.count), self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=GROUP_TIMEOUT,
        )
        self.gloo = dist.new_group(backend="gloo", timeout=ORACLE_TIMEOUT)

    def again(self) -> None:
        dist.destroy_process_group()
        self.count += 1
        self.begin()


def serve(rank: int, world: int, folder: Path, requests: Connection) -> None:
    """Answer each request with an Outcome; returns when nobody asks any more."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    groups = Groups(rank, world, folder)
    requests.send_bytes(pickle.dumps(Outcome()))
    while True:
        try:
            case, way = pickle.loads(requests.recv_bytes())
        except EOFError:
            break
        requests.send_bytes(pickle.dumps(run(case, way, rank, groups)))
    os._exit(0)  # no word of a group whose other ranks are gone


def run(case: Case, way: str, rank: int, groups: Groups) -> Outcome:
    """Run the case's program in one way: "oracle", "by hand" or "subject"."""
    outcome = Outcome()
    is_usual = case.get("usual_births")
    rdmatensor._torch.ddp.gradients.LEAST_BYTES = USUAL_LEAST_BYTES if is_usual else LEAST_BYTES
    Moments.pauses = None if case.get("compiled") else random.Random(f"{case.seed} {way} {rank}")
    try:
        train(case, way, rank, groups, outcome)
    except Exception as error:  # noqa: BLE001 - judged
        outcome.error = type(error).__name__
        outcome.words = str(error)
        outcome.where = traceback.format_exc()
    torch._dynamo.reset()
    return outcome


def train(case: Case, way: str, rank: int, groups: Groups, outcome: Outcome) -> None:
    """Fill in the outcome, step by step."""

    def wrap(part: Part, inputs: Inputs) -> Trained:
        if way == "subject" and case.mode == "plan":
            return Planned(case, part.model, part.optimizer, inputs, groups.gloo)
        if way == "by hand" or (way == "oracle" and case.is_by_hand()):
            return ByHand(case, part.model, groups.gloo)
        group = groups.gloo if way == "oracle" else dist.group.WORLD
        is_view, is_oracle = case.mode == "ddp-view", way == "oracle"
        return Trained(case, part.model, group, is_view=is_view, is_oracle=is_oracle)

    program = Program(case, rank, wrap, groups.again)
    for values in program.run():
        outcome.steps.append(values)
    outcome.born = program.born
