#!/usr/bin/env bash
# Build and run the C tests of one preset, warnings as errors; what failed is shown with its words.
# Usage: ci/ctest.sh dev|asan|tsan|release [quick|slow]   quick: without the tests labelled slow
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
preset="${1:?usage: ci/ctest.sh PRESET [quick|slow]}"
case "${2:-}" in
    '') labels=() ;;
    quick) labels=(-LE '^slow$') ;;
    slow) labels=(-L '^slow$') ;;
    *) die "usage: ci/ctest.sh PRESET [quick|slow]" ;;
esac
OUTPUT_BYTES=1000000 # the totals stand at the end of a program's output
PROGRAMS=2           # at a time; those that measure run alone (cmake/CTests.cmake)
STUCK_S=1800         # far above the sum of the tests; a stuck runner must end

logged "ctest-$preset-configure" cmake --preset "$preset" -DRDMATENSOR_WERROR=ON
logged "ctest-$preset-build" cmake --build --preset "$preset"

# gcc 12's TSan wants the small address randomisation of its time.
personality=()
if [[ "$preset" == tsan ]] && setarch -R true 2>/dev/null; then
    personality=(setarch -R)
fi
junit="$LOGS/ctest-$preset.xml"
rm -f "$junit"

status=0
timeout --kill-after=10 "$STUCK_S" "${personality[@]}" \
    ctest --preset "$preset" "${labels[@]}" -j "$PROGRAMS" --no-tests=error \
    --output-junit "$junit" --test-output-size-passed "$OUTPUT_BYTES" \
    --test-output-size-failed "$OUTPUT_BYTES" >"$LOGS/ctest-$preset.log" 2>&1 || status=$?
if [[ ! -s "$junit" ]]; then # the runner itself failed, or was ended
    tail -n 60 "$LOGS/ctest-$preset.log" >&2
    die "ctest-$preset ended with status $status and left no results"
fi
# The harness's line per program says how many tests there were; green must not mean "none".
"$VENV/bin/python" ci/ctest_summary.py "$preset" "$junit" || status=1
((status == 0)) || die "C tests, $preset; the whole log: build/logs/ctest-$preset.log"
