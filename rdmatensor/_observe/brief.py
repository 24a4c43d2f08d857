"""The few lines of describe() that matter to a person: paths and why, and what went wrong."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict

from rdmatensor._observe.describe_text import size_text
from rdmatensor.state import BindingState, ContextState, EndpointState, ProcessState

_PEERS_MOST = 8  # lines of peers; many ranks mostly have one path and one reason


def brief_of(state: ContextState) -> str:
    """Return the state of a context in a few lines."""
    arena, counters = state["arena"], state["counters"]
    transports = ", ".join(
        f"{name} ({'ok' if found['is_viable'] else found['reason']})"
        for name, found in state["transports"].items()
    )
    mapped, used = size_text(arena["mapped_bytes"]), size_text(arena["allocated_bytes"])
    lines = [
        f"rdmatensor {state['version']}, process {os.getpid()}",
        f"transports: {transports}",
        *_peers(state["endpoints"]),
        f"arena: {used} of {mapped} in use",
        f"moved: {size_text(counters['moved_bytes'])}, copied: "
        f"{size_text(counters['copied_bytes'])}, over a fallback path: "
        f"{size_text(counters['fallback_bytes'])}",
    ]
    lines += [
        f"group {group['name']!r}: ended: {group['error']}"
        for group in state["groups"]
        if group["error"]
    ]
    return "\n".join(lines)


def brief_of_process(state: ProcessState) -> str:
    """Return the state of a process with groups of torch.distributed in a few lines."""
    lines = [brief_of(state)]
    collectives = state.get("collectives")
    if collectives is not None:
        ran = ", ".join(f"{count} by {name}" for name, count in collectives["ran"].items())
        lines.append(f"collectives: {collectives['way']}; ran: {ran or 'none yet'}")
        lines += _bindings(collectives["persistent"])
    plan = state.get("plan")
    if plan is not None:
        lines.append(f"step: {plan['state']}" + (f" ({plan['reason']})" if plan["reason"] else ""))
    lines += [
        f"outside the arena: {one['what']}: {one['reason']}" for one in state.get("not_adopted", [])
    ]
    return "\n".join(lines)


def why_of(endpoint: EndpointState) -> str:
    """Return what a path is made of, and why it is not a better one."""
    texts = [endpoint["error"], endpoint["lane"], endpoint["why_not_better"]]
    if endpoint["state"] != "ready":
        texts.insert(0, endpoint["state"])
    return "; ".join(text for text in texts if text)


def _peers(endpoints: list[EndpointState]) -> list[str]:
    """Return a line for each path and reason, with the ranks that have it."""
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for endpoint in endpoints:
        why = re.sub(r"process \d+, ", "", why_of(endpoint))  # each peer has another
        ranks[endpoint["path"], why].append(endpoint["rank"])
    lines = [
        f"peer{'s' if len(some) > 1 else ''} {', '.join(map(str, sorted(some)))}: {path}"
        + (f" ({why})" if why else "")
        for (path, why), some in ranks.items()
    ]
    if not lines:
        return ["peers: none yet"]
    left = len(lines) - _PEERS_MOST
    return lines if left <= 0 else [*lines[:_PEERS_MOST], f"and {left} more kinds of peers"]


def _bindings(bindings: list[BindingState]) -> list[str]:
    """Return a line for each way in which persistent collectives work, and why."""
    kinds: Counter[str] = Counter()
    for one in bindings:
        whose = "" if one["rank"] is None else f"rank {one['rank']}: "
        kinds[one["way"] + (f" ({whose}{one['reason']})" if one["reason"] else "")] += 1
    return [f"persistent: {count} {kind}" for kind, count in kinds.items()]
