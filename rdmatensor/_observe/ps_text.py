"""The state of parameter servers, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from rdmatensor._observe.describe_text import size_text
from rdmatensor.state import PsPart, PsServerState


def text_of_servers(reports: Sequence[Mapping[str, object]]) -> list[str]:
    """Return some lines for each report of a server, in the order of jobs and servers."""
    lines: list[str] = []
    for report in sorted(reports, key=lambda one: (str(one.get("job")), str(one.get("server")))):
        if "error" in report:
            lines.append(f"process {report['pid']}: {report['error']}")
        else:
            lines += _server(cast("PsServerState", report))
    return lines


def _server(state: PsServerState) -> list[str]:
    tables = ", ".join(
        f"{name} ({table['rows']} x {table['dim']})" for name, table in state["tables"].items()
    )
    return [
        f"job {state['job']}, server {state['server']}, process {state['pid']}: {state['mode']}",
        f"  tables: {tables or 'none'}",
        f"  values {size_text(state['rows_bytes'])}, state {size_text(state['state_bytes'])}, "
        f"pushed and not applied {size_text(state['staged_bytes'])}",
        f"  requests {state['requests']}, of these {state['refused']} refused; "
        f"{state['queued']} queued",
        f"  rows applied {state['applied_rows']}, in {state['apply_s']:.3g} s",
        *(f"  {_worker(one)}" for one in state["workers"]),
        *_holders(state),
    ]


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
