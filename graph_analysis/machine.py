"""What a set of ranks can do: processors, memory, and what transfers cost. All integers.

A machine is measured by a library that has the ranks, and stored as JSON. Costs have names:

- all_reduce.alpha_ns, all_reduce.beta_ps and the like: of a collective over all ranks, measured.
  alpha_ns is its fixed time, beta_ps the picoseconds for each byte of the whole tensor: of an
  all_reduce's input, an all_gather's output, a reduce_scatter's or all_to_all's input.
- tcp.alpha_ns, tcp.beta_ps, tcp.duplex_permille and the like: of one message over a path. They
  price a collective that was not measured, if the links name the path.
- overlap_permille: the share of a sum that is hidden behind computation that takes as long.
- processor_permille: the share of a processor that the fastest rank has while all compute.
- column_row.unit_ns, fsdp.unit_ns: fixed time of a step for each unit that is split so, and
  stage.unit_ns for each micro-batch of a pipeline.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graph_analysis.document import fingerprint, read_document, write_document
from graph_analysis.errors import ArgumentError, PlanError

FORMAT = "machine"
VERSION = 1
_PS_PER_NS = 1000
# Rounds, and shares of the whole tensor over each rank's link, for n ranks.
_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


@dataclass(frozen=True, slots=True)
class Device:
    """One rank. speed_permille is that of its processor, the slowest rank's is 1000.

    memory_bytes is the limit that a step must keep; 0 means none.
    """

    rank: int
    host: str
    cores: int
    memory_bytes: int
    speed_permille: int


@dataclass(frozen=True, slots=True)
class Link:
    """How one rank sends to another: path is tcp, shm, board or verbs."""

    source: int
    target: int
    path: str
    latency_ns: int
    per_mib_ns: int


@dataclass(frozen=True, slots=True)
class Cost:
    """One named cost."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Machine:
    """All ranks in order, the links that were measured, and costs in the order of names."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    costs: tuple[Cost, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.devices)

    def cost_ns(self, operation: str, size_bytes: int) -> int:
        """Estimated time of a collective over all ranks; size_bytes is the whole tensor's.

        Raises: ArgumentError, if the machine has no costs for it.
        """
        alpha_ns, beta_ps = self.line_of(operation)
        return alpha_ns + beta_ps * size_bytes // _PS_PER_NS

    def line_of(self, operation: str) -> tuple[int, int]:
        """Its fixed time in ns, and the picoseconds for each byte of the whole tensor."""
        known = {cost.name: cost.value for cost in self.costs}
        if self.world_size == 1:
            return 0, 0
        alpha, beta = known.get(f"{operation}.alpha_ns"), known.get(f"{operation}.beta_ps")
        if alpha is not None and beta is not None:
            return alpha, beta
        return self._by_messages(operation, known)

    def _by_messages(self, operation: str, known: Mapping[str, int]) -> tuple[int, int]:
        """As a ring over the slowest path, in which each rank sends and receives at once."""
        others = self.world_size - 1
        lines = []
        for path in sorted({link.path for link in self.links}):
            alpha, beta = known.get(f"{path}.alpha_ns"), known.get(f"{path}.beta_ps")
            if alpha is None or beta is None or operation not in _ROUNDS:
                continue
            rounds = _ROUNDS[operation] * others
            duplex = known.get(f"{path}.duplex_permille", 1000)
            shares = beta * rounds * duplex // 1000
            if operation == "all_reduce":
                shares += known.get("gamma_ps", 0) * others
            lines.append((shares // self.world_size, rounds * alpha))
        if not lines:
            raise ArgumentError(f"the machine has no costs of {operation}")
        beta_ps, alpha_ns = max(lines)
        if operation == "all_to_all":  # each pair exchanges one n-th of a rank's part
            beta_ps //= self.world_size
        return alpha_ns, beta_ps

    def unit_ns(self, way: str) -> int:
        """Fixed time of a step for each unit that is split in a way, apart from transfers."""
        return self.cost(f"{way}.unit_ns", 0)

    def cost(self, name: str, default: int) -> int:
        """The cost of a name, or the default if it was not measured."""
        return next((cost.value for cost in self.costs if cost.name == name), default)

    def slower_permille(self, rank: int) -> int:
        """Elapsed time of a rank's computation, in thousandths of the measured processor time."""
        fastest = max(device.speed_permille for device in self.devices)
        share = max(1, self.cost("processor_permille", 1000))
        return fastest * 1_000_000 // (self.devices[rank].speed_permille * share)

    def fingerprint(self) -> str:
        """Equal for equal machines only."""
        return fingerprint(self)


def fit_line(small: tuple[int, int], large: tuple[int, int]) -> tuple[int, int]:
    """The fixed time in ns and the ps a byte, through two measured points (bytes, ns).

    A measured time is noisy: the larger transfer may come out faster. Then the fixed time is the
    smaller one's and a byte costs nothing. The fixed time is never negative.
    """
    (few, few_ns), (many, many_ns) = small, large
    if many <= few:
        raise ArgumentError(f"points of {few} and {many} bytes do not make a line")
    beta_ps = max(0, (many_ns - few_ns) * _PS_PER_NS // (many - few))
    return max(0, few_ns - beta_ps * few // _PS_PER_NS), beta_ps


def with_memory(machine: Machine, limits: tuple[int, ...]) -> Machine:
    """The machine with other limits of memory, one a rank."""
    if len(limits) != machine.world_size:
        raise ArgumentError(f"{len(limits)} limits of memory for {machine.world_size} ranks")
    devices = (
        replace(device, memory_bytes=limit)
        for device, limit in zip(machine.devices, limits, strict=True)
    )
    return replace(machine, devices=tuple(devices))


def machine_to_json(machine: Machine) -> str:
    """The machine as text, ending in a newline; the same machine gives the same bytes."""
    return write_document(FORMAT, VERSION, machine)


def machine_from_json(text: str | bytes) -> Machine:
    """The inverse of machine_to_json(). PlanError if the text is damaged or contradicts itself."""
    machine = read_document(FORMAT, VERSION, text, Machine)
    check_machine(machine)
    return machine


def check_machine(machine: Machine) -> None:
    """Raise PlanError if a machine cannot be one."""
    ranks = [device.rank for device in machine.devices]
    if not ranks or ranks != list(range(len(ranks))):
        raise PlanError(f"machine: its ranks are {ranks[:8]}, not 0, 1, 2, ...")
    for device in machine.devices:
        if device.cores < 1 or device.memory_bytes < 0 or device.speed_permille < 1:
            raise PlanError(f"machine: rank {device.rank} is impossible: {device}")
    if min(device.speed_permille for device in machine.devices) != 1000:
        raise PlanError("machine: the slowest rank's speed is not 1000")
    for link in machine.links:
        ends = {link.source, link.target}
        if len(ends) < 2 or not ends <= set(ranks) or min(link.latency_ns, link.per_mib_ns) < 0:
            raise PlanError(f"machine: a link is impossible: {link}")
    names = [cost.name for cost in machine.costs]
    if names != sorted(set(names)):
        raise PlanError(f"machine: costs are not in the order of their names: {names[:8]}")
    negative = next((cost for cost in machine.costs if cost.value < 0), None)
    if negative is not None:
        raise PlanError(f"machine: {negative.name} is {negative.value}")
