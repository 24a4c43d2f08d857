"""Command line: rdmatensor plan MODULE:FACTORY --strategy dp --world 4 -o plan.json.

`python -m graph_analysis` is the same, where rdmatensor is not installed.

FACTORY() takes no argument and returns (model, inputs) or (model, inputs, loss_fn); loss_fn is
called as loss_fn(output, *inputs). The report goes to standard output, the plan and the page
with its pictures to the files. For --strategy graph the factory also makes the process group,
which may be torch's fake one. Exit status: 0 planned, 2 bad arguments or nothing to plan.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from graph_analysis.build import analyze
from graph_analysis.errors import ArgumentError, CaptureError, GraphAnalysisError
from graph_analysis.picture import render_html
from graph_analysis.plan_json import plan_to_json
from graph_analysis.report import render_text
from graph_analysis.strategies import (
    DataParallel,
    GraphCollectives,
    ParameterServer,
    Pipeline,
    Strategy,
)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Plan the transfers of a training step before it runs.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        f"  {prog} mymodel:make --world 8 -o plan.json --html plan.html\n"
        f"  {prog} mymodel:make --strategy pp --split layers.4,layers.8\n\n"
        "exit status: 0 planned, 2 bad arguments or nothing to plan",
    )
    parser.add_argument(
        "factory",
        metavar="MODULE:FACTORY",
        help="FACTORY() returns (model, inputs) or (model, inputs, loss_fn)",
    )
    parser.add_argument(
        "--batch", type=int, metavar="ROWS", help="re-size dimension 0 of every input tensor"
    )
    parser.add_argument(
        "--strategy",
        choices=["dp", "pp", "ps", "graph", "advise"],
        default="dp",
        help="dp: data parallel; pp: pipeline; ps: parameter server; "
        "graph: the collectives that the graph holds; advise: dp or ps for --world workers, by "
        "the cost model, and why (default: dp)",
    )
    parser.add_argument(
        "--world", type=int, metavar="RANKS", help="number of ranks; not needed with --split"
    )
    parser.add_argument(
        "--split", metavar="NAME,NAME", help="pp: where all stages but the first begin"
    )
    parser.add_argument(
        "--shards",
        type=int,
        metavar="RANKS",
        default=1,
        help="ps: how many of the ranks are servers (default: 1)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the plan as JSON to this file"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the plan as a page with pictures"
    )
    return parser


def _strategy(arguments: argparse.Namespace) -> Strategy | None:
    """The strategy; None: the advised one."""
    if arguments.split is not None:
        if arguments.strategy != "pp":
            raise ArgumentError("--split belongs to --strategy pp")
        names = tuple(arguments.split.split(","))
        if arguments.world not in (None, len(names) + 1):
            raise ArgumentError(
                f"--world {arguments.world}, but --split makes {len(names) + 1} stages"
            )
        return Pipeline(names)
    world: int | None = arguments.world
    if world is None:
        raise ArgumentError("--world says how many ranks there are")
    if arguments.strategy == "pp":
        return Pipeline(world)
    if arguments.strategy == "advise":
        return None
    if arguments.strategy == "ps":
        return ParameterServer(arguments.shards, world - arguments.shards)
    return DataParallel(world) if arguments.strategy == "dp" else GraphCollectives(world)


def _load(spec: str) -> tuple[object, ...]:
    """The result of the factory: a tuple of two or three."""
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise CaptureError(f"{spec!r} is not MODULE:FACTORY")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise CaptureError(f"cannot load {spec}: {error}") from error
    made = factory()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise CaptureError(f"{spec}() must return (model, inputs) or (model, inputs, loss_fn)")
    return made


def _run(arguments: argparse.Namespace) -> None:
    strategy = _strategy(arguments)
    made = _load(arguments.factory)
    from graph_analysis.capture import check_factory, resize_batch  # needs torch, unlike --help

    model, inputs, loss_fn = check_factory(made)
    if arguments.batch is not None:
        inputs = resize_batch(inputs, arguments.batch)
    if strategy is None:
        world = arguments.world
        plan = analyze(model, inputs, loss_fn=loss_fn, strategy="advise", workers=world)
    else:
        plan = analyze(model, inputs, loss_fn=loss_fn, strategy=strategy)
    if arguments.output is not None:
        arguments.output.write_text(plan_to_json(plan), encoding="ascii")
    if arguments.html is not None:
        arguments.html.write_text(render_html(plan), encoding="utf-8")
    print(render_text(plan), end="", flush=True)


def main(argv: Sequence[str] | None = None, prog: str = "python -m graph_analysis") -> int:
    """Run the command line; prog is how it was called. Returns the exit status."""
    arguments = _parser(prog).parse_args(argv)
    try:
        _run(arguments)
    except BrokenPipeError:
        raise  # the reader of the output closed it: the caller's
    except OSError as error:
        print(f"{prog}: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except GraphAnalysisError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
