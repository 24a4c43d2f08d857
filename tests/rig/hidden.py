"""Runs a program on a machine that has no libibverbs, as far as that program can see."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

LIBRARY = "libibverbs.so.1"
# In a mount namespace of its own: the folder again, without the library. $1 is where it lies.
HIDE = """
set -e
layers=$(mktemp -d) && mount -t tmpfs layers "$layers" && mkdir "$layers/new" "$layers/work"
mount -t overlay hidden -o "lowerdir=$1,upperdir=$layers/new,workdir=$layers/work" "$1"
rm "$1"/libibverbs.so*
umount --lazy "$layers" && rmdir "$layers"
shift
exec "$@"
"""


def without_library(*words: str) -> list[str]:
    """Return the command that runs words where the library cannot be found. As root."""
    ctypes.CDLL(LIBRARY)
    found = re.search(rf"(/\S+)/{re.escape('libibverbs.so')}", Path("/proc/self/maps").read_text())
    if found is None:
        raise AssertionError(f"{LIBRARY} is loaded and nowhere mapped")
    return ["unshare", "--mount", "bash", "-c", HIDE, "hide", found[1], *words]
