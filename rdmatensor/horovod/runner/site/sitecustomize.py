"""Python imports this when it starts in a rank of horovodrun; then the one that it stands before.

It lets `import horovod` find rdmatensor.horovod where no other module answers to that name.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_here = str(Path(__file__).resolve().parent)
_others = [path for path in sys.path if str(Path(path).resolve()) != _here]
_spec = PathFinder.find_spec("sitecustomize", _others)
if _spec is not None and _spec.loader is not None:
    _next = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _next
    _spec.loader.exec_module(_next)

if importlib.util.find_spec("rdmatensor") is not None:
    from rdmatensor.horovod.runner.finder import append_finder

    append_finder()
