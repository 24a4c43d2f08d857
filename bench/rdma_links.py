"""Share of a slow link, and CPU seconds per GB, of our writes, perftest, gRPC C++ and Gloo.

Usage: bash ci/rig/run.sh --hosts 2 --timeout 1500 -- .venv/bin/python bench/rdma_links.py \
           [--rate 16mbit] [--rounds 3] [--mib 4] [--out FILE]

Runs on both hosts at once; the link is limited by `tc tbf` to far less than what emulation can do,
so that the link is the bound for all: the fair comparison that an emulated machine allows. Host 0
sends the same bytes with each in turn. CPU seconds are those of the whole machine, both added up:
what the kernel does for packets is charged to no process. Waiting: ours and Gloo spin a little,
then sleep; gRPC sleeps; ib_write_bw spins, ib_send_bw -e sleeps (perftest: no events for writes).
The file is written after each turn.

Needs build/rivals/grpc_rival (bench/rivals/grpc/setup.sh).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench import rdma
from bench.benchlib import rig
from rdmatensor import FileStore, RemoteRegion, World, join

if TYPE_CHECKING:
    from rdmatensor import Group, Transfer

GRPC = Path(__file__).resolve().parents[1] / "build" / "rivals" / "grpc_rival"
GRPC_PORT, STORE_PORT, MEETING_PORT, PERFTEST_PORT = 18800, 18801, 18802, 18900
LIMIT_S = 300.0
MIB = 1 << 20
DEPTH = 4
# rxe has up to 64 packets of a QP on their way: at such a rate they need longer than usual.
ACK_TIMEOUT = "20"
RANK = int(os.environ["RIG_HOST"])


@dataclass(frozen=True, slots=True)
class Turn:
    """What one contestant's turn took: seconds, and CPU seconds of both machines."""

    seconds: float
    cpu_s: float


class Both:
    """Meets the other host through the group, and adds up what both machines did."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def barrier(self) -> None:
        """Wait until the other host is here too."""
        self._group.barrier().wait(timeout_s=LIMIT_S)

    def timed(self, act: Callable[[], None]) -> Turn:
        """Run both hosts' part; the time is host 0's, from the start to its end."""
        self.barrier()
        cpu_s, begun_s = rig.busy_s(), time.monotonic()
        act()
        took_s = time.monotonic() - begun_s
        self.barrier()
        used = np.array([rig.busy_s() - cpu_s], np.float64)
        self._group.all_reduce(used).wait(timeout_s=LIMIT_S)
        return Turn(took_s, float(used[0]))


class Ours:
    """Writes of 1 MiB, four in flight."""

    def __init__(self, world: World, group: Group) -> None:
        self._world = world
        self.landing = world.context.zeros((DEPTH, MIB), np.uint8)
        self._source = world.context.empty((DEPTH, MIB), np.uint8)
        self._source[:] = np.arange(1, DEPTH + 1, dtype=np.uint8)[:, None]
        own = np.frombuffer(world.context.export(self.landing).encode(), np.uint8)
        if RANK == 1:
            group.send(own, 0).wait(timeout_s=LIMIT_S)
        else:
            described = bytearray(own.size)
            group.recv(described, 1).wait(timeout_s=LIMIT_S)
            self._region = RemoteRegion.decode(described)

    def move(self, count: int) -> None:
        """Write so many on host 0; the target of a one-sided write does nothing."""
        if RANK == 1:
            return
        flying: list[Transfer] = []
        for number in range(count):
            if len(flying) == DEPTH:
                flying.pop(0).wait(timeout_s=LIMIT_S)
            place = number % DEPTH
            flying.append(
                self._world[1].write(
                    self._source[place], self._region, dst_offset_bytes=place * MIB
                )
            )
        for transfer in flying:
            transfer.wait(timeout_s=LIMIT_S)

    def check(self) -> None:
        """Compare what has arrived on host 1."""
        if RANK == 1 and not (self.landing == np.arange(1, DEPTH + 1)[:, None]).all():
            raise AssertionError("not what was written")


class Gloo:
    """Sends of 1 MiB, into the tensor that the receiver names."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["RIG_IFNAMES"].split()[0]
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{os.environ['RIG_PEER_ADDR' if RANK else 'RIG_ADDR']}:{STORE_PORT}",
            rank=RANK,
            world_size=2,
            timeout=timedelta(seconds=LIMIT_S),
        )
        self._tensors = [torch.full((MIB,), place, dtype=torch.uint8) for place in range(DEPTH)]

    def move(self, count: int) -> None:
        """Send on host 0, receive on host 1, four in flight."""
        flying: list[dist.Work | None] = []
        for number in range(count):
            if len(flying) == DEPTH:
                self._finish(flying.pop(0))
            tensor = self._tensors[number % DEPTH]
            flying.append(dist.isend(tensor, 1) if RANK == 0 else dist.irecv(tensor, 0))
        for work in flying:
            self._finish(work)
        # A send is over when the kernel has the bytes; the peer's word says that it has them all.
        word = torch.zeros(1)
        self._finish(dist.irecv(word, 1) if RANK == 0 else dist.isend(word, 0))

    @staticmethod
    def _finish(work: dist.Work | None) -> None:
        if work is None:
            raise AssertionError("this rank is in no group")
        work.wait()


def output_of(words: list[str]) -> str:
    """Run a rival's program to its end."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def grpc(kind: str, both: Both, count: int) -> Turn:
    """Let gRPC's client bring it all; it times itself, and asks for the other machine's CPU."""
    both.barrier()
    turn = Turn(0.0, 0.0)
    if RANK == 0:
        address = f"{os.environ['RIG_PEER_ADDR']}:{GRPC_PORT}"
        line = json.loads(output_of([str(GRPC), kind, address, str(MIB), str(count)]))
        turn = Turn(line["seconds"], sum(line["cpu_s"]))
    both.barrier()
    return turn


def _check_time(end_s: float, what: str) -> None:
    """Sleep a little; raise when it is late."""
    if time.monotonic() > end_s:
        raise TimeoutError(what)
    time.sleep(0.02)


class Perftest:
    """It times its messages itself; of its CPU time a run of few that goes before is taken out."""

    FEW = 5  # perftest's least
    AVERAGE = 3  # the column of its row: MiB/s on average

    def __init__(self, common: Path, *, sleeps: bool) -> None:
        self._common = common
        self._tool = ["ib_send_bw", "-e"] if sleeps else ["ib_write_bw"]
        self._port = PERFTEST_PORT + (50 if sleeps else 0)

    def _run(self, count: int) -> float:
        """Return what host 0's end prints, in MiB/s; 0 on host 1."""
        self._port += 1
        words = [*self._tool, "-d", os.environ["RIG_DEVICE"], "-x", os.environ["RIG_GID_INDEX"]]
        words += ["-F", "-s", str(MIB), "-n", str(count), "-t", str(DEPTH), "-Q", "1"]
        words += ["-u", ACK_TIMEOUT, "-p", str(self._port)]
        listens = self._common / f"listens-{self._port}"
        end_s = time.monotonic() + LIMIT_S
        if RANK == 0:
            while not listens.exists():  # it takes the first that connects, so nobody may try
                _check_time(end_s, "perftest does not listen")
            said_here = output_of([*words, os.environ["RIG_PEER_ADDR"]])
            rows = [line.split() for line in said_here.splitlines()]
            rates = [float(row[self.AVERAGE]) for row in rows if row and row[0] == str(MIB)]
            if len(rates) != 1:
                raise SystemExit(f"{' '.join(words)}: {said_here}")
            return rates[0]
        opened = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        with opened as server:
            try:
                while not rdma.is_listening(self._port) and server.poll() is None:
                    _check_time(end_s, "perftest does not listen")
                listens.touch()
                said, _ = server.communicate(timeout=LIMIT_S)
                if server.returncode != 0:
                    raise SystemExit(f"{' '.join(words)}: {said.decode()}")
            finally:
                server.kill()
        return 0.0

    def turn(self, both: Both, count: int) -> Turn:
        """Return what so many messages took, and the CPU that they took beyond a few."""
        rates: list[float] = []
        few = both.timed(lambda: rates.append(self._run(self.FEW)))
        more = both.timed(lambda: rates.append(self._run(self.FEW + count)))
        seconds = count / rates[1] if RANK == 0 else 0.0
        return Turn(seconds, more.cpu_s - few.cpu_s)


def contestants(
    world: World, group: Group, both: Both, common: Path
) -> dict[str, Callable[[int], Turn]]:
    """Return how each moves so many MiB."""
    ours, gloo = Ours(world, group), Gloo()
    spins, sleeps = Perftest(common, sleeps=False), Perftest(common, sleeps=True)

    def our_turn(count: int) -> Turn:
        turn = both.timed(lambda: ours.move(count))
        ours.check()
        return turn

    return {
        "rdmatensor write": our_turn,
        "ib_write_bw": lambda count: spins.turn(both, count),
        "ib_send_bw -e": lambda count: sleeps.turn(both, count),
        "gRPC unary": lambda count: grpc("take", both, count),
        "gRPC stream": lambda count: grpc("take-all", both, count),
        "Gloo": lambda count: both.timed(lambda: gloo.move(count)),
    }


def bits_per_s(rate: str) -> float:
    """Return what tc's words for a rate mean."""
    return float(rate[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[rate[-4]]


def rows_of(found: Mapping[str, list[Turn]], rate: str, mib: int) -> list[dict[str, object]]:
    """Return a row for each contestant that had a turn; medians of its turns."""
    size_bytes = mib * MIB
    return [
        {
            "who": name,
            "share": statistics.median(
                size_bytes * 8 / turn.seconds / bits_per_s(rate) for turn in turns
            ),
            "cpu_s_per_gb": statistics.median(turn.cpu_s / size_bytes * 1e9 for turn in turns),
            "turns": [[turn.seconds, turn.cpu_s] for turn in turns],
        }
        for name, turns in found.items()
        if turns
    ]


def show(rows: list[dict[str, object]], rate: str, mib: int) -> None:
    """Print the table."""
    print(f"two hosts, {os.environ['RIG_MEANS']}, {rate}, {mib} MiB a turn; medians of turns")
    for row in rows:
        share, cpu_s = float(str(row["share"])), float(str(row["cpu_s_per_gb"]))
        print(
            f"{row['who']:<18} {share * 100:6.1f} % of the line  {cpu_s:8.2f} CPU s per GB",
            flush=True,
        )


def main() -> int:
    """Let everybody have a turn in each round; 0 if all ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="16mbit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("rdma_links.json"), help="in RIG_OUT")
    arguments = parser.parse_args()
    common = rig.common_folder(MEETING_PORT)
    kept = rig.Kept(common)
    about = {"rate": arguments.rate, "mib": arguments.mib, "rounds": arguments.rounds}

    def keep(found: Mapping[str, list[Turn]]) -> None:
        if RANK == 0:
            kept.so_far(arguments.out, rows_of(found, arguments.rate, arguments.mib), **about)

    os.environ["RDMATENSOR_TRANSPORT"] = "verbs"
    os.environ["RDMATENSOR_ADDR"] = os.environ["RIG_ADDR"]
    os.environ["RDMATENSOR_VERBS_TIMEOUT"] = ACK_TIMEOUT
    server = None
    if RANK == 1:
        words = [str(GRPC), "serve", f"{os.environ['RIG_ADDR']}:{GRPC_PORT}"]
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    subprocess.run(["rig-shape", "--rate", arguments.rate], check=True, timeout=LIMIT_S)
    try:
        with join(FileStore(common / "store"), RANK, size=2, timeout_s=LIMIT_S) as world:
            group = world.group("links")
            both = Both(group)
            turns = contestants(world, group, both, common)
            for turn in turns.values():
                turn(DEPTH)  # warm
            acts = {name: partial(turn, arguments.mib) for name, turn in turns.items()}
            found = rdma.take_turns(acts, arguments.rounds, after=keep)
            both.barrier()
            dist.destroy_process_group()
    finally:
        if server is not None:
            server.kill()
            server.wait()
    rows: list[dict[str, object]] = []
    if RANK == 0:
        rows = rows_of(found, arguments.rate, arguments.mib)
        show(rows, arguments.rate, arguments.mib)
    kept.finish(arguments.out, rows, **about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
