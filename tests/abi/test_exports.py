"""The library exports what the public header declares, and nothing else."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from rdmatensor import _rdmatensor_cffi

PACKAGE = Path(_rdmatensor_cffi.__file__).parent
HEADER = PACKAGE / "include" / "rdmatensor.h"


@pytest.fixture(scope="module")
def declared() -> set[str]:
    """The functions of the public header, by name."""
    names = set(re.findall(r"^RDT_API[^;]*?\b(rdt_\w+)\(", HEADER.read_text(), re.MULTILINE))
    assert len(names) > 20, "the pattern finds too few declarations to mean anything"
    return names


def test_exports_are_the_declarations(declared: set[str]) -> None:
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", "--format=posix", PACKAGE / "librdmatensor.so"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    exported = {line.split("@")[0].split()[0] for line in listing if " A " not in line}
    assert exported == declared


def test_cffi_has_every_declaration(declared: set[str]) -> None:
    assert declared <= set(dir(_rdmatensor_cffi.lib))


def test_header_and_library_agree_on_the_abi() -> None:
    lib = _rdmatensor_cffi.lib
    assert lib.rdt_abi_version() == lib.RDT_ABI_MAJOR << 16 | lib.RDT_ABI_MINOR


def test_version_is_the_package_s() -> None:
    text = _rdmatensor_cffi.ffi.string(_rdmatensor_cffi.lib.rdt_version()).decode()
    assert text == importlib.metadata.version("rdmatensor")
