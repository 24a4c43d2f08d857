"""RDMA as the kernel shows it: library, permissions, ports, GIDs, MTU, locked memory, fork."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rdmatensor.doctor import gids
from rdmatensor.doctor.finding import Finding, broken, ok, slower
from rdmatensor.doctor.machine import LIBRARY, Machine

DEVICES = "sys/class/infiniband"
# What the library locks at once before the arena; csrc/transport/verbs/device/nic.c.
MEMLOCK_LEAST_BYTES = 4 << 20
# An Ethernet packet's bytes in addition to RDMA's payload, as the kernel assumes for RoCE.
_ROCE_OVERHEAD_BYTES = 96
MTU_MOST = 4096
_COPY_ON_FORK = (5, 12)  # the first kernel that copies pinned pages for a forked child
_MEMLOCK_FIX = (
    "ulimit -l unlimited; permanently `* - memlock unlimited` in /etc/security/limits.conf, "
    "LimitMEMLOCK=infinity in a systemd unit, docker run --ulimit memlock=-1 or --cap-add IPC_LOCK"
)


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a device."""

    device: str
    number: int
    link_layer: str
    state: str
    rate: str
    gids: tuple[gids.Gid, ...]
    netdev: str

    @property
    def name(self) -> str:
        """As in RDMATENSOR_VERBS_DEVICES."""
        return f"{self.device}:{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether its link is up."""
        return self.state == "ACTIVE"

    @property
    def is_roce(self) -> bool:
        """Whether it is Ethernet."""
        return self.link_layer == "Ethernet"


def find_ports(machine: Machine) -> list[Port]:
    """Return the ports of all devices."""
    return [
        _port(machine, device, int(number))
        for device in machine.names(DEVICES)
        for number in machine.names(f"{DEVICES}/{device}/ports")
    ]


def _port(machine: Machine, device: str, number: int) -> Port:
    folder = f"{DEVICES}/{device}/ports/{number}"
    table = tuple(gids.table(machine, folder))
    netdevs = [gid.netdev for gid in table if gid.netdev]
    netdevs += machine.names(f"{DEVICES}/{device}/device/net")
    netdevs += filter(None, [machine.text(f"{DEVICES}/{device}/parent")])  # SoftRoCE's
    return Port(
        device,
        number,
        machine.text(f"{folder}/link_layer") or "unknown",
        (machine.text(f"{folder}/state") or "unknown").rpartition(": ")[2],
        machine.text(f"{folder}/rate") or "unknown",
        table,
        netdevs[0] if netdevs else "",
    )


def is_wanted(machine: Machine, port: Port) -> bool:
    """Whether RDMATENSOR_VERBS_DEVICES lets the port be used."""
    wanted = _entries(machine, "RDMATENSOR_VERBS_DEVICES")
    return not wanted or bool({port.device, port.name} & set(wanted))


def check(machine: Machine) -> Iterator[Finding]:
    """All RDMA checks. On a machine without a device nothing can be broken."""
    ports = find_ports(machine)
    if not ports:
        yield from _check_library(machine, has_device=False)
        yield ok("rdma", "there is no RDMA device: peers on other hosts are reached over tcp")
        return
    yield from _check_library(machine, has_device=True)
    for subject, variable, fault_of in (
        ("devices", "RDMATENSOR_VERBS_DEVICES", _fault_of_device),
        ("gid index", "RDMATENSOR_VERBS_GID_INDEX", _fault_of_gid_index),
    ):
        yield from _check_list(machine, subject, variable, fault_of, ports)
    yield from _check_nodes(machine, ports)
    used = [port for port in ports if is_wanted(machine, port)]
    has_active = any(port.is_active for port in used)
    for port in used:
        yield from _check_port(port, has_active=has_active)
        if port.is_active:
            yield from _check_gids(machine, port)
            yield from _check_mtu(machine, port)
    yield from _check_memlock(machine, max(1, sum(port.is_active for port in used)))
    yield from _check_fork(machine)


def _check_library(machine: Machine, *, has_device: bool) -> Iterator[Finding]:
    try:
        path = machine.library()
    except OSError as error:
        if has_device:
            yield broken(
                "libibverbs",
                f"{LIBRARY} cannot be loaded: {error}",
                "apt-get install libibverbs1 ibverbs-providers, or dnf install libibverbs",
            )
        else:
            yield ok("libibverbs", "not there, and no device that would need it")
        return
    # libibverbs.so.1.14.44.0 belongs to rdma-core 44.
    release = re.search(r"\.so\.\d+\.\d+\.(\d+)", Path(path).name)
    of = f" (rdma-core {release.group(1)})" if release else ""
    yield ok("libibverbs", f"{path}{of}")


def _entries(machine: Machine, variable: str) -> list[str]:
    """Split a list as csrc/transport/verbs/device/settings.c does: a comma may end it."""
    text = machine.native.get(variable, "")
    return text.removesuffix(",").split(",") if text else []


def _small(text: str, least: int) -> int | None:
    """Read a number of one byte; None for anything else."""
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
    return number if least <= number <= 255 else None


def _fault_of_device(entry: str, ports: list[Port]) -> str:
    """Return what is wrong with "mlx5_0" or "rxe1:1"; empty: nothing."""
    name, colon, number = entry.partition(":")
    if not name or (colon and _small(number, 1) is None):
        return "is not a device, nor device:port with a port from 1 to 255"
    found = [port.number for port in ports if port.device == name]
    return "" if found and (not colon or int(number) in found) else "is not there"


def _fault_of_gid_index(entry: str, ports: list[Port]) -> str:
    """Return what is wrong with "3" or "rxe0=1"; empty: nothing."""
    name, equals, index = entry.partition("=")
    if _small(index if equals else entry, 0) is None or entry.startswith("="):
        return "is not an index, nor device=index, from 0 to 255"
    return "" if not equals or any(port.device == name for port in ports) else "is not there"


def _check_list(
    machine: Machine,
    subject: str,
    variable: str,
    fault_of: Callable[[str, list[Port]], str],
    ports: list[Port],
) -> Iterator[Finding]:
    """Whether the library accepts the list: one wrong entry disables verbs."""
    faults = {entry: fault_of(entry, ports) for entry in _entries(machine, variable)}
    wrong = [f'"{entry}" {fault}' for entry, fault in faults.items() if fault]
    right = [entry for entry, fault in faults.items() if not fault]
    if wrong:
        yield broken(
            subject,
            f"{variable}={machine.native[variable]}: {', '.join(wrong)}; so RDMA is not used",
            f"export {variable}={','.join(right)}" if right else f"unset {variable}",
        )


def _check_nodes(machine: Machine, ports: list[Port]) -> Iterator[Finding]:
    """Whether this user may open the device's character device."""
    of_device = {
        machine.text(f"sys/class/infiniband_verbs/{node}/ibdev"): node
        for node in machine.names("sys/class/infiniband_verbs")
    }
    for device in dict.fromkeys(port.device for port in ports if is_wanted(machine, port)):
        node = of_device.get(device)
        path = f"dev/infiniband/{node}"
        if node is None:
            yield broken(
                f"uverbs {device}", "the kernel's module ib_uverbs is not loaded",
                "modprobe ib_uverbs",
            )  # fmt: skip
        elif not machine.has(path):
            yield broken(
                f"uverbs {device}",
                f"/{path} is not there: is this a container without the host's devices?",
                "docker run --device=/dev/infiniband; on the host itself udevadm trigger",
            )
        elif not machine.may_open(path):
            yield broken(
                f"uverbs {device}", f"this user may not open /{path}", f"chmod a+rw /{path}"
            )
        else:
            yield ok(f"uverbs {device}", f"/{path} may be opened")


def _check_port(port: Port, *, has_active: bool) -> Iterator[Finding]:
    text = f"{port.link_layer}, {port.state}, {port.rate}"
    if port.is_active:
        yield ok(f"port {port.name}", text)
        return
    if port.is_roce:
        fix = f"ip link set {port.netdev or 'NETDEV'} up; if it is, look at the cable"
    elif port.state == "INIT":
        fix = "start a subnet manager: systemctl start opensm"
    else:
        fix = f"look at the cable; ibportstate -C {port.device} -D 0 {port.number} enable"
    level = slower if has_active else broken
    yield level(f"port {port.name}", f"{text}: nothing goes through it", fix)


def _check_gids(machine: Machine, port: Port) -> Iterator[Finding]:
    """RoCE addresses by GID; InfiniBand by LID, unless an index is requested."""
    subject = f"gid {port.name}"
    wanted = _wanted_gid(machine, port.device)
    if not port.gids:
        if port.is_roce:
            yield broken(
                subject,
                f"the table is empty: has {port.netdev or 'its network device'} an address?",
                f"ip addr add 192.0.2.1/24 dev {port.netdev or 'NETDEV'}, with an address of yours",
            )
        return
    chosen = port.gids[0]
    if wanted is not None:
        of_index = {str(gid.index): gid for gid in port.gids}
        if wanted not in of_index:
            yield broken(
                subject,
                f"RDMATENSOR_VERBS_GID_INDEX asks for {wanted}, which is empty; there are "
                + "; ".join(map(str, port.gids)),
                f"unset RDMATENSOR_VERBS_GID_INDEX, or export it as {chosen.index}",
            )
            return
        chosen = of_index[wanted]
    yield from _judge_gid(port, chosen)


def _wanted_gid(machine: Machine, device: str) -> str | None:
    """Read "3" or "rxe0=1,rxe1=3" as transport/verbs/device/settings.c does: the last applies."""
    found = None
    for entry in _entries(machine, "RDMATENSOR_VERBS_GID_INDEX"):
        name, equals, text = entry.partition("=")
        index = _small(text if equals else name, 0)
        if index is not None and (not equals or name == device):
            found = str(index)
    return found


def _judge_gid(port: Port, chosen: gids.Gid) -> Iterator[Finding]:
    subject, best = f"gid {port.name}", port.gids[0]
    others = [str(gid) for gid in port.gids if gid is not chosen]
    text = f"{chosen}" + (f"; then {'; '.join(others)}" if others else "")
    if chosen.score + gids.SCORE_BOUND < best.score:
        yield slower(
            subject,
            f"RDMATENSOR_VERBS_GID_INDEX takes {chosen}; better is {best}",
            "unset RDMATENSOR_VERBS_GID_INDEX",
        )
    elif port.is_roce and (not chosen.is_v2 or chosen.family == "link-local"):
        why = "RoCE v1 is not routed" if not chosen.is_v2 else "a link-local address is not routed"
        yield slower(
            subject,
            f"{text}; {why}: peers of other subnets are reached over tcp",
            f"ip addr add 192.0.2.1/24 dev {port.netdev or 'NETDEV'}, with an address of yours"
            + ("" if chosen.is_v2 else "; set the device to RoCE v2 (cma_roce_mode)"),
        )
    else:
        yield ok(subject, text)


def roce_mtu(netdev_mtu: int) -> int:
    """Return the largest payload of a RoCE packet that fits a network device's MTU."""
    room = netdev_mtu - _ROCE_OVERHEAD_BYTES
    return max((mtu for mtu in (256, 512, 1024, 2048, MTU_MOST) if mtu <= room), default=0)


def _check_mtu(machine: Machine, port: Port) -> Iterator[Finding]:
    """On Ethernet it follows from the network device; on InfiniBand the subnet manager sets it."""
    if not port.is_roce or not port.netdev:
        return
    netdev_mtu = machine.number(f"sys/class/net/{port.netdev}/mtu")
    if netdev_mtu is None:
        return
    mtu = roce_mtu(netdev_mtu)
    text = f"{mtu} bytes for each packet, as {port.netdev} has an MTU of {netdev_mtu}"
    bound = machine.native.get("RDMATENSOR_VERBS_MTU", "")
    if bound.isdigit() and int(bound) < mtu:
        yield slower(
            f"mtu {port.name}",
            f"RDMATENSOR_VERBS_MTU={bound} holds it below {mtu}",
            "unset RDMATENSOR_VERBS_MTU",
        )
    elif mtu < MTU_MOST:
        yield slower(
            f"mtu {port.name}",
            f"{text}: {MTU_MOST // max(mtu, 1)} packets where one of {MTU_MOST} would do",
            f"ip link set {port.netdev} mtu 9000, on all hosts and on the switches between",
        )
    else:
        yield ok(f"mtu {port.name}", text)


def _check_memlock(machine: Machine, port_count: int) -> Iterator[Finding]:
    """Whether enough memory can be locked: each port registers the arena, and each counts."""
    limit = machine.limit("Max locked memory")
    if limit is None or machine.may_lock:
        yield ok("memlock", "unlimited" if limit is None else f"{limit >> 10} KiB do not bind us")
        return
    need = port_count * (MEMLOCK_LEAST_BYTES + machine.arena_bytes)
    if limit < MEMLOCK_LEAST_BYTES:
        yield broken(
            "memlock",
            f"{limit >> 10} KiB may be locked, RDMA begins at {MEMLOCK_LEAST_BYTES >> 10} KiB",
            _MEMLOCK_FIX,
        )
    elif limit < need:
        yield slower(
            "memlock",
            f"{limit >> 20} MiB may be locked; {port_count} ports with an arena of "
            f"{machine.arena_bytes >> 20} MiB need {need >> 20}: memory beyond it is copied",
            _MEMLOCK_FIX,
        )
    else:
        yield ok("memlock", f"{limit >> 20} MiB may be locked, the arena soon needs {need >> 20}")


def _check_fork(machine: Machine) -> Iterator[Finding]:
    release = machine.text("proc/sys/kernel/osrelease") or ""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        return
    if (int(found.group(1)), int(found.group(2))) >= _COPY_ON_FORK:
        yield ok("fork", f"Linux {release} copies registered pages for a child")
    else:
        yield slower(
            "fork",
            f"Linux {release} is older than 5.12: registered pages are kept from children, "
            "each registration costs a madvise(), and children cannot read the arena",
            "a kernel from 5.12 on; or start workers with multiprocessing's spawn",
        )
