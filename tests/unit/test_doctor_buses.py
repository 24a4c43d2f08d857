"""What the doctor makes of a card's PCIe link and node, where the kernel tells little of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdmatensor.doctor import Finding, Machine, host

CARD = "sys/class/infiniband/mlx5_0/device"
NODES = "sys/devices/system/node"
FULL = {"width": "16", "speed": "16.0 GT/s PCIe"}


def link(folder: str, now: dict[str, str], most: dict[str, str]) -> dict[str, str]:
    """The files of a link."""
    return {
        f"{folder}/{which}_link_{what}": text
        for which, told in (("current", now), ("max", most))
        for what, text in told.items()
    }


def found_of(root: Path, files: dict[str, str]) -> dict[str, Finding]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return {finding.subject: finding for finding in host.check_buses(Machine(root))}


@pytest.mark.parametrize(
    ("width", "speed"),
    [("0", "Unknown"), ("255", "Unknown"), ("0", "16.0 GT/s PCIe"), ("16", "Unknown"), ("", "")],
)
def test_a_link_that_is_not_told_is_no_fault(tmp_path: Path, width: str, speed: str) -> None:
    now = {"width": width, "speed": speed}
    found = found_of(tmp_path, link(CARD, now, FULL))["pcie mlx5_0"]
    assert (found.level, "not told" in found.text) == ("ok", True), found


def test_what_a_card_could_is_not_told(tmp_path: Path) -> None:
    most = {"width": "255", "speed": "Unknown"}
    found = found_of(tmp_path, link(CARD, FULL, most))["pcie mlx5_0"]
    assert (found.level, found.text) == ("ok", "x16 at 16 GT/s, as it can")


@pytest.mark.parametrize(("width", "level"), [("16", "ok"), ("8", "slower")])
def test_the_link_of_a_virtual_function_is_its_cards(
    tmp_path: Path, width: str, level: str
) -> None:
    own = link(CARD, {"width": "0", "speed": "Unknown"}, FULL)
    card = link(f"{CARD}/physfn", {**FULL, "width": width}, FULL)
    found = found_of(tmp_path, own | card)["pcie mlx5_0"]
    assert (found.level, f"x{width} at 16 GT/s" in found.text) == (level, True), found


@pytest.mark.parametrize(
    ("node", "distance", "cpus", "level", "words"),
    [
        ("0", "10 40", "0-3", "ok", "node 0, with cores that may be used"),
        ("8", "40 10", "0-3", "slower", "are of node 0: distance 40"),  # of the second node
        ("8", "", "0-3", "slower", "are of node 0: how far is not told"),
        ("8", "40 10", "99", "ok", "of which node the cores are is not told"),
    ],
)
def test_cores_are_near_only_if_they_are_of_its_node(
    tmp_path: Path, node: str, distance: str, cpus: str, level: str, words: str
) -> None:
    files = {
        f"{CARD}/numa_node": node,
        "proc/self/status": f"Cpus_allowed_list:\t{cpus}",
        f"{NODES}/online": "0,8",
        f"{NODES}/node0/cpulist": "0-3",
        f"{NODES}/node8/cpulist": "4-7",
        f"{NODES}/node{node}/distance": distance,
    }
    found = found_of(tmp_path, files)["numa mlx5_0"]
    assert (found.level, words in found.text) == (level, True), found
    assert bool(found.fix) == (level == "slower")
