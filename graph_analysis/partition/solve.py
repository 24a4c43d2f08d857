"""Choose how each unit is split, by dynamic programming over the units, in integers.

Units share memory and the link. Memory is kept as a front of states, none of which is worse than
another in both time and bytes. A gradient's transfer may hide behind computation, which no unit
knows alone: the program is solved with no credit for that and with the whole, and the solutions are
compared by the prediction of the whole step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graph_analysis.errors import ArgumentError
from graph_analysis.machine import Machine
from graph_analysis.partition.choice import Other, Partition, UnitChoice, Way
from graph_analysis.partition.step import Step, Unit, predict_step

_FRONT_MOST = 32  # states that are kept after each unit
_EQUAL_PERCENT = 5  # within this much of the best the simplest is chosen
_SIMPLER = (
    *("data parallel", "data parallel, unequal rows", "pairs", "sharded", "pipeline", "mixed"),
)


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Computation of a step at two numbers of rows, from which others follow on a line."""

    few_rows: int
    few_ns: int
    rows: int
    ns: int

    def at(self, rows: int) -> int:
        """Return the time at so many rows."""
        if self.rows == self.few_rows:
            return self.ns * rows // self.rows
        slope = (self.ns - self.few_ns) * (rows - self.few_rows) // (self.rows - self.few_rows)
        return max(1, self.few_ns + slope)


@dataclass(frozen=True, slots=True)
class _State:
    price_ns: int
    held_bytes: int
    ways: tuple[Way, ...]


def partitions(
    step: Step,
    machine: Machine,
    batch: BatchTimes,
    *,
    may_be_unequal: bool = True,
    staged: Sequence[Partition] = (),
    reasons: Sequence[str] = (),
    most: int = 4,
) -> tuple[Partition, ...]:
    """The best partitions first, data parallel always among them unless memory forbids it.

    batch.rows are those of each rank if all have equally many. staged are partitions in pipeline
    stages, of which the fastest is compared with the others. Pure: the same arguments, the same
    partitions.
    Raises: ArgumentError, if no partition keeps the limits of memory; it names the least.
    """
    world = machine.world_size
    even = (batch.rows,) * world
    found: dict[tuple[tuple[Way, ...], tuple[int, ...]], Partition] = {}

    def consider(ways: tuple[Way, ...], shares: tuple[int, ...]) -> None:
        if (ways, shares) not in found:
            found[ways, shares] = _predicted(step, ways, shares, machine, batch)

    all_replicated: tuple[Way, ...] = tuple("replicate" for _ in step.units)
    consider(all_replicated, even)
    sharded: list[Way] = ["fsdp" if u.may_shard else "replicate" for u in step.units]
    consider(tuple(sharded), even)
    paired: list[Way] = ["replicate" if u.pair is None else "column_row" for u in step.units]
    consider(tuple(paired), even)
    limit = min((d.memory_bytes for d in machine.devices if d.memory_bytes), default=0)
    for credit_permille in (0, 500, 1000):
        for ways in _solve(step, machine, credit_permille, limit):
            consider(ways, even)
    if may_be_unequal:
        shares = unequal_shares(batch, machine)
        if shares != even:
            consider(all_replicated, shares)
    everyone = [*found.values(), *_shortest(staged)]
    fitting = [one for one in everyone if _fits(one, machine)]
    if not fitting:
        least = min(max(one.predicted.peak_bytes) for one in everyone)
        raise ArgumentError(
            f"no partition keeps the limit of memory; the least needs {least} bytes"
        )
    return _ranked(fitting, tuple(reasons), most)


def _shortest(staged: Sequence[Partition]) -> list[Partition]:
    """The fastest of the pipelines; the fewest micro-batches of equal ones."""
    return sorted(staged, key=lambda one: (one.predicted.step_ns, one.micro_batches))[:1]


def _ranked(fitting: list[Partition], reasons: tuple[str, ...], most: int) -> tuple[Partition, ...]:
    fitting.sort(key=lambda one: (one.predicted.step_ns, _simplicity(one), one.name))
    allowed = fitting[0].predicted.step_ns * (100 + _EQUAL_PERCENT) // 100
    near = [one for one in fitting if one.predicted.step_ns <= allowed]
    best = min(near, key=_simplicity)  # the first of equal ones
    rest = [one for one in fitting if one is not best]
    kept = rest[: most - 1]
    plain = next((one for one in rest if one.name == _SIMPLER[0]), None)
    if plain is not None and plain not in kept:
        kept = [*kept[: most - 2], plain]
    everyone = [best, *kept]
    return tuple(
        replace(
            one,
            reasons=(*_why(one), *reasons),
            others=tuple(Other(o.name, o.predicted) for o in everyone if o is not one),
        )
        for one in everyone
    )


def _why(one: Partition) -> tuple[str, ...]:
    predicted = one.predicted
    compute = max(predicted.compute_ns)
    bound = "transfers decide" if predicted.exposed_ns > compute else "computation decides"
    return (
        f"{bound}: {compute / 1e6:.2f} ms of computation,"
        f" {predicted.sent_ns / 1e6:.2f} ms of transfers",
    )


def _simplicity(one: Partition) -> int:
    return [i for i, name in enumerate(_SIMPLER) if one.name.startswith(name)][-1]


def _predicted(
    step: Step,
    ways: tuple[Way, ...],
    shares: tuple[int, ...],
    machine: Machine,
    batch: BatchTimes,
) -> Partition:
    choices = tuple(_chosen(u, way) for u, way in zip(step.units, ways, strict=True))
    scales = scales_permille(shares, batch, machine)
    return Partition(
        name=_name(step.units, ways, shares),
        world_size=machine.world_size,
        units=choices,
        shares=shares,
        predicted=predict_step(step, choices, shares, scales, machine),
    )


def _chosen(unit: Unit, way: Way) -> UnitChoice:
    around = unit.pair.around if unit.pair is not None else None
    return UnitChoice(unit.name, way, unit.modules, unit.excluded, around)


def _name(units: Sequence[Unit], ways: Sequence[Way], shares: Sequence[int]) -> str:
    used = set(ways)
    if used <= {"replicate"}:
        return _SIMPLER[0] if len(set(shares)) == 1 else _SIMPLER[1]
    count = sum(way == "column_row" for way in ways)
    sharded = sum(way == "fsdp" for way in ways)
    if count and not sharded:
        return f"pairs: {count} of linear layers by features, the rest data parallel"
    if sharded and not count:
        return f"sharded: {sharded} of {len(units)} units"
    return f"mixed: {count} pairs, {sharded} units sharded"


def scales_permille(shares: Sequence[int], batch: BatchTimes, machine: Machine) -> tuple[int, ...]:
    """Elapsed time of each rank's computation, in thousandths of the measured processor time."""
    return tuple(
        batch.at(share) * machine.slower_permille(rank) // max(1, batch.ns)
        for rank, share in enumerate(shares)
    )


def unequal_shares(batch: BatchTimes, machine: Machine) -> tuple[int, ...]:
    """Rows of each rank such that the last one ends as early as possible; at least one each.

    One row after the other goes to the rank that ends first with it. That is best, because a
    rank's time never falls with its rows.
    """
    speeds = [device.speed_permille for device in machine.devices]
    shares = [1] * machine.world_size
    for _ in range(batch.rows * machine.world_size - machine.world_size):
        ends = [(batch.at(share + 1) * 10**6 // speeds[r], r) for r, share in enumerate(shares)]
        shares[min(ends)[1]] += 1
    even = (batch.rows,) * machine.world_size
    longest = max(scales_permille(shares, batch, machine))
    is_worth = longest * (100 + _EQUAL_PERCENT) < 100 * max(scales_permille(even, batch, machine))
    return tuple(shares) if is_worth else even


def _fits(one: Partition, machine: Machine) -> bool:
    peaks = zip(one.predicted.peak_bytes, machine.devices, strict=True)
    return all(not device.memory_bytes or peak <= device.memory_bytes for peak, device in peaks)


def _solve(
    step: Step, machine: Machine, credit_permille: int, limit_bytes: int
) -> list[tuple[Way, ...]]:
    """The fastest ways of all units, and the fastest that keeps a limit of memory if one does."""
    front = [_State(0, step.activation_bytes, ())]
    for unit in step.units:
        grown = [
            _State(s.price_ns + price, s.held_bytes + held, (*s.ways, way))
            for s in front
            for way, price, held in _ways(unit, step, machine, credit_permille)
        ]
        front = _undominated(grown)
    keeping = [state.ways for state in front if state.held_bytes <= limit_bytes]
    return [front[0].ways, *keeping[:1]]


def _ways(
    unit: Unit, step: Step, machine: Machine, credit_permille: int
) -> list[tuple[Way, int, int]]:
    """Each way of a unit, its price, and the bytes that it holds."""
    world, copies, size = machine.world_size, 2 + step.state_copies, unit.parameter_bytes
    _, beta_ps = machine.line_of("all_reduce")
    average_ns = beta_ps * size // 1000 * (1000 - credit_permille) // 1000
    found: list[tuple[Way, int, int]] = [("replicate", average_ns, copies * size)]
    if unit.may_shard:
        gather = machine.cost_ns("all_gather", size)
        price = 2 * gather + machine.cost_ns("reduce_scatter", size) + machine.unit_ns("fsdp")
        found.append(("fsdp", price, copies * -(-size // world)))
    if unit.pair is not None:
        into, out = world * unit.pair.in_bytes, world * unit.pair.out_bytes
        ends = [(into, unit.pair.gathers), (out, 1)]
        price = sum(
            count * (machine.cost_ns("all_gather", one) + machine.cost_ns("reduce_scatter", one))
            for one, count in ends
        )
        held = copies * (size - unit.cut_bytes + -(-unit.cut_bytes // world))
        extra = (world - 1) * unit.pair.gathers * unit.pair.in_bytes
        price += machine.unit_ns("column_row")
        found.append(("column_row", max(0, price + unit.change_ns), held + extra))
    return found


def _undominated(states: list[_State]) -> list[_State]:
    """The front, fastest first; equal states keep their order."""
    front: list[_State] = []
    for state in sorted(states, key=lambda one: (one.price_ns, one.held_bytes)):
        if not front or state.held_bytes < front[-1].held_bytes:
            front.append(state)
    if len(front) <= _FRONT_MOST:
        return front
    kept = sorted(
        {*(k * len(front) // (_FRONT_MOST - 1) for k in range(_FRONT_MOST - 1)), len(front) - 1}
    )
    return [front[index] for index in kept]
