#!/usr/bin/env bash
# Set up what is missing, then every test, in steps that each run alone too, the cheap and telling
# ones first. A failed step shows its words and fails the whole, after the later ones have run.
# Arguments go to pytest.
here="$(dirname "${BASH_SOURCE[0]}")"
source "$here/lib.sh"
PYTEST_STUCK_S=3600 # each test has its own, far shorter limit; this ends a runner that is stuck
WORDS_AGAIN=60      # lines of each failed step, repeated at the end, where a reader looks first

# 1 where no virtual machine can run; no setting of the library, so nothing else may see it.
no_rig="${RDMATENSOR_NO_RIG:-}"
unset RDMATENSOR_NO_RIG

names=()
seconds=()
cpus=()
results=()
overall=0

# begin NAME: record() tells of the time since.
begin() {
    say "$1"
    start="$SECONDS"
    read_cpu_s
    start_cpu_s="$cpu_s"
}

# record NAME STATUS
record() {
    read_cpu_s
    names+=("$1")
    seconds+=("$((SECONDS - start))")
    cpus+=("$((cpu_s - start_cpu_s))")
    if (($2 == 0)); then results+=(ok); else results+=("FAILED") && overall=1; fi
}

step() {
    local name="$1" status=0
    shift
    begin "$name"
    "$@" 2>&1 | tee "$LOGS/step-${#names[@]}.log" || status=$?
    record "$name" "$status"
}

# skipped NAME REASON: a row for a step that somebody has switched off.
skipped() {
    say "$1: $2"
    names+=("$1")
    seconds+=(0)
    cpus+=(0)
    results+=("$2")
}

repeat_failures() {
    local i
    for i in "${!names[@]}"; do
        [[ "${results[i]}" == FAILED && -s "$LOGS/step-$i.log" ]] || continue
        printf '\n== what failed in %s\n' "${names[i]}"
        tail -n "$WORDS_AGAIN" "$LOGS/step-$i.log"
    done
}

print_times() {
    local i total=0 total_cpu=0
    printf '\n%-24s %8s %8s  %s\n' step seconds CPU result
    for i in "${!names[@]}"; do
        printf '%-24s %8d %8d  %s\n' "${names[i]}" "${seconds[i]}" "${cpus[i]}" "${results[i]}"
        total=$((total + seconds[i]))
        total_cpu=$((total_cpu + cpus[i]))
    done
    printf '%-24s %8d %8d\n\n' total "$total" "$total_cpu"
}

# pip unpacks with one core: the compiler has the other meanwhile.
set_up() {
    local status=0 ahead
    setsid bash ci/ahead.sh dev asan tsan &
    ahead=$!
    trap 'kill -- -"$ahead" 2>/dev/null' EXIT
    bash ci/setup.sh || status=$?
    ((status == 0)) || kill -- -"$ahead" 2>/dev/null || true
    wait
    trap - EXIT
    return "$status"
}

rm -f "$LOGS"/step-*.log # pytest has none: its words stand at the end already
step setup set_up
if [[ ! -x "$VENV/bin/pytest" ]]; then # nothing after it could run
    repeat_failures
    print_times
    exit 1
fi
step lint bash ci/lint.sh
step 'C tests' bash ci/ctest.sh dev
step ratios bash ci/ratios.sh # after the C tests, which have built what it runs
step 'C tests, ASan+UBSan' bash ci/sanitize.sh asan
step 'C tests, TSan' bash ci/sanitize.sh tsan
step tidy bash ci/tidy.sh
step fuzz bash ci/fuzz.sh
step wheel bash ci/wheel.sh
step 'c10d suite' bash ci/c10d_suite.sh
if [[ "$no_rig" == 1 ]]; then
    skipped rig 'not run (RDMATENSOR_NO_RIG=1)'
else
    step rig bash ci/rig/verify.sh one two links # containers: an image to build, see docs/rig.md
fi

# pytest's closing line is held back, to stand last, under the table.
begin pytest
status=0
closing="$LOGS/pytest-closing-line"
: >"$closing"
but_last='NR > 1 { print last; fflush() } { last = $0 } END { print last > closing }'
# A test that fails is tried once more, and both are told (tests/conftest.py has how many may): what
# stands still for seconds here is more often the machine than a test.
timeout --kill-after=10 "$PYTEST_STUCK_S" "$VENV/bin/pytest" --continue-on-collection-errors \
    --reruns 1 --reruns-delay 2 -raR --durations=10 "$@" 2>&1 | tee "$LOGS/pytest.log" |
    awk -v closing="$closing" "$but_last" || status=$?
record pytest "$status"
repeat_failures
print_times
cat "$closing"
exit "$overall"
