"""Measure rdmatensor on this machine, and what else could be used in its place.

    rdmatensor bench [TOPIC] [--quick] [option...] [--out FILE.json] [--report DIR]
    rdmatensor bench compare A.json B.json
    rdmatensor bench report FILE.json DIR

Without a topic p2p, collectives, setup and models are measured. Only what runs in one run can be
compared: all take turns. --transport verbs is for the rig (ci/rig/run.sh), as are the topic links
and models on two hosts, where both run the same command. --link 500mbit is for root: all is
measured over tcp on a loopback interface of that rate (ci/throttle.sh).

Exit status: 0; 1 for what failed, for compare a regression; 2 for misuse; 3 where compare could
judge nothing, for too few turns.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.benchlib import children, machine, programs, rig
from bench.benchlib.record import Record, Result, Run, write
from bench.suite import (
    busy,
    collectives,
    costs,
    horovod,
    links,
    lossy,
    models,
    p2p,
    peers,
    ps,
    rounds,
    samples,
    scale,
    setup,
    tables,
)
from bench.suite.options import parser_of, refuse_ignored, settings_of
from bench.suite.settings import MOST_BYTES, TCP, VERBS, Settings

_NOT_JUDGED = 3
Measure = Callable[[Settings, list[peers.Peer], rounds.Progress], list[Record]]
_MODULES = (p2p, collectives, setup, scale, busy, models, costs, links, lossy, ps, horovod)
_MEASURES: dict[str, Measure] = {one.__name__.rpartition(".")[2]: one.measure for one in _MODULES}
_MEASURES["hosts"] = collectives.measure_hosts


def measure(settings: Settings, command: str, kept: Path | None = None) -> Result:
    """Measure all topics that are asked for; a missing peer has a record that says so.

    kept: where what there is so far is written after each topic.
    """
    if {"p2p", "costs"} & set(settings.topics):
        sys.stderr.write("building the programs\n")
        programs.build()
    runs: list[Run] = []
    for topic in settings.topics:
        has_verbs = VERBS in settings.transports or topic == links.TOPIC
        present, missing = peers.choose(topic, settings.peers, has_verbs=has_verbs)
        absent: list[Record] = [
            {"topic": topic, "peer": one.peer.name, "missing": one.why, "get": one.peer.how_to_get}
            for one in missing
        ]
        with machine.Watch() as watch:

            def keep(found: list[Record]) -> None:
                turns = [one for one in found if "unit" in one]
                if kept is not None and turns:
                    so_far = Run(samples.merge(turns), 0.0, 0.0)
                    write(_result(settings, command, [*runs, so_far]), kept)

            found = _MEASURES[topic](settings, present, rounds.Progress(topic, keep=keep))
        runs.append(Run(found + absent, watch.foreign_cpus, watch.seconds))
        if kept is not None:
            write(_result(settings, command, runs), kept)
    return _result(settings, command, runs)


def _result(settings: Settings, command: str, runs: list[Run]) -> Result:
    stamp = machine.stamp(peers.versions())
    stamp["load"] = [round(load, 2) for load in os.getloadavg()]
    return Result("quick" if settings.is_quick else "full", command, stamp, runs)


def _enter_link(
    parser: argparse.ArgumentParser, chosen: argparse.Namespace, words: Sequence[str]
) -> None:
    """Begin again behind a link of the rate, unless this is there already."""
    if chosen.transport not in (None, TCP):
        parser.error(f"--link is of tcp, not of {chosen.transport}")
    if machine.LINK not in os.environ:
        script = str(machine.ROOT / "ci" / "throttle.sh")
        again = (sys.executable, "-m", "rdmatensor", "bench", *words)
        os.execvp("bash", ("bash", script, chosen.link, "--", *again))


def _run(words: Sequence[str]) -> int:
    parser = parser_of(__doc__)
    chosen = parser.parse_args(words)
    if (chosen.nic_gbit is None) != (chosen.nic_latency_us is None):
        parser.error("--nic-latency-us and --nic-gbit go together")
    refuse_ignored(parser, chosen)
    if chosen.link is not None:
        _enter_link(parser, chosen, words)
    settings = settings_of(chosen)
    if VERBS in settings.transports and not rig.is_here():
        parser.error("--transport verbs is measured in the rig: bash ci/rig/run.sh")
    if settings.topics != ("p2p",) and max(chosen.sizes or (), default=0) > MOST_BYTES:
        parser.error(f"--sizes: {max(chosen.sizes)} is more than {MOST_BYTES}, but for p2p")
    if chosen.out is not None and not chosen.out.parent.is_dir():
        parser.error(f"--out: the folder {chosen.out.parent} does not exist")
    if chosen.report is not None and not _has_matplotlib():
        return 1  # before everything is measured
    command = shlex.join(["rdmatensor", "bench", *words])
    if chosen.out is not None and rig.is_here():  # elsewhere a guest's files are gone afterwards
        chosen.out = None if rig.rank() else Path(os.environ["RIG_OUT"]) / chosen.out
    try:
        result = measure(settings, command, chosen.out)
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"rdmatensor bench: {error}\n")
        return 1
    if chosen.report is not None:
        _write_page(result, chosen.report)
    records = [record for run in result.runs for record in run.records]
    sys.stdout.write(f"{tables.show(records)}\n{noise_line(result)}\n")
    return 1 if any(rounds.FAILED in str(record.get("missing")) for record in records) else 0


def noise_line(result: Result) -> str:
    """Return how busy others kept the machine."""
    busiest = max((run.foreign_cpus for run in result.runs), default=0.0)
    return f"cores that others kept busy meanwhile: {busiest:.2f} of {result.machine['cores']}"


def _compare(words: Sequence[str]) -> int:
    from bench.suite import compare  # numpy comes with it

    parser = argparse.ArgumentParser(
        prog="rdmatensor bench compare",
        description=compare.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0; 1: a row of rdmatensor is worse or gone; 2: nothing can be "
        "compared; 3: nothing was judged, as no row has three turns on each side.",
    )
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    chosen = parser.parse_args(words)
    try:
        before, after = compare.read(chosen.before), compare.read(chosen.after)
        lines = compare.compare(before, after)
    except compare.NotComparable as error:
        sys.stderr.write(f"rdmatensor bench compare: {error}\n")
        return 2
    for note in compare.notes(before, after):
        sys.stdout.write(f"differs: {note}\n")
    counts = Counter(line.verdict for line in lines)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    sys.stdout.write(f"{compare.table(lines)}\n{summary}\n")
    if counts["worse"] or counts["gone"]:
        return 1
    return _NOT_JUDGED if set(counts) == {"too few turns"} else 0


def _has_matplotlib() -> bool:
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    sys.stderr.write("rdmatensor bench: a report needs matplotlib: pip install matplotlib\n")
    return False


def _write_page(result: Result, folder: Path) -> None:
    from bench.suite import plots  # matplotlib comes with it

    sys.stderr.write(f"report: {plots.write(result, folder)}\n")


def _report(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="rdmatensor bench report", description="Write the page of a result that was kept."
    )
    parser.add_argument("result", type=Path, metavar="FILE.json")
    parser.add_argument("folder", type=Path, metavar="DIR")
    chosen = parser.parse_args(words)
    if not _has_matplotlib():
        return 1
    from bench.suite import compare

    try:
        result = compare.read(chosen.result)
    except compare.NotComparable as error:
        sys.stderr.write(f"rdmatensor bench report: {error}\n")
        return 2
    _write_page(result, chosen.folder)
    return 0


_COMMANDS = {"compare": _compare, "report": _report}


def main(words: Sequence[str]) -> int:
    """Run `rdmatensor bench` with these words; return the exit status."""
    with children.ended_by_signals("rdmatensor bench"):
        if words and words[0] in _COMMANDS:
            return _COMMANDS[words[0]](words[1:])
        return _run(words)
