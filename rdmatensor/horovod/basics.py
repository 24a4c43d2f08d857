"""Starting, stopping, and this process's place in the job."""

from __future__ import annotations

from collections.abc import Sequence

from rdmatensor.horovod import _entry, _runtime
from rdmatensor.horovod.process_sets import ProcessSet, register_all

Average, Sum, Adasum = _entry.AVERAGE, _entry.SUM, _entry.ADASUM
Min, Max, Product = _entry.MIN, _entry.MAX, _entry.PRODUCT


def init(comm: object = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meet the other ranks of the job, as its launcher describes it; no effect while it is on.

    Works under `rdmatensor horovodrun`, torchrun, srun and mpirun, and alone as a job of one.

    Args:
        comm: None, or the list of all ranks. MPI communicators are not supported.
        process_sets: Sets to register; "dynamic" permits add_process_set() later.

    Raises:
        ValueError: A communicator or a subset of the ranks was given, or the launcher's variables
            are incomplete.
        HorovodInternalError: A rank did not come.

    Example:
        >>> init()
        >>> is_initialized()
        True
    """
    _check_comm(comm)
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f'process_sets={process_sets!r}: give a list of sets, or "dynamic"')
    if _runtime.is_on():
        return
    _runtime.start(is_dynamic=process_sets == "dynamic")
    register_all(() if process_sets is None or isinstance(process_sets, str) else process_sets)


def _check_comm(comm: object) -> None:
    if comm is None or comm == []:
        return
    if not isinstance(comm, list | tuple):
        raise ValueError(
            f"hvd.init(comm={type(comm).__name__}): MPI communicators are not supported; leave it "
            "out, and start the ranks by a launcher"
        )
    raise ValueError(
        "hvd.init(comm=[...]): ranks are those of the launcher; for a subset, give process_sets= "
        "and pass the set to each operation"
    )


def shutdown() -> None:
    """Leave the job: operations that other ranks have in flight fail. init() may follow.

    Example:
        >>> shutdown()
        >>> init()
    """
    _runtime.stop()


def is_initialized() -> bool:
    """Return whether init() was called, and shutdown() not since.

    Returns:
        True between the two.

    Example:
        >>> is_initialized()
        True
    """
    return _runtime.is_on()


def rank() -> int:
    """Return this process's rank.

    Returns:
        From 0.

    Raises:
        ValueError: Before init().

    Example:
        >>> rank()
        0
    """
    return _runtime.controller().rank


def size() -> int:
    """Return the number of processes.

    Returns:
        At least 1.

    Raises:
        ValueError: Before init().

    Example:
        >>> size()
        1
    """
    return _runtime.controller().size


def local_rank() -> int:
    """Return the rank among the processes of this host.

    Returns:
        From 0.

    Raises:
        ValueError: Before init().

    Example:
        >>> local_rank()
        0
    """
    return _runtime.runtime().local_rank


def local_size() -> int:
    """Return the number of processes of this host.

    Returns:
        At least 1.

    Raises:
        ValueError: Before init().

    Example:
        >>> local_size()
        1
    """
    return _runtime.runtime().local_size


def cross_rank() -> int:
    """Return the place of this host among those that have a process of this local rank.

    Returns:
        From 0.

    Raises:
        ValueError: Before init().

    Example:
        >>> cross_rank()
        0
    """
    return _runtime.runtime().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process of this local rank.

    Returns:
        At least 1.

    Raises:
        ValueError: Before init().

    Example:
        >>> cross_size()
        1
    """
    return _runtime.runtime().cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have equally many processes.

    Returns:
        True if they have.

    Raises:
        ValueError: Before init().

    Example:
        >>> is_homogeneous()
        True
    """
    return _runtime.runtime().is_homogeneous


def counters() -> dict[str, int]:
    """Return what this rank has counted since init(); no call of Horovod's.

    Returns:
        control_messages: sent to rank 0; negotiated_operations: decided there; lane_operations:
        executed in a fast lane, without a message; waits: calls that waited.

    Raises:
        ValueError: Before init().

    Example:
        >>> sorted(counters())
        ['control_messages', 'lane_operations', 'negotiated_operations', 'waits']
    """
    return _runtime.controller().counters()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin a timeline of the operations on rank 0, for Chrome's trace viewer.

    Args:
        file_path: Written by stop_timeline() or shutdown().
        mark_cycles: Mark each decision of rank 0.

    Raises:
        ValueError: Before init().

    Example:
        >>> start_timeline("timeline.json")  # doctest: +SKIP
    """
    _runtime.start_timeline(file_path, mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """End the timeline and write it.

    Raises:
        ValueError: Before init().

    Example:
        >>> stop_timeline()
    """
    _runtime.stop_timeline()


def mpi_threads_supported() -> bool:
    """Raise ValueError: there is no MPI.

    Raises:
        ValueError: Always.

    Example:
        >>> mpi_threads_supported()
        Traceback (most recent call last):
        ValueError: ...
    """
    raise ValueError("MPI is not used here: there is no MPI mode, and none is needed")


def mpi_enabled() -> bool:
    """Return False: MPI is not used.

    Returns:
        False.

    Example:
        >>> mpi_enabled()
        False
    """
    return False


def mpi_built() -> bool:
    """Return False: there is no MPI.

    Returns:
        False.

    Example:
        >>> mpi_built()
        False
    """
    return False


def gloo_enabled() -> bool:
    """Return True, for scripts that ask for a controller without MPI; Gloo itself is not used.

    Returns:
        True.

    Example:
        >>> gloo_enabled()
        True
    """
    return True


def gloo_built() -> bool:
    """Return True, for scripts that ask for a controller without MPI; Gloo itself is not used.

    Returns:
        True.

    Example:
        >>> gloo_built()
        True
    """
    return True


def nccl_built() -> int:
    """Return 0: there is no NCCL.

    Returns:
        0.

    Example:
        >>> nccl_built()
        0
    """
    return 0


def ddl_built() -> bool:
    """Return False: there is no DDL.

    Returns:
        False.

    Example:
        >>> ddl_built()
        False
    """
    return False


def ccl_built() -> bool:
    """Return False: there is no oneCCL.

    Returns:
        False.

    Example:
        >>> ccl_built()
        False
    """
    return False


def cuda_built() -> bool:
    """Return False: tensors are those of the CPU.

    Returns:
        False.

    Example:
        >>> cuda_built()
        False
    """
    return False


def rocm_built() -> bool:
    """Return False: tensors are those of the CPU.

    Returns:
        False.

    Example:
        >>> rocm_built()
        False
    """
    return False
