"""The fix for an error of this package, by its kind and by the variables that it names."""

from __future__ import annotations

import re

from rdmatensor.errors import (
    AuthenticationError,
    MismatchError,
    OutOfMemoryError,
    PeerError,
    ProtocolError,
    RdmaTensorError,
    TransferTimeoutError,
    TransportNotViableError,
    VersionMismatchError,
)

ALONE = "`rdmatensor doctor --alone` looks at this host only"
REPORT = "please report this"
_VARIABLE = re.compile(r"RDMATENSOR_[A-Z_]*[A-Z]")
# The first match applies.
_CURES: tuple[tuple[type[RdmaTensorError], str], ...] = (
    (AuthenticationError, "set the same RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE on every host"),
    (VersionMismatchError, "install the same version of rdmatensor on every host"),
    (ProtocolError, "install the same version of rdmatensor on every host"),
    (PeerError, "look at what the doctor of that rank printed, and at the network between"),
    (TransferTimeoutError, f"start the doctor on every host, and look at the firewalls; {ALONE}"),
    (
        TransportNotViableError,
        "unset RDMATENSOR_TRANSPORT, or mend what the text says is in the way",
    ),
    (MismatchError, "give every host the same settings"),
    (OutOfMemoryError, "lift the limit that the text names"),
)


def cure(error: Exception) -> str:
    """Return what to do about an error: to report it, if users cannot fix it."""
    if not isinstance(error, RdmaTensorError):
        return REPORT
    for kind, text in _CURES:
        if isinstance(error, kind):
            return text
    names = list(dict.fromkeys(_VARIABLE.findall(error.detail)))
    return f"change or unset {' or '.join(names)}" if names else REPORT
