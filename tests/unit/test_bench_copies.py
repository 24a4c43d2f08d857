"""The copy variant beside UCX, in `rdmatensor bench models`; nothing is moved here."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record, Result, Run
from bench.suite import copies, models, page, peers, rounds, samples, tables
from bench.suite.settings import MIB, Settings

# As ucx_perftest -f -v prints: iterations, typical, average and overall us, then rates.
CSV = "# comment\n  32,0.150,1900.0,2000.0,2097.15,2097.15,502,502\n"


def _records(of_us: dict[str, float], path: str = "shm", size: int = MIB) -> list[Record]:
    return samples.merge(
        [copies.record_of(who, path, size, [us * 1000]) for who, us in of_us.items()]
    )


def test_the_whole_run_counts_of_what_ucx_prints() -> None:
    assert copies.each_ns(CSV) == 2_000_000
    with pytest.raises(RuntimeError, match="no figures"):
        copies.each_ns("an error")


def test_rates_and_the_variant_s_over_ucx_s() -> None:
    records = _records({copies.VARIANT: 500.0, copies.UCX: 1000.0})
    records += _records({copies.OWN: 750.0, copies.TWO_COPIES: 250.0})
    records += _records({copies.VARIANT: 2000.0, copies.UCX: 1000.0}, size=MIB // 4)
    records += _records({copies.VARIANT: 1000.0, copies.UCX: 950.0}, path="tcp")
    lines = tables.show(records).splitlines()
    (line,) = [line for line in lines if line.startswith("shm 1 MiB")]
    rates = ["2.10", "GB/s", "1.40", "GB/s", "1.05", "GB/s", "-", "4.19", "GB/s"]
    assert line.split()[3:] == [*rates, "2.00", "-", "0.50"]
    assert lines[1].split("  ")[0] == copies.HEADS[0]
    assert copies.rows(_records({copies.VARIANT: 500.0}))[0][-6:] == ("-",) * 6


def test_the_page_has_its_table(tmp_path: Path) -> None:
    records = _records({copies.VARIANT: 500.0, copies.UCX: 1000.0})
    result = Result("full", "x", {"cores": 2}, [Run(records, 0.0, 1.0)])
    assert "beside UCX" in page.write(result, tmp_path).read_text(encoding="utf-8")


def test_all_have_turns_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_pair(worker: str, *words: str, environment: dict[str, str], **_: Any) -> list[Record]:
        assert worker == "copy_rate"
        assert environment == {"RDMATENSOR_TRANSPORT": "shm"}
        sizes = words[words.index("--sizes") + 1].split(",")
        ns = 4000 if "--same" in words else 6000  # one tensor, as UCX has
        return [{"size": int(size), "tensors": 4, "raw_ns": [ns, 2 * ns]} for size in sizes]

    def run_ucx(words: list[str], path: str, *more: Any) -> str:
        asked.append((words[words.index("-t") + 1], path, more[-1]))
        return CSV

    monkeypatch.setattr(copies, "run_pair", run_pair)
    monkeypatch.setattr(copies.programs, "run_ucx", run_ucx)
    settings = Settings(("models",), is_quick=True, transports=("shm",), rounds=2)
    ucx = [peer for peer in peers.PEERS if peer.name == "ucx"]
    found = copies.measure(settings, ucx, rounds.Progress("models", io.StringIO()))
    of = {(one["contestant"], one["size"]): samples.raw_of(one) for one in found}
    assert of[copies.VARIANT, MIB] == [1000, 2000, 1000, 2000]  # of one tensor
    assert of[copies.OWN, MIB] == [1500, 3000, 1500, 3000]
    assert of[copies.UCX, MIB] == of[copies.ACTIVE, MIB] == [2_000_000, 2_000_000]
    of_size = [
        ("tag_bw", "sm,self", {}),
        ("ucp_am_bw", "sm,self", {}),
        ("tag_bw", "posix,sysv,self", {"UCX_RNDV_THRESH": "inf"}),
    ]
    assert sorted(asked, key=str) == sorted(4 * of_size, key=str)  # two sizes, two rounds
    both = {peers.COPIES, "ucx"}
    assert models._has_rates(settings, both)
    assert models._has_rates(Settings(), both)
    assert not models._has_rates(Settings(is_quick=True), both)  # others want their time
    assert not models._has_rates(Settings(), {"ucx"})
