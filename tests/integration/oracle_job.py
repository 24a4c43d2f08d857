"""Run the same script on Gloo and on this backend, in one process, and compare what it returns.

A job of ranks runs many cases: for each, the default group is made again with either backend. What
came of a case is written at once, so that a crash in one says which, and costs the later ones only.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# All of them, for the launcher to import once for all ranks.
import oracle_calls
import oracle_compile
import oracle_ddp
import oracle_lightning
import oracle_mesh
import oracle_pipeline
import oracle_sharded
import oracle_state
import oracle_tensor
import oracle_zero
import torch
import torch._dynamo.backends.debugging
import torch._inductor.compile_fx
import torch.distributed as dist
from oracle import TIMEOUT, Results, Turn
from roles_collectives import bits_equal

BACKENDS = ("gloo", "rdmatensor")
SEED = 77
CPU = torch.device("cpu")
MODULES = (
    *(oracle_calls, oracle_compile, oracle_ddp, oracle_lightning, oracle_mesh, oracle_pipeline),
    *(oracle_sharded, oracle_state, oracle_tensor, oracle_zero),
)


def run(rank: int, world: int, cases: list[dict[str, Any]], folder: str) -> None:
    """Run the cases; leave folder/NAME.RANK.json for each that came to its end."""
    torch.set_num_threads(1)
    # The process itself compiles: workers would take the cores from the ranks.
    torch._inductor.config.compile_threads = 1
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / f"compiled.{rank}")
    out = Path(folder)
    port = int(os.environ["MASTER_PORT"])
    gc.freeze()  # the modules: what is collected after each case is little then
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0, timeout=TIMEOUT)
    for case in cases:
        start_s = time.monotonic()
        (out / f"current.{rank}").write_text(case["name"], encoding="utf-8")
        results = [
            outcome(case, turn(rank, world, backend, out, case["name"], store))
            for backend in BACKENDS
        ]
        report = {**compared(*results, case["limit"]), "seconds": time.monotonic() - start_s}
        path = out / f"{case['name']}.{rank}.json"
        path.write_text(json.dumps(report), encoding="utf-8")
    meet(store, "end", world)  # the store lives in rank 0


def turn(rank: int, world: int, backend: str, out: Path, name: str, store: dist.Store) -> Turn:
    folder = out / f"{name}.{backend}"
    folder.mkdir(exist_ok=True)
    return Turn(rank, world, backend, folder, dist.PrefixStore(f"{name}/{backend}", store))


def meet(store: dist.Store, name: str, world: int) -> None:
    """Wait until all ranks are here."""
    if store.add(f"meeting/{name}", 1) == world:
        store.set(f"met/{name}", "")
    store.wait([f"met/{name}"], 2 * TIMEOUT)  # one of them may be at the end of a collective's


def outcome(case: Mapping[str, Any], turn: Turn) -> Results | str:
    """Return the case's results, or what went wrong."""
    module, _, function = case["function"].partition(":")
    meet(turn.store, "begin", turn.world)
    torch.manual_seed(SEED)
    try:
        if not case["is_own_group"]:
            dist.init_process_group(
                turn.backend,
                store=turn.store,
                rank=turn.rank,
                world_size=turn.world,
                timeout=TIMEOUT,
            )
        results: Results = getattr(sys.modules[module], function)(turn)
        check_groups(turn.backend)
        dist.barrier()
    except Exception:  # noqa: BLE001 - it is the report
        return traceback.format_exc()
    finally:
        torch._dynamo.reset()
        gc.collect()  # DDP has to go before Gloo's group: roles_adopt.buckets()
        if dist.is_initialized():
            dist.destroy_process_group()
    return results


def check_groups(backend: str) -> None:
    """Whether it was this backend that did the work, and none next to it."""
    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    names = {group._get_backend(CPU).name() for group in groups}
    if names != {backend}:
        raise AssertionError(f"groups of {names}, not of {backend}")


def compared(theirs: Results | str, ours: Results | str, limit: float) -> dict[str, Any]:
    errors = {
        backend: result
        for backend, result in zip(BACKENDS, (theirs, ours), strict=True)
        if isinstance(result, str)
    }
    if isinstance(theirs, str) or isinstance(ours, str):
        return {"errors": errors, "different": [], "compared": 0}
    mine, expected = dict(leaves(ours)), dict(leaves(theirs))
    different = [f"only one has {name}" for name in sorted(mine.keys() ^ expected.keys())]
    different += [
        f"{name}: {mine[name]} for {expected[name]}"
        for name in sorted(mine.keys() & expected.keys())
        if not equal(mine[name], expected[name], limit)
    ]
    return {"errors": {}, "different": different, "compared": len(mine)}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Walk through dictionaries and sequences."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for key, part in enumerate(value):
            yield from leaves(part, f"{path}/{key}")
    else:
        yield path, value


def equal(mine: Any, expected: Any, limit: float) -> bool:
    if isinstance(mine, torch.Tensor) and isinstance(expected, torch.Tensor):
        if mine.dtype != expected.dtype or mine.shape != expected.shape:
            return False
        if bits_equal(mine.detach(), expected.detach()):
            return True
        return limit > 0.0 and torch.allclose(mine, expected, rtol=limit, atol=limit)
    if isinstance(mine, float) and isinstance(expected, float) and limit > 0.0:
        return math.isclose(mine, expected, rel_tol=limit, abs_tol=limit)
    return type(mine) is type(expected) and bool(mine == expected)
