"""ci/rig/containers.sh on hosts of other releases, without building anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / "ci"
# What apt tells of its index targets: release, code name, component, site, origin.
NOBLE = """noble noble main http://a.invalid/prod vendor-noble-prod noble
noble noble main http://b.invalid/linux Docker
noble noble universe {site} Ubuntu
noble noble main {site} Ubuntu
noble-updates noble main {site} Ubuntu
noble-security noble main http://security.invalid/ubuntu Ubuntu
"""
# In place of everything that the script installs or runs: the words of each call.
TOOL = """#!/usr/bin/env bash
echo "${{0##*/}} $*" >>"{calls}"
case "${{0##*/}} $*" in
    *" image exists "*) exit 1 ;;
    "apt-get indextargets "*) cat "{targets}" ;;
    debootstrap*) mkdir -p "${{@: -2:1}}" ;;
    *" import "*) cat >/dev/null ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository on a host with Ubuntu 24.04."""
    (tmp_path / "ci/rig").mkdir(parents=True)
    shutil.copy(CI / "lib.sh", tmp_path / "ci")
    text = (CI / "rig/containers.sh").read_text()
    (tmp_path / "os-release").write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    replaced = text.replace("OS_RELEASE=/etc/os-release\n", f"OS_RELEASE={tmp_path}/os-release\n")
    assert replaced != text
    (tmp_path / "ci/rig/containers.sh").write_text(replaced)
    (tmp_path / "bin").mkdir()
    words = TOOL.format(calls=tmp_path / "calls", targets=tmp_path / "targets")
    tools = ("apt-get", "buildah", "podman", "debootstrap", "podman-compose", "crun")
    for name in tools:
        (tmp_path / "bin" / name).write_text(words)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def build(tree: Path, targets: str) -> tuple[int, str, str]:
    """Return the status, what was said, and the words debootstrap got."""
    (tree / "targets").write_text(targets)
    done = subprocess.run(
        ["bash", "ci/rig/containers.sh", "build"],
        cwd=tree,
        env=os.environ | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    calls = (tree / "calls").read_text().splitlines()
    made = [line for line in calls if line.startswith("debootstrap ")]
    return done.returncode, done.stdout, made[0] if made else ""


def test_the_base_is_of_the_hosts_release_with_its_components(tree: Path) -> None:
    status, said, made = build(tree, NOBLE.format(site="http://mirror.invalid/ubuntu"))
    assert status == 0, said
    assert "--components=main,universe noble " in made
    assert made.endswith("/base http://mirror.invalid/ubuntu")


def test_a_list_of_mirrors_is_read_for_its_first(tree: Path) -> None:
    mirrors = tree / "mirrors"
    mirrors.write_text("# nearest\nhttp://near.invalid/ubuntu/\tpriority:1\nhttp://far.invalid/\n")
    status, said, made = build(tree, NOBLE.format(site=f"mirror+file:{mirrors}"))
    assert status == 0, said
    assert made.endswith("/base http://near.invalid/ubuntu/")


def test_a_release_without_a_mirror_is_an_error(tree: Path) -> None:
    status, said, made = build(tree, "bookworm bookworm main http://mirror.invalid/debian Debian\n")
    assert status == 1
    assert "error: apt names no mirror of noble" in said
    assert made == ""
