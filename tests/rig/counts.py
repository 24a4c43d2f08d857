"""What a step costs over verbs, by the library's counters and by witnesses that know none of it.

Usage, within the rig, on one host: counts.py. Two ranks train by a plan, as a script with
DistributedDataParallel that knows of none, and as pipelines of torch's. Once their steps repeat
nothing may be copied, asked for or registered. The witnesses: the packets that rxe sent, which must
be those of the payload, of 64 bytes for each message and each credit, and of their
acknowledgements; the numbers that the kernel gives what is registered; bytes of TCP sockets; and a
memcpy() that is preloaded.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import forked  # makes the folder of these known
import jobs
import launcher
import torch

WORLD = 2
STEPS = 5  # of roles_counts.py and roles_pipeline.py
MICRO_BATCHES = 4  # of roles_pipeline.py
LIMIT_S = 280.0
# One algorithm, whatever the cost table says of a busy machine: what it sends is counted here.
SETTINGS = {
    "RDMATENSOR_TRANSPORT": "verbs",
    "RDMATENSOR_VERBS_QPS": "1",
    "RDMATENSOR_ALGO": "ring",
}
ZERO = ("copied_bytes", "control_messages", "registrations")
PIECE_BYTES = 1 << 20  # of schedule_build.c
SLACK_BYTES = 64 * 1024  # of heartbeats, and of what tests tell each other
MTU_BYTES = 4096  # of the rig's device
# What else may be sent: a few words of both ends about receives. One message a step and rank would
# be more, and so is what this is to find.
SLACK_PACKETS = 2 * STEPS - 2


@dataclass(frozen=True)
class Part:
    """A job, and the bytes of each message with payload that a rank sends in the steps counted."""

    name: str
    role: str
    arguments: dict[str, str]
    payload: Callable[[dict[str, Any]], list[int]]


def _halves(found: dict[str, Any]) -> list[int]:
    """Of two ranks each sends its half of a bucket to be summed, and the sum of the other half."""
    halves = (size // 2 for size in found["buckets"])
    return [part for half in halves for part in (*_pieces(half), half)] * STEPS


def _pieces(size: int) -> list[int]:
    """Return the messages of an operand: of at most a MiB, alike, but for the last."""
    share = -(-size // -(-size // PIECE_BYTES))
    piece = -(-share // 64) * 64
    return [min(piece, size - at) for at in range(0, size, piece)]


PARTS = (
    Part("by a plan", "roles_counts:planned", {}, _halves),
    Part("DistributedDataParallel, no plan", "roles_counts:script", {}, _halves),
    *(
        Part(
            name,
            "roles_pipeline:trains",
            {"name": name},
            lambda found: [found["bytes"]] * MICRO_BATCHES * STEPS,
        )
        for name in ("GPipe", "1F1B")
    ),
)


def preload_witness() -> None:
    """Begin again with the memcpy() that counts."""
    if "LD_PRELOAD" in os.environ:
        return
    library = f"{tempfile.mkdtemp()}/libcopies.so"  # the machine's own, which goes with it
    flags = ["-std=c17", "-O2", "-fno-builtin", "-shared", "-fPIC"]
    source = str(jobs.HERE / "copies_witness.c")
    subprocess.run(["gcc", *flags, source, "-o", library, "-ldl"], check=True)
    os.environ["LD_PRELOAD"] = library
    os.execv(sys.executable, [sys.executable, *sys.argv])


def packets_of(sizes: list[int], writes: int) -> int:
    """Return how many packets so many writes are, of which some have these sizes, the rest 64 B.

    Each is acknowledged at its end, and rxe asks for that behind each 65th packet too.
    """
    counts = [-(-size // MTU_BYTES) for size in sizes]
    counts += [1] * (writes - len(sizes))
    return sum(count + 1 + (count - 1) // 65 for count in counts)


def check(part: Part, ranks: list[dict[str, Any]]) -> str:
    """Raise AssertionError unless nothing was spent that should not be; return what was."""
    wanted = 0
    for rank in ranks:
        payload = part.payload(rank)
        assert {name: rank[name] for name in ZERO} == dict.fromkeys(ZERO, 0), rank
        assert rank["credits_alone"] == len(payload), rank
        # A message and the word that it is there, and each receive the word that it may.
        assert 0 <= rank["writes"] - 3 * len(payload) <= STEPS, rank
        assert 0 <= rank["moved_bytes"] - sum(payload) <= rank["writes"] * 64, rank
        assert rank["copied_by_rdmatensor"] == 0, rank
        assert rank["kernel_sent"] + rank["kernel_received"] < SLACK_BYTES, rank
        wanted += packets_of(payload, rank["writes"])
    assert ranks[0]["registered"] == 1, f"registered besides the look: {ranks[0]}"
    seen, repeats = ranks[0]["packets"], ranks[0]["repeats"]
    assert wanted <= seen <= wanted + SLACK_PACKETS, f"{seen} packets for {wanted}, {repeats} again"
    per_step = WORLD * STEPS
    return (
        f"per step and rank {ranks[0]['moved_bytes'] / STEPS:.0f} bytes moved, "
        f"{ranks[0]['writes'] / STEPS:.1f} writes, {ranks[0]['credits_alone'] / STEPS:.0f} credits "
        f"alone, {seen / per_step:.1f} packets for {wanted / per_step:.1f}; no copy, no control "
        "message, no registration"
    )


def main() -> int:
    """Run the parts; 0 if all cost what they may."""
    if os.environ["RIG_MEANS"] == "device":
        print("skipped: a host's own device counts in its own way, and others may use it")
        return 0
    preload_witness()
    torch.set_num_threads(1)  # before anything is computed: the ranks are forked
    launcher.import_once()
    for part in PARTS:
        importlib.import_module(part.role.partition(":")[0])  # once, and not in each rank
    for part in PARTS:
        begun_s = time.monotonic()
        job = forked.start(part.role, WORLD, LIMIT_S, SETTINGS, part.arguments)
        said = check(part, jobs.results(job.finish()))
        print(f"{part.name}: {said}; {time.monotonic() - begun_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
