"""What happens within a backward pass: pauses, and an error that a case asks for."""

from __future__ import annotations

import random
import time

from torch import Tensor

PAUSE_S = 0.002  # the longest pause at one place: sums of other ranks begin and end in it


class Moments:
    """Outside of the models, so that copies of a model do not copy it."""

    pauses: random.Random | None = None
    is_raising = False


class Asked(RuntimeError):
    """The error of a backward pass that the case asked for."""


def pause() -> None:
    """Sleep for a random time, or not at all."""
    if Moments.pauses is not None and Moments.pauses.random() < 0.3:
        time.sleep(Moments.pauses.random() * PAUSE_S)


def _paused(_grad: Tensor) -> None:
    pause()


def slow(x: Tensor) -> Tensor:
    """Have backward pause before the node that made `x`, where other gradients may have left."""
    if Moments.pauses is not None and x.requires_grad:
        x.register_hook(_paused)
    return x


def raise_asked(_grad: Tensor) -> None:
    """Raise what a case asks for."""
    if Moments.is_raising:
        raise Asked("asked for in backward")
