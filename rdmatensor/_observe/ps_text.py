"""The state of parameter servers, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from rdmatensor._observe.describe_text import size_text
from rdmatensor.state import PsPart, PsServerState


def text_of_servers(reports: Sequence[Mapping[str, object]]) -> list[str]:
    """Return some lines for each report of a server, in the order of jobs and servers."""
    lines: list[str] = []
    states = [cast("PsServerState", one) for one in reports if "error" not in one]
    primaries = {(one["job"], one["server"]): one for one in states if one["replica"] != "backup"}
    for report in sorted(reports, key=_order):
        if "error" in report:
            lines.append(f"process {report['pid']}: {report['error']}")
        else:
            state = cast("PsServerState", report)
            lines += [*_server(state), *_lag(state, primaries)]
    return lines


def _order(report: Mapping[str, object]) -> tuple[str, str, str]:
    return str(report.get("job")), str(report.get("server")), str(report.get("replica"))[::-1]


def _server(state: PsServerState) -> list[str]:
    tables = ", ".join(
        f"{name} ({table['rows']} x {table['dim']})" for name, table in state["tables"].items()
    )
    return [
        f"job {state['job']}, {_name(state)}, process {state['pid']}: {state['mode']}",
        f"  tables: {tables or 'none'}",
        f"  values {size_text(state['rows_bytes'])}, state {size_text(state['state_bytes'])}, "
        f"pushed and not applied {size_text(state['staged_bytes'])}",
        f"  requests {state['requests']}, of these {state['refused']} refused; "
        f"{state['queued']} queued",
        f"  rows applied {state['applied_rows']}, in {state['apply_s']:.3g} s",
        *(f"  {_worker(one)}" for one in state["workers"]),
        *_holders(state),
    ]


def _name(state: PsServerState) -> str:
    if state["replica"] != "backup":
        return f"server {state['server']}"
    readers = f", which {state['switches']} workers read from" if state["switches"] else ""
    return f"backup of server {state['server']}{readers}"


def _lag(state: PsServerState, primaries: Mapping[tuple[str, int], PsServerState]) -> list[str]:
    primary = primaries.get((state["job"], state["server"]))
    if state["replica"] != "backup" or primary is None:
        return []
    behind = max(0, primary["ticks"] - state["ticks"])
    return [f"  {behind} ends of steps behind its server"]


def _worker(one: PsPart) -> str:
    if one["state"] == "absent":
        return f"worker {one['worker']}: nothing has come from it"
    doing = {"in": "computes", "parked": "waits for a batch"}.get(one["state"], one["state"])
    if one["is_waiting"] and one["state"] == "in":
        doing = "waits for others"
    return (
        f"worker {one['worker']}: {doing}, step {one['clock']}, "
        f"last request {one['quiet_s']:.1f} s ago"
    )


def _holders(state: PsServerState) -> list[str]:
    held = [one for one in state["workers"] if one["worker"] in state["held_by"]]
    if not held:
        return []
    waiting = sum(one["is_waiting"] for one in state["workers"])
    names = ", ".join(str(one["worker"]) for one in held)
    quiet_s = max(one["quiet_s"] for one in held)
    return [
        f"  {waiting} worker{'s wait' if waiting > 1 else ' waits'} for worker"
        f"{'s' * (len(held) > 1)} {names}, quiet for {quiet_s:.1f} s"
    ]
