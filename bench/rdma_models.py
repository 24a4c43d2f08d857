"""Training steps over a slow link: planned over verbs, DDP on Gloo, and a server over gRPC in C++.

Usage: bash ci/rig/run.sh --hosts 2 --memory 3072 -- .venv/bin/python bench/rdma_models.py \
           [--rate 32mbit] [--model fcn5] [--divisor 16] [--steps 4] [--rounds 1] [--out FILE]

Runs on both hosts at once, a rank on each; the link is limited by `tc tbf`, so that it and not the
emulation is the bound. All contestants take turns in each round, each in fresh processes; of each
step that of the slower rank counts. The server stands on host 1: its own worker reaches it without
the link. What a step takes beyond the same one without communication is exposed.

Needs build/rivals/libparameters.so (bench/rivals/grpc/setup.sh).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench.suite.models import CONTESTANTS
from bench.workers import models
from bench.workers.paper_models import MODELS
from bench.workers.trainers import TRAINERS, Job

LIMIT_S = 240.0
FIRST_PORT = 18700
TURNS = ("planned", "gloo", "grpc_cpp", "floor")
RANK = int(os.environ["RIG_HOST"])
SHARED = Path(os.environ["RIG_SHARED"])
# Host 0 listens for ranks, host 1 for workers.
STORE_HOST = os.environ["RIG_PEER_ADDR" if RANK else "RIG_ADDR"]
SERVER_HOST = os.environ["RIG_ADDR" if RANK else "RIG_PEER_ADDR"]


def train(job: Job, port: int) -> None:
    """One rank of one contestant; leaves its figures where both hosts see them."""
    kind = TRAINERS[job.contestant]
    dist.init_process_group(
        kind.backend,
        init_method=f"tcp://{STORE_HOST}:{port}",
        rank=RANK,
        world_size=job.ranks,
        timeout=timedelta(seconds=LIMIT_S),
    )
    trainer = kind(job, RANK)
    for number in range(models.WARM_STEPS):
        trainer.step(number)
    bits = models.bits_of(trainer.model)
    took_ns = []
    dist.barrier()
    for number in range(models.WARM_STEPS, models.WARM_STEPS + job.steps):
        began_ns = time.perf_counter_ns()
        trainer.step(number)
        took_ns.append(time.perf_counter_ns() - began_ns)
    dist.barrier()
    trainer.close()
    dist.destroy_process_group()
    draft = job.folder / f"draft{RANK}"
    draft.write_text(json.dumps({"bits": bits, "took_ns": took_ns}), encoding="utf-8")
    draft.rename(job.folder / f"rank{RANK}")


def turn(job: Job, port: int) -> list[int]:
    """Let one contestant train on both hosts; return what its steps took, in nanoseconds."""
    job.folder.mkdir(exist_ok=True)
    chosen = {"RDMATENSOR_ADOPT": "1", **TRAINERS[job.contestant].environment}
    works = [functools.partial(train, job, port)]
    if RANK == 1 and TRAINERS[job.contestant].server is not None:
        works.append(functools.partial(models.serve, job))
    pids = [models.fork(work, chosen, LIMIT_S) for work in works]
    models.await_all(pids, job.contestant)
    found = [json.loads(_await_file(job.folder / f"rank{rank}")) for rank in range(job.ranks)]
    if job.contestant != "floor" and len({one["bits"] for one in found}) != 1:
        raise RuntimeError(f"{job.contestant}: the ranks have other parameters")
    return [max(of) for of in zip(*(one["took_ns"] for one in found), strict=True)]


def _await_file(path: Path) -> str:
    end_s = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > end_s:
            raise TimeoutError(f"the other host leaves no {path.name}")
        time.sleep(0.05)
    return path.read_text(encoding="utf-8")


def report(found: dict[str, list[int]], about: str) -> list[dict[str, object]]:
    """Print the table; return its rows."""
    medians = {name: statistics.median(of) / 1e9 for name, of in found.items()}
    sys.stdout.write(f"two hosts, {os.environ['RIG_MEANS']}, {about}; medians\n")
    rows: list[dict[str, object]] = []
    for name, step_s in medians.items():
        exposed = (step_s - medians["floor"]) / step_s
        times = step_s / medians["planned"]
        sys.stdout.write(
            f"{CONTESTANTS[name]:<22} {step_s:8.3f} s a step  {exposed:6.1%} exposed  "
            f"{times:5.2f} times planned\n"
        )
        rows.append({"who": CONTESTANTS[name], "exposed": exposed, "raw_ns": found[name]})
    sys.stdout.flush()
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="32mbit")
    parser.add_argument("--model", choices=MODELS, default="fcn5")
    parser.add_argument("--divisor", type=int, default=16, help="of all widths")
    parser.add_argument("--steps", type=int, default=4, help="timed, of a turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    """Let everybody have a turn in each round; 0 if all trained."""
    chosen = _options()
    os.environ["RDMATENSOR_TRANSPORT"] = "verbs"
    os.environ["RDMATENSOR_ADDR"] = os.environ["RIG_ADDR"]
    os.environ["RDMATENSOR_VERBS_TIMEOUT"] = "20"  # rxe's queue on a slow link is long
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["RIG_IFNAMES"].split()[0]
    with tempfile.TemporaryDirectory(prefix="rdt-rdma-models-") as mine:
        first = Job(
            contestant="planned",
            model=chosen.model,
            divisor=chosen.divisor,
            ranks=2,
            steps=chosen.steps,
            plan=Path(mine) / "plan.json",
            folder=SHARED,
            patience_s=LIMIT_S,
            server_host=SERVER_HOST,
        )
        models.await_all([models.fork(lambda: models.make_plan(first), {}, LIMIT_S)], "the plan")
        subprocess.run(["rig-shape", "--rate", chosen.rate], check=True, timeout=LIMIT_S)
        found: dict[str, list[int]] = {name: [] for name in TURNS}
        port = FIRST_PORT
        for number in range(chosen.rounds):
            for name in TURNS[number % len(TURNS) :] + TURNS[: number % len(TURNS)]:
                port += 1
                job = replace(first, contestant=name, folder=SHARED / f"{number}-{name}")
                found[name] += turn(job, port)
    if RANK == 0:
        about = models.about(chosen.model, chosen.divisor, 2)
        mib = int(str(about["parameter_bytes"])) / (1 << 20)
        words = f"{chosen.model}, {mib:.1f} MiB of parameters, {chosen.rate}"
        rows = report(found, words)
        if chosen.out is not None:
            kept = {**about, "rate": chosen.rate, "means": os.environ["RIG_MEANS"], "rows": rows}
            chosen.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
