"""How the rig gets its device: the order of the means, the proof of KVM, a host's own devices."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

RIG = Path(__file__).resolve().parents[2] / "ci" / "rig"
sys.path.insert(0, str(RIG))
import host_device  # noqa: E402
import options  # noqa: E402
import rig  # noqa: E402

IPV4_GID = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
LOCAL_GID = "fe80:0000:0000:0000:0011:22ff:fe33:4455"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class Host:
    """What a machine has to offer, and which of it was tried."""

    def __init__(self) -> None:
        self.devices: list[str] = []
        self.is_root = True
        self.rxe_problem = "no such module"
        self.kvm_problem = "no access to /dev/kvm"
        self.tried: list[str] = []

    def load_rxe(self) -> str:
        self.tried.append("rxe")
        return self.rxe_problem

    def prove_kvm(self, series: str) -> str:
        self.tried.append(f"kvm {series}")
        return self.kvm_problem


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    machine = Host()
    monkeypatch.setattr(host_device, "active_devices", lambda: machine.devices)
    monkeypatch.setattr(host_device, "load_rxe", machine.load_rxe)
    monkeypatch.setattr(rig, "kvm_problem", machine.prove_kvm)
    monkeypatch.setattr(rig.os, "geteuid", lambda: 0 if machine.is_root else 1000)
    return machine


def means(*words: str) -> str:
    return rig.choose_means(options.parse([*words, "--", "true"]))


def test_a_hosts_own_device_comes_first(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.devices, host.rxe_problem, host.kvm_problem = ["mlx5_0"], "", ""
    assert means() == "device"
    assert host.tried == []
    assert "mlx5_0" in capsys.readouterr().err


def test_too_few_devices_are_none(host: Host) -> None:
    host.devices, host.rxe_problem = ["mlx5_0"], ""
    assert means("--links", "2") == "rxe"
    host.devices = ["mlx5_0", "mlx5_1"]
    assert means("--links", "2") == "device"


def test_rxe_on_the_host_comes_second(host: Host) -> None:
    host.rxe_problem, host.kvm_problem = "", ""
    assert means() == "rxe"
    assert host.tried == ["rxe"]


def test_rxe_is_roots(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.is_root, host.rxe_problem = False, ""
    assert means() == "tcg"
    assert "not root" in capsys.readouterr().err
    assert host.tried == ["kvm 6.12"]


def test_kvm_comes_third_and_emulation_last(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.kvm_problem = ""
    assert means("--kernel", "6.1") == "kvm"
    host.kvm_problem = "it hangs"
    assert means() == "tcg"
    said = capsys.readouterr().err
    assert "no rdma_rxe on this host: no such module" in said
    assert "KVM is not there: it hangs" in said
    assert host.tried == ["rxe", "kvm 6.1", "rxe", "kvm 6.12"]


def test_two_hosts_want_machines_of_their_own(host: Host) -> None:
    host.devices, host.rxe_problem, host.kvm_problem = ["mlx5_0"], "", ""
    assert means("--hosts", "2") == "kvm"
    assert host.tried == ["kvm 6.12"]


def test_what_is_forced_is_not_proved(host: Host) -> None:
    assert [means("--means", name) for name in ("device", "rxe", "kvm", "tcg")] == [
        "device",
        "rxe",
        "kvm",
        "tcg",
    ]
    assert host.tried == []


# A machine that boots as far as its first process, says so, and ends; or hangs.
QEMU = """#!/bin/sh
echo boot >>{folder}/boots
for word in "$@"; do
    case "$word" in file,id=console,path=*) console="${{word#*path=}}" ;; esac
done
{does}
"""


@pytest.fixture
def kvm_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with KVM's node, a kernel that is there, and a cache of its own."""
    monkeypatch.setattr(rig, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(rig, "KVM_PROOF_S", 1.0)
    monkeypatch.setattr(rig, "prepare_kernel", lambda _series: None)
    monkeypatch.setattr(rig.os, "access", lambda _path, _mode: True)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "cache").mkdir()
    return tmp_path


def boots(folder: Path, does: str) -> None:
    stand_in = folder / "qemu-system-x86_64"
    stand_in.write_text(QEMU.format(folder=folder, does=does))
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)


def test_a_boot_proves_kvm_once(kvm_host: Path) -> None:
    boots(kvm_host, 'echo "rig: init: proven" >"$console"')
    assert rig.kvm_problem("6.12") == ""
    assert rig.kvm_problem("6.12") == ""
    assert (kvm_host / "boots").read_text() == "boot\n"


def test_another_boot_of_the_host_is_another_proof(kvm_host: Path) -> None:
    (kvm_host / "cache/kvm-of-last-week").write_text("it hung")
    boots(kvm_host, 'echo "rig: init: proven" >"$console"')
    assert rig.kvm_problem("6.12") == ""
    assert not (kvm_host / "cache/kvm-of-last-week").exists()


def test_a_kvm_that_hangs_is_ended_and_told(kvm_host: Path) -> None:
    boots(kvm_host, "exec sleep 300")
    assert "hangs for 1 s" in rig.kvm_problem("6.12")
    assert "hangs for 1 s" in rig.kvm_problem("6.12")
    assert (kvm_host / "boots").read_text() == "boot\n"
    assert list((kvm_host / "cache").glob("run-*")) == []


def test_a_kvm_that_ends_without_a_boot_says_why(kvm_host: Path) -> None:
    boots(kvm_host, 'echo "no permission" >&2; exit 1')
    assert rig.kvm_problem("6.12") == "no permission"


def test_no_boot_where_kvms_node_is_out_of_reach(
    kvm_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.os, "access", lambda _path, _mode: False)
    boots(kvm_host, "exit 0")
    assert rig.kvm_problem("6.12") == "no access to /dev/kvm"
    assert not (kvm_host / "boots").exists()


def add_device(root: Path, name: str, state: str, gids: dict[str, tuple[str, str]]) -> None:
    """A device as the kernel shows it: state, and GIDs by index with their type."""
    port = root / name / "ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs/types").mkdir(parents=True)
    (port / "gid_attrs/ndevs").mkdir()
    (port / "state").write_text(f"{state}\n")
    for index, (gid, kind) in gids.items():
        (port / "gids" / index).write_text(f"{gid}\n")
        if kind:
            (port / "gid_attrs/types" / index).write_text(f"{kind}\n")
            (port / "gid_attrs/ndevs" / index).write_text("lo\n")


def test_devices_are_active_ones_and_described_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gids = {
        "0": (LOCAL_GID, "RoCE v2"),
        "1": (NO_GID, ""),  # an unused row has no type that can be read
        "2": (IPV4_GID, "IB/RoCE v1"),
        "10": (IPV4_GID, "RoCE v2"),
        "9": (IPV4_GID, "RoCE v2"),
    }
    add_device(tmp_path, "rxe1", "4: ACTIVE", gids)
    add_device(tmp_path, "rxe0", "1: DOWN", gids)
    add_device(tmp_path, "hfi0", "4: ACTIVE", {"0": (LOCAL_GID, "")})
    monkeypatch.setattr(host_device, "_DEVICES", tmp_path)
    assert host_device.active_devices() == ["hfi0", "rxe1"]
    found = host_device.device_settings(["rxe1", "hfi0"])
    assert found["RIG_DEVICES"] == "rxe1 hfi0"
    assert found["RIG_DEVICE"] == "rxe1"
    assert found["RIG_ADDRS"] == found["RIG_PEER_ADDRS"] == "127.0.0.1 127.0.0.1"
    assert found["RIG_IFNAMES"] == ""  # nobody pulls a host's own cable
    assert found["RIG_GID_INDEX"] == "9"
    assert host_device.device_settings(["hfi0"])["RIG_GID_INDEX"] == "0"
