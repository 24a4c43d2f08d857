"""One of two hosts joined by two links of limited rate: writes over both, and over one, in turns.

Usage, on both hosts of a rig with `--links 2`: link_rates.py [--least 1.8]. The links are limited
to a fifth of what this machine emulates at the time, so that they are the bound and not it. Host 0
writes; the ratio is the best turn over both links over the best over one, and must reach the least.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from rdmatensor import FileStore, RemoteRegion, config, join

WAIT_S = 150.0
WRITE_BYTES = 1 << 20
WRITES = 8
DEPTH = 4
PAIRS = 3
SHARE = 5  # of what is emulated, so many times less is the limit
LEAST_RATE_KBIT, MOST_RATE_KBIT = 4_000, 100_000
# rxe has up to 64 packets of a QP on their way: at the slow rate that is a long queue.
VERBS_TIMEOUT = "20"


def shape(rate: str) -> None:
    """Limit what this host sends on each link."""
    for link in range(len(os.environ["RIG_DEVICES"].split())):
        words = ["rig-shape", "--link", str(link), *(("--rate", rate) if rate else ())]
        subprocess.run(words, check=True, timeout=WAIT_S)


def write_all(name: str, links: int) -> float:
    """Write over so many links; return MB/s of payload on host 0, 0 on host 1."""
    rank = int(os.environ["RIG_HOST"])
    os.environ["RDMATENSOR_VERBS_LINKS"] = str(links)
    store = FileStore(Path(os.environ["RIG_SHARED"]) / name)
    with join(store, rank, size=2, timeout_s=WAIT_S) as world:
        group = world.group("rates")
        if rank == 1:
            landing = world.context.zeros((DEPTH * WRITE_BYTES,), np.uint8)
            region = world.context.export(landing).encode()
            group.send(np.frombuffer(region, np.uint8), 0).wait(timeout_s=WAIT_S)
            group.barrier().wait(timeout_s=WAIT_S)
            if not (landing.reshape(DEPTH, -1) == np.arange(1, DEPTH + 1)[:, None]).all():
                raise AssertionError("not what was written")
            return 0.0
        described = bytearray(64)
        group.recv(described, 1).wait(timeout_s=WAIT_S)
        region_there = RemoteRegion.decode(described)
        source = world.context.empty((DEPTH, WRITE_BYTES), np.uint8)
        source[:] = np.arange(1, DEPTH + 1)[:, None]
        world[1].write(source[0], region_there).wait(timeout_s=WAIT_S)  # warm
        begun_s = time.monotonic()
        flying = [None] * DEPTH
        for number in range(WRITES + DEPTH):
            place = number % DEPTH
            if (before := flying[place]) is not None:
                before.wait(timeout_s=WAIT_S)
            flying[place] = (
                world[1].write(source[place], region_there, dst_offset_bytes=place * WRITE_BYTES)
                if number < WRITES
                else None
            )
        took_s = time.monotonic() - begun_s
        group.barrier().wait(timeout_s=WAIT_S)
        return WRITES * WRITE_BYTES / took_s / 1e6


def choose_rate() -> str:
    """Return a limit as tc takes it, the same on both hosts: host 0 has measured it."""
    note = Path(os.environ["RIG_SHARED"]) / "rate"
    free = write_all("unlimited", 1)
    if os.environ["RIG_HOST"] == "0":
        kbit = round(free * 8000 / SHARE)
        kbit = min(max(kbit, LEAST_RATE_KBIT), MOST_RATE_KBIT)
        part = note.with_suffix(".part")
        part.write_text(f"{kbit}kbit", encoding="utf-8")
        part.rename(note)
        print(f"unlimited {free:.1f} MB/s", flush=True)
    end_s = time.monotonic() + WAIT_S
    while not note.exists():
        if time.monotonic() > end_s:
            raise TimeoutError("host 0 has chosen no rate")
        time.sleep(0.1)
    return note.read_text(encoding="utf-8")


def main() -> int:
    """Compare one link with two; 0 if two are worth it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least", type=float, default=1.8)
    arguments = parser.parse_args()
    if config.from_environment().transport != "verbs":
        raise SystemExit("set RDMATENSOR_TRANSPORT=verbs: another path would prove nothing")
    os.environ.setdefault("RDMATENSOR_ADDR", os.environ["RIG_ADDR"])
    os.environ.setdefault("RDMATENSOR_VERBS_TIMEOUT", VERBS_TIMEOUT)
    rate = choose_rate()
    shape(rate)
    rates: dict[int, list[float]] = {1: [], 2: []}
    try:
        for number in range(PAIRS):
            for links in (1, 2):
                rates[links].append(write_all(f"{links}-links-{number}", links))
    finally:
        shape("")
    if os.environ["RIG_HOST"] == "1":
        return 0
    one, two = max(rates[1]), max(rates[2])  # the limit bounds both; a busy machine takes away
    print(
        f"{rate} each: one link {one:.2f} MB/s, two {two:.2f} MB/s,"
        f" ratio {two / one:.2f}, wanted >= {arguments.least}",
        f"(one: {rates[1]}, two: {rates[2]})",
        flush=True,
    )
    return 0 if two / one >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
