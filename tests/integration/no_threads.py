"""Make this process unable to start threads, as a container's limit of processes does.

A limit would not stop the superuser, whom tests often run as; a system call filter does.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
_CLONE3 = 435
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EAGAIN


def forbid_threads() -> None:
    """From now on, clone() of this process and its children fails with EAGAIN; permanently."""
    program = [
        (_LOAD_NUMBER, 0, 0, 0),
        (_JUMP_IF_EQUAL, 2, 0, _CLONE),
        (_JUMP_IF_EQUAL, 1, 0, _CLONE3),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_ = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(filter_), 0, 0),
    ):
        if libc.prctl(*(ctypes.c_ulong(value) for value in call)) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{call}")
