"""Collectives over verbs beside Gloo over TCP and ib_write_bw, in turns, in one run, on one host.

Usage: bash ci/rig/run.sh --memory 3072 -- .venv/bin/python bench/rdma_collectives.py
           [--rounds 10] [--sizes 65536 262144 1048576 8388608] [--minutes 9] [--out FILE]

all_reduce and all_gather of float32 through torch.distributed by two ranks, which are forked and
have both backends; what each delivers is compared once, then a call goes before each turn's. Of
each call the slower rank counts. ib_write_bw has its turns between, with messages of the same size:
in one direction, and in both at once (-b), which is what two ranks do.

A ring moves the least: each of n ranks sends 2 (n - 1) / n of an all_reduce's bytes and (n - 1) / n
of an all_gather's (its output is the size), so that all together send 2 (n - 1) and n - 1 times the
size. Their rate, over that of ib_write_bw -b, is the share of what the device permits:

    share = n * sent by a rank / time of the call / rate of ib_write_bw -b

Beside it stands the same over one direction's rate (what a rank sends / time / rate of
ib_write_bw), which a NIC with two full directions permits and software on shared cores cannot.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
import rdmatensor.torch  # registers "rdmatensor"
from bench import rdma
from bench.benchlib import children, rig
from bench.benchlib.verdict import size_text
from bench.workers import collectives, operations, rows

assert rdmatensor.torch is not None
RANKS = 2
KIB, MIB = 1 << 10, 1 << 20
CALLS = {64 * KIB: 20, 256 * KIB: 10, MIB: 5, 8 * MIB: 2}  # bytes: of a turn
OPERATIONS = ("all_reduce", "all_gather")
OURS, GLOO, ONE_WAY, BOTH_WAYS = "rdmatensor", "gloo", "ib_write_bw", "ib_write_bw -b"
GLOO_WANTED, GLOO_MOST_BYTES = 1.5, MIB  # Gloo's time over ours, up to this size
SHARE_WANTED = 0.9  # above it
FIRST_PORT = 19000
LEAST_WRITES = 5  # perftest's


@dataclass(frozen=True, slots=True)
class Turn:
    """The mean of a turn's calls in us, and each; or MiB/s of ib_write_bw."""

    value: float
    raw_us: tuple[float, ...] = ()


def sent_bytes(operation: str, size_bytes: int) -> float:
    """Return what each rank has to send."""
    return (2 if operation == "all_reduce" else 1) * (RANKS - 1) / RANKS * size_bytes


class Rank:
    """One of the ranks: both take each turn together, and rank 0 runs ib_write_bw."""

    def __init__(self, folder: Path, rank: int) -> None:
        store = FileStore(str(folder / "c10d"), RANKS)
        limit = collectives.PATIENCE
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=limit)
        self._rank = rank
        self._meeting = collectives.Gloo()
        self._binds: dict[str, rows.Bind] = {
            name: functools.partial(
                operations.through_torch, group=dist.new_group(backend=name, timeout=limit)
            )
            for name in (OURS, GLOO)
        }
        self._port = FIRST_PORT

    def _calls(self, operation: operations.Operation, who: str, calls: int) -> Turn:
        call = self._binds[who](operation)
        call()
        self._meeting.barrier()
        each_ns, _ = rows.timed(call, calls)
        slower_ns = torch.tensor(each_ns)
        dist.all_reduce(slower_ns, op=dist.ReduceOp.MAX, group=self._meeting.group)
        raw_us = tuple(ns / 1000 for ns in slower_ns.tolist())
        return Turn(statistics.mean(raw_us), raw_us)

    def _writes(self, size_bytes: int, calls: int, *, is_both_ways: bool) -> Turn:
        self._port += 1
        rate = 0.0
        if self._rank == 0:
            count = max(LEAST_WRITES, 2 * calls)
            case = rdma.Case(
                "", (ONE_WAY,), size_bytes, count, min(count, 16), 3, is_both_ways=is_both_ways
            )
            rate = rdma.theirs(case, ONE_WAY, self._port).value
        self._meeting.barrier()
        return Turn(rate)

    def compare(self, name: str, size_bytes: int, rounds: int, end_s: float) -> dict[str, object]:
        """Let all have a turn in each round."""
        one = operations.Operation(name, size_bytes, self._rank, RANKS)
        rows.verify(self._binds, set(), one, self._meeting)
        calls = CALLS.get(size_bytes, 2)
        writes = functools.partial(self._writes, size_bytes, calls)
        acts: dict[str, Callable[[], Turn]] = {
            OURS: functools.partial(self._calls, one, OURS, calls),
            GLOO: functools.partial(self._calls, one, GLOO, calls),
            ONE_WAY: functools.partial(writes, is_both_ways=False),
            BOTH_WAYS: functools.partial(writes, is_both_ways=True),
        }
        turns = rdma.take_turns(acts, rounds, end_s, self._meeting.most)
        return {"op": name, "size": size_bytes, "calls": calls, **ratios(name, size_bytes, turns)}

    def run(self, arguments: argparse.Namespace, kept: rig.Kept) -> None:
        """Compare every size; rank 0 prints and keeps the rows."""
        found: list[dict[str, object]] = []
        options = {"ranks": RANKS, "rounds": arguments.rounds}
        budget = rdma.Budget(arguments.minutes, len(OPERATIONS) * len(arguments.sizes))
        for size_bytes in arguments.sizes:
            for name in OPERATIONS:
                found.append(self.compare(name, size_bytes, arguments.rounds, budget.next_end_s()))
                if self._rank == 0:
                    show(found[-1])
                    kept.so_far(arguments.out, found, **options)
                self._meeting.barrier()
        if self._rank == 0:
            kept.finish(arguments.out, found, **options)
        self._meeting.barrier()
        dist.destroy_process_group()


def ratios(name: str, size_bytes: int, turns: dict[str, list[Turn]]) -> dict[str, object]:
    """Return quartiles of each round's ratios, and all turns."""
    sent_mib = sent_bytes(name, size_bytes) / MIB
    ours, gloo, one_way, both_ways = (turns[who] for who in (OURS, GLOO, ONE_WAY, BOTH_WAYS))

    def shares(rates: list[Turn], mib: float) -> tuple[float, float, float]:
        pairs = zip(ours, rates, strict=True)
        return rdma.quartiles([mib / (a.value * 1e-6) / max(b.value, 1e-9) for a, b in pairs])

    return {
        "gloo_over_ours": rdma.quartiles(
            [b.value / a.value for a, b in zip(ours, gloo, strict=True)]
        ),
        "share": shares(both_ways, RANKS * sent_mib),
        "share_of_one_direction": shares(one_way, sent_mib),
        "turns": {who: [asdict(turn) for turn in of] for who, of in turns.items()},
    }


def words_of(quartiles: object, wanted: float | None) -> str:
    """Return a ratio with its quartiles, and whether it is as wanted."""
    assert isinstance(quartiles, tuple)
    lower, middle, upper = quartiles
    words = f"{middle:.2f} ({lower:.2f} to {upper:.2f})"
    if wanted is None:
        return words
    return f"{words}, wanted >= {wanted}: {'yes' if middle >= wanted else 'NO'}"


def show(row: dict[str, object]) -> None:
    """Print a row of the table."""
    turns, size_bytes = row["turns"], row["size"]
    assert isinstance(turns, dict)
    assert isinstance(size_bytes, int)
    middle = {who: statistics.median(turn["value"] for turn in of) for who, of in turns.items()}
    is_small = size_bytes <= GLOO_MOST_BYTES
    gloo = words_of(row["gloo_over_ours"], GLOO_WANTED if is_small else None)
    share = words_of(row["share"], None if is_small else SHARE_WANTED)
    print(
        f"{row['op']:<10} {size_text(size_bytes):>8}  ours {middle[OURS]:.0f} us"
        f"  Gloo {middle[GLOO]:.0f} us  ib_write_bw {middle[ONE_WAY]:.1f} MiB/s"
        f"  -b {middle[BOTH_WAYS]:.1f} MiB/s\n"
        f"    {len(turns[OURS])} turns; Gloo / ours {gloo}; share of ib_write_bw -b {share};"
        f" of one direction {words_of(row['share_of_one_direction'], None)}",
        flush=True,
    )


def run(folder: Path, rank: int, arguments: argparse.Namespace, kept: rig.Kept) -> None:
    """Be one of the ranks."""
    children.end_with(os.getppid())
    torch.set_num_threads(1)
    Rank(folder, rank).run(arguments, kept)


def main() -> int:
    """Compare everything; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each; 3 at least")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(CALLS))
    parser.add_argument("--minutes", type=float, default=rdma.MINUTES - 1, help="about, of all")
    parser.add_argument(
        "--out", type=Path, default=Path("rdma_collectives.json"), help="in RIG_OUT"
    )
    arguments = parser.parse_args()
    if arguments.rounds < rdma.LEAST_ROUNDS:
        parser.error("--rounds: quartiles want three turns at least")
    kept = rig.Kept()
    os.environ["RDMATENSOR_TRANSPORT"] = "verbs"
    print(
        f"one host, {os.environ['RIG_MEANS']}, {RANKS} ranks, float32; medians of"
        f" {arguments.rounds} turns, quartiles of ratios",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="rdt-rdma-collectives-") as name:
        folder, end_s = Path(name), time.monotonic() + 60 * arguments.minutes + rdma.LIMIT_S
        # Forked: an emulated machine takes half a minute to import torch.
        start = multiprocessing.get_context("fork").Process
        ranks = [start(target=run, args=(folder, rank, arguments, kept)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(max(0.0, end_s - time.monotonic()))
        for rank in ranks:
            rank.kill()  # nothing, if it has ended
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise SystemExit(f"ranks ended with {[rank.exitcode for rank in ranks]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
