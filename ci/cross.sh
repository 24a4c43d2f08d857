#!/usr/bin/env bash
# The C library and its tests for aarch64: Debian's cross compiler, run by qemu's user mode. What
# qemu cannot run is listed, with the reason, in ci/cross_cannot.txt. No Arm processor is involved,
# and qemu on x86-64 shows no weak memory order: tests/model looks at that.
# Usage: ci/cross.sh [REGULAR EXPRESSION]   of names of tests; default: all but the slow ones
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
STUCK_S=3000
OUTPUT_BYTES=1000000 # the totals stand at the end of a program's output

missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(crossbuild-essential-arm64)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
((${#missing[@]} == 0)) || install_packages "${missing[@]}"

# The headers of libibverbs are the same everywhere; next to them lie those of this processor.
mkdir -p build/aarch64/headers
ln -sfn /usr/include/infiniband build/aarch64/headers/infiniband
logged cross-configure cmake --preset aarch64 -DRDMATENSOR_WERROR=ON
logged cross-build cmake --build --preset aarch64

if (($# > 0)); then chosen=(-R "$1"); else chosen=(-LE '^slow$'); fi
junit="$LOGS/cross.xml"
rm -f "$junit"
timeout --kill-after=10 "$STUCK_S" ctest --preset aarch64 "${chosen[@]}" -j 2 --no-tests=error \
    --output-junit "$junit" --test-output-size-passed "$OUTPUT_BYTES" \
    --test-output-size-failed "$OUTPUT_BYTES" >"$LOGS/cross.log" 2>&1 || true
[[ -s "$junit" ]] || {
    tail -n 60 "$LOGS/cross.log" >&2
    die "ctest left no results"
}
"$VENV/bin/python" ci/cross_judge.py "$junit" ci/cross_cannot.txt
