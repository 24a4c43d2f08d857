#!/usr/bin/env bash
# Set up what is missing, then every test, in steps that each run alone too, the cheap and telling
# ones first. A failed step shows its words and fails the whole, after the later ones have run.
# What has a limit of time or CPU close to what it takes runs alone: the plain C tests and ratios,
# before the rest; and a sanitizer's C tests, whose two programs at a time have use for both cores,
# after it. The rest has lanes side by side, as most of it waits or works with one core.
# Steps that try the same code in several variants take turns by the commit, or a run would take
# more than an hour: rows of the table say what had not its turn. RDMATENSOR_CI_ALL=1 runs all.
# Arguments go to pytest.
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/lib.sh"
PYTEST_STUCK_S=3600 # each test has its own, far shorter limit; this ends a runner that is stuck
WORDS_AGAIN=60      # lines of each failed step, repeated at the end, where a reader looks first
NAMES=(setup 'C tests' ratios lint 'c10d suite' tidy fuzz wheel rig 'torch, builds'
    'torch, ASan+UBSan' 'torch, TSan' 'C tests, ASan+UBSan' 'C tests, TSan' pytest) # rows, in order

# 1 where no virtual machine can run; no setting of the library, so nothing else may see it.
no_rig="${RDMATENSOR_NO_RIG:-}"
all="${RDMATENSOR_CI_ALL:-}" # 1 where nothing waits for its turn
unset RDMATENSOR_NO_RIG RDMATENSOR_CI_ALL

SANITIZERS=(asan tsan) # by their turns
sanitizers=("${SANITIZERS[$(turn_of_commit 2)]}")
[[ "$all" != 1 ]] || sanitizers=("${SANITIZERS[@]}")

rows="$LOGS/steps" # by each step: its seconds, CPU seconds and result
but_for=""         # what a step that is ok has left to other turns
is_beside=no       # yes in lanes but the first: their words are shown when a step is over
overall=0

# file_of NAME: what the names of its row and log begin with.
file_of() { printf '%s' "${1//[^[:alnum:]]/-}"; }

# begin NAME: record() tells of the time since. A lane is a shell of its own: what it has waited
# for, and nothing of the other lane, is the CPU that it tells.
begin() {
    if [[ "$is_beside" == yes ]]; then say "$1 begins, beside what follows"; else say "$1"; fi
    start="$SECONDS"
    read_cpu_s
    start_cpu_s="$cpu_s"
}

# record NAME STATUS
record() {
    local result="ok${but_for:+; not run: $but_for (RDMATENSOR_CI_ALL=1 runs all)}"
    (($2 == 0)) || result=FAILED
    read_cpu_s
    printf '%d %d %s\n' "$((SECONDS - start))" "$((cpu_s - start_cpu_s))" "$result" \
        >"$rows/$(file_of "$1")"
    but_for=""
}

step() {
    local name="$1" status=0 log
    shift
    log="$LOGS/step-$(file_of "$name").log"
    begin "$name"
    if [[ "$is_beside" == yes ]]; then
        "$@" >"$log" 2>&1 || status=$?
        printf '\n== %s is over, with status %d\n' "$name" "$status" | cat - "$log"
    else
        "$@" 2>&1 | tee "$log" || status=$?
    fi
    record "$name" "$status"
}

# skipped NAME REASON: a row for a step that somebody has switched off, or that has not its turn.
skipped() {
    say "$1: $2"
    printf '0 0 %s\n' "$2" >"$rows/$(file_of "$1")"
}

# with_sanitizer PRESET NAME COMMAND...: a step, if the turn is the sanitizer's.
with_sanitizer() {
    if [[ " ${sanitizers[*]} " == *" $1 "* ]]; then
        step "${@:2}"
    else
        skipped "$2" "not run: the turn of ${sanitizers[*]} (RDMATENSOR_CI_ALL=1 runs all)"
    fi
}

repeat_failures() {
    local name log
    for name in "${NAMES[@]}"; do
        log="$LOGS/step-$(file_of "$name").log"
        grep -qs ' FAILED$' "$rows/$(file_of "$name")" && [[ -s "$log" ]] || continue
        printf '\n== what failed in %s\n' "$name"
        tail -n "$WORDS_AGAIN" "$log"
    done
}

# Steps of two lanes share the seconds, so that the sum of the rows says nothing: the last one has
# those of the whole.
print_times() {
    local name seconds cpu result total_cpu=0
    printf '\n%-24s %8s %8s  %s\n' step seconds CPU result
    for name in "${NAMES[@]}"; do
        [[ -e "$rows/$(file_of "$name")" ]] || continue
        read -r seconds cpu result <"$rows/$(file_of "$name")"
        printf '%-24s %8d %8d  %s\n' "$name" "$seconds" "$cpu" "$result"
        total_cpu=$((total_cpu + cpu))
    done
    printf '%-24s %8d %8d\n\n' total "$SECONDS" "$total_cpu"
}

# pip unpacks with one core: the compiler has the other meanwhile.
set_up() {
    local status=0 ahead
    setsid bash ci/ahead.sh dev "${sanitizers[@]}" &
    ahead=$!
    trap 'kill -- -"$ahead" 2>/dev/null' EXIT
    bash ci/setup.sh || status=$?
    ((status == 0)) || kill -- -"$ahead" 2>/dev/null || true
    wait
    trap - EXIT
    return "$status"
}

rm -rf "$rows" "$LOGS"/step-*.log # pytest has none: its words stand at the end already
mkdir "$rows"
step setup set_up
if [[ ! -x "$VENV/bin/pytest" ]]; then # nothing after it could run
    repeat_failures
    print_times
    exit 1
fi
step 'C tests' bash ci/ctest.sh dev
step ratios bash ci/ratios.sh # after the C tests, which have built what it runs

# What another lane leaves in /tmp, the tests that look for what the library left there do not see.
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

build_backends() {
    local preset failed=0
    for preset in "${sanitizers[@]}"; do
        nice -n 19 bash ci/sanitize_backend.sh "$preset" --build || failed=1
    done
    return "$failed"
}

# Beside pytest, which waits for a third of its time, what does not mind company, and leaves nothing
# for long where pytest's tests look: what may leave more has a scratch folder, or, as the C tests,
# no place here.
second_lane() {
    set +m
    is_beside=yes
    step lint bash ci/lint.sh
    if [[ "$all" == 1 ]]; then
        step 'c10d suite' env TMPDIR="$scratch" bash ci/c10d_suite.sh shm tcp
    else
        but_for='half of the tests over shm, four fifths over tcp'
        step 'c10d suite' env TMPDIR="$scratch" bash ci/c10d_suite.sh
    fi
    step tidy bash ci/tidy.sh
    step fuzz bash ci/fuzz.sh
    step wheel env TMPDIR="$scratch" bash ci/wheel.sh
    if [[ "$no_rig" == 1 ]]; then
        skipped rig 'not run (RDMATENSOR_NO_RIG=1)'
    else
        # Not the containers: an image to build, see docs/rig.md.
        local turn=()
        if [[ "$all" != 1 ]]; then
            turn=(--turn)
            but_for='parts of other turns, which its own table names'
        fi
        step rig bash ci/rig/verify.sh "${turn[@]}" itself one two links
    fi
    with_sanitizer asan 'torch, ASan+UBSan' \
        env TMPDIR="$scratch" bash ci/sanitize_backend.sh asan
    with_sanitizer tsan 'torch, TSan' env TMPDIR="$scratch" bash ci/sanitize_backend.sh tsan
}

# At the lowest priority, with what the other lanes leave of the cores while they wait: what the
# last steps of the second one would have to build. Where that takes longer, they wait for it.
third_lane() {
    set +m
    is_beside=yes
    step 'torch, builds' build_backends
}

# pytest's closing line is held back, to stand last, under the table.
closing="$LOGS/pytest-closing-line"
: >"$closing"
run_pytest() {
    local status=0
    local but_last='NR > 1 { print last; fflush() } { last = $0 } END { print last > closing }'
    local turn=() # of variants, see tests/conftest.py
    begin pytest
    if [[ "$all" != 1 ]]; then
        turn=(--turn "$(turn_of_commit 2)/2")
        but_for='variants of other turns, which it calls deselected'
    fi
    # A test that fails is tried once more, and both are told (tests/conftest.py has how many may):
    # what stands still for seconds here is more often the machine than a test.
    timeout --kill-after=10 "$PYTEST_STUCK_S" "$VENV/bin/pytest" --continue-on-collection-errors \
        --reruns 1 --reruns-delay 2 -raR --durations=10 "${turn[@]}" "$@" 2>&1 |
        tee "$LOGS/pytest.log" | awk -v closing="$closing" "$but_last" || status=$?
    record pytest "$status"
}

set -m # process groups of their own, so that they end with this script, however that ends
second_lane &
lanes=("$!")
third_lane &
lanes+=("$!")
set +m
trap 'kill -- "${lanes[@]/#/-}" 2>/dev/null || true; rm -rf "$scratch"' EXIT
(run_pytest "$@") # the first lane
wait "${lanes[@]}" || true # a step that they did not come to has no row, which fails the whole
trap 'rm -rf "$scratch"' EXIT
with_sanitizer asan 'C tests, ASan+UBSan' bash ci/ctest.sh asan
with_sanitizer tsan 'C tests, TSan' bash ci/ctest.sh tsan

for name in "${NAMES[@]}"; do
    row="$rows/$(file_of "$name")"
    [[ -e "$row" ]] || printf '0 0 FAILED\n' >"$row"
    ! grep -q ' FAILED$' "$row" || overall=1
done
repeat_failures
print_times
cat "$closing"
exit "$overall"
