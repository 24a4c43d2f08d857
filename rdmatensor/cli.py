"""The command `rdmatensor` (also `python -m rdmatensor`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    from rdmatensor import __version__

    parser = argparse.ArgumentParser(prog="rdmatensor", description=__doc__)
    parser.add_argument("--version", action="version", version=f"rdmatensor {__version__}")
    parser.parse_args(arguments)
    parser.print_help()
    return 0
