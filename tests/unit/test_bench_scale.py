"""The model of all_reduce at scale: its arithmetic, its fit, and what the suite shows of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import command, options, samples, scale, tables
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import ASKED_FOR, TOPICS

MIB = 1 << 20
CORES = 2
TRUE = scale.Constants(20_000.0, 9_000.0, 30_000.0, 0.8, 0.25)


def _records(constants: scale.Constants = TRUE, **more: object) -> list[Record]:
    """What a machine would measure that the model describes exactly."""
    found = []
    for transport in ("shm", "tcp"):
        for ranks in (2, 4, 8, 12, 16):
            for size in (4096, 1 << 18, MIB):
                for algorithm in scale.ALGORITHMS:
                    has_boards = transport == "shm" and algorithm == scale.BOARDS
                    took_ns = scale.predict(
                        constants, algorithm, ranks, size, cores=CORES, has_boards=has_boards
                    )
                    said: Record = {"op": algorithm, "size": size, "ranks": ranks}
                    said |= {"name": f"{RDMATENSOR}:{algorithm}", "moved_bytes": size}
                    each = {"cpu_ns": [1], "each_ns": [1], "loop_ns": [], "row": "plain"}
                    of_ranks: list[Record] = [
                        {**said, **each, "raw_ns": [took_ns - late, took_ns]} for late in (5.0, 0.0)
                    ]
                    (merged,) = samples.merge([scale.record_of(of_ranks, transport)])
                    known = {"cores": CORES, "gamma_ns": constants.gamma_ns}
                    found.append({**merged, **known, **more})
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 16384])
def test_a_ring_moves_the_least_and_a_tree_the_fewest_messages(ranks: int) -> None:
    works = {name: scale.work_of(name, ranks, MIB)[0] for name in scale.ALGORITHMS}
    ring, tree = works["ring"], works["tree"]
    assert ring.messages == 2 * (ranks - 1)
    assert ring.moved == pytest.approx(2 * MIB * (ranks - 1) / ranks)
    assert ring.summed == pytest.approx(ring.moved / 2)
    assert min(work.moved for work in works.values()) >= ring.moved * 0.99 or ranks == 2
    assert tree.messages == 2 * (ranks - 1).bit_length()
    assert tree.moved == MIB * tree.messages


def test_halving_has_a_rings_bytes_in_few_messages() -> None:
    halving, ring = (scale.work_of(name, 1024, MIB)[0] for name in ("halving-doubling", "ring"))
    assert halving.messages == 20
    assert (halving.moved, halving.summed) == pytest.approx((ring.moved, ring.summed))


def test_ranks_beyond_a_power_of_two_join() -> None:
    for name in ("halving-doubling", "direct"):
        eight, twelve = (scale.work_of(name, ranks, MIB)[0] for ranks in (8, 12))
        assert twelve.messages == eight.messages + 2
        assert twelve.moved == eight.moved + 2 * MIB
        assert twelve.summed == eight.summed + MIB
    path, total = scale.work_of("direct", 12, MIB)
    assert path.messages == 5
    assert total.messages == 3 * 8 + 2 * 4  # players, and ranks that join


def test_a_tree_sends_each_message_of_it_once() -> None:
    assert scale.work_of("tree", 8, MIB)[1].messages == 2 * 7


def test_shared_memory_has_one_shot_and_two() -> None:
    one, _ = scale.work_of("direct", 4, 4096, has_boards=True)
    assert (one.messages, one.moved, one.summed) == (1, 4 * 4096, 3 * 4096)
    two, _ = scale.work_of("direct", 4, MIB, has_boards=True)
    assert two.summed == 3 * MIB / 4
    assert two.messages > 1


def test_no_other_algorithm() -> None:
    with pytest.raises(ValueError, match="no algorithm 'rings'"):
        scale.work_of("rings", 4, 8)


def test_ranks_that_share_cores_take_turns() -> None:
    alone = scale.predict(TRUE, "ring", 16, MIB)
    shared = scale.predict(TRUE, "ring", 16, MIB, cores=2)
    assert alone == pytest.approx(
        20_000 + 30 * 9_000 + 0.8 * 2 * MIB * 15 / 16 + 0.25 * MIB * 15 / 16
    )
    assert shared == pytest.approx(
        8 * (20_000 + 30 * 30_000 + 0.8 * 2 * MIB * 15 / 16 + 0.25 * MIB * 15 / 16)
    )
    assert scale.predict(TRUE, "ring", 16, MIB, cores=16) == pytest.approx(alone)


def test_the_constants_are_found_again() -> None:
    fits = scale.fits_of(_records())
    assert [fit.name for fit in fits] == [
        "shm, messages",
        "shm, memory of all ranks",
        "tcp, messages",
    ]
    tcp = fits[-1]
    assert max(tcp.off_by(tcp.fitted)) == pytest.approx(1.0, abs=1e-3)
    assert max(tcp.off_by(tcp.checked)) == pytest.approx(1.0, abs=1e-3)
    found = tcp.constants
    assert found.alpha_shared_ns == pytest.approx(TRUE.alpha_shared_ns, rel=1e-2)
    assert found.beta_ns == pytest.approx(TRUE.beta_ns, rel=1e-2)
    assert {one.ranks for one in tcp.checked} == {12, 16}


def test_no_constant_is_below_zero() -> None:
    """Times that fall with the size would want a negative beta."""
    measured = [
        scale.Sample("ring", ranks, size, False, 1e6 * ranks / size)
        for ranks in (2, 4, 8)
        for size in (1024, 4096, 65536)
    ]
    found = scale.fit(measured, CORES, 0.0)
    assert min(found.call_ns, found.alpha_ns, found.alpha_shared_ns, found.beta_ns) >= 0


def test_a_nic_decides_where_each_wins() -> None:
    records = _records(nic_latency_us=2.0, nic_gbit=400.0)
    found = scale.between_hosts(records, scale.fits_of(records))
    assert found is not None
    assert found[1].beta_ns == pytest.approx(0.02)
    lines = scale.winners(found[1])
    assert lines[0][-1].startswith("direct")
    assert lines[-1][-1].startswith("halving-doubling")


def test_the_tables_say_how_far_the_model_is_off() -> None:
    shown = tables.show(_records())
    (off,) = [
        line for line in shown.splitlines() if line.startswith("tcp, messages  ") and "x" in line
    ]
    assert off.split()[-6:] == ["x", "1.00", "x", "1.00", "x", "1.00"]
    assert "tcp as measured here" in shown
    assert "16384 ranks" in shown
    of_nic = tables.show(_records(nic_latency_us=2.0, nic_gbit=100.0))
    assert "a NIC of 2 us and 100 Gbit/s" in of_nic


def test_too_little_for_a_model_is_said() -> None:
    assert "too few" in tables.show(_records()[:1])


def test_the_nics_options(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scale", "--nic-latency-us", "1.5", "--nic-gbit", "200"]
    found = options.settings_of(options.parser_of(None).parse_args(words))
    assert (found.topics, found.nic) == (("scale",), (1.5, 200.0))
    assert options.settings_of(options.parser_of(None).parse_args(["scale"])).nic is None
    for wrong in (["--nic-gbit", "200"], ["--nic-gbit", "0"], ["--nic-latency-us", "nan"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(["scale", *wrong])
        assert "--nic" in capsys.readouterr().err


def test_it_runs_only_where_it_is_named() -> None:
    assert not set(ASKED_FOR) & set(TOPICS)
    assert set(TOPICS) == set(options.settings_of(options.parser_of(None).parse_args([])).topics)


def test_all_rows_are_rdmatensors() -> None:
    assert {record["peer"] for record in _records()} == {RDMATENSOR}
    assert scale.gamma_ns() > 0
