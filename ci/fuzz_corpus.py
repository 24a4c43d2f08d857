"""Keep fuzz inputs as text. Usage: fuzz_corpus.py unpack|pack TEXT_FILE FOLDER.

A text file holds the inputs of one fuzz target in hexadecimal: lines of at most 96 digits, a blank
line between two inputs, and comments that begin with "#". unpack writes one file for each input,
named by its hash, and leaves others there alone; pack reads all files of the folder, the smallest
first, and leaves out what is over the budget: what the encoders make need not be kept, see
ci/fuzz.sh.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

DIGITS = 96
BUDGET_BYTES = 8192  # of one target: a diff that a person can look at
HEADING = (
    "# Inputs that reach what the encoders' own values do not. Made by: bash ci/fuzz.sh --keep\n"
)


def parse(text: str) -> list[bytes]:
    """Return the inputs of a text file, in its order."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    blocks = "\n".join(lines).split("\n\n")
    return [bytes.fromhex(block) for block in blocks if block.strip()]


def render(inputs: list[bytes]) -> str:
    """Return the text of inputs; parse() gives those that are not empty back."""
    blocks = []
    for data in inputs:
        digits = data.hex()
        rows = [digits[i : i + DIGITS] for i in range(0, len(digits), DIGITS)]
        blocks.append("\n".join(rows) + "\n")
    return HEADING + "\n" + "\n".join(blocks)


def within_budget(inputs: list[bytes], budget_bytes: int = BUDGET_BYTES) -> list[bytes]:
    """Return the smallest inputs, each once, whose bytes fit the budget together."""
    kept: list[bytes] = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        if data and sum(map(len, kept)) + len(data) <= budget_bytes:
            kept.append(data)
    return kept


def unpack(text_file: Path, folder: Path) -> int:
    """Write the inputs of a text file into a folder; return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = parse(text_file.read_text(encoding="ascii"))
    for data in inputs:
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    return len(inputs)


def pack(text_file: Path, folder: Path) -> int:
    """Write the inputs of a folder into a text file; return how many are kept."""
    inputs = within_budget([path.read_bytes() for path in folder.iterdir() if path.is_file()])
    text_file.write_text(render(inputs), encoding="ascii")
    return len(inputs)


def main() -> int:
    """Command line."""
    if len(sys.argv) != 4 or sys.argv[1] not in {"pack", "unpack"}:
        print(__doc__, file=sys.stderr)
        return 2
    work = pack if sys.argv[1] == "pack" else unpack
    work(Path(sys.argv[2]), Path(sys.argv[3]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
