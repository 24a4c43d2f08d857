"""The model where hosts have several ranks: its limits, its parts, and what is shown of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))


from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, load
from bench.suite import command, model, model_hosts, scale
from bench.suite import tables as suite_tables
from bench.suite.model_hosts import BY_HOSTS, Paths

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
    way = model_hosts.by_hosts(GROUND, hosts, 1, size)
    assert (way.between, way.rails) == (name, 1)
    assert way.took_ns == pytest.approx(took_ns)
    for each in model.ALGORITHMS:
        assert model_hosts.flat(GROUND, each, hosts, 1, size) == pytest.approx(
            model.predict(BETWEEN, each, hosts, size)
        )


@pytest.mark.parametrize("cores", [None, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_one_host_is_its_boards(ranks: int, size: int, cores: int | None) -> None:
    way = model_hosts.by_hosts(GROUND, 1, ranks, size, cores)
    assert way.took_ns == pytest.approx(
        model.predict(BOARDS, model.BOARDS, ranks, size, cores=cores, has_boards=True)
    )
    assert way.rails == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", model.ALGORITHMS)
def test_one_host_of_the_others_is_its_messages(name: str, size: int) -> None:
    took_ns = model_hosts.flat(GROUND, name, 1, 8, size)
    assert took_ns == pytest.approx(model.predict(INSIDE, name, 8, size))


def test_up_and_down_by_shares_are_the_two_shots_of_boards() -> None:
    """As many rails as ranks: the same bytes and sums as on one host, whatever the ticks."""
    path, total = model_hosts.boards_of(8, 8, MIB)
    flat, of_all = model.work_of(model.BOARDS, 8, MIB, has_boards=True)
    assert (path.moved, path.summed) == pytest.approx((flat.moved, flat.summed))
    assert (total.moved, total.summed) == pytest.approx((of_all.moved, of_all.summed))


def test_up_and_down_to_one_rank_that_speaks() -> None:
    """It reads all others' and sums them; then it stores the sum, which all read."""
    path, total = model_hosts.boards_of(4, 1, MIB)
    assert path.moved == MIB + 3 * MIB + MIB + MIB
    assert path.summed == total.summed == 3 * MIB
    assert total.moved == 4 * MIB + 3 * MIB + MIB + 3 * MIB
    stage = model.SHARES_STAGE_BYTES
    ticks = [model_hosts.boards_of(4, rails, 8 * stage)[0].messages for rails in (1, 4)]
    assert ticks == [8 + 8, 8 + 2]
    assert model_hosts.boards_of(4, 4, 8)[0].messages == 2


def test_small_sums_have_one_rank_that_speaks() -> None:
    """As csrc/collectives/select/cost.c has it, whose limit this is."""
    header = (ROOT / "csrc/include/rdmatensor.h").read_text(encoding="utf-8")
    assert f"#define RDT_COLL_PART_MAX_BYTES {model_hosts.SMALL_BYTES}\n" in header
    for size, rails in ((model_hosts.SMALL_BYTES, {1}), (64 * MIB, {8})):
        assert {model_hosts.by_hosts(GROUND, hosts, 8, size).rails for hosts in (2, 64)} == rails


def test_limits_are_those_of_the_library() -> None:
    team = (ROOT / "csrc/collectives/team/team.h").read_text(encoding="utf-8")
    assert f"RDTI_TEAM_MAX = {model_hosts.TEAM_MOST}," in team
    assert max(model_hosts.HOST_SIZES) == model_hosts.TEAM_MOST
    assert "sizeof(struct rdti_board) <= (size_t)2 << 20" in team


def test_ranks_that_speak_share_the_nic_of_their_host() -> None:
    """Bytes alone: of halving all ranks of a host cross at a time, of a tree one does."""
    only = model.Constants(0.0, 0.0, 0.0, 1.0, 0.0)
    free = model.Constants(0.0, 0.0, 0.0, 0.0, 0.0)
    paths = Paths(only, free, free)
    crossed = 2 * MIB * 7 / 8  # of halving between 8 hosts
    assert model_hosts.flat(paths, "halving-doubling", 8, 4, MIB) == 4 * crossed
    assert model_hosts.flat(paths, "tree", 8, 4, MIB) == 6 * MIB
    assert model_hosts.flat(paths, "ring", 8, 4, MIB) == pytest.approx(2 * MIB * 31 / 32)
    assert model_hosts.by_hosts(paths, 8, 4, MIB).took_ns == pytest.approx(crossed)


def test_a_ring_waits_for_the_slower_of_both_kinds() -> None:
    slow = model.Constants(0.0, 0.0, 0.0, 1.0, 0.0)
    fast = model.Constants(0.0, 0.0, 0.0, 0.1, 0.0)
    for paths in (Paths(slow, fast, fast), Paths(fast, slow, fast)):
        took_ns = model_hosts.flat(paths, "ring", 8, 4, MIB)
        assert took_ns == pytest.approx(2 * MIB * 31 / 32)


def test_hosts_on_one_machine_share_its_cores() -> None:
    alone, shared = (model_hosts.by_hosts(GROUND, 2, 2, 8, cores).took_ns for cores in (None, 2))
    # A call of each rank of a core; two ticks of a board that wait for a core; then two that speak.
    assert shared == pytest.approx(2 * 12_000 + 2 * 2 * 13_000 + 17_000, rel=1e-3)
    assert alone == pytest.approx(12_000 + 2 * 400 + 17_000, rel=1e-3)


def test_other_numbers_of_ranks_are_refused() -> None:
    for hosts, per_host in ((3, 4), (4, 3), (2, 6)):
        with pytest.raises(ValueError, match="no powers of two"):
            model_hosts.flat(GROUND, "ring", hosts, per_host, MIB)


def _of_scale() -> list[Record]:
    return load(ROOT / "bench/results" / "scale.json").quietest.records


def test_it_is_told_how_many_ranks_each_constant_rests_on() -> None:
    """Of the kept samples: with two cores, only two ranks had one each."""
    fits = scale.fits_of(_of_scale())
    assert {scale.rests_on(fit)[1] for fit in fits} == {"2"}
    assert {scale.rests_on(fit)[2] for fit in fits} == {"3, 4, 6, 8"}
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
