"""Makes the helper modules next to the tests importable, whatever pytest's import mode."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is no failure: pytest's time limit ends what really hangs.
settings.register_profile("graph", deadline=None, max_examples=60)
settings.load_profile("graph")
