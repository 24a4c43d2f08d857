"""Write the generated tables of README, docs/measured.md and docs/performance.md.

    python bench/readme.py            writes them
    python bench/readme.py --check    exit status 1 where a page says something else

They come from bench/results. Each stands between two comments, the first of which names its block.
The figures are those of the run that others disturbed least. Wherever a rival is faster by more
than a twentieth (less never counts, compare.py) a rule has to say why (suite/doc_reasons.py):
without one this ends with what has none. A block whose file was not measured yet says so, and by
which command it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Result, load
from bench.suite import (
    busy_tables,
    doc_bandwidths,
    doc_collectives,
    doc_costs,
    doc_losses,
    doc_messages,
    doc_rivals,
    doc_runs,
)

README = Path("README.md")
MEASURED = Path("docs") / "measured.md"
PERFORMANCE = Path("docs") / "performance.md"
RESULTS = Path("bench") / "results"
END = "<!-- bench/readme.py: end -->"


@dataclass(frozen=True, slots=True)
class Block:
    """What is written between two comments of a page.

    files: below bench/results; make has the results of those that exist. command: by which the
    first of them is to be made next; without it the block only says that it is absent.
    """

    name: str
    page: Path
    files: tuple[str, ...]
    make: Callable[..., str]
    command: str

    @property
    def begin(self) -> str:
        """The comment before it."""
        return f"<!-- bench/readme.py: {self.name} -->"

    def text(self, root: Path) -> str:
        """Return what belongs there. Raises ValueError where no rule says why a rival is faster."""
        paths = [root / RESULTS / name for name in self.files]
        if not paths[0].exists():
            return (
                f"Not measured yet: `python -m rdmatensor {self.command}` writes the file for it."
            )
        try:
            return self.make(*(load(path) for path in paths if path.exists()))
        except ValueError as error:
            raise ValueError(f"{self.files[0]}: {error}") from error


def _collectives(*results: Result) -> str:
    """The first result, and of others of its machine what it does not have."""
    first, *others = results
    parts = [doc_collectives.block(first), *(doc_collectives.block(one, [first]) for one in others)]
    return "\n\n".join(part for part in parts if part)


def _out(command: str, file: str) -> str:
    return f"{command} --out {RESULTS / file}"


SHM, TCP = "collectives/shm_2_ranks.json", "collectives/tcp_2_ranks.json"
LARGE = "collectives/shm_2_ranks_large.json"
SHARED = {ranks: f"collectives/shm_{ranks}_ranks.json" for ranks in (4, 8, 16)}
_SHM_OUT = _out("bench collectives --transport shm --ranks 2 --rows plain,fresh,same,arena", SHM)
_LARGE_OUT = _out(
    "bench p2p --sizes 16777216,268435456,1073741824 --peers floor --rounds 3", "p2p_large.json"
)
BLOCKS = (
    Block("p2p.json", MEASURED, ("p2p.json",), doc_messages.block, _out("bench p2p", "p2p.json")),
    Block("p2p_large.json", MEASURED, ("p2p_large.json",), doc_messages.block, _LARGE_OUT),
    Block("what gains", MEASURED, ("p2p.json",), doc_messages.gains, _out("bench p2p", "p2p.json")),
    Block("costs", MEASURED, ("p2p.json",), doc_costs.block, _out("bench p2p", "p2p.json")),
    Block(SHM, MEASURED, (SHM, LARGE), _collectives, _SHM_OUT),
    Block(
        TCP,
        MEASURED,
        (TCP,),
        _collectives,
        _out("bench collectives --transport tcp --ranks 2 --rows plain,same", TCP),
    ),
    *(
        Block(
            name,
            MEASURED,
            (name,),
            _collectives,
            _out(f"bench collectives --transport shm --ranks {ranks} --rows plain", name),
        )
        for ranks, name in SHARED.items()
    ),
    Block("bandwidths", MEASURED, (SHM, TCP), doc_bandwidths.block, _SHM_OUT),
    *(
        Block(
            f"{name}.json",
            PERFORMANCE,
            (f"{name}.json",),
            make,
            _out(f"bench {name}", f"{name}.json"),
        )
        for name, make in (
            ("models", doc_runs.training),
            ("setup", doc_runs.set_up),
        )
    ),
    Block(
        "models_tcp.json",
        PERFORMANCE,
        ("models_tcp.json",),
        doc_runs.training,
        _out("bench models --transport tcp", "models_tcp.json"),
    ),
    Block(
        "scale.json",
        PERFORMANCE,
        ("scale.json", "hosts.json"),
        doc_runs.scale,
        _out("bench scale", "scale.json"),
    ),
    Block(
        "busy.json",
        PERFORMANCE,
        ("busy.json",),
        busy_tables.block,
        _out("bench busy", "busy.json"),
    ),
    Block(
        "beside gRPC",
        README,
        ("p2p.json",),
        doc_rivals.beside_grpc,
        _out("bench p2p", "p2p.json"),
    ),
    Block(
        "from Python", README, ("p2p.json",), doc_rivals.from_python, _out("bench p2p", "p2p.json")
    ),
    Block("means", README, (SHM, TCP, *SHARED.values()), doc_collectives.means, _SHM_OUT),
    Block(
        "targets of training",
        README,
        ("models.json",),
        doc_runs.targets,
        _out("bench models", "models.json"),
    ),
    Block(
        "convergence.json",
        PERFORMANCE,
        ("convergence.json",),
        doc_runs.learning,
        _out(
            "bench models --transport shm --models lstm --converge lstm"
            " --peers gloo,grpc-cpp,grpc-python --rounds 3",
            "convergence.json",
        ),
    ),
    Block(
        "losses",
        README,
        ("p2p.json", "p2p_large.json", SHM, LARGE, TCP, *SHARED.values()),
        doc_losses.block,
        _out("bench p2p", "p2p.json"),
    ),
)


def written(page: Path, text: str, root: Path) -> str:
    """Return a page with its blocks in their places. Raises ValueError where one has none."""
    for block in BLOCKS:
        if block.page != page:
            continue
        before, begin, rest = text.partition(f"{block.begin}\n")
        _, end, after = rest.partition(f"{END}\n")
        if not begin or not end:
            raise ValueError(f"{page} has no place for a table: {block.begin} ... {END}")
        text = f"{before}{begin}{block.text(root)}\n\n{end}{after}"
    return text


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Write or compare below a root; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    chosen = parser.parse_args(words)
    old = {
        page: (root / page).read_text(encoding="utf-8")
        for page in dict.fromkeys(block.page for block in BLOCKS)
    }
    try:  # all of them before the first is written
        new = {page: written(page, words_of_it, root) for page, words_of_it in old.items()}
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not chosen.check:
        for page, words_of_it in new.items():
            (root / page).write_text(words_of_it, encoding="utf-8")
        return 0
    stale = [page for page in old if new[page] != old[page]]
    for page in stale:
        sys.stderr.write(f"{page} is not what the results give: python bench/readme.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
