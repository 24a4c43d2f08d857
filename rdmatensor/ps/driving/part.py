"""The part of a process in a driver's job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from rdmatensor._native.arguments import invalid
from rdmatensor.errors import RdmaTensorError
from rdmatensor.ps.driving.driver import Driver
from rdmatensor.ps.driving.labour import work
from rdmatensor.ps.worker import Worker


def take_part(w: Worker, main: Callable[[Driver], None], in_flight: int | None = None) -> None:
    """Run main(driver) on the last worker, and its functions on the others."""
    if w.workers < 2:
        raise invalid("drive", "1 worker: a driver and at least one worker are needed")
    w.workers -= 1
    if w.rank < w.workers:
        work(w, driver=w.workers)
        return
    driver = Driver(w, in_flight)
    try:
        main(driver)
        driver.join()
    except BaseException:
        driver._close()
        with contextlib.suppress(RdmaTensorError):  # the first error is raised
            w.leave()
        raise
    driver._close()
