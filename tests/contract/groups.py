"""How many ranks a test of groups has, and what it runs on each."""

from __future__ import annotations

from collections.abc import Callable

from rdmatensor import Group

SIZE = 3
Work = Callable[[Group], object]
