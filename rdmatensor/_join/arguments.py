"""The arguments of join() and join_async()."""

from __future__ import annotations

from rdmatensor._join import records
from rdmatensor._native.arguments import invalid, seconds, text_bytes, whole
from rdmatensor.store import Store

_STORE_CALLS = ("set", "get", "check", "multi_get", "delete_key")
_JOB_BYTES_MAX = 63 - 2 * records.INCARNATION_BYTES - 1  # the C library's job id has 63 in all


def checked(
    store: Store, rank: int, size: int, job: str, timeout_s: float | None
) -> tuple[Store, int, int, str, float | None]:
    """Return the arguments of join(); InvalidArgumentError if one is wrong."""
    missing = [name for name in _STORE_CALLS if not callable(getattr(store, name, None))]
    if missing:
        raise invalid(
            "join",
            f"store={store!r} has no {missing[0]}(): give it a FileStore(path), the same folder "
            "for all ranks, or a torch.distributed.Store",
        )
    rank, size = whole(rank, "join", "rank"), whole(size, "join", "size")
    if size < 1:
        raise invalid("join", f"size {size} is not 1 or more")
    if not 0 <= rank < size:
        raise invalid("join", f"rank {rank} is not from 0 to {size - 1}")
    if not 1 <= len(text_bytes(job, "join", "job")) <= _JOB_BYTES_MAX:
        raise invalid("join", f"job {job!r} must have 1 to {_JOB_BYTES_MAX} bytes")
    wait_s = None if timeout_s is None else seconds(timeout_s, "join")
    return store, rank, size, job, wait_s
