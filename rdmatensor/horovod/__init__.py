"""Horovod's API on this library: `import rdmatensor.horovod.torch as hvd` in place of Horovod's."""

from rdmatensor.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
