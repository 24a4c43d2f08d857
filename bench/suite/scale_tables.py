"""What the model makes of what was measured: constants, errors, who wins where, memory, set-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.verdict import size_text, time_text
from bench.suite import model, model_hosts, samples
from bench.suite.layout import layout
from bench.suite.settings import KIB

FITTED_MOST = 8  # ranks; more are measured to see how far the model is off
LADDER = (2, 8, 64, 512, 4096, 16384)
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
# On the side channel: HELLO, CHALLENGE, AUTH (docs/wire.md).
HANDSHAKE_MESSAGES = 3
# What a peer over a NIC takes, in KiB: one QP by the sizes of mlx5's entries (docs/rdma.md,
# "Receive queues"). No NIC was there to measure it.
QP_KIB = {"receive queue": 8, "send queue": 32, "completion queue": 64, "our records": 24}
CONSTANTS = ("call", "alpha", "alpha, shared core", "1/beta GB/s", "1/gamma GB/s")
ERRORS = ("fitted, median", "worst", "12 and 16, median", "worst")


@dataclass(frozen=True, slots=True)
class Fit:
    """What one path's constants came of; has_boards: over memory that all ranks share."""

    transport: str
    has_boards: bool
    constants: model.Constants
    fitted: tuple[model.Sample, ...]
    checked: tuple[model.Sample, ...]
    cores: int

    @property
    def name(self) -> str:
        """Whose constants they are."""
        return f"{self.transport}, {'memory of all ranks' if self.has_boards else 'messages'}"

    def predict(self, sample: model.Sample) -> float:
        """Nanoseconds of what was measured, by the model."""
        return model.predict(
            self.constants,
            sample.algorithm,
            sample.ranks,
            sample.size_bytes,
            cores=self.cores,
            has_boards=sample.has_boards,
        )

    def off_by(self, of: Sequence[model.Sample]) -> list[float]:
        """By which factor each prediction is off."""
        return [model.off_by(self.predict(sample), sample.took_ns) for sample in of]


def fits_of(records: Sequence[Record]) -> list[Fit]:
    """Fit the constants of each path; those with too few samples are left out."""
    found: dict[tuple[str, bool], list[model.Sample]] = {}
    for record in records:
        transport, algorithm = text(record, "transport"), text(record, "op")
        has_boards = transport == "shm" and algorithm == model.BOARDS
        sample = model.Sample(
            algorithm,
            int(number(record, "ranks")),
            int(number(record, "size")),
            has_boards,
            number(record, "median_ns"),
        )
        found.setdefault((transport, has_boards), []).append(sample)
    fits = []
    for (transport, has_boards), of_path in found.items():
        fitted = tuple(one for one in of_path if one.ranks <= FITTED_MOST)
        checked = tuple(one for one in of_path if one.ranks > FITTED_MOST)
        if len({(one.ranks, one.size_bytes) for one in fitted}) < 4:
            continue  # four constants
        cores = int(number(records[0], "cores"))
        constants = model.fit(fitted, cores, number(records[0], "gamma_ns"))
        fits.append(Fit(transport, has_boards, constants, fitted, checked, cores))
    return fits


def between_hosts(
    records: Sequence[Record], fits: Sequence[Fit]
) -> tuple[str, model.Constants] | None:
    """Return what connects ranks that have a host each: the NIC that was named, else our tcp."""
    messages = [fit for fit in fits if not fit.has_boards]
    if not messages:
        return None
    tcp = next((fit for fit in messages if fit.transport == "tcp"), messages[0])
    if "nic_gbit" not in records[0]:
        return f"{tcp.transport} as measured here, a core for each rank", tcp.constants
    latency_us, gbit = (number(records[0], name) for name in ("nic_latency_us", "nic_gbit"))
    name = f"a NIC of {latency_us:g} us and {gbit:g} Gbit/s; calls and sums as measured here"
    return name, model.of_nic(tcp.constants, latency_us, gbit)


def show(records: Sequence[Record]) -> str:
    """Return all tables."""
    fits = fits_of(records)
    parts = [_constants(fits), _supports(fits), _errors(fits)] if fits else []
    parts += [_checked(fit) for fit in fits if fit.checked]
    found = between_hosts(records, fits)
    if found is not None:
        name, constants = found
        parts += ["\n".join(beyond(records, fits)), _winners(name, constants)]
        parts += [_times(constants), _needs(records)]
    return "\n\n".join(parts) or "too few numbers of ranks and sizes for a model"


def _constants(fits: Sequence[Fit]) -> str:
    heads = ("constants", "", *CONSTANTS)
    return layout(heads, [(fit.name, "", *constants_of(fit)) for fit in fits])


def constants_of(fit: Fit) -> tuple[str, ...]:
    """Return what each of CONSTANTS is."""
    of = fit.constants
    times = (time_text(value) for value in (of.call_ns, of.alpha_ns, of.alpha_shared_ns))
    return (*times, *(_rate(value) for value in (of.beta_ns, of.gamma_ns)))


def _supports(fits: Sequence[Fit]) -> str:
    heads = ("ranks that each rests on", "", *CONSTANTS)
    return layout(heads, [(fit.name, "", *rests_on(fit)) for fit in fits])


def rests_on(fit: Fit) -> tuple[str, ...]:
    """Return with how many ranks each of CONSTANTS was told from the others."""
    ranks: list[set[int]] = [set() for _ in CONSTANTS]
    for sample in fit.fitted:
        for of_it, factor in zip(ranks, model.columns(sample, fit.cores), strict=True):
            if factor > 0:
                of_it.add(sample.ranks)
    *fitted, _ = (", ".join(map(str, sorted(of_it))) or "none" for of_it in ranks)
    return (*fitted, "one thread alone")


def beyond(records: Sequence[Record], fits: Sequence[Fit]) -> list[str]:
    """Return what holds where nothing was measured, and what does not."""
    most = max(one.ranks for fit in fits for one in (*fit.fitted, *fit.checked))
    cores = fits[0].cores
    missed = [fit.predict(one) < one.took_ns for fit in fits for one in fit.checked]
    told = [
        f"Up to {most} ranks were measured, on {cores} cores: beyond, and where more than {cores} "
        "have a core each, all is the model, and no sample holds it.",
        f"Alpha without a shared core is what at most {cores} ranks had; beta and a call are held "
        "to be the same for any number, and nobody meets in a switch.",
    ]
    if missed:
        told.append(
            f"Of the {len(missed)} times that were not fitted {sum(missed)} are above the model's."
        )
    if "nic_gbit" in records[0]:
        told.append(
            "The NIC's latency is all of alpha, its rate all of beta: what a message costs the "
            "library besides is not in them."
        )
    return told


def _rate(ns_per_byte: float) -> str:
    return f"{1 / ns_per_byte:.2f}" if ns_per_byte > 0 else "-"


def _errors(fits: Sequence[Fit]) -> str:
    heads = ("the model is off by", "", *ERRORS)
    return layout(heads, [(fit.name, "", *errors_of(fit)) for fit in fits])


def errors_of(fit: Fit) -> list[str]:
    """Return the median factor and the worst, of what was fitted and of what was not."""
    cells: list[str] = []
    for of in (fit.fitted, fit.checked):
        off = fit.off_by(of)
        cells += [f"x {samples.quantile(off, 0.5):.2f}", f"x {max(off):.2f}"] if off else ["-", "-"]
    return cells


def _checked(fit: Fit) -> str:
    heads = (
        f"not fitted: {fit.name}",
        "algorithm",
        "size",
        "measured",
        "model",
        "model / measured",
    )
    return layout(
        heads,
        [
            (
                f"{one.ranks} ranks",
                one.algorithm,
                size_text(one.size_bytes),
                time_text(one.took_ns),
                time_text(fit.predict(one)),
                f"{fit.predict(one) / one.took_ns:.2f}",
            )
            for one in fit.checked
        ],
    )


def winners(constants: model.Constants) -> list[tuple[str, ...]]:
    """Return which algorithm is the fastest of each size, and its time, for LADDER's ranks."""
    lines = []
    for size in SIZES:
        best = [model.best_of(constants, ranks, size) for ranks in LADDER]
        lines.append((size_text(size), *(f"{who} {time_text(ns)}" for who, ns in best)))
    return lines


def _winners(name: str, constants: model.Constants) -> str:
    lines = [(size, "", *cells) for size, *cells in winners(constants)]
    table = layout(("who wins", "", *(f"{ranks} ranks" for ranks in LADDER)), lines)
    return f"A host for each rank: {name}\n{table}"


def _times(constants: model.Constants) -> str:
    lines = [
        (
            size_text(size),
            name,
            *(time_text(model.predict(constants, name, ranks, size)) for ranks in LADDER),
        )
        for size in SIZES
        for name in model.ALGORITHMS
    ]
    return layout(("predicted", "algorithm", *(f"{ranks} ranks" for ranks in LADDER)), lines)


def memory_text(size_bytes: float) -> str:
    return (
        f"{size_bytes / 1024:.1f} KiB" if size_bytes < 1 << 20 else f"{size_bytes / 2**20:.1f} MiB"
    )


def each_of(records: Sequence[Record]) -> tuple[float, str]:
    """Return the memory of a connection on one side, and where that is known from."""
    first = records[0]
    if "nic_qp_bytes" in first:
        each = number(first, "nic_qp_bytes")
        return (
            each,
            f"A peer over the NIC takes {memory_text(each)} on a side, as --nic-qp-kib says",
        )
    if "nic_gbit" in first:
        parts = ", ".join(f"{kib} KiB of {what}" for what, kib in QP_KIB.items())
        each = sum(QP_KIB.values()) * KIB
        said = f"A peer over the NIC is assumed to take {memory_text(each)} on a side, not measured"
        return each, f"{said}: a QP with {parts}"
    each = max(number(record, "connection_bytes") for record in records)
    paths = " or ".join(sorted({text(record, "transport") for record in records}))
    return (
        each,
        f"An idle connection over {paths} takes {memory_text(each)} on a side, as measured here",
    )


def needs(each_bytes: float) -> list[tuple[str, str, list[str]]]:
    """Return what the busiest rank needs: of which algorithm, what, for LADDER's ranks.

    each_bytes: of a connection on one side.
    """
    ways = {
        name: [model.connections_of(name, ranks) for ranks in LADDER] for name in model.ALGORITHMS
    }
    ways["all pairs"] = [ranks - 1 for ranks in LADDER]
    lines = []
    for name, peers in ways.items():
        messages = [str(count * HANDSHAKE_MESSAGES) for count in peers]
        lines.append((name, "connections", list(map(str, peers))))
        lines.append((name, "memory", [memory_text(count * each_bytes) for count in peers]))
        lines.append((name, "handshake messages", messages))
        lines.append((name, "calls of the store", [str(1 + count) for count in peers]))
    return lines


def _needs(records: Sequence[Record]) -> str:
    """Memory of a rank's connections, and what it sends to set them up."""
    each, source = each_of(records)
    heads = ("of the busiest rank", "", *(f"{ranks} ranks" for ranks in LADDER))
    lines = [(name, what, *cells) for name, what, cells in needs(each)]
    store = "the store has one blob of each rank, and a rank asks for those of its peers."
    team = (
        f"A group of up to {model_hosts.TEAM_MOST} ranks that may share memory opens all pairs in "
        "its set-up, unless RDMATENSOR_ALGO names messages, ring, halving-doubling or tree."
    )
    return f"{layout(heads, lines)}\n{source}; {store}\n{team}"
