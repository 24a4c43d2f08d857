"""Register a page with the device, and print the number that the kernel gave it.

Usage, by the system's Python, whose pyverbs it needs: registration_number.py DEVICE. The kernel
numbers what is registered in turn, whoever does it and however soon it is given back: two of these
numbers tell how much was registered between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyverbs.enums as e
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD

PAGE_BYTES = 4096
LIMIT_S = 60.0


def main() -> int:
    """Print the number of the one region that this process has."""
    with (
        Context(name=sys.argv[1]) as context,
        PD(context) as pd,
        MR(pd, PAGE_BYTES, e.IBV_ACCESS_LOCAL_WRITE),
    ):
        shown = subprocess.run(
            ["rdma", "-j", "resource", "show", "mr"],
            check=True,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        ).stdout
        (mine,) = [entry for entry in json.loads(shown) if entry.get("pid") == os.getpid()]
        print(mine["mrn"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
