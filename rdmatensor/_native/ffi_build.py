"""Write the C source of the cffi module (API mode) from the public header.

The header is preprocessed with RDT_FFI defined: it then includes nothing, and its attribute macros
are empty. The rest is plain declarations, which cffi parses. Integer macros, which the preprocessor
would drop, are passed on by name; the C compiler supplies their values, and checks every
declaration against the header itself. Nothing is declared twice.

Run by the build: python ffi_build.py --header rdmatensor.h --cc cc --out out.c
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import cffi

MODULE_NAME = "rdmatensor._rdmatensor_cffi"

# Callbacks in C, for threads of the library: a thread that waited for the GIL there would stop the
# heartbeats of a computing process, and its peers would declare it dead.
GLUE_DECLARATIONS = """
void rdtpy_raise_flag(void *flag);
void rdtpy_ring(void *event_fd);
struct rdtpy_addresses { uint32_t count; const uint8_t *const *bytes; const size_t *len_bytes; };
rdt_status rdtpy_give_address(void *addresses, uint32_t rank, uint64_t timeout_ns, uint8_t *buf,
                           size_t cap, size_t *len_out, struct rdt_error *err);
"""
# The thread of a parameter server may wait for the GIL: heartbeats are another thread's.
PYTHON_DECLARATIONS = """
extern "Python" int32_t rdtpy_apply_rule(void *arg, const struct rdt_ps_batch *batch,
                                         struct rdt_error *err);
"""
GLUE = """
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

struct rdtpy_addresses { uint32_t count; const uint8_t *const *bytes; const size_t *len_bytes; };

/* Release; partner: Python reads the flag in a later call, after which it drops the memory. */
static void
rdtpy_raise_flag(void *flag)
{
    __atomic_store_n((int32_t *)flag, 1, __ATOMIC_RELEASE);
}

static void
rdtpy_ring(void *event_fd)
{
    /* It fails only where the count is near 2^64, and then the descriptor is readable anyway. */
    (void)eventfd_write((int)(intptr_t)event_fd, 1);
}

/* An rdt_address_fn over addresses that were fetched before the group was made. */
static rdt_status
rdtpy_give_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
                size_t *len_out, struct rdt_error *err)
{
    const struct rdtpy_addresses *addresses = arg;

    (void)timeout_ns;
    if (rank >= addresses->count || addresses->len_bytes[rank] > cap) {
        if (err != NULL) {
            memset(err, 0, sizeof(*err));
            err->status = RDT_EINVAL;
            err->peer_rank = RDT_RANK_UNKNOWN;
            (void)snprintf(err->message, sizeof(err->message),
                           "the address of rank %u of %u does not fit %zu bytes", (unsigned)rank,
                           (unsigned)addresses->count, cap);
        }
        return RDT_EINVAL;
    }
    memcpy(buf, addresses->bytes[rank], addresses->len_bytes[rank]);
    *len_out = addresses->len_bytes[rank];
    return RDT_OK;
}
"""
# Object-like macros of rdmatensor with a value: no include guards, and no attributes, empty here.
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
    declared = declarations(arguments.header, arguments.cc)
    builder.cdef(declared + GLUE_DECLARATIONS + PYTHON_DECLARATIONS)
    builder.set_source(MODULE_NAME, f'#include "{arguments.header.name}"\n{GLUE}')
    builder.emit_c_code(str(arguments.out))


if __name__ == "__main__":
    main()
