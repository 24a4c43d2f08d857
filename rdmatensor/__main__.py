"""Entry of `python -m rdmatensor`."""

import sys

from rdmatensor.cli import main

sys.exit(main())
