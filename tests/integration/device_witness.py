"""What the kernel says of the RDMA device of the rig, which knows nothing of the library."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's pyverbs belongs to it
NUMBER = Path(__file__).resolve().parents[1] / "rig" / "registration_number.py"
LIMIT_S = 120.0
# Of rxe; each packet that was sent again, or asked for again, is in one of these.
REPEATS = ("duplicate_request", "out_of_seq_request", "completer_retry_err", "rcvd_rnr_err")


def of_device(rank: int) -> dict[str, int]:
    """Return what all processes did on the device so far; nothing where there is none.

    packets: sent, with acknowledgements. registered: a number that grows by one with each
    registration, and with each look; rank 0 looks.
    """
    device = os.environ.get("RIG_DEVICE")
    if device is None:
        return {}
    folder = Path("/sys/class/infiniband", device, "ports", "1", "hw_counters")
    found = {"packets": int((folder / "sent_pkts").read_text(encoding="ascii"))}
    found["repeats"] = sum(int((folder / n).read_text(encoding="ascii")) for n in REPEATS)
    if rank == 0:
        said = subprocess.run(
            [SYSTEM_PYTHON, str(NUMBER), device],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "LD_PRELOAD": ""},
        ).stdout
        found["registered"] = int(said)
    return found
