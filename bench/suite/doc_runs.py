"""Generated tables of docs/performance.md: training steps, set-up, and scale on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.benchlib.record import Record, Result, number, text
from bench.benchlib.verdict import size_text, time_text
from bench.suite import (
    breakdown,
    convergence,
    copies,
    doc_reasons,
    model_targets,
    models,
    samples,
    scale_hosts,
    scale_tables,
    setup,
)
from bench.suite.doc_words import (
    ROOM,
    Notes,
    head,
    is_same_machine,
    marked,
    spread,
    table,
    with_notes,
)
from bench.suite.exposure import Exposed
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB

NIC = (2.0, 200.0)  # an example: microseconds and Gbit/s, as bench/README.md names them


def _of(result: Result, topic: str) -> list[Record]:
    records = [one for one in result.quietest.records if "missing" not in one]
    return [one for one in records if one.get("topic") == topic]


def training(result: Result) -> str:
    """Return the planned step of each model and path beside the others', and the targets."""
    steps = sorted(_of(result, "models"), key=models.place_of)
    planned = models.planned_of(steps)
    exposed = models.exposures(steps)
    others = [name for name in models.CONTESTANTS.values() if name != models.PLANNED]
    others = [name for name in others if any(one["contestant"] == name for one in steps)]
    heads = (
        "model, parameters",
        "a planned step",
        "exposed",
        *others,
        "where planned is slower",
    )
    notes = Notes()
    rows = []
    for cell, ours in planned.items():
        beside = {text(one, "contestant"): one for one in steps if models.cell_of(one) == cell}
        cells, reasons = [], []
        for name in others:
            if name not in beside:
                cells.append("")
                continue
            ratio = number(beside[name], "median_ns") / number(ours, "median_ns")
            is_floor = name in models.FLOORS  # no rival: what is below 1 is exposed
            cells.append(f"{ratio:.2f}" if is_floor else marked(ratio))
            if ratio < ROOM and not is_floor:
                reasons.append(doc_reasons.of_step(ours, beside[name]))
        share = _share(ours, exposed.get(samples.key_of(ours)))
        rows.append((_model(ours), spread(ours), share, *cells, notes.marks(reasons)))
    rates = _of(result, copies.TOPIC)
    targets = [*model_targets.verdicts(steps, rates), *copies.verdicts(rates)]
    told = [f"{'    ' if line.startswith(' ') else ''}- {line.strip()}" for line in targets]
    told_of_steps = [head(result, list(planned.values())), with_notes(table(heads, rows), notes)]
    parts = breakdown.rows(steps, _model)
    if parts:
        told_of_steps.append(table(breakdown.HEADS, parts))
    told_of_steps.append(_spent(steps))
    return "\n\n".join([*told_of_steps, "Targets:", "\n".join(told)])


def _spent(steps: Sequence[Record]) -> str:
    """Return what each contestant's step exposes and costs besides time, a column for each."""
    names = list(dict.fromkeys(text(one, "contestant") for one in steps))
    found: dict[str, dict[str, str]] = {}
    for one in steps:
        of_model = found.setdefault(_model(one), dict.fromkeys(names, ""))
        of_model[text(one, "contestant")] = "; ".join(_costs(one))
    what = "a step: share exposed; CPU of all processes; their memory; page faults of a rank"
    return table((what, *names), [(model, *by.values()) for model, by in found.items()])


def _costs(record: Record) -> Iterator[str]:
    yield f"{100 * number(record, 'share'):.0f} %" if "share" in record else "-"
    yield time_text(number(record, "cpu_ns"))
    yield f"{number(record, 'memory_bytes') / MIB:.0f} MiB"
    yield f"{breakdown.faults_of(record):.0f}" if breakdown.has_faults(record) else "-"


def targets(result: Result) -> str:
    """Return how often each target is met, and each model's planned step, and shorter ones."""
    steps = sorted(_of(result, "models"), key=models.place_of)
    planned = models.planned_of(steps)
    rates = _of(result, copies.TOPIC)
    lines = [*model_targets.verdicts(steps, rates), *copies.verdicts(rates)]
    told = [line for line in lines if not line.startswith(" ")]
    rows = []
    for cell, ours in planned.items():
        of_it = [one for one in steps if models.cell_of(one) == cell and one is not ours]
        rivals = [one for one in of_it if text(one, "contestant") not in models.FLOORS]
        ratios = [
            (text(one, "contestant"), number(one, "median_ns") / number(ours, "median_ns"))
            for one in rivals
        ]
        cells = "; ".join(f"{name} {marked(of)}" for name, of in ratios if of < ROOM)
        rows.append((_model(ours), spread(ours), cells or "nobody"))
    heads = ("model, parameters", "a planned step", "shorter: its time over ours")
    verdicts = "\n".join(f"- {line}" for line in told)
    return "\n\n".join([head(result, list(planned.values())), verdicts, table(heads, rows)])


def learning(result: Result) -> str:
    """Return when each contestant's loss had fallen how far, and who learns sooner than planned.

    Raises ValueError where nobody's loss was followed.
    """
    records = _of(result, convergence.TOPIC)
    if not records:
        raise ValueError("no loss was followed: --converge MODEL")
    planned = {one["transport"]: one for one in records if one["contestant"] == models.PLANNED}
    notes = Notes()
    rows = []
    for record, row in zip(records, convergence.rows(records), strict=True):
        ours = planned.get(record["transport"])
        ratio = None if ours is None or ours is record else convergence.times(record, ours)
        is_slower = ratio is not None and ratio < ROOM
        cells = [
            marked(ratio) if name == convergence.TIMES and ratio is not None else cell
            for name, cell in zip(convergence.HEADS, row, strict=True)
        ]
        reasons = [doc_reasons.of_step(ours, record)] if ours is not None and is_slower else []
        rows.append((*cells, notes.marks(reasons)))
    heads = ("model", *convergence.HEADS[1:], "where planned is slower")
    return f"{head(result, records)}\n\n{with_notes(table(heads, rows), notes)}"


def _model(record: Record) -> str:
    scaled = "" if record["divisor"] == 1 else f", widths / {record['divisor']}"
    size = f"{number(record, 'size') / MIB:.0f} MiB{scaled}"
    return f"{record['op']}, {size}, {record['transport']}"


def _share(record: Record, exposed: Exposed | None) -> str:
    """Of the step, and how far noise could move that."""
    if "share" not in record:
        return ""
    found = None if exposed is None else exposed.interval
    step_ns = number(record, "median_ns") / 100
    drawn = "" if found is None else f" ({found[0] / step_ns:.0f} to {found[1] / step_ns:.0f})"
    return f"{100 * number(record, 'share'):.0f} %{drawn}"


def set_up(result: Result) -> str:
    """Return the time until ranks can work, Gloo's over it, and the curves that fit it."""
    records = _of(result, "setup")
    ours = {_step(one): one for one in records if one["peer"] == OURS}
    counts = sorted({int(number(one, "ranks")) for one in records})
    notes = Notes()
    rows = []
    for name, curve in setup.curves(records).items():
        by_ranks = {int(number(one, "ranks")): one for one in curve}
        cells, reasons = [], []
        for one in (by_ranks.get(count) for count in counts):
            own = None if one is None or one["peer"] == OURS else ours.get(_step(one))
            cells.append("" if one is None else spread(one))
            if one is not None and own is not None:
                ratio = number(one, "median_ns") / number(own, "median_ns")
                cells[-1] += f", {marked(ratio)}"
                reasons += [doc_reasons.of_set_up(one)] if ratio < ROOM else []
        rows.append((name, *cells, *_fits(curve), notes.marks(reasons)))
    up_to = f"up to {setup.FITTED_RANKS}:"
    heads = (
        "until",
        *(f"{count} ranks" for count in counts),
        f"{up_to} time grows as",
        f"{up_to} memory of a rank",
    )
    told = with_notes(table((*heads, "where ours is slower"), rows), notes)
    left_out = [
        f"{one['peer']}: {one['missing']}."
        for one in result.quietest.records
        if one.get("topic") == "setup" and "left_out" in one
    ]
    return "\n\n".join([head(result, records), told, *left_out])


def _step(record: Record) -> tuple[object, ...]:
    return tuple(record[key] for key in ("transport", "ranks", "timed"))


def _fits(curve: Sequence[Record]) -> tuple[str, str]:
    time, held = setup.power(curve), setup.memory(curve)
    each = (
        ""
        if held is None
        else f"{held[0] / KIB:.0f} KiB and {held[1] / KIB:.0f} KiB for each other"
    )
    return "" if time is None else f"ranks^{time[1]:.2f}", each


def scale(result: Result, by_hosts: Result | None = None) -> str:
    """Return the constants that were fitted to 2 to 8 ranks, and by how much the model misses.

    by_hosts: of bench/hosts.py; what it has of the same machine is held against the model, too.
    """
    records = _of(result, "scale")
    fits = scale_tables.fits_of(records)
    if not fits:
        raise ValueError("too few numbers of ranks and sizes for a model")
    fitted, supports, missed = [
        table((what, *names), [(fit.name, *cells(fit)) for fit in fits])
        for what, names, cells in (
            ("fitted constants", scale_tables.CONSTANTS, scale_tables.constants_of),
            ("ranks that each rests on", scale_tables.CONSTANTS, scale_tables.rests_on),
            ("the model is off by", scale_tables.ERRORS, scale_tables.errors_of),
        )
    ]
    beyond = " ".join(scale_tables.beyond(records, fits))
    parts = [head(result, records), fitted, supports, missed, beyond, *_over_a_nic(records, fits)]
    if by_hosts is not None and is_same_machine(result, by_hosts):
        parts += _missed_hosts(fits, by_hosts)
    return "\n\n".join(parts)


def _over_a_nic(records: Sequence[Record], fits: Sequence[scale_tables.Fit]) -> list[str]:
    """Return who would win with a NIC and a host for each rank, and what the ranks would need."""
    named = [{**one, "nic_latency_us": NIC[0], "nic_gbit": NIC[1]} for one in records]
    found = scale_tables.between_hosts(named, fits)
    if found is None:
        return []
    name, constants = found
    each, source = scale_tables.each_of(named)
    ranks = [f"{count} ranks" for count in scale_tables.LADDER]
    of_rank: dict[str, list[list[str]]] = {}
    for algorithm, what, cells in scale_tables.needs(each):
        if what in ("memory", "handshake messages"):
            of_rank.setdefault(algorithm, []).append(cells)
    lines = [
        (algorithm, *(f"{memory}, {messages}" for memory, messages in zip(*of_it, strict=True)))
        for algorithm, of_it in of_rank.items()
    ]
    return [
        f"Predicted, as an example (`--nic-latency-us {NIC[0]:g} --nic-gbit {NIC[1]:g}`), for a"
        f" host for each rank and {name}:",
        table(("who wins", *ranks), scale_tables.winners(constants)),
        table(("memory and handshake messages of the busiest rank", *ranks), lines),
        f"{source}.",
    ]


def _missed_hosts(fits: Sequence[scale_tables.Fit], by_hosts: Result) -> list[str]:
    """Return what was measured of all_reduces by way of hosts, none of which was fitted."""
    records = _of(by_hosts, "hosts")
    found = scale_hosts.misses(fits, records)
    if not found:
        return []
    layout = text(records[0], "layout")
    what = f"by way of hosts, {len(set(layout))} named hosts, {len(layout)} ranks, not fitted"
    rows = [(size_text(one.size_bytes), *one.cells) for one in found]
    missed = (
        "These hosts are names on one machine: all ranks share its cores, and TCP goes over"
        f" loopback. The model is off by {scale_hosts.told_of(found)}."
    )
    return [head(by_hosts, records), table((what, *scale_hosts.CHECKED), rows), missed]
