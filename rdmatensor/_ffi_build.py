"""Write the C source of the cffi module (API mode) from the public header.

The header is preprocessed with RDT_FFI defined: it then includes nothing and its attribute macros
are empty, so what is left is plain declarations, which cffi parses. Integer macros, which the
preprocessor would drop, are handed on by name; the C compiler supplies their values, and checks
every declaration against the header itself. Nothing is declared twice.

Run by the build: python _ffi_build.py --header rdmatensor.h --cc cc --out out.c
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import cffi

MODULE_NAME = "rdmatensor._rdmatensor_cffi"
# Object-like, ours, and with a value: not an include guard, not an attribute that is empty here.
_MACRO = re.compile(r"^#define (RDT_[A-Z0-9_]+) +(\S.*)$", re.MULTILINE)


def preprocess(header: Path, cc: str, *flags: str) -> str:
    """Return the header as the C compiler sees it under RDT_FFI; flags are further options."""
    command = [cc, "-E", "-P", "-DRDT_FFI", *flags, str(header)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def declarations(header: Path, cc: str) -> str:
    """Return everything the header declares, in the subset of C that cffi reads."""
    macros = [
        name
        for name, value in _MACRO.findall(preprocess(header, cc, "-dM"))
        if not value.startswith(('"', "__attribute__")) and name != "RDT_FFI"
    ]
    lines = [f"#define {name} ..." for name in sorted(macros)]
    return "\n".join([*lines, preprocess(header, cc)])


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--header", type=Path, required=True)
    parser.add_argument("--cc", default="cc", help="the C compiler, for preprocessing only")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    builder = cffi.FFI()
    builder.cdef(declarations(arguments.header, arguments.cc))
    builder.set_source(MODULE_NAME, f'#include "{arguments.header.name}"')
    builder.emit_c_code(str(arguments.out))


if __name__ == "__main__":
    main()
