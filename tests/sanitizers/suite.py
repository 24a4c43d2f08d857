"""Run tests in this process. Usage: suite.py PACKAGES WORDS: pytest's, on the build in PACKAGES.

What a sanitizer says goes where this process's words go: pytest must not keep it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rdmatensor._native import ffi

ROOT = Path(__file__).parents[2]

ffi.lib.rdt_version()
mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
libraries = {line.split()[-1] for line in mapped if "librdmatensor.so" in line}
assert len(libraries) == 1, libraries
assert Path(libraries.pop()).is_relative_to(sys.argv[1]), mapped

words = ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", "-q", "--capture=no"]
sys.exit(pytest.main([*words, *sys.argv[2:]]))
