"""The command line, as users call it: in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import graph_analysis
from graph_analysis import plan_from_json, render_html
from graph_analysis.__main__ import main

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent


def _run(*arguments: str, seed: int = 0) -> subprocess.CompletedProcess[str]:
    root = str(Path(graph_analysis.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-m", "graph_analysis", *arguments],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_two_processes_write_the_same_plan(tmp_path: Path) -> None:
    """Different hash seeds: nothing in a plan may depend on the order of a set."""
    for seed in (1, 2):
        out = str(tmp_path / f"{seed}.json")
        done = _run(
            "graph_models:cnn", "--batch", "5", "--strategy", "dp", "--world", "4", "-o", out,
            seed=seed,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert "data_parallel (world_size=4, broadcast_buffers=1)" in done.stdout
        assert "sum of the floating outputs" in done.stdout
        assert "Nothing was left out." in done.stdout
    texts = [(tmp_path / f"{seed}.json").read_bytes() for seed in (1, 2)]
    assert texts[0] == texts[1]
    plan = plan_from_json(texts[0])
    assert plan.strategy.world_size == 4
    assert [t.shape for t in plan.tensors if t.role == "input"] == [(5, 1, 8, 8)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("graph_models", "--world", "2"), "MODULE:FACTORY"),
        (("no_such_module:f", "--world", "2"), "no_such_module"),
        (("graph_models:missing", "--world", "2"), "missing"),
        (("graph_models:not_a_model", "--world", "2"), "not a Module"),
        (("graph_models:mlp", "--world", "0"), "world_size 0"),
        (("graph_models:mlp", "--world", "2", "--batch", "0"), "batch of 0"),
        (("graph_models:mlp", "--world", "2", "--strategy", "nothing"), "invalid choice"),
        (("graph_models:mlp",), "--world"),
        (("graph_models:mlp", "--world", "2", "--split", "2"), "--split belongs"),
        (("graph_models:mlp", "--strategy", "pp", "--world", "3", "--split", "2"), "2 stages"),
        (("graph_models:mlp", "--strategy", "pp", "--split", "nothing"), "split point 'nothing'"),
        (("graph_models:mlp", "--strategy", "ps", "--world", "2", "--shards", "2"), "workers 0"),
        (("graph_models:mlp", "--strategy", "graph", "--world", "0"), "world_size 0"),
    ],
)
def test_bad_arguments_exit_with_a_message(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(arguments)
    except SystemExit as leaving:  # argparse's way
        status = leaving.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("--strategy", "pp", "--split", "2,4"), "pipeline", ["stage2", "split_point1=2"]),
        (("--strategy", "pp", "--world", "2"), "pipeline", ["stage1"]),
        (("--strategy", "ps", "--world", "5", "--shards", "2"), "parameter_server", ["shard1"]),
        (("--strategy", "graph", "--world", "2"), "graph_collectives", ["Nothing crosses"]),
    ],
)
def test_every_strategy_has_a_page(
    arguments: tuple[str, ...],
    kind: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    assert main(["graph_models:mlp", *arguments, "-o", str(out), "--html", str(page)]) == 0
    report = capsys.readouterr().out
    plan = plan_from_json(out.read_bytes())
    assert plan.strategy.kind == kind
    assert page.read_text(encoding="utf-8") == render_html(plan)
    for word in words:
        assert word in report


def test_collectives_of_a_graph_have_a_page(tmp_path: Path) -> None:
    """Whose factory makes the process group, as it is told to."""
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    where = ("--strategy", "graph", "--world", "4", "-o", str(out), "--html", str(page))
    done = _run("graph_models:reducing", *where)
    assert (done.returncode, done.stderr) == (0, "")
    plan = plan_from_json(out.read_bytes())
    assert plan.strategy.kind == "graph_collectives"
    found = [(crossing.operation, crossing.phase) for crossing in plan.crossings]
    assert found == [("all_reduce", "forward"), ("all_reduce", "backward")]
    assert page.read_text(encoding="utf-8") == render_html(plan)
    assert page.read_text(encoding="utf-8").count("all_reduce") >= 2
    assert "Nothing crosses" not in done.stdout


def test_report_of_a_model_that_cannot_be_captured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan.json"
    assert main(["graph_models:branching", "--world", "2", "-o", str(out)]) == 0
    report = capsys.readouterr().out
    assert "parameters and buffers of the module only" in report
    assert "data-dependent" in report
    assert "order of gradients" in report
    assert plan_from_json(out.read_bytes()).source == "module"


def test_output_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "missing" / "plan.json"
    assert main(["graph_models:mlp", "--world", "2", "-o", str(out)]) == 2
    assert "missing" in capsys.readouterr().err
