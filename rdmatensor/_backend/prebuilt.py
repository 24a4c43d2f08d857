"""Names of the c10d modules, and what identifies a torch. Imports neither torch nor the package.

A c10d module fits one Python and one release of torch, since C++ classes of torch's are its bases.
The build runs this file, too, for the names.
"""

from __future__ import annotations

import re
from types import ModuleType


def release_of(version: str) -> str:
    """Return a version without its build: that of `2.13.0+cpu` is `2.13.0`.

    The builds of a release, for CPU or CUDA, have the same classes. Any other
    version is returned whole.
    """
    release, _, _ = version.partition("+")
    return release if re.fullmatch(r"\d+\.\d+\.\d+", release) else version


def module_name(version: str) -> str:
    """Return the name of the c10d module for this version of torch: `_c10d_torch2_13_0`."""
    return "_c10d_torch" + re.sub(r"\W", "_", release_of(version))


def identity_of(torch: ModuleType) -> str:
    """Return what a module's torch and the running one must have in common.

    Both were compiled from the same commit, with the same layout of the standard library's classes.
    """
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return f"{release_of(torch.__version__)} commit {torch.version.git_version} cxx11abi {abi}"
