"""Tables of the documentation are those of the results that are kept."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench_made_up import merged, result_of

from bench import doc_tables
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, save
from bench.suite import samples
from bench.suite.peers import RDMATENSOR


def _messages(theirs: int) -> list[Record]:
    how = {"language": "C", "wait": "spinning", "timed": samples.HALF}
    return [
        merged(samples.p2p_fields(who, peer, "shm", size, **how), [ns * size] * 10)
        for size in (8, 64)
        for who, peer, ns in ((RDMATENSOR, RDMATENSOR, 100), ("UCX put", "ucx", theirs))
    ]


def test_the_pages_of_this_tree_are_current() -> None:
    assert doc_tables.main(["--check"]) == 0


def test_a_table_has_a_row_for_each_who_and_a_column_for_each_size() -> None:
    _, table = doc_tables.block(result_of(_messages(200)), []).split("\n\n")
    assert table.splitlines() == [
        "| p2p, shm, half a round trip | 8 B | 64 B |",
        "| --- | --- | --- |",
        "| rdmatensor, spinning | 800 ns (800-800) | 6.4 us (6.4-6.4) |",
        "| UCX put | 1.6 us, 2.00 | 12.8 us, 2.00 |",
    ]


def test_a_reason_stands_below_a_table_with_bold_cells_whose_title_has_its_words() -> None:
    reasons = doc_tables.reasons_in("# head\n- p2p; shm: because\n- tcp: other\n")
    assert reasons == [(("p2p", "shm"), "because"), (("tcp",), "other")]
    slower = doc_tables.block(result_of(_messages(90)), reasons)
    assert "| UCX put | 720 ns, **0.90** |" in slower
    assert slower.endswith("\n\nBold: because.")
    assert "because" not in doc_tables.block(result_of(_messages(96)), reasons)


def test_words_choose_the_tables_of_a_file() -> None:
    over_tcp = [{**record, "transport": "tcp"} for record in _messages(200)]
    both = result_of([*_messages(200), *over_tcp])
    assert doc_tables.block(both, []).count("half a round trip |") == 2
    chosen = doc_tables.block(both, [], ("tcp", "half a round trip"))
    assert chosen == doc_tables.block(result_of(over_tcp), [])
    with pytest.raises(ValueError, match=r"no table of .* has tcp, Python in its title"):
        doc_tables.block(both, [], ("tcp", "Python"))


def test_a_page_that_differs_is_found_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictured = [f"bench/results/{name}" for name in doc_tables.PICTURED]
    for name in (*doc_tables.PAGES, doc_tables.PICTURE, "bench/reasons.md", *pictured):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / doc_tables.PAGES[0]
    for other in doc_tables.PAGES[1:]:
        (tmp_path / other).write_text("no table\n", encoding="utf-8")
    page.write_text("a\n<!-- bench: full.json; shm -->\n<!-- bench: end -->\nb\n", encoding="utf-8")
    save(result_of(_messages(200)), tmp_path / "bench/results")
    assert doc_tables.main(["--check"], tmp_path) == 1
    assert "README.md differs" in capsys.readouterr().err
    assert doc_tables.main([], tmp_path) == 0
    assert "| UCX put | 1.6 us, 2.00 |" in page.read_text(encoding="utf-8")
    assert doc_tables.main(["--check"], tmp_path) == 0


def test_a_picture_that_differs_is_found_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictured = [f"bench/results/{name}" for name in doc_tables.PICTURED]
    for name in ("bench/reasons.md", *pictured):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / doc_tables.PICTURE).parent.mkdir(parents=True)
    for name in doc_tables.PAGES:
        (tmp_path / name).write_text("no table\n", encoding="utf-8")
    assert doc_tables.main(["--check"], tmp_path) == 1
    assert "collectives.svg differs" in capsys.readouterr().err
    assert doc_tables.main([], tmp_path) == 0
    ElementTree.parse(tmp_path / doc_tables.PICTURE)
    assert doc_tables.main(["--check"], tmp_path) == 0


def _all_reduce(peer: str, ns: dict[int, float]) -> list[Record]:
    fields: Record = {"topic": "collectives", "name": peer, "peer": peer, "op": "all_reduce"}
    fields |= {"transport": "shm", "ranks": 2, "row": "plain"}
    return [merged({**fields, "size": size}, [took] * 10) for size, took in ns.items()]


def test_a_mean_has_one_row_for_each_library_and_way() -> None:
    records = _all_reduce(RDMATENSOR, {8: 100, 64: 100}) + _all_reduce("OpenMPI", {8: 50})
    records += _all_reduce("gloo", {8: 400, 64: 90})
    found = doc_tables.means([result_of(records)], ("plain",))
    assert found.splitlines()[2:4] == [
        "| Gloo, shm, 2 ranks, plain | 4.00 (4.00 to 4.00) | **0.90** (0.90 to 0.90) |",
        "| Open MPI, shm, 2 ranks, plain | **0.50** (0.50 to 0.50) |  |",
    ]
