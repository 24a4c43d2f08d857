"""Share of a slow link, and CPU seconds per GB: writes, perftest, gRPC C++ and Gloo on two hosts.

Runs on both hosts of the rig at once; the link is limited by `tc tbf` to far less than emulation
can move, so that the link is the bound for all. Host 0 sends the same bytes with each in turn. CPU
seconds are those of both machines: what the kernel does for packets is charged to no process.
rdmatensor and Gloo spin a little, then sleep; gRPC sleeps; ib_write_bw spins, ib_send_bw -e sleeps
(perftest has no events for writes).
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from bench.benchlib import programs, rig
from bench.benchlib.record import Record, number, text
from bench.suite import rounds, samples, verbs
from bench.suite.layout import layout
from bench.suite.peers import GRPC_PROGRAM, RDMATENSOR, Peer
from bench.suite.settings import MIB, Settings

if TYPE_CHECKING:
    import torch.distributed as dist

    from rdmatensor import Group, Transfer, World

TOPIC = "links"
RATE = "16mbit"
_COUNT = 4  # MiB of a turn
_DEPTH = 4
_GRPC_PORT, _STORE_PORT, _MEETING_PORT, _PERFTEST_PORT = 18800, 18801, 18802, 18900
_PATIENCE_S = 300.0
_FEW = 5  # perftest's least: its start is in its CPU time, and taken off
Turn = tuple[float, float]  # seconds, and CPU seconds of both machines


class _Both:
    """Meets the other host through a group, and adds up the CPU time of both machines."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def barrier(self) -> None:
        self._group.barrier().wait(timeout_s=_PATIENCE_S)

    def timed(self, act: Callable[[], object]) -> Turn:
        """Run both hosts' part; the time is this host's, from the start to its end."""
        import numpy as np

        self.barrier()
        cpu_s, begun_s = rig.busy_s(), time.monotonic()
        act()
        took_s = time.monotonic() - begun_s
        self.barrier()
        used = np.array([rig.busy_s() - cpu_s], np.float64)
        self._group.all_reduce(used).wait(timeout_s=_PATIENCE_S)
        return took_s, float(used[0])


class _Rdmatensor:
    """Writes of 1 MiB, four in flight."""

    def __init__(self, world: World, group: Group) -> None:
        import numpy as np

        from rdmatensor import RemoteRegion

        self._world = world
        self._landing = world.context.zeros((_DEPTH, MIB), np.uint8)
        self._source = world.context.empty((_DEPTH, MIB), np.uint8)
        self._source[:] = np.arange(1, _DEPTH + 1, dtype=np.uint8)[:, None]
        self._wanted = np.arange(1, _DEPTH + 1)[:, None]
        own = np.frombuffer(world.context.export(self._landing).encode(), np.uint8)
        if rig.rank() == 1:
            group.send(own, 0).wait(timeout_s=_PATIENCE_S)
        else:
            described = bytearray(own.size)
            group.recv(described, 1).wait(timeout_s=_PATIENCE_S)
            self._region = RemoteRegion.decode(described)

    def move(self, count: int) -> None:
        """Write so many on host 0; the target of a one-sided write does nothing."""
        flying: list[Transfer] = []
        for place in (turn % _DEPTH for turn in range(count if rig.rank() == 0 else 0)):
            if len(flying) == _DEPTH:
                flying.pop(0).wait(timeout_s=_PATIENCE_S)
            source, at = self._source[place], place * MIB
            flying.append(self._world[1].write(source, self._region, dst_offset_bytes=at))
        for transfer in flying:
            transfer.wait(timeout_s=_PATIENCE_S)

    def check(self) -> None:
        """Compare what has arrived on host 1."""
        if rig.rank() == 1 and not (self._landing == self._wanted).all():
            raise RuntimeError("the writes left other bytes than were sent")


class _Gloo:
    """Sends of 1 MiB, into the tensor that the receiver names."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        host = os.environ["RIG_PEER_ADDR" if rig.rank() else "RIG_ADDR"]
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{host}:{_STORE_PORT}",
            rank=rig.rank(),
            world_size=2,
            timeout=timedelta(seconds=_PATIENCE_S),
        )
        self._word = torch.zeros(1)
        self._tensors = [torch.full((MIB,), place, dtype=torch.uint8) for place in range(_DEPTH)]

    def move(self, count: int) -> None:
        """Send on host 0, receive on host 1, four in flight."""
        import torch.distributed as dist

        begin, answer = (dist.isend, dist.irecv) if rig.rank() == 0 else (dist.irecv, dist.isend)
        flying: list[dist.Work | None] = []
        for number_of in range(count):
            if len(flying) == _DEPTH:
                _wait(flying.pop(0))
            flying.append(begin(self._tensors[number_of % _DEPTH], 1 - rig.rank()))
        for work in flying:
            _wait(work)
        # A send is over once the kernel has the bytes; the answer says that the peer has them all.
        _wait(answer(self._word, 1 - rig.rank()))


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


class _Perftest:
    """It times its messages itself; the CPU time of a run of a few messages is taken off."""

    def __init__(self, both: _Both, common: Path, tool: str, *more: str) -> None:
        self._both, self._common, self._tool, self._more = both, common, tool, more
        self._port = _PERFTEST_PORT + (50 if more else 0)

    def turn(self, count: int) -> Turn:
        rates: list[float] = []
        _, few_s = self._both.timed(lambda: rates.append(self._run(_FEW)))
        _, more_s = self._both.timed(lambda: rates.append(self._run(_FEW + count)))
        return (count / rates[1] if rig.rank() == 0 else 0.0), more_s - few_s

    def _run(self, count: int) -> float:
        """Return what host 0's end prints, in MiB/s; 0 on host 1."""
        self._port += 1
        more = (*self._more, "-t", str(_DEPTH), "-Q", "1", "-u", rig.ACK_TIMEOUT)
        words = verbs.perftest_words(self._tool, MIB, count, self._port, *more)
        listens = self._common / f"listens-{self._port}"
        if rig.rank() == 0:  # it takes the first that connects
            rig.await_file(listens, _PATIENCE_S)
            said = _output_of([*words, os.environ["RIG_PEER_ADDR"]])
            rows = [line.split() for line in said.splitlines()]
            (rate,) = (float(row[3]) for row in rows if row and row[0] == str(MIB))
            return rate
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
            try:
                programs.await_listener(self._port, server, _PATIENCE_S)
                listens.touch()
                if server.wait(_PATIENCE_S) != 0:
                    raise RuntimeError(f"{' '.join(words)}: status {server.returncode}")
            finally:
                server.kill()
        return 0.0


def _output_of(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def _grpc(both: _Both, count: int) -> Turn:
    """gRPC's client times itself, and asks for the other machine's CPU time."""
    both.barrier()
    turn = (0.0, 0.0)
    if rig.rank() == 0:
        address = f"{os.environ['RIG_PEER_ADDR']}:{_GRPC_PORT}"
        words = [str(GRPC_PROGRAM), "row", address, *map(str, (MIB, count, _DEPTH, 1)), "one"]
        (found,) = programs.run_words(words, _PATIENCE_S)
        cpu_s, raw_us = found["cpu_s"], found["raw_us"]
        assert isinstance(cpu_s, list)
        assert isinstance(raw_us, list)
        turn = (raw_us[0] * count / 1e6, float(sum(cpu_s)))
    both.barrier()
    return turn


_PEERS = {
    RDMATENSOR: RDMATENSOR,
    **dict.fromkeys(("ib_write_bw", "ib_send_bw -e"), verbs.PERFTEST),
    "gRPC stream": "grpc-cpp",
    "gloo": "gloo",
}


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns on both hosts; return host 0's records, none on host 1."""
    from rdmatensor import FileStore, join

    if rig.hosts() != 2:
        raise RuntimeError("links are measured on both hosts of the rig: ci/rig/run.sh --hosts 2")
    common, rate = rig.common_folder(_MEETING_PORT), settings.link_rate or RATE
    os.environ |= {
        "RDMATENSOR_TRANSPORT": "verbs",
        "RDMATENSOR_ADDR": os.environ["RIG_ADDR"],
        "RDMATENSOR_VERBS_TIMEOUT": rig.ACK_TIMEOUT,
        "GLOO_SOCKET_IFNAME": os.environ["RIG_IFNAMES"].split()[0],
    }
    present = {peer.name for peer in peers}
    rig.shape(rate)
    with ExitStack() as stack:
        if rig.rank() == 1 and "grpc-cpp" in present:
            words = [str(GRPC_PROGRAM), "serve", f"{os.environ['RIG_ADDR']}:{_GRPC_PORT}"]
            server = stack.enter_context(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            stack.callback(server.kill)
        store = FileStore(common / "store")
        world = stack.enter_context(join(store, rig.rank(), size=2, timeout_s=_PATIENCE_S))
        turns = _turns(world, common, present)
        for turn in turns.values():
            turn(_DEPTH)  # warm
        taking = [
            (name, functools.partial(_record, name, turn, rate)) for name, turn in turns.items()
        ]
        # All rounds: both hosts have to agree on their number, so that no clock may decide.
        found, failed = rounds.take(taking, settings.rounds or 3, float("inf"), progress)
        if failed:
            raise RuntimeError(f"a turn failed: {failed[0]['missing']}")
    return samples.merge(found) if rig.rank() == 0 else []


def _turns(world: World, common: Path, present: set[str]) -> dict[str, Callable[[int], Turn]]:
    group = world.group("links")
    both, own, gloo = _Both(group), _Rdmatensor(world, group), _Gloo()

    def own_turn(count: int) -> Turn:
        turn = both.timed(lambda: own.move(count))
        own.check()
        return turn

    turns: dict[str, Callable[[int], Turn]] = {
        RDMATENSOR: own_turn,
        "ib_write_bw": _Perftest(both, common, "ib_write_bw").turn,
        "ib_send_bw -e": _Perftest(both, common, "ib_send_bw", "-e").turn,
        "gRPC stream": functools.partial(_grpc, both),
        "gloo": lambda count: both.timed(lambda: gloo.move(count)),
    }
    return {name: turn for name, turn in turns.items() if _PEERS[name] in {*present, RDMATENSOR}}


def _record(name: str, turn: Callable[[int], Turn], rate: str) -> list[Record]:
    seconds, cpu_s = turn(_COUNT)
    fields: Record = {
        "topic": TOPIC,
        "name": name,
        "peer": _PEERS[name],
        "transport": "verbs" if _PEERS[name] in (RDMATENSOR, verbs.PERFTEST) else "tcp",
        "size": MIB,
        "timed": f"{_COUNT} MiB over a link of {rate}",
        "bit_per_s": bits_per_s(rate),
        "call_cpu_ns": cpu_s / _COUNT * 1e9,
    }
    return [samples.turn(fields, [seconds / _COUNT * 1e9])]


def bits_per_s(rate: str) -> float:
    """Return what tc's words for a rate mean."""
    return float(rate[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[rate[-4]]


def show(records: Sequence[Record]) -> str:
    """Share of the line, and CPU seconds of both machines for 10^9 bytes."""
    lines = [
        (
            text(one, "name"),
            text(one, "timed"),
            f"{MIB * 8e9 / number(one, 'median_ns') / number(one, 'bit_per_s'):.1%}",
            f"{number(one, 'call_cpu_ns') / MIB:.2f}",
        )
        for one in records
    ]
    return layout(("", "timed", "of the line", "CPU s/GB"), lines)
