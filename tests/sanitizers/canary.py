"""Make one fault on purpose. Usage: canary.py LIBRARY FAULT: of canary.c, or none."""

from __future__ import annotations

import ctypes
import sys
import threading

TIMES = 20_000_000  # so long that both run at once, whatever else the cores do

library = ctypes.CDLL(sys.argv[1])  # its calls leave Python's lock
fault = sys.argv[2]
if fault == "race":
    threads = [
        threading.Thread(target=library.canary_race, args=(ctypes.c_long(TIMES),)) for _ in "12"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
elif fault != "none":
    getattr(library, f"canary_{fault}")(ctypes.c_long(24))
