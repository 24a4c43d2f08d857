"""The model where hosts have several ranks: its limits, its parts, and what is shown of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import MACHINE, result_of

from bench import readme
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, load
from bench.suite import command, doc_runs, model, model_hosts, samples, scale_hosts, scale_tables
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
    assert scale_hosts.BOARD_BYTES == 2 << 20


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
    return load(ROOT / readme.RESULTS / "scale.json").quietest.records


def test_it_is_told_how_many_ranks_each_constant_rests_on() -> None:
    """Of the kept samples: with two cores, only two ranks had one each."""
    fits = scale_tables.fits_of(_of_scale())
    assert {scale_tables.rests_on(fit)[1] for fit in fits} == {"2"}
    assert {scale_tables.rests_on(fit)[2] for fit in fits} == {"3, 4, 6, 8"}
    shown = suite_tables.show(_of_scale())
    assert "Up to 16 ranks were measured, on 2 cores" in shown
    assert "all is the model, and no sample holds it" in shown
    checked = [(fit, one) for fit in fits for one in fit.checked]
    slower = sum(fit.predict(one) < one.took_ns for fit, one in checked)
    assert f"Of the {len(checked)} times that were not fitted {slower} are above" in shown


def _lines(shown: str, name: str) -> Iterator[list[str]]:
    for line in shown.splitlines():
        if line.startswith(name):
            yield re.split(r"  +", line)


def test_the_tables_have_hosts_of_several_ranks() -> None:
    records = [{**one, "nic_latency_us": 2.0, "nic_gbit": 200.0} for one in _of_scale()]
    shown = suite_tables.show(records)
    assert "Hosts of 8 ranks with a core each" in shown
    assert f"by hosts, and over boards, in groups of up to {model_hosts.TEAM_MOST}" in shown
    connections, within, memory, _ = _lines(shown, BY_HOSTS)
    assert connections[2:] == ["0", "0", "3", "6", "9", "11"]
    assert within[2:] == ["1", "7", "7", "7", "7", "7"]
    assert memory[-1].endswith("MiB")
    four = suite_tables.show([{**one, "ranks_per_host": 4} for one in records])
    assert "Hosts of 4 ranks with a core each" in four


def test_without_shm_nothing_is_told_of_hosts() -> None:
    shown = scale_hosts.show([one for one in _of_scale() if one["transport"] == "tcp"])
    assert shown.startswith("Where hosts have several ranks nothing is told")
    assert scale_hosts.show(_of_scale()[:1]) == ""


def test_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scale", "--ranks-per-host", "4"]
    assert command.settings_of(command._parser().parse_args(words)).ranks_per_host == 4
    for wrong in (["scale", "--ranks-per-host", "6"], ["p2p", "--ranks-per-host", "4"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(wrong)
        assert "--ranks-per-host" in capsys.readouterr().err


def _measured(layout: str, size: int, took_ns: float) -> Record:
    fields: Record = {
        "topic": "hosts",
        "layout": layout,
        "contestant": "hierarchical",
        "op": "all_reduce",
        "size": size,
        "ranks": len(layout),
        "transport": "shm",
    }
    (merged,) = samples.merge([samples.turn(fields, [took_ns])])
    return merged


def test_what_was_measured_by_hosts_is_held_against_the_model() -> None:
    fits = scale_tables.fits_of(_of_scale())
    paths = scale_hosts.paths_of(fits, fits[-1].constants)
    assert fits[-1].transport == "tcp"
    assert paths is not None
    way = model_hosts.by_hosts(paths, 2, 2, MIB, 2)
    records = [_measured("0011", MIB, 2 * round(way.took_ns)), _measured("0001", MIB, 5.0)]
    (miss,) = scale_hosts.misses(fits, records)  # hosts that differ in ranks are not in it
    assert miss.off_by == pytest.approx(2.0, rel=1e-4)
    assert scale_hosts.told_of([miss]) == "x 2.00 in the middle, x 2.00 at worst"


def test_the_page_has_by_what_it_misses_two_hosts() -> None:
    (block,) = [one for one in readme.BLOCKS if one.name == "scale.json"]
    told = block.text(ROOT)
    found = scale_hosts.misses(
        scale_tables.fits_of(_of_scale()),
        load(ROOT / readme.RESULTS / "hosts.json").quietest.records,
    )
    assert len(found) == 9
    assert f"The model is off by {scale_hosts.told_of(found)}." in told
    assert "| ranks that each rests on |" in told


def test_hosts_of_another_machine_are_not_held_against_it() -> None:
    kept = load(ROOT / readme.RESULTS / "scale.json")
    other = result_of([_measured("0011", MIB, 1e6)], "hosts")
    assert MACHINE["processor"] != kept.machine["processor"]
    assert "by way of hosts" not in doc_runs.scale(kept, other)
    assert doc_runs.scale(kept, other) == doc_runs.scale(kept)
