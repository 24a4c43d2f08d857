"""The model where hosts have several ranks: its limits, its parts, and what is shown of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))


from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, load
from bench.suite import command, model
from bench.suite import tables as suite_tables
from bench.suite.model import BY_HOSTS, Paths

KIB, MIB = 1 << 10, 1 << 20
BETWEEN = model.Constants(12_000.0, 17_000.0, 38_000.0, 0.5, 0.03)
INSIDE = model.Constants(11_000.0, 6_000.0, 9_000.0, 0.3, 0.03)
BOARDS = model.Constants(7_000.0, 400.0, 13_000.0, 0.1, 0.03)
GROUND = Paths(BETWEEN, INSIDE, BOARDS)
SIZES = (8, 4 * KIB, 64 * KIB, MIB, 64 * MIB)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hosts", [2, 4, 64, 16384])
def test_hosts_of_one_rank_are_the_flat_algorithms(hosts: int, size: int) -> None:
    name, took_ns = model.best_of(BETWEEN, hosts, size)
    way = model.by_hosts(GROUND, hosts, 1, size)
    assert (way.between, way.rails) == (name, 1)
    assert way.took_ns == pytest.approx(took_ns)
    for each in model.ALGORITHMS:
        assert model.flat(GROUND, each, hosts, 1, size) == pytest.approx(
            model.predict(BETWEEN, each, hosts, size)
        )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_one_host_is_its_boards(ranks: int, size: int) -> None:
    way = model.by_hosts(GROUND, 1, ranks, size)
    assert way.took_ns == pytest.approx(
        model.predict(BOARDS, model.BOARDS, ranks, size, has_boards=True)
    )
    assert way.rails == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", model.ALGORITHMS)
def test_one_host_of_the_others_is_its_messages(name: str, size: int) -> None:
    took_ns = model.flat(GROUND, name, 1, 8, size)
    assert took_ns == pytest.approx(model.predict(INSIDE, name, 8, size))


def test_up_and_down_by_shares_are_the_two_shots_of_boards() -> None:
    """As many rails as ranks: the same bytes and sums as on one host, whatever the ticks."""
    path = model.boards_of(8, 8, MIB)
    flat, _ = model.work_of(model.BOARDS, 8, MIB, has_boards=True)
    assert (path.moved, path.summed) == pytest.approx((flat.moved, flat.summed))


def test_up_and_down_to_one_rank_that_speaks() -> None:
    """It reads all others' and sums them; then it stores the sum, which all read."""
    path = model.boards_of(4, 1, MIB)
    assert path.moved == MIB + 3 * MIB + MIB + MIB
    assert path.summed == 3 * MIB
    stage = model.SHARES_STAGE_BYTES
    ticks = [model.boards_of(4, rails, 8 * stage).messages for rails in (1, 4)]
    assert ticks == [8 + 8, 8 + 2]
    assert model.boards_of(4, 4, 8).messages == 2


def test_small_sums_have_one_rank_that_speaks() -> None:
    """As csrc/collectives/select/cost.c has it, whose limit this is."""
    header = (ROOT / "csrc/include/rdmatensor_ext.h").read_text(encoding="utf-8")
    assert f"#define RDT_COLL_PART_MAX_BYTES {model.SMALL_BYTES}\n" in header
    for size, rails in ((model.SMALL_BYTES, {1}), (64 * MIB, {8})):
        assert {model.by_hosts(GROUND, hosts, 8, size).rails for hosts in (2, 64)} == rails


def test_limits_are_those_of_the_library() -> None:
    team = (ROOT / "csrc/collectives/team/team.h").read_text(encoding="utf-8")
    assert f"RDTI_TEAM_MAX = {model.TEAM_MOST}," in team
    assert max(model.HOST_SIZES) == model.TEAM_MOST
    assert "sizeof(struct rdti_board) <= (size_t)2 << 20" in team


def test_ranks_that_speak_share_the_nic_of_their_host() -> None:
    """Bytes alone: of halving all ranks of a host cross at a time, of a tree one does."""
    only = model.Constants(0.0, 0.0, 0.0, 1.0, 0.0)
    free = model.Constants(0.0, 0.0, 0.0, 0.0, 0.0)
    paths = Paths(only, free, free)
    crossed = 2 * MIB * 7 / 8  # of halving between 8 hosts
    assert model.flat(paths, "halving-doubling", 8, 4, MIB) == 4 * crossed
    assert model.flat(paths, "tree", 8, 4, MIB) == 6 * MIB
    assert model.flat(paths, "ring", 8, 4, MIB) == pytest.approx(2 * MIB * 31 / 32)
    assert model.by_hosts(paths, 8, 4, MIB).took_ns == pytest.approx(crossed)


def test_a_ring_waits_for_the_slower_of_both_kinds() -> None:
    slow = model.Constants(0.0, 0.0, 0.0, 1.0, 0.0)
    fast = model.Constants(0.0, 0.0, 0.0, 0.1, 0.0)
    for paths in (Paths(slow, fast, fast), Paths(fast, slow, fast)):
        took_ns = model.flat(paths, "ring", 8, 4, MIB)
        assert took_ns == pytest.approx(2 * MIB * 31 / 32)


def test_other_numbers_of_ranks_are_refused() -> None:
    for hosts, per_host in ((3, 4), (4, 3), (2, 6)):
        with pytest.raises(ValueError, match="no powers of two"):
            model.flat(GROUND, "ring", hosts, per_host, MIB)


def _of_scale() -> list[Record]:
    return load(ROOT / "bench/results" / "scale.json").quietest.records


def test_what_was_not_measured_is_named() -> None:
    shown = suite_tables.show(_of_scale())
    assert "Up to 16 ranks were measured, on 2 cores" in shown
    assert "all beyond is the model" in shown


def test_the_tables_have_hosts_of_several_ranks() -> None:
    records = [{**one, "nic_latency_us": 2.0, "nic_gbit": 200.0} for one in _of_scale()]
    shown = suite_tables.show(records)
    assert "Hosts of 8 ranks with a core each" in shown
    assert BY_HOSTS in shown.partition("Hosts of 8 ranks")[2]
    four = suite_tables.show([{**one, "ranks_per_host": 4} for one in records])
    assert "Hosts of 4 ranks with a core each" in four


def test_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scale", "--ranks-per-host", "4"]
    assert command.settings_of(command._parser().parse_args(words)).ranks_per_host == 4
    for wrong in (["scale", "--ranks-per-host", "6"], ["p2p", "--ranks-per-host", "4"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(wrong)
        assert "--ranks-per-host" in capsys.readouterr().err
