"""`rdmatensor bench`: its door, options, peers, records, tables and page; nothing is measured."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from rdmatensor import cli

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record, Result, Run, load, write
from bench.suite import collectives, command, options, peers, plots, rounds, samples, setup, tables
from bench.suite.settings import ASKED_FOR, TOPICS, Settings

ABSENT = peers.Peer("absent", "nobody", ("p2p",), lambda _: "it is not here", "get it")
PRESENT = peers.Peer("present", "somebody", ("p2p", "setup"), lambda _: "")


def _p2p(name: str, peer: str, size: int, ns: float, timed: str = "half") -> Record:
    fields: Record = {
        "topic": "p2p",
        "name": name,
        "peer": peer,
        "transport": "shm",
        "size": size,
        "language": "C",
        "wait": "spinning",
        "timed": timed,
    }
    turns = [samples.turn(fields, [ns * turn, ns * turn * 1.5, ns * turn]) for turn in (1, 2, 1)]
    (merged,) = samples.merge(turns)
    return merged


def _collective(name: str, peer: str, operation: str, ns: float) -> Record:
    size = 0 if operation == "barrier" else 1 << 20
    fields: Record = {
        "topic": "collectives",
        "name": name,
        "peer": peer,
        "transport": "shm",
        "op": operation,
        "size": size,
        "moved_bytes": size,
        "ranks": 4,
        "language": "torch",
        "timed": "mean",
    }
    (merged,) = samples.merge([samples.turn(fields, [ns])])
    return collectives.with_bandwidth(merged)


def _set_up(name: str, ranks: int, ns: float) -> Record:
    fields: Record = {
        "topic": "setup",
        "name": name,
        "peer": name,
        "transport": "tcp",
        "op": "all_to_all",
        "size": 0,
        "ranks": ranks,
        "language": "torch",
        "timed": "until the first all_to_all",
    }
    (merged,) = samples.merge([samples.turn(fields, [ns])])
    return merged


def _records() -> list[Record]:
    return [
        *(_p2p("rdmatensor", "rdmatensor", size, 100.0 * size) for size in (8, 4096, 1 << 20)),
        *(_p2p("copy: slow", "floor", size, 90.0 * size) for size in (8, 4096, 1 << 20)),
        *(_p2p("copy: fast", "floor", size, 50.0 * size) for size in (8, 4096, 1 << 20)),
        *(_p2p("gRPC <b>", "grpc-cpp", size, 400.0 * size) for size in (8, 4096, 1 << 20)),
        *(
            _collective(who, who, operation, ns)
            for who, ns in (("rdmatensor", 1e6), ("gloo", 2e6))
            for operation in collectives.OPERATIONS
        ),
        *(_set_up(who, n, 1e6 * n) for who in ("rdmatensor", "gloo") for n in (2, 4, 8)),
        {"topic": "p2p", "peer": "nixl", "missing": "no <module>", "get": "pip install it"},
    ]


def _result() -> Result:
    machine: Record = {"processor": "made up", "cores": 2, "versions": {"torch": "2"}}
    return Result("quick", "rdmatensor bench --quick", machine, [Run(_records(), 0.25, 3.0)])


def test_without_a_checkout_one_line_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "site-packages" / "rdmatensor" / "cli.py"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "--quick"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert "checkout" in shown.err


def test_each_option_has_a_sentence_and_says_its_default() -> None:
    for name, (metavar, what, *_) in options.OPTIONS.items():
        assert metavar == metavar.upper()
        assert what[0].isupper(), name
        assert what.endswith("."), name
        assert "(default: " in what or name == "nic_latency_us", name  # goes with the rate
    assert (
        "options of p2p, collectives, scale, busy, hosts, lossy, ps:"
        in options.parser_of(None).format_help()
    )


def test_the_help_needs_neither_torch_nor_matplotlib() -> None:
    program = (
        "import sys\nfrom rdmatensor.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'matplotlib', 'grpc'} & set(sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    for words in (["--help"], ["bench", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=root / "tests",
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert done.returncode == 0, done.stderr
        assert "bench" in done.stdout


def test_options_reach_the_settings() -> None:
    words = ["p2p", "--quick", "--peers", "floor,grpc-cpp", "--transport", "tcp", "--sizes", "8,64"]
    found = options.settings_of(options.parser_of(None).parse_args(words))
    assert found == Settings(("p2p",), True, ["floor", "grpc-cpp"], ("tcp",), None, (8, 64))
    assert found.sizes_of("p2p") == (8, 64)
    with_units = options.parser_of(None).parse_args(["p2p", "--sizes", "8,3k,4K,1MiB,1g"])
    assert with_units.sizes == (8, 3072, 4096, 1 << 20, 1 << 30)
    everything = options.settings_of(options.parser_of(None).parse_args([]))
    assert everything.topics == TOPICS
    assert everything.peers is None
    assert sum(Settings(is_quick=True).seconds_of(topic) for topic in TOPICS) < 100


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nothing"], "invalid choice"),
        (["models", "--models", "vgg17"], "'vgg17' is no model"),
        (["p2p", "--models", "vgg16"], "--models is of models, not of p2p"),
        (
            ["setup", "--sizes", "8"],
            "--sizes is of p2p, collectives, scale, busy, hosts, lossy, ps, not of setup",
        ),
        (["models", "--sizes", "8"], "not of models"),
        (
            ["p2p", "--ranks", "4"],
            "--ranks is of collectives, setup, models, busy, lossy, ps, not of p2p",
        ),
        (["scale", "--ranks", "4"], "not of scale"),
        (["--nic-gbit", "100", "--nic-latency-us", "2"], "--nic-gbit is of scale"),
        (["--peers", "grcp"], "'grcp' is not a peer"),
        (["collectives", "--rows", "warm"], "'warm' is no row; they are plain, same, fresh, arena"),
        (["setup", "--rows", "same"], "--rows is of collectives, not of setup"),
        (["--ranks", "1"], "1 is not from 2 to 128"),
        (["--ranks", "x"], "not a number"),
        (["--sizes", "8,0"], "'0' is not a number of bytes from 1 to 1 GiB, as 512, 4K or 1M"),
        (["--sizes", "2G"], "'2G' is not a number of bytes"),
        (["--sizes", "4T"], "'4T' is not a number of bytes"),
        (["--sizes", "8,99999999"], "is more than"),
        (["--out", "/nowhere/at/all.json"], "/nowhere/at does not exist"),
    ],
)
def test_a_wrong_option_is_misuse(
    capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(words)
    assert reason in capsys.readouterr().err


def test_a_missing_peer_is_named_and_not_dropped() -> None:
    present, missing = peers.choose("p2p", None, (PRESENT, ABSENT))
    assert present == [PRESENT]
    assert missing == [peers.Missing(ABSENT, "it is not here")]
    assert peers.choose("setup", None, (PRESENT, ABSENT)) == ([PRESENT], [])
    assert peers.choose("p2p", ["present"], (PRESENT, ABSENT)) == ([PRESENT], [])
    assert peers.choose("p2p", [], (PRESENT, ABSENT)) == ([], [])


def test_the_table_of_peers_says_how_to_get_each() -> None:
    assert len(set(peers.names())) == len(peers.PEERS)
    for peer in peers.PEERS:
        assert set(peer.topics) <= {*TOPICS, *ASKED_FOR}
        assert peer.what
        without = ("floor", "copies", "nccl")
        assert bool(peer.how_to_get) == (peer.name not in without)
        for topic in peer.topics:
            assert bool(peer.why_missing(topic)) or peer.name != "nccl"
            assert isinstance(peer.why_missing(topic), str)


def test_turns_are_kept_apart_and_their_tails() -> None:
    fields: Record = {"topic": "p2p", "name": "x", "size": 8}
    known: Record = {"p99": 700, "p999": 900, "p10": 0, "p90": 500, "samples": 5000}
    turns = [
        samples.turn(fields, [3, 1, 2], known),
        samples.turn(fields, [30, 10]),
        samples.turn({**fields, "size": 64}, [7]),
    ]
    eight, other = samples.merge(turns)
    assert samples.turns_of(eight) == [[3, 1, 2], [30, 10]]
    assert eight["samples"] == 5002
    assert eight["median_ns"] == 3
    assert (eight["p10"], eight["p90"]) == (1, 30)  # of what the median is of
    assert "p99" not in eight  # the second turn has two samples
    assert samples.raw_of(other) == [7]


def test_who_fails_is_named_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def fail() -> list[Record]:
        calls.append("b")
        raise RuntimeError("no figures")

    turns = [("a", lambda: [_set_up("gloo", 2, 1e6)]), ("b", fail)]
    quiet = rounds.Progress("setup", io.StringIO())
    found, failed = rounds.take(turns, 3, 1e9, quiet)
    assert len(found) == 3
    assert calls == ["b"]
    monkeypatch.setitem(command._MEASURES, "setup", lambda *_: found[:1] + failed)
    assert command.main(["setup", "--peers", "none", "--out", str(tmp_path / "x.json")]) == 1
    assert "missing in setup: b (failed: no figures)" in capsys.readouterr().out
    assert (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 1.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(operation: str, factor: float) -> None:
    record = _collective("gloo", "gloo", operation, 1e6)
    assert record["algbw_gb_per_s"] == pytest.approx((1 << 20) / 1e6)
    assert record["busbw_gb_per_s"] == pytest.approx(factor * (1 << 20) / 1e6)
    assert "algbw_gb_per_s" not in _collective("gloo", "gloo", "barrier", 1e6)


def test_what_the_ranks_say_comes_together_by_its_key() -> None:
    said: list[Record] = [
        {"name": "gloo", "op": "barrier", "size": size, "ranks": 2, "rank": rank}
        for rank in (0, 1)
        for size in (8, 64)
    ]
    found = collectives.by_key(said)
    assert [len(several) for several in found.values()] == [2, 2]


def test_the_power_by_which_set_up_grows() -> None:
    curve = [_set_up("gloo", ranks, 5000.0 * ranks**1.7) for ranks in (2, 4, 8, 16)]
    assert setup.power(curve) == pytest.approx((5000, 1.7), rel=0.01)
    assert setup.power(curve[:2]) is None
    assert setup.ladder(2) == [2]
    assert setup.ladder(8) == [2, 4, 8]
    assert setup.ladder(12) == [2, 4, 8, 12]
    assert setup.ladder(128)[-2:] == [64, 128]


def test_the_line_by_which_a_ranks_memory_grows() -> None:
    """A base and a part for each other rank; records without memory are not counted."""
    curve: list[Record] = [
        {**_set_up("gloo", ranks, 1e6), "rank_bytes": 2048 * 1024 + 96 * 1024 * (ranks - 1)}
        for ranks in (2, 4, 8, 128)
    ]
    assert setup.memory(curve) == pytest.approx((2048 * 1024, 96 * 1024))
    assert setup.memory(curve[:2]) is None
    shown = tables.table_of("setup", curve)
    assert "; memory of a rank 2048 KiB and 96 KiB for each other" in shown
    assert shown.splitlines()[2].endswith("2144 KiB")


def test_a_file_holds_all_that_was_measured(tmp_path: Path) -> None:
    write(_result(), tmp_path / "kept.json")
    assert load(tmp_path / "kept.json") == _result()


def test_the_tables_show_the_best_floor_the_ratio_and_who_is_missing() -> None:
    shown = tables.show(_records())
    assert "copy: fast" in shown
    assert "copy: slow" not in shown
    assert "missing in p2p: nixl (no <module>); to get it: pip install it" in shown
    (grpc,) = [line for line in shown.splitlines() if "shm, 1 MiB" in line and "gRPC" in line]
    assert grpc.endswith("4.00")
    (gloo,) = [line for line in shown.splitlines() if "barrier, " in line and "gloo" in line]
    assert gloo.endswith("2.00")
    assert "grows as ranks^1.00" in shown


def test_a_figure_of_another_timing_is_no_ratio() -> None:
    shown = tables.table_of(
        "p2p",
        [
            _p2p("rdmatensor", "rdmatensor", 8, 100.0, timed="half"),
            _p2p("UCX put", "ucx", 8, 10.0, timed="whole"),
        ],
    )
    assert shown.splitlines()[-1].endswith("-")


def test_a_stored_result_becomes_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(_result(), tmp_path / "kept.json")
    assert command.main(["report", str(tmp_path / "kept.json"), str(tmp_path / "page")]) == 0
    words = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "no &lt;module&gt;" in words
    assert "<module>" not in words
    assert "rdmatensor bench --quick" in words
    pictures = sorted(path.name for path in (tmp_path / "page").glob("*.png"))
    assert pictures == [
        "p2p_shm.png",
        "setup.png",
    ]
    for name in pictures:
        assert f'src="{name}"' in words
        assert (tmp_path / "page" / name).read_bytes().startswith(b"\x89PNG")
    assert command.main(["report", str(tmp_path / "absent"), str(tmp_path / "page")]) == 2


def test_a_topic_without_pictures_still_has_its_table(tmp_path: Path) -> None:
    records = [_p2p("rdmatensor", "rdmatensor", 8, 100.0), _set_up("gloo", 2, 1e6)]
    result = Result("quick", "x", {"cores": 2}, [Run(records, 0.0, 1.0)])
    words = plots.write(result, tmp_path).read_text(encoding="utf-8")
    assert "<img" not in words
    assert words.count("<pre>") == 2


def test_a_failure_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[Record]:
        raise RuntimeError("a rank failed")

    monkeypatch.setitem(command._MEASURES, "setup", fail)
    assert command.main(["setup", "--peers", "none"]) == 1
    assert capsys.readouterr().err == "rdmatensor bench: a rank failed\n"


def test_what_was_measured_is_shown_and_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(command._MEASURES, "setup", lambda *_: [_set_up("rdmatensor", 2, 1e6)])
    monkeypatch.setattr(peers, "PEERS", (ABSENT, PRESENT))
    absent = peers.Peer("gone", "nobody", ("setup",), lambda _: "why", "how")
    monkeypatch.setattr(peers, "choose", lambda *_, **__: ([], [peers.Missing(absent, "why")]))
    kept, shown = tmp_path / "kept.json", tmp_path / "page"
    assert command.main(["setup", "--out", str(kept), "--report", str(shown)]) == 0
    assert "missing in setup: gone (why); to get it: how" in capsys.readouterr().out
    result = load(kept)
    assert result.machine["cores"]
    assert result.machine["commit"]
    stamped = result.machine["versions"]
    assert isinstance(stamped, dict)
    assert {"torch", "grpcio", "grpc++", "ucx", "nixl"} <= set(stamped)
    assert result.machine["loopback_mtu"]
    assert "--out" in result.command
    assert result.runs[0].records[0]["raw_ns"] == [1000000]
    assert (shown / "index.html").exists()
