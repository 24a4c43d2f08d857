"""The library exports what the public headers declare, and nothing else."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from rdmatensor import _rdmatensor_cffi

PACKAGE = Path(_rdmatensor_cffi.__file__).parent
HEADER = PACKAGE / "include" / "rdmatensor.h"
GROUP_HEADER = PACKAGE / "include" / "rdmatensor_group.h"
EXT_HEADER = PACKAGE / "include" / "rdmatensor_ext.h"
PS_HEADER = PACKAGE / "include" / "rdmatensor_ps.h"
USER_CALLS_MOST = 70


def calls_of(header: Path, least: int = 21) -> set[str]:
    """The functions of a header, by name."""
    names = set(re.findall(r"^RDT_API[^;]*?\b(rdt_\w+)\(", header.read_text(), re.MULTILINE))
    assert len(names) >= least, "the pattern finds too few declarations to mean anything"
    return names


@pytest.fixture(scope="module")
def declared() -> set[str]:
    """The functions that users call."""
    return calls_of(HEADER) | calls_of(GROUP_HEADER, 15)


@pytest.fixture(scope="module")
def exported() -> dict[str, str]:
    """The version of each exported function, by name."""
    listing = subprocess.run(
        [
            "nm",
            "--dynamic",
            "--defined-only",
            "--with-symbol-versions",
            "--format=posix",
            PACKAGE / "librdmatensor.so",
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.splitlines()
    symbols = [line.split()[0] for line in listing if " A " not in line]
    return {name: version for name, _, version in (one.partition("@@") for one in symbols)}


def test_exports_are_the_declarations(declared: set[str], exported: dict[str, str]) -> None:
    composed = calls_of(EXT_HEADER)
    assert not composed & declared
    assert {name for name, version in exported.items() if version == "RDMATENSOR_1"} == declared
    assert {name for name, version in exported.items() if version == "RDMATENSOR_EXT_1"} == composed
    served = calls_of(PS_HEADER, 2)
    assert {name for name, version in exported.items() if version == "RDMATENSOR_PS_1"} == served
    assert set(exported) == declared | composed | served


def test_few_calls_are_for_users(declared: set[str]) -> None:
    assert len(declared) <= USER_CALLS_MOST


def test_cffi_has_every_declaration(declared: set[str]) -> None:
    assert declared | calls_of(PS_HEADER, 2) <= set(dir(_rdmatensor_cffi.lib))


def test_header_and_library_agree_on_the_abi() -> None:
    lib = _rdmatensor_cffi.lib
    assert lib.rdt_abi_version() == lib.RDT_ABI_MAJOR << 16 | lib.RDT_ABI_MINOR


def test_version_is_the_package_s() -> None:
    text = _rdmatensor_cffi.ffi.string(_rdmatensor_cffi.lib.rdt_version()).decode()
    assert text == importlib.metadata.version("rdmatensor")
