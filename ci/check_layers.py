"""Check that no #include of csrc/ goes against the arrow. Usage: check_layers.py [ROOT]."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PUBLIC_HEADER = "rdmatensor.h"
TRANSPORT = "transport"  # its own files: the table; each folder below it is a layer of its own
COLLECTIVES = (
    "collectives",
    "collectives/board",
    "collectives/reduce",
    "collectives/schedule",
    "collectives/select",
    "collectives/team",
)
# layer: the layers whose headers it may include, besides its own and the public header's.
ALLOWED: dict[str, frozenset[str]] = {
    "include": frozenset(),
    "base": frozenset(),
    "wire": frozenset({"base"}),
    TRANSPORT: frozenset({"base", "wire"}),
    "transport/shm": frozenset({"base", "wire", TRANSPORT}),
    "transport/tcp": frozenset({"base", "wire", TRANSPORT}),
    "transport/verbs": frozenset({"base", "wire", TRANSPORT}),
    "gpu": frozenset({"base"}),
    "core": frozenset({"base", "wire", TRANSPORT}),
    "api": frozenset({"base", "wire", TRANSPORT, "core", "gpu"}),
    **{room: frozenset({"base", "wire", *COLLECTIVES}) for room in COLLECTIVES},
    "c10d": frozenset({"wire", *COLLECTIVES}),
}
# Foreign headers that belong to one layer.
FOREIGN: dict[str, str] = {
    "torch/": "c10d",
    "ATen/": "c10d",
    "c10/": "c10d",
    "pybind11/": "c10d",
    "Python.h": "c10d",
    "infiniband/": "transport/verbs",
    "rdma/": "transport/verbs",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of(path: str) -> str:
    """Return the layer of a path that is relative to csrc/: its folder."""
    return str(Path(path).parent)


def problem_with(layer: str, quote: str, target: str) -> str | None:
    """Say what is wrong with one include of a file of this layer, or None."""
    if quote == "<":
        for prefix, owner in FOREIGN.items():
            if target.startswith(prefix) and layer != owner:
                return f"<{target}> is for csrc/{owner} only"
        if layer == "include" and target not in ("stddef.h", "stdint.h"):
            return f"the public header includes <{target}>: stddef.h and stdint.h only"
        return None
    if target == PUBLIC_HEADER:
        return None
    to_layer = layer_of(target)
    if to_layer not in ALLOWED or ".." in target:
        return f'"{target}" is not written from csrc/, e.g. "base/error.h"'
    if to_layer != layer and to_layer not in ALLOWED[layer]:
        return f'"{target}": {layer} must not know {to_layer}'
    return None


def problems(csrc: Path) -> list[str]:
    """Return one line for each include that is against the rules, in a stable order."""
    found = []
    for path in sorted(csrc.rglob("*.[ch]")) + sorted(csrc.rglob("*.[ch]pp")):
        layer = layer_of(str(path.relative_to(csrc)))
        if layer not in ALLOWED:
            found.append(f"{path}: csrc/{layer} is not a layer; add it to ci/check_layers.py")
            continue
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            what = problem_with(layer, match[1], match[2])
            if what is not None:
                line = text.count("\n", 0, match.start(2)) + 1
                found.append(f"{path}:{line}: {what}")
    return found


def main() -> int:
    """Command line: exit status 1 and the problems, if any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = problems(root / "csrc")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
