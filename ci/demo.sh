#!/usr/bin/env bash
# Set up what is missing, then run the main job: distributed training over rdmatensor and over Gloo,
# in turns, compared. Arguments go to examples/train.py (--help lists them).
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
bash "$here/setup.sh"
cd "$here/.."
exec .venv/bin/python examples/train.py "$@"
