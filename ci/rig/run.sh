#!/usr/bin/env bash
# Run a command with a working RDMA device: the host's, or rdma_rxe in one or two virtual machines
# on this machine's own files. `bash ci/rig/run.sh --help` lists the options, rig.md explains.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
for python in "$here/../../.venv/bin/python" python3; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        exec "$python" -u "$here/rig.py" "$@"
    fi
done
echo "error: the rig needs Python 3.10 or later" >&2
exit 1
