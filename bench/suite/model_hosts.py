"""What an all_reduce costs on paper where hosts have several ranks each (model.py).

By way of hosts (csrc/collectives/team/hierarchical.c) it has three parts: up and down over the
boards of each host, and between hosts by messages. Either one rank of each host speaks for it, or
each has a share of its own (a rail) and speaks with its like. Boards cost what was measured of
memory that all ranks share, messages what connects hosts does; of both ways, and of the algorithms
between, the cheapest by the model counts.

The other algorithms send among all ranks, of which neighbours share a host: rounds whose partners
are on one host cost its messages, the others those between hosts. Ranks of a host that speak at the
same time share its NIC, if each has cores of its own; on one machine they share cores instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.suite import model
from bench.suite.model import ALGORITHMS, BOARDS, SHARES_STAGE_BYTES, Constants, Work

BY_HOSTS = "by hosts"
RANKS_PER_HOST = 8
HOST_SIZES = (1, 2, 4, 8, 16, 32, 64)  # so that each round of the others is of one kind
SMALL_BYTES = 16 << 10  # RDT_COLL_PART_MAX_BYTES: one rail, and no algorithm but these two
_FOR_SMALL = (BOARDS, "halving-doubling")
TEAM_MOST = 64  # RDTI_TEAM_MAX: larger groups have no boards, and no way by hosts


@dataclass(frozen=True, slots=True)
class Paths:
    """What connects ranks: hosts, ranks of a host by messages, and by memory that all share."""

    between: Constants
    inside: Constants
    boards: Constants


@dataclass(frozen=True, slots=True)
class Way:
    """What an all_reduce takes; rails: ranks of a host that speak, 0: nobody has to."""

    took_ns: float
    rails: int
    between: str


def _part_ns(
    constants: Constants, works: tuple[Work, Work], ranks: int, cores: int | None
) -> float:
    """Return what a part takes of which so many ranks are; the call has been counted."""
    _, *factors = model.columns_of(works, ranks, ranks if cores is None else cores)
    costs = (
        *(constants.alpha_ns, constants.alpha_shared_ns),
        *(constants.beta_ns, constants.gamma_ns),
    )
    return sum(factor * cost for factor, cost in zip(factors, costs, strict=True))


def _alone_ns(constants: Constants, path: Work) -> float:
    """Return what a path takes each of whose ranks has a core."""
    return _part_ns(constants, (path, path), 1, None)


def boards_of(per_host: int, rails: int, size_bytes: float) -> tuple[Work, Work]:
    """Return up and down: the longest path of a rank, and all that the ranks of a host do.

    Up all store all of it, and a rail reads and sums its share of the others'; down it stores the
    sum, and all read what they have not. A tick has as much as fits a stage, of each rank.
    """
    if per_host == 1:
        return Work(0, 0, 0), Work(0, 0, 0)
    share, others = size_bytes / rails, per_host - 1
    ticks = sum(max(1, -(-size // SHARES_STAGE_BYTES)) for size in (size_bytes, share))
    read = size_bytes if rails < per_host else size_bytes - share  # by who has the most to read
    path = Work(ticks, size_bytes + share * others + share + read, share * others)
    total = Work(ticks, (3 * per_host - 1) * size_bytes, size_bytes * others)
    return path, total


def by_hosts(
    paths: Paths, hosts: int, per_host: int, size_bytes: float, cores: int | None = None
) -> Way:
    """Return the cheapest way by hosts.

    cores: that all ranks of all hosts share, as on one machine; None: each rank has one, and each
    host a NIC. Of one host it is what that does alone, over its boards.
    """
    if hosts == 1:
        alone_ns = model.predict(
            paths.boards, BOARDS, per_host, size_bytes, cores=cores, has_boards=True
        )
        return Way(alone_ns, 0, "")
    is_small = size_bytes <= SMALL_BYTES
    rails_of = dict.fromkeys((1,) if is_small else (1, per_host))
    names = _FOR_SMALL if is_small else ALGORITHMS
    ways = (
        Way(_by_hosts_ns(paths, (hosts, per_host, rails), size_bytes, name, cores), rails, name)
        for rails in rails_of
        for name in names
    )
    return min(ways, key=lambda way: way.took_ns)


def _by_hosts_ns(
    paths: Paths, of: tuple[int, int, int], size_bytes: float, name: str, cores: int | None
) -> float:
    """Nanoseconds; of: hosts, ranks of each, and rails."""
    hosts, per_host, rails = of
    ranks = hosts * per_host
    path, total = boards_of(per_host, rails, size_bytes)
    boards_ns = _part_ns(paths.boards, (path, total.times(hosts)), ranks, cores)
    path, total = model.work_of(name, hosts, size_bytes / rails)
    if cores is None:
        path = _over_one_nic(path, rails)
    between_ns = _part_ns(paths.between, (path, total.times(rails)), hosts * rails, cores)
    turns = 1.0 if cores is None else max(1.0, ranks / cores)
    return turns * paths.between.call_ns + boards_ns + between_ns


def _over_one_nic(work: Work, speakers: int) -> Work:
    return Work(work.messages, work.moved * speakers, work.summed)


def flat(paths: Paths, algorithm: str, hosts: int, per_host: int, size_bytes: float) -> float:
    """Return what an algorithm among all ranks takes, each of which has a core.

    hosts, per_host: powers of two, so that each round is of one kind. A ring and a tree cross with
    one rank of each host at a time, the others with all.
    """
    ranks = hosts * per_host
    if ranks & (ranks - 1) != 0 or per_host & (per_host - 1) != 0:
        raise ValueError(f"{hosts} hosts of {per_host} ranks: these are no powers of two")
    path, _ = model.work_of(algorithm, ranks, size_bytes)
    if hosts == 1:
        return paths.inside.call_ns + _alone_ns(paths.inside, path)
    call_ns = paths.between.call_ns
    if algorithm == "ring":  # each step has messages of both kinds, and waits for the slower
        kinds = [paths.between, paths.inside] if per_host > 1 else [paths.between]
        return call_ns + max(_alone_ns(of, path) for of in kinds)
    # What crosses is what as many ranks as hosts would do: of halving, the first rounds, which have
    # the most bytes; of doubling and of a tree, where each has as many, whichever these are.
    across, _ = model.work_of(algorithm, hosts, size_bytes)
    inside = Work(
        path.messages - across.messages, path.moved - across.moved, path.summed - across.summed
    )
    speakers = 1 if algorithm == "tree" else per_host
    across = _over_one_nic(across, speakers)
    return call_ns + _alone_ns(paths.inside, inside) + _alone_ns(paths.between, across)


def predicted(paths: Paths, ranks: int, per_host: int, size_bytes: float) -> dict[str, float]:
    """Return nanoseconds of each algorithm, that by hosts first.

    Where ranks are fewer than a host may have, they are on one.
    """
    of_host = min(ranks, per_host)
    hosts = ranks // of_host
    return {
        BY_HOSTS: by_hosts(paths, hosts, of_host, size_bytes).took_ns,
        **{name: flat(paths, name, hosts, of_host, size_bytes) for name in ALGORITHMS},
    }
