"""The doctor on made-up machines: each fault is planted in a folder of files, and has its cure."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from rdmatensor import Settings
from rdmatensor.doctor import Finding, Machine, examine_machine, gids, rdma

ROOT = Path(__file__).parents[2]
PORT = "sys/class/infiniband/mlx5_0/ports/1"
BRIDGE = "sys/devices/pci0000:00/0000:00:01.0"
NIC = f"{BRIDGE}/0000:01:00.0"


def acs_config(control: int) -> bytes:
    """A PCI configuration space: one other extended capability, and ACS after it."""
    config = bytearray(0x200)
    struct.pack_into("<I", config, 0x100, 0x140 << 20 | 1 << 16 | 0x0001)
    struct.pack_into("<IHH", config, 0x140, 1 << 16 | 0x000D, 0x1F, control)
    return bytes(config)


CPUS = "sys/devices/system/cpu"
FILES: dict[str, str] = {
    f"{PORT}/link_layer": "Ethernet\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/rate": "100 Gb/sec (4X EDR)\n",
    f"{PORT}/gids/0": "fe80:0000:0000:0000:0a00:27ff:fe00:0001\n",
    f"{PORT}/gids/1": "fe80:0000:0000:0000:0a00:27ff:fe00:0001\n",
    f"{PORT}/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    f"{PORT}/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    f"{PORT}/gids/10": "0000:0000:0000:0000:0000:0000:0000:0000\n",
    **{f"{PORT}/gid_attrs/ndevs/{index}": "eth0\n" for index in range(4)},
    **{
        f"{PORT}/gid_attrs/types/{index}": "RoCE v2\n" if index % 2 else "IB/RoCE v1\n"
        for index in range(4)
    },
    "sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
    "sys/class/infiniband_verbs/abi_version": "6\n",
    "dev/infiniband/uverbs0": "",
    "sys/class/net/eth0/mtu": "9000\n",
    f"{NIC}/current_link_width": "16\n",
    f"{NIC}/max_link_width": "16\n",
    f"{NIC}/current_link_speed": "16.0 GT/s PCIe\n",
    f"{NIC}/max_link_speed": "16.0 GT/s PCIe\n",
    f"{NIC}/numa_node": "0\n",
    f"{NIC}/iommu_group/type": "identity\n",
    f"{NIC}/config": "",
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node0/distance": "10 21\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
    "sys/devices/system/node/node1/distance": "21 10\n",
    "sys/devices/system/cpu/online": "0-7\n",
    **{f"{CPUS}/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(8)},
    "sys/fs/cgroup/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/job/memory.max": "max\n",
    "proc/meminfo": "MemTotal:       65536000 kB\nMemFree: 1 kB\n",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2\n",
    "proc/sys/kernel/osrelease": "6.1.0-13-amd64\n",
    "proc/self/status": "Name:\tpython\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-3\n",
    "proc/self/limits": "Limit              Soft Limit           Hard Limit           Units\n"
    "Max open files            4096                 1048576              files\n"
    "Max locked memory         unlimited            unlimited            bytes\n",
    "proc/self/cgroup": "0::/job\n",
    "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
    "31 24 0:27 / /dev/shm rw - tmpfs shm rw,size=65536k\n",
}


def plant(root: Path, files: dict[str, str | None]) -> None:
    """Write files below root; None takes one away."""
    for name, text in files.items():
        path = root / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A healthy machine with one RoCE port; each test spoils something."""
    plant(tmp_path, dict(FILES))
    (tmp_path / NIC / "config").write_bytes(acs_config(0))
    (tmp_path / BRIDGE / "config").write_bytes(acs_config(0))
    link = tmp_path / "sys/class/infiniband/mlx5_0/device"
    link.symlink_to(os.path.relpath(tmp_path / NIC, link.parent))
    return tmp_path


def library() -> str:
    return "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0"


def no_library() -> str:
    raise OSError("libibverbs.so.1: cannot open shared object file: No such file or directory")


def examined(root: Path, **options: object) -> dict[str, Finding]:
    """Return the findings by their subject, no two of which may share one."""
    machine = Machine(root, **{"library": library, **options})  # type: ignore[arg-type]
    found = list(examine_machine(machine))
    by_subject = {finding.subject: finding for finding in found}
    assert len(by_subject) == len(found)
    for finding in found:
        assert bool(finding.fix) == (finding.level != "ok"), finding
    return by_subject


def test_a_healthy_machine_has_nothing_to_mend(root: Path) -> None:
    found = examined(root)
    assert {finding.level for finding in found.values()} == {"ok"}, found
    assert set(found) == {
        *("libibverbs", "uverbs mlx5_0", "port mlx5_0:1", "gid mlx5_0:1", "mtu mlx5_0:1"),
        *("memlock", "fork", "pcie mlx5_0", "iommu mlx5_0", "numa mlx5_0", "cores"),
        *("numa", "cpu governor", "memory", "/dev/shm", "open files", "hypervisor"),
    }
    assert "rdma-core 44" in found["libibverbs"].text
    assert "Ethernet, ACTIVE, 100 Gb/sec" in found["port mlx5_0:1"].text
    assert found["cores"].text == "4 of 8 may be used"


def test_an_empty_machine_is_no_broken_one(tmp_path: Path) -> None:
    found = examined(tmp_path, library=no_library)
    assert {finding.level for finding in found.values()} == {"ok"}, found
    assert "no RDMA device" in found["rdma"].text


FAULTS: dict[str, tuple[dict[str, str | None], str, str, str, str]] = {
    # name: (files, subject, level, a piece of the text, a piece of the fix)
    "no device node": (
        {"dev/infiniband/uverbs0": None},
        *("uverbs mlx5_0", "broken", "is not there", "--device=/dev/infiniband"),
    ),
    "no module": (
        {"sys/class/infiniband_verbs/uverbs0/ibdev": None},
        *("uverbs mlx5_0", "broken", "ib_uverbs is not loaded", "modprobe ib_uverbs"),
    ),
    "port down": (
        {f"{PORT}/state": "1: DOWN\n"},
        *("port mlx5_0:1", "broken", "DOWN", "ip link set eth0 up"),
    ),
    "no subnet manager": (
        {f"{PORT}/state": "2: INIT\n", f"{PORT}/link_layer": "InfiniBand\n"},
        *("port mlx5_0:1", "broken", "INIT", "opensm"),
    ),
    "port down with another up": (
        {
            "sys/class/infiniband/mlx5_0/ports/2/state": "1: DOWN\n",
            "sys/class/infiniband/mlx5_0/ports/2/link_layer": "InfiniBand\n",
        },
        *("port mlx5_0:2", "slower", "DOWN", "ibportstate"),
    ),
    "empty GID table": (
        {f"{PORT}/gids/{index}": "::\n" for index in range(4)},
        *("gid mlx5_0:1", "broken", "table is empty", "ip addr add"),
    ),
    "RoCE v1 only": (
        {f"{PORT}/gids/{index}": "::\n" for index in (1, 3)},
        *("gid mlx5_0:1", "slower", "RoCE v1 is not routed", "RoCE v2"),
    ),
    "link-local only": (
        {f"{PORT}/gids/{index}": "::\n" for index in (2, 3)},
        *("gid mlx5_0:1", "slower", "link-local address is not routed", "dev eth0"),
    ),
    "MTU 1500": (
        {"sys/class/net/eth0/mtu": "1500\n"},
        *("mtu mlx5_0:1", "slower", "1024 bytes", "ip link set eth0 mtu 9000"),
    ),
    "memlock 64 KiB": (
        {"proc/self/limits": "Max locked memory         65536       65536       bytes\n"},
        *("memlock", "broken", "64 KiB may be locked", "ulimit -l unlimited"),
    ),
    "memlock below the arena": (
        {"proc/self/limits": "Max locked memory         8388608     8388608     bytes\n"},
        *("memlock", "slower", "need 68", "IPC_LOCK"),
    ),
    "few open files": (
        {"proc/self/limits": "Max open files            256         256         files\n"},
        *("open files", "broken", "limit 256", "ulimit -n"),
    ),
    "old kernel": (
        {"proc/sys/kernel/osrelease": "5.4.0-42-generic\n"},
        *("fork", "slower", "older than 5.12", "spawn"),
    ),
    "PCIe x4 of x16": (
        {f"{NIC}/current_link_width": "4\n"},
        *("pcie mlx5_0", "slower", "7.9 GB/s each way of 31.5", "lspci -vv -s 0000:01:00.0"),
    ),
    "PCIe slow": (
        {f"{NIC}/current_link_speed": "2.5 GT/s PCIe\n"},
        *("pcie mlx5_0", "slower", "4.0 GB/s each way of 31.5", "slot"),
    ),
    "IOMMU translates": (
        {f"{NIC}/iommu_group/type": "DMA-FQ\n"},
        *("iommu mlx5_0", "slower", "DMA-FQ", "iommu=pt"),
    ),
    "far node": (
        {f"{NIC}/numa_node": "1\n"},
        *("numa mlx5_0", "slower", "distance 21", "numactl --cpunodebind=1"),
    ),
    "governor powersave": (
        {
            f"{CPUS}/cpu2/cpufreq/scaling_governor": "powersave\n",
            f"{CPUS}/cpu0/cpufreq/scaling_cur_freq": "800000\n",
            f"{CPUS}/cpu0/cpufreq/cpuinfo_max_freq": "3500000\n",
        },
        *("cpu governor", "slower", "at 800 of 3500 MHz", "cpupower frequency-set -g performance"),
    ),
    "half a core": (
        {
            "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nnr_throttled 12\nthrottled_usec 3400000\n",
        },
        *("cpu quota", "slower", "12 times so far, 3.4 s in all", "--cpus=4"),
    ),
    "a quota of the group above": (
        {"sys/fs/cgroup/cpu.max": "150000 100000\n"},
        *("cpu quota", "slower", "1.5 cores' time", "CPUQuota=400%"),
    ),
    "half a core by version 1": (
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": "30 24 0:26 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw "
            "- cgroup cgroup rw,cpu,cpuacct\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        *("cpu quota", "slower", "0.5 cores' time", "--cpus=4"),
    ),
    "little memory": (
        {"sys/fs/cgroup/job/memory.max": f"{32 << 20}\n"},
        *("memory", "slower", "limit is 32 MiB, less than one piece", "docker update --memory"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_with_its_cure(root: Path, name: str) -> None:
    files, subject, level, text, fix = FAULTS[name]
    before = examined(root)
    plant(root, files)
    found = examined(root)[subject]
    assert found != before.get(subject)
    assert (found.level, text in found.text, fix in found.fix) == (level, True, True), found


@pytest.mark.parametrize(
    ("release", "modules", "words"),
    [
        ("6.1.0-13-amd64", (), "Linux 6.1.0-13-amd64 can; nvidia_peermem: not loaded"),
        ("5.4.0-42", ("nvidia_peermem",), "cannot, it is older than 5.12; nvidia_peermem: loaded"),
    ],
)
def test_the_memory_of_gpus_is_not_ours_to_move(
    root: Path, release: str, modules: tuple[str, ...], words: str
) -> None:
    bus = "sys/bus/pci/devices"
    plant(root, {f"{bus}/1/class": "0x030200", f"{bus}/1/vendor": "0x10de"})
    plant(root, {f"{bus}/2/class": "0x020000", f"{bus}/2/vendor": "0x15b3"})
    plant(root, {f"sys/module/{name}/refcnt": "0" for name in modules})
    plant(root, {"proc/sys/kernel/osrelease": release})
    found = examined(root)["gpu memory"]
    assert (found.level, found.text[:7], words in found.text) == ("ok", "1 GPUs;", True), found


def test_no_library(root: Path) -> None:
    found = examined(root, library=no_library)["libibverbs"]
    assert found.level == "broken"
    assert "cannot open shared object file" in found.text
    assert "apt-get install libibverbs1" in found.fix


def test_no_permission(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A test may run as root, whom no mode of a file stops.
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("uverbs0"))
    found = examined(root)["uverbs mlx5_0"]
    assert found.level == "broken"
    assert found.fix == "chmod a+rw /dev/infiniband/uverbs0"


def test_bridges_that_redirect(root: Path) -> None:
    (root / BRIDGE / "config").write_bytes(acs_config(0x1D))
    found = examined(root)["acs mlx5_0"]
    assert found.level == "slower"
    assert found.fix == "setpci -s 0000:00:01.0 ECAP_ACS+6.w=0"
    for damaged in (b"", acs_config(0x1D)[:0x142], b"\xff" * 0x200):
        (root / BRIDGE / "config").write_bytes(damaged)
        assert "acs mlx5_0" not in examined(root)


@pytest.mark.parametrize(
    ("value", "level", "text"),
    [
        ("3", "ok", "3: RoCE v2"),
        ("1", "slower", "better is 3: RoCE v2, IPv4 10.0.0.1 of eth0"),
        ("other=3,mlx5_0=2", "slower", "takes 2: IB/RoCE v1"),
        ("10", "broken", "asks for 10, which is empty"),
        ("99", "broken", "asks for 99, which is empty"),
    ],
)
def test_the_gid_that_is_set(root: Path, value: str, level: str, text: str) -> None:
    native = {"RDMATENSOR_VERBS_GID_INDEX": value}
    found = examined(root, native=native)["gid mlx5_0:1"]
    assert (found.level, text in found.text) == (level, True), found
    assert level == "ok" or "RDMATENSOR_VERBS_GID_INDEX" in found.fix


def test_gids_are_ranked_and_holes_passed_over(root: Path) -> None:
    # A hole cannot be read at all, as in sysfs.
    (root / PORT / "gids/0").unlink()
    (root / PORT / "gids/0").mkdir()
    table = gids.table(Machine(root), PORT)
    assert [gid.index for gid in table] == [3, 1, 2]
    text = examined(root)["gid mlx5_0:1"].text
    assert text.startswith("3: RoCE v2, IPv4 10.0.0.1 of eth0; then 1: RoCE v2, link-local")


def test_scores_are_those_of_the_library() -> None:
    code = (ROOT / "csrc/transport/verbs/device/gid.c").read_text()
    scores = dict(re.findall(r"(SCORE_(?!SAME)\w+) = (\d+)", code))
    assert len(scores) == 5
    assert {name: getattr(gids, name) for name in scores} == {
        name: int(value) for name, value in scores.items()
    }
    nic = (ROOT / "csrc/transport/verbs/device/nic.c").read_text()
    least = re.search(r"LEAST_MEMLOCK_BYTES \(UINT64_C\((\d+)\) << (\d+)\)", nic)
    assert least is not None
    assert int(least[1]) << int(least[2]) == rdma.MEMLOCK_LEAST_BYTES


def test_devices_that_are_set(root: Path) -> None:
    found = examined(root, native={"RDMATENSOR_VERBS_DEVICES": "mlx5_0:1,mlx5_9"})
    assert found["devices"].level == "broken"
    assert "mlx5_9" in found["devices"].text
    assert "devices" not in examined(root, native={"RDMATENSOR_VERBS_DEVICES": "mlx5_0"})


def test_an_mtu_that_is_set_too_low(root: Path) -> None:
    found = examined(root, native={"RDMATENSOR_VERBS_MTU": "1024"})["mtu mlx5_0:1"]
    assert (found.level, found.fix) == ("slower", "unset RDMATENSOR_VERBS_MTU")


def test_locked_memory_counts_for_each_port_and_not_for_the_privileged(root: Path) -> None:
    limits = "Max locked memory         104857600   104857600   bytes\n"
    plant(root, {"proc/self/limits": limits})
    assert examined(root)["memlock"].level == "ok"
    assert examined(root, settings=Settings(arena_mib=128))["memlock"].level == "slower"
    second = PORT.replace("ports/1", "ports/2")
    plant(root, {f"{second}/state": "4: ACTIVE\n", f"{second}/link_layer": "InfiniBand\n"})
    assert examined(root)["memlock"].level == "slower"
    plant(root, {"proc/self/status": f"CapEff:\t{1 << 14:016x}\nCpus_allowed_list:\t0\n"})
    assert examined(root)["memlock"].level == "ok"


def test_the_mount_that_covers_the_others_counts(root: Path) -> None:
    mounts = FILES["proc/self/mountinfo"] + "32 31 0:28 / /dev/shm rw - tmpfs shm rw,size=2g\n"
    plant(root, {"proc/self/mountinfo": mounts})
    assert examined(root)["/dev/shm"].text.startswith("size 2 GiB;")


@pytest.mark.parametrize(
    ("netdev", "mtu"), [(1500, 1024), (4191, 2048), (4192, 4096), (9000, 4096), (100, 0)]
)
def test_the_mtu_of_roce(netdev: int, mtu: int) -> None:
    assert rdma.roce_mtu(netdev) == mtu


def test_files_that_make_no_sense_break_no_check(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            path.write_text("\0 no: sense -\nCapEff: x\nCpus_allowed_list: a-b\n")
    found = examined(root)
    assert not [finding for finding in found.values() if "Error" in finding.text], found


def test_a_check_that_dies_is_a_finding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> list[int]:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("rdmatensor.doctor.rdma.find_ports", die)
    found = examined(root)
    assert found["check"].text == "ZeroDivisionError: by nothing"
    assert found["cores"].level == "ok"
