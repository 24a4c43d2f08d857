"""A process's place in a job: from the variables of torchrun, TensorFlow or ps-lite."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.rendezvous import rendezvous

from rdmatensor._native.arguments import invalid
from rdmatensor.config import from_environment
from rdmatensor.store import Store

SCHEDULER = -1  # the rank of ps-lite's third role, which only hosts the store
_TF_ROLES = ("chief", "master", "worker", "ps")  # in the order of ranks; the last are servers


@dataclass(frozen=True)
class Place:
    """A process's place in its job, as its launcher has set it.

    Attributes:
        source: The variables that say so.
        rank: Of this process; workers come first. None: the store numbers the processes of a role.
        role: "worker", "server" or "scheduler"; None where the number of servers decides.
        size: Number of processes, without a scheduler.
        servers: Number of servers; None: the program says it.
        address: Host and port of the store; None: torch's own rendezvous finds it.
        is_host: Whether this process hosts the store.
    """

    source: str
    rank: int | None
    size: int
    role: str | None = None
    servers: int | None = None
    address: tuple[str, int] | None = None
    is_host: bool = False


def place_of(variables: Mapping[str, str]) -> Place:
    """Read the environment: RANK and WORLD_SIZE, else TF_CONFIG, else DMLC_ROLE."""
    if "RANK" in variables and "WORLD_SIZE" in variables:
        rank = _number(variables, "RANK")
        has_agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return Place(
            "RANK", rank, _number(variables, "WORLD_SIZE"), is_host=rank == 0 and not has_agent
        )
    if variables.get("TF_CONFIG"):
        return _of_tensorflow(variables["TF_CONFIG"])
    if variables.get("DMLC_ROLE"):
        return _of_ps_lite(variables)
    raise invalid(
        "run",
        "no launcher has set RANK and WORLD_SIZE, TF_CONFIG, or DMLC_ROLE: start it by torchrun",
    )


def _of_tensorflow(text: str) -> Place:
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], int(task["index"])
        groups = {role: [str(one) for one in cluster.get(role, [])] for role in _TF_ROLES}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid(
            "run", f"TF_CONFIG is not an object with cluster, task.type and task.index: {error!r}"
        ) from None
    if kind not in groups or not 0 <= index < len(groups[kind]):
        known = ", ".join(role for role in _TF_ROLES if groups[role])
        raise invalid(
            "run", f"TF_CONFIG: task {kind!r} {index} is not in the cluster, which has {known}"
        )
    before = sum(len(groups[role]) for role in _TF_ROLES[: _TF_ROLES.index(kind)])
    every = [address for role in _TF_ROLES for address in groups[role]]
    host, _, port = every[0].rpartition(":")
    if not host or not port.isdigit():
        raise invalid("run", f"TF_CONFIG: the first address {every[0]!r} is not host:port")
    return Place(
        "TF_CONFIG",
        before + index,
        len(every),
        "server" if kind == "ps" else "worker",
        servers=len(groups["ps"]),
        address=(host.strip("[]"), int(port)),
        is_host=before + index == 0,
    )


def _of_ps_lite(variables: Mapping[str, str]) -> Place:
    role = variables["DMLC_ROLE"]
    if role not in ("worker", "server", "scheduler"):
        raise invalid("run", f"DMLC_ROLE={role!r} is not worker, server or scheduler")
    workers, servers = (_number(variables, f"DMLC_NUM_{one}") for one in ("WORKER", "SERVER"))
    root = variables.get("DMLC_PS_ROOT_URI", "")
    if not root:
        raise invalid("run", "DMLC_PS_ROOT_URI, the scheduler's address, is not set")
    place = Place(
        "DMLC_ROLE",
        SCHEDULER if role == "scheduler" else None,
        workers + servers,
        role,
        servers=servers,
        address=(root, _number(variables, "DMLC_PS_ROOT_PORT")),
        is_host=role == "scheduler",
    )
    for name in ("DMLC_RANK", "DMLC_WORKER_ID" if role == "worker" else "DMLC_SERVER_ID"):
        if role != "scheduler" and variables.get(name):
            return replace(place, rank=_rank(place, _number(variables, name), name))
    return place


def _rank(place: Place, number: int, why: str) -> int:
    """Return the rank of the number-th process of its role."""
    servers = place.servers or 0
    workers = place.size - servers
    most = workers if place.role == "worker" else servers
    if number >= most:
        raise invalid(
            "run", f"{place.source}: {place.role} {number} ({why}) of {most} {place.role}s"
        )
    return number if place.role == "worker" else workers + number


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name, "")
    if not text.isdigit():
        raise invalid("run", f"{name}={text!r} is not a number")
    return int(text)


@functools.cache
def launched() -> tuple[Place, int, Store]:
    """Return this process's place, its rank, and the job's store; the same at each call."""
    place, limit = place_of(os.environ), timedelta(seconds=from_environment().timeout_s)
    if place.address is None:
        store, rank, _ = next(iter(rendezvous("env://", timeout=limit)))
        return place, rank, store
    host, port = place.address
    own = TCPStore(host, port, is_master=place.is_host, wait_for_workers=False, timeout=limit)
    if place.rank is not None:
        return place, place.rank, own
    number = own.add(f"rdmatensor/ps/{place.role}", 1) - 1
    return place, _rank(place, number, "by the store"), own
