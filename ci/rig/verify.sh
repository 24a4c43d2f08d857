#!/usr/bin/env bash
# The library over RDMA, in the rig: the C tests of verbs and of what stands on it, a training run
# and a peer that shares no code with the library, on one host; checked payloads between two, over
# a good cable and over a bad one.
# Usage: ci/rig/verify.sh [one|two]; both without either word. Needs ci/setup.sh, ci/ctest.sh dev.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cd "$here/../.."
ONE_LIMIT_S=600 # several times what they take on two busy CPUs
TWO_LIMIT_S=240
PROGRAM_LIMIT_S=240
PROGRAMS=(transport_verbs_lane transport_verbs_trace core_verbs_path core_endpoint core_slot
    core_mailbox)
BAD_CABLE=(--loss 1% --duplicate 1% --reorder 1%)

# Within the guest.
if [[ "${1:-}" == guest ]]; then
    status=0
    for program in "${PROGRAMS[@]}"; do
        printf '== %s over %s\n' "$program" "$RIG_DEVICE"
        RDT_TEST_VERBS=device timeout "$PROGRAM_LIMIT_S" "build/dev/tests/${program}_test" ||
            status=1
    done
    echo '== training over verbs'
    RDMATENSOR_TRANSPORT=verbs .venv/bin/python tests/rig/train.py || status=1
    echo '== an independent witness, by pyverbs'
    timeout "$PROGRAM_LIMIT_S" .venv/bin/python tests/rig/witness_job.py || status=1
    exit "$status"
fi

status=0
if [[ "${1:-one}" == one ]]; then
    bash "$here/run.sh" --timeout "$ONE_LIMIT_S" -- bash "$here/verify.sh" guest || status=1
fi
if [[ "${1:-two}" == two ]]; then
    export RDMATENSOR_TRANSPORT=verbs
    bash "$here/run.sh" --hosts 2 --timeout "$TWO_LIMIT_S" -- \
        .venv/bin/python tests/rig/two_hosts.py || status=1
    bash "$here/run.sh" --hosts 2 "${BAD_CABLE[@]}" --timeout "$TWO_LIMIT_S" -- \
        .venv/bin/python tests/rig/two_hosts.py --expect-repairs || status=1
fi
exit "$status"
