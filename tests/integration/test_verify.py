"""RDMATENSOR_VERIFY with torch: same bits, and what was changed on its way is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jobs
import pytest

VERIFY = {"RDMATENSOR_VERIFY": "crc32c"}


@pytest.mark.timeout(120)
def test_training_gives_the_same_bits(path_forced: dict[str, str], tmp_path: Path) -> None:
    plain = jobs.results(
        jobs.run("roles_verify:trains", 2, tmp_path / "plain", environment=path_forced)
    )
    checked = jobs.results(
        jobs.run("roles_verify:trains", 2, tmp_path / "sums", environment={**path_forced, **VERIFY})
    )
    assert [rank["digest"] for rank in checked] == [rank["digest"] for rank in plain]
    for rank in plain:
        assert (rank["setting"], rank["verified_bytes"]) == ("off", 0)
    for rank in checked:
        assert (rank["setting"], rank["mismatches"]) == ("crc32c", 0)
        # all_gather alone brings this much from the other rank.
        assert rank["verified_bytes"] > 4 * 471_004


def test_a_message_that_changed_is_named(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.results(
        jobs.run(
            "roles_verify:a_message_changes", 2, tmp_path, environment={**path_forced, **VERIFY}
        )
    )
    text = ranks[1]["text"]
    assert "rank 0" in text
    assert "recv" in text
    assert f"over {path_forced['RDMATENSOR_TRANSPORT']}" in text
    # 4 bytes an element: byte 800000 lies in the chunk from 786432 on.
    assert "bytes 786432 to 802815 are others than were sent" in text
    assert ranks[1]["mismatches"] == 1


def test_a_corrupted_all_reduce_is_named(tmp_path: Path) -> None:
    library = tmp_path / "libcorrupting.so"
    source = Path(__file__).with_name("corrupting_recv.c")
    flags = ["-std=c17", "-O2", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["gcc", *flags, str(source), "-o", str(library), "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(library), "RDMATENSOR_TRANSPORT": "tcp"}

    unseen = jobs.results(
        jobs.run(
            "roles_verify:an_all_reduce_is_corrupted", 2, tmp_path / "off", environment=environment
        )
    )
    assert [rank["text"] for rank in unseen] == ["", ""]  # nobody knows of it
    seen = jobs.results(
        jobs.run(
            "roles_verify:an_all_reduce_is_corrupted",
            2,
            tmp_path / "on",
            environment={**environment, **VERIFY},
        )
    )
    assert "all_reduce" in seen[1]["text"]
    assert "of rank 0 over tcp: bytes" in seen[1]["text"]
    assert seen[1]["mismatches"] == 1
    assert "rank 1" in seen[0]["text"]


def test_ranks_that_differ_in_the_setting_say_so(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.results(
        jobs.run("roles_verify:settings_differ", 2, tmp_path, environment=path_forced)
    )
    for rank in ranks:
        assert "rank 0 sums its payload and rank 1 does not" in rank["text"]
