"""Properties of this host that cost speed or memory: cores, control groups, limits, buses.

All of it is read from files, including what the kernel has counted; only a wake-up is timed.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator

from rdmatensor._backend import cgroup
from rdmatensor._observe.describe_text import size_text
from rdmatensor.doctor.finding import Finding, broken, ok, slower
from rdmatensor.doctor.machine import Machine, numbers_of

OPEN_FILES_LEAST = 1024
_GPU_VENDORS = frozenset({"0x10de", "0x1002"})  # of PCI: NVIDIA, AMD
_DMA_BUF = (5, 12)  # the first kernel in which an RDMA device registers another device's buffer
_GOVERNORS_FULL = frozenset({"performance", "schedutil", "ondemand"})
_NODES = "sys/devices/system/node"
_LOCAL_DISTANCE = 10  # a node's distance to itself, by firmware
_WIDTH_UNKNOWN = 255  # the kernel's value for a width that cannot be read
_ACS_CAPABILITY = 0x000D
# Bits of the ACS control register that send peer-to-peer requests, or their answers, upwards.
_ACS_REDIRECTS = 0x001C


def check_cores(machine: Machine) -> Iterator[Finding]:
    """Affinity and the quota of the control group."""
    cpus = machine.cpus
    online = numbers_of(machine.text("sys/devices/system/cpu/online") or "")
    yield ok("cores", f"{len(cpus)} of {len(online) or len(cpus)} may be used")
    quota = cgroup.cpu_quota(machine)
    if quota is None:
        return
    text = f"the control group has {quota:g} cores' time, of {len(cpus)} cores"
    if quota >= len(cpus):
        yield ok("cpu quota", text)
        return
    count, seconds = cgroup.stopped(machine) or (0, 0.0)
    cost = f", {count} times so far, {seconds:.1f} s in all" if count else ""
    yield slower(
        "cpu quota",
        f"{text}: when it is used up, all threads stop for the rest of each period{cost}",
        f"docker update --cpus={len(cpus)} CONTAINER; in Kubernetes resources.limits.cpu; "
        f"systemctl set-property UNIT CPUQuota={100 * len(cpus)}%",
    )


def check_nodes(machine: Machine) -> Iterator[Finding]:
    """The NUMA nodes of the machine, and those of the cores that may be used."""
    if not machine.has(f"{_NODES}/online"):
        yield ok("numa", "nodes are not told by the kernel")
        return
    near = _usable(machine)
    text = f"{_numbered(_online(machine))}; the cores that may be used are of "
    yield ok("numa", text + (_numbered(near) if near else "no node of these"))


def _online(machine: Machine) -> list[int]:
    return numbers_of(machine.text(f"{_NODES}/online") or "")


def _usable(machine: Machine) -> list[int]:
    """Return the nodes with cores that this process may use."""
    allowed = set(machine.cpus)
    return [
        node
        for node in _online(machine)
        if allowed & set(numbers_of(machine.text(f"{_NODES}/node{node}/cpulist") or ""))
    ]


def _numbered(nodes: list[int]) -> str:
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"


def check_governor(machine: Machine) -> Iterator[Finding]:
    """How fast the cores may run."""
    folder = "sys/devices/system/cpu"
    found = {
        machine.text(f"{folder}/cpu{cpu}/cpufreq/scaling_governor") or "" for cpu in machine.cpus
    } - {""}
    if not found:
        return
    slow = sorted(found - _GOVERNORS_FULL)
    if not slow:
        yield ok("cpu governor", ", ".join(sorted(found)))
        return
    first = f"{folder}/cpu{machine.cpus[0]}/cpufreq"
    driver = machine.text(f"{first}/scaling_driver") or "unknown"
    now, most = (machine.number(f"{first}/{name}_freq") for name in ("scaling_cur", "cpuinfo_max"))
    cost = f"; now at {now // 1000} of {most // 1000} MHz" if now and most else ""
    yield slower(
        "cpu governor",
        f"{', '.join(slow)} (driver {driver}): a core that slept answers late, and runs slowly"
        f"{cost}",
        "cpupower frequency-set -g performance",
    )


def check_memory(machine: Machine) -> Iterator[Finding]:
    """Whether the arena fits, and what /dev/shm is."""
    bound_mib = machine.settings.arena_max_mib
    if bound_mib is not None and bound_mib << 20 < machine.plan_bytes:
        yield broken(
            "arena",
            f"RDMATENSOR_ARENA_MAX_MIB={bound_mib} holds it below the plan's "
            f"{_exact(machine.plan_bytes)}",
            f"export RDMATENSOR_ARENA_MAX_MIB={(machine.plan_bytes >> 20) + 1}",
        )
    limit = cgroup.memory_limit_bytes(machine)
    total = re.search(r"MemTotal:\s+(\d+)", machine.text("proc/meminfo") or "")
    total_bytes = int(total.group(1)) << 10 if total else None
    if limit is not None and (total_bytes is None or limit < total_bytes):
        arena_mib = machine.arena_bytes >> 20
        yield _judge_memory(
            machine, limit, f"the control group's limit is {limit >> 20} MiB",
            f"docker update --memory={2 * arena_mib}m CONTAINER; in Kubernetes "
            "resources.limits.memory; systemctl set-property UNIT MemoryMax=",
        )  # fmt: skip
    elif total_bytes is not None:
        yield _judge_memory(
            machine, total_bytes, f"{total_bytes >> 20} MiB, no limit of a control group below it",
            "export RDMATENSOR_ARENA_MIB=, for a smaller piece; for a plan, a machine with more "
            "memory, or more ranks",
        )  # fmt: skip
    yield from _check_shm(machine)


def _judge_memory(machine: Machine, room_bytes: int, text: str, fix: str) -> Finding:
    if room_bytes < machine.plan_bytes:
        text = f"{text}, the plan's arena takes {_exact(machine.plan_bytes)}"
        return broken("memory", text, fix)
    if room_bytes < machine.arena_bytes:
        text = f"{text}, less than one piece of the arena, {machine.arena_bytes >> 20} MiB"
        return slower("memory", text, fix)
    return ok("memory", text)


def _check_shm(machine: Machine) -> Iterator[Finding]:
    lines = (machine.text("proc/self/mountinfo") or "").splitlines()
    mounts = [line for line in lines if line.split()[4:5] == ["/dev/shm"]]
    if mounts:  # the last one covers the others
        size = re.search(r"\bsize=(\w+)", mounts[-1])
        yield ok(
            "/dev/shm",
            f"size {_mount_size(size.group(1)) if size else 'half of the memory'}; no bound of the "
            "arena, which is made of memfds (torch's DataLoader workers use it)",
        )


def check_open_files(machine: Machine) -> Iterator[Finding]:
    """Open files: a peer takes a side channel and some streams, see RDMATENSOR_TCP_STREAMS."""
    limit = machine.limit("Max open files")
    text = f"limit {'unlimited' if limit is None else limit}"
    if limit is None or limit >= OPEN_FILES_LEAST:
        yield ok("open files", text)
    else:
        yield broken("open files", f"{text}: too few for many peers", "ulimit -n 4096")


def _exact(count: int) -> str:
    return f"{size_text(count)} ({count} bytes)"


def _mount_size(text: str) -> str:
    """Return a size of a mount's options, "24684092k", with a unit that is easy to read."""
    found = re.fullmatch(r"(\d+)([kmgt]?)", text.lower())
    if found is None:
        return text
    return size_text(int(found.group(1)) << 10 * " kmgt".index(found.group(2) or " "))


def check_hypervisor(machine: Machine) -> Iterator[Finding]:
    """Whether this is a virtual machine, where a wake-up costs an exit to the host."""
    flags = re.search(r"^flags\s*:(.*)$", machine.text("proc/cpuinfo") or "", re.MULTILINE)
    cost = _wake_up(machine)
    if flags is None or "hypervisor" not in flags.group(1).split():
        yield ok("hypervisor", f"none seen; {cost}")
        return
    kind = machine.text("sys/hypervisor/type") or machine.text("sys/class/dmi/id/sys_vendor")
    yield ok(
        "hypervisor",
        f"a virtual machine ({kind or 'of an unknown kind'}), where sleeping and waking cost more; "
        f"{cost}; CPUs pinned to cores of their own (virsh vcpupin) are faster",
    )


def _wake_up(machine: Machine) -> str:
    try:
        cost_us = machine.wake_up_us()
    except (OSError, RuntimeError) as error:
        return f"a wake-up cannot be timed: {error}"
    return f"one thread wakes another across a pipe in {cost_us:.1f} us"


def check_gpus(machine: Machine) -> Iterator[Finding]:
    """GPUs: rdmatensor does not move their memory; says what would move it in place."""
    cards = [
        folder
        for name in machine.names("sys/bus/pci/devices")
        for folder in [f"sys/bus/pci/devices/{name}"]
        if (machine.text(f"{folder}/class") or "").startswith(("0x0300", "0x0302", "0x0380"))
        and machine.text(f"{folder}/vendor") in _GPU_VENDORS
    ]
    if not cards:
        return
    release = machine.text("proc/sys/kernel/osrelease") or "an unknown kernel"
    found = re.match(r"(\d+)\.(\d+)", release)
    has_dma_buf = found is not None and (int(found[1]), int(found[2])) >= _DMA_BUF
    ways = [
        f"dma-buf: Linux {release} {'can' if has_dma_buf else 'cannot, it is older than 5.12'}",
        f"nvidia_peermem: {'' if machine.has('sys/module/nvidia_peermem') else 'not '}loaded",
    ]
    yield ok(
        "gpu memory",
        f"{len(cards)} GPUs; this backend moves tensors of CPUs and never registers a GPU's "
        'memory: backend="cpu:rdmatensor,cuda:nccl" gives those to NCCL, for which '
        f"{'; '.join(ways)}",
    )


# ---- the bus of each RDMA device -----------------------------------------------------------------


def check_buses(machine: Machine) -> Iterator[Finding]:
    """PCIe, IOMMU, ACS and NUMA of each RDMA device; devices in software have none of these."""
    for name in machine.names("sys/class/infiniband"):
        folder = f"sys/class/infiniband/{name}/device"
        if machine.has(f"{folder}/current_link_width"):
            yield from _check_link(machine, name, folder)
        yield from _check_iommu(machine, name, folder)
        yield from _check_acs(machine, name, folder)
        yield from _check_numa(machine, name, folder)


def _gigabytes(transfers: float, width: int) -> float:
    """Return GB/s one way of a link: 8b/10b below 8 GT/s, 128b/130b from there on."""
    return transfers * width / 8 * (0.8 if transfers < 8 else 128 / 130)


def _lanes(machine: Machine, path: str) -> int:
    """Return a link's width; 0: unknown, for which the kernel may also give 255."""
    width = machine.number(path) or 0
    return width if 0 < width < _WIDTH_UNKNOWN else 0


def _transfers(machine: Machine, path: str) -> float:
    """Return GT/s of a link; 0: unknown ("Unknown")."""
    found = re.match(r"\d+(\.\d+)?", machine.text(path) or "")
    return float(found.group()) if found else 0.0


def _check_link(machine: Machine, name: str, folder: str) -> Iterator[Finding]:
    # A virtual function has no link of its own: its registers are empty, or a copy.
    if machine.has(f"{folder}/physfn/current_link_width"):
        folder = f"{folder}/physfn"
    width = _lanes(machine, f"{folder}/current_link_width")
    speed = _transfers(machine, f"{folder}/current_link_speed")
    if not width or not speed:
        yield ok(f"pcie {name}", "its link is not told, as by a virtual function")
        return
    widest = _lanes(machine, f"{folder}/max_link_width") or width
    fastest = _transfers(machine, f"{folder}/max_link_speed") or speed
    text = f"x{width} at {speed:g} GT/s"
    if width >= widest and speed >= fastest:
        yield ok(f"pcie {name}", f"{text}, as it can")
        return
    yield slower(
        f"pcie {name}",
        f"{text}, and could be x{widest} at {fastest:g} GT/s: at most "
        f"{_gigabytes(speed, width):.1f} GB/s each way of {_gigabytes(fastest, widest):.1f}",
        f"put the card into a slot of x{widest}, or see `lspci -vv -s "
        f"{machine.real(folder).rpartition('/')[2]}` and the firmware's settings of the slot",
    )


def _check_iommu(machine: Machine, name: str, folder: str) -> Iterator[Finding]:
    kind = machine.text(f"{folder}/iommu_group/type")
    if kind is None:
        return
    if kind == "identity":
        yield ok(f"iommu {name}", "addresses are passed through")
        return
    yield slower(
        f"iommu {name}",
        f"each address is translated (domain {kind}): registering and moving cost more",
        "boot with iommu=pt on the kernel's command line",
    )


def _acs_control(config: bytes) -> int:
    """Return the ACS control register from a PCI configuration space; 0 without one."""
    offset = 0x100
    for _ in range(48):  # bounded: a list may be circular
        if offset < 0x100 or offset + 8 > len(config):
            return 0
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + 6)[0])
        offset = header >> 20
    return 0


def _check_acs(machine: Machine, name: str, folder: str) -> Iterator[Finding]:
    if not machine.has(f"{folder}/config"):
        return
    parts = machine.real(folder).split("/")
    bridges = [
        part
        for count, part in enumerate(parts[:-1], 1)
        if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", part)
        and _acs_control(machine.data("/".join([*parts[:count], "config"]))) & _ACS_REDIRECTS
    ]
    if bridges:
        yield slower(
            f"acs {name}",
            f"bridges above it ({', '.join(bridges)}) send traffic between devices through the "
            "processor; transfers from and to host memory do not mind",
            "; ".join(f"setpci -s {bridge} ECAP_ACS+6.w=0" for bridge in bridges),
        )


def _check_numa(machine: Machine, name: str, folder: str) -> Iterator[Finding]:
    node = machine.number(f"{folder}/numa_node")
    if node is None or node < 0:
        return
    nodes = _usable(machine)
    if not nodes:
        yield ok(f"numa {name}", f"node {node}; of which node the cores are is not told")
        return
    if node in nodes:
        yield ok(f"numa {name}", f"node {node}, with cores that may be used")
        return
    # The kernel lists the nodes that are online, in their order.
    words = numbers_of(machine.text(f"{_NODES}/node{node}/distance") or "")
    distances = dict(zip(_online(machine), words, strict=False))
    nearest = min(nodes, key=lambda number: distances.get(number, math.inf))
    far = (
        f"distance {distances[nearest]}, where {_LOCAL_DISTANCE} is near"
        if nearest in distances
        else "how far is not told"
    )
    yield slower(
        f"numa {name}",
        f"node {node}, and the cores that may be used are of node {nearest}: {far}",
        f"numactl --cpunodebind={node} --membind={node} COMMAND",
    )
