"""The doctor reads lists of devices and GID indices as the library does: nothing is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdmatensor.doctor import Finding, Machine, rdma

DEVICES, GID_INDEX = "RDMATENSOR_VERBS_DEVICES", "RDMATENSOR_VERBS_GID_INDEX"
PORTS = ("mlx5_0/ports/1", "mlx5_0/ports/2", "rxe1/ports/1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three active ports of InfiniBand, which needs no GID."""
    for port in PORTS:
        folder = tmp_path / rdma.DEVICES / port
        folder.mkdir(parents=True)
        (folder / "state").write_text("4: ACTIVE\n")
        (folder / "link_layer").write_text("InfiniBand\n")
    return tmp_path


def examined(root: Path, variable: str, value: str) -> dict[str, Finding]:
    machine = Machine(root, native={variable: value}, library=lambda: "/lib/libibverbs.so.1")
    return {finding.subject: finding for finding in rdma.check(machine)}


@pytest.mark.parametrize(
    ("variable", "value", "words", "fix"),
    [
        (DEVICES, "mlx5_0:1,mlx5_9", '"mlx5_9" is not there', "mlx5_0:1"),
        (DEVICES, "mlx5_0:3,rxe1", '"mlx5_0:3" is not there', "rxe1"),
        (DEVICES, "mlx5_0,,rxe1", '"" is not a device', "mlx5_0,rxe1"),
        (DEVICES, ",", '"" is not a device', None),
        (DEVICES, "rxe1:one,mlx5_0:0,:1,rxe1:", '"rxe1:one" is not a device, nor', None),
        (DEVICES, "rxe1:256,mlx5_0:2", '"rxe1:256" is not a device, nor', "mlx5_0:2"),
        (GID_INDEX, "mlx5_0=3,mlx5_9=1", '"mlx5_9=1" is not there', "mlx5_0=3"),
        (GID_INDEX, "3,,rxe1=0", '"" is not an index', "3,rxe1=0"),
        (GID_INDEX, "abc", '"abc" is not an index, nor', None),
        (GID_INDEX, "-1,256,rxe1=,=3,mlx5_0=x", '"=3" is not an index', None),
    ],
)
def test_what_names_nothing_is_broken(
    root: Path, variable: str, value: str, words: str, fix: str | None
) -> None:
    found = examined(root, variable, value)["devices" if variable == DEVICES else "gid index"]
    assert (found.level, words in found.text) == ("broken", True), found
    assert f"{variable}={value}: " in found.text
    assert found.fix == (f"export {variable}={fix}" if fix else f"unset {variable}")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *((DEVICES, value) for value in ("", "rxe1", "mlx5_0:2,rxe1:1", "mlx5_0,")),
        *((GID_INDEX, value) for value in ("", "255", "mlx5_0=0,rxe1=3", "3,")),
    ],
)
def test_what_the_library_takes_is_no_finding(root: Path, variable: str, value: str) -> None:
    assert not {"devices", "gid index"} & set(examined(root, variable, value))


def test_a_list_chooses_the_ports_that_are_looked_at(root: Path) -> None:
    found = examined(root, DEVICES, "mlx5_0:2,rxe1,")
    assert {name for name in found if name.startswith("port ")} == {"port mlx5_0:2", "port rxe1:1"}
