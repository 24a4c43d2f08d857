"""What this machine and this installation can do, and what prevents more: facts, not guesses.

Each finding is a check that was made now, and has the command that fixes it. The exit status of
`rdmatensor doctor` is 1 if something is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rdmatensor import config
from rdmatensor._observe.describe_text import size_text
from rdmatensor.doctor import demands, host, installation, loopback, rdma
from rdmatensor.doctor.cures import cure
from rdmatensor.doctor.finding import Finding, broken, ok
from rdmatensor.doctor.machine import Machine
from rdmatensor.errors import RdmaTensorError

__all__ = ["Finding", "Machine", "examine", "examine_machine", "plan_arena_bytes", "report"]

_MACHINE_CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    rdma.check,
    host.check_buses,
    host.check_gpus,
    host.check_cores,
    host.check_nodes,
    host.check_governor,
    host.check_memory,
    host.check_open_files,
    host.check_hypervisor,
)


def examine(plan: Path | None = None) -> Iterator[Finding]:
    """Make all checks of this machine, each when its finding is requested; none of them raises.

    plan: a plan of graph_analysis, whose arena must fit into memory.
    """
    for check in (
        installation.check_build,
        installation.check_torch,
        installation.check_settings,
    ):
        yield from _guarded(check.__name__, check)
    try:
        settings, native = config.from_environment(), config.native_values()
    except RdmaTensorError:
        yield ok("transports", "not tried: the settings come first")
        yield from examine_machine(Machine())
        return
    machine = Machine(settings=settings, native=native)
    if plan is not None:
        try:
            size = plan_arena_bytes(plan)
        except (OSError, ValueError) as error:
            yield broken("plan", f"{plan}: {error}", f"rdmatensor plan ... -o {plan}")
        else:
            machine = replace(machine, plan_bytes=max(size, machine.plan_bytes))
            yield ok("plan", f"the largest arena of {plan} takes {size_text(size)}")
    yield from examine_machine(machine)
    yield from _guarded(
        "transports",
        lambda: loopback.check(machine.settings, has_device=bool(rdma.find_ports(machine))),
    )
    yield from _guarded("settings", lambda: demands.check(settings, native))


def plan_arena_bytes(path: Path) -> int:
    """Return the size of a plan's largest arena; raises OSError, PlanError (a ValueError)."""
    from graph_analysis import plan_from_json  # only for a plan, to start fast

    plan = plan_from_json(path.read_bytes())
    return max((arena.peak_bytes for arena in plan.arenas), default=0)


def examine_machine(machine: Machine) -> Iterator[Finding]:
    """Make the checks that read files."""
    for check in _MACHINE_CHECKS:
        yield from _guarded(check.__name__, partial(check, machine))


def _guarded(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - a doctor that dies reports nothing
        subject = name.removeprefix("check_")
        yield broken(subject, f"{type(error).__name__}: {error}", cure(error))


def report(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield the findings as lines of text, each as soon as it is there."""
    for finding in findings:
        yield f"{finding.level:<8}{finding.subject:<16} {finding.text}"
        if finding.fix:
            yield f"{'':<25}fix: {finding.fix}"
