#!/usr/bin/env bash
# A quick look whether something became far slower: ratios against the floor and Gloo in one run,
# never a time (HELD of bench/suite/costs.py). A minute and a half, without the build of what
# ci/ctest.sh dev builds too.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
STUCK_S=600 # each program has its own, far shorter limit

if (($(nproc) < 2)); then
    say "ratios: not measured, they need two cores"
    exit 0
fi
logged ratios-configure cmake --preset dev -DRDMATENSOR_WERROR=ON # as ci/ctest.sh: one build
logged ratios-build cmake --build --preset dev --target bench_rdtperf
RDMATENSOR_BENCH_PROGRAMS="$ROOT/build/dev/bench" timeout --kill-after=10 "$STUCK_S" \
    "$VENV/bin/python" -m pytest -q "$ROOT/bench/test_costs.py" -k test_ratio
