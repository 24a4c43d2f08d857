"""The process's context and a group's rendezvous, in the order that lets own errors come first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rdmatensor import config
from rdmatensor.context import Context, default_context


class Rendezvous(Protocol):
    """The part of rdmatensor._c10d.Rendezvous that is used here."""

    def all_say(self, what: str, mine: str) -> bool:
        """Whether every rank gives the same value; waits for all. Does not decode the values."""


def open_and_meet(
    meet: Callable[[], Rendezvous], size: int, options: config.Options | None
) -> tuple[Context, Rendezvous]:
    """Return the process's context and the group's rendezvous, which meet() makes.

    options: settings that the context must have; InvalidArgumentError if it is open with others.

    A setting that is invalid here raises before the store is asked for anything, or in place of
    what the store answers. The peers may have the same setting, and may have left because of it.
    """
    met: list[Rendezvous] = []

    def is_one_host(found: config.Settings) -> bool:
        try:
            met.append(meet())
            return met[0].all_say("host", _own_host())
        except Exception:
            Context(_with_loopback(found, True)).close()
            raise

    def settings() -> config.Settings:
        found = config.from_environment(options=options)
        is_local = True if found.loopback else _launched_on_one_host(size)
        return _with_loopback(found, is_one_host(found) if is_local is None else is_local)

    context = default_context(settings)
    if options is not None:
        options._check_match(context.settings)
    return context, met[0] if met else meet()


def _with_loopback(found: config.Settings, is_local: bool) -> config.Settings:
    # An address or an interface that is named decides; both that and loopback: C compares them.
    is_free = found.addr is None and found.ifname is None
    return replace(found, loopback=found.loopback or (is_local and is_free))


def _launched_on_one_host(size: int) -> bool | None:
    """Whether loopback reaches every rank; None: ask the ranks.

    A hint: if it is wrong, a peer is unreachable.
    """
    # Set by torchrun and similar launchers; not settings of rdmatensor.
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if local is not None and world is not None:
        return local == world
    return True if size == 1 else None


def _own_host() -> str:
    # Containers of one host share its boot id, but not its loopback device.
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    network = Path("/proc/self/ns/net").stat()
    return json.dumps([boot_id, network.st_dev, network.st_ino])
