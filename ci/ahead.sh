#!/usr/bin/env bash
# Build what later steps test, at the lowest priority, while something else has a core to spare.
# Builds only: those steps build too, which is nothing after this, and say what does not.
# Usage: ci/ahead.sh PRESET...
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
(($# > 0)) || die "usage: ci/ahead.sh PRESET..."
are_here() {
    command -v cmake && command -v ninja && command -v g++ &&
        gcc -E -include infiniband/verbs.h -x c /dev/null
}
until are_here &>/dev/null; do sleep 1; done # the set-up beside this is about to install them
for preset in "$@"; do
    log="$LOGS/ahead-$preset.log"
    nice -n 19 cmake --preset "$preset" -DRDMATENSOR_WERROR=ON >"$log" 2>&1 || continue
    nice -n 19 cmake --build --preset "$preset" >>"$log" 2>&1 || continue
done
