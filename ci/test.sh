#!/usr/bin/env bash
# Set up what is missing, then test, one step after another: no step disturbs what another measures.
# Usage: ci/test.sh [--all] [OPTION OF PYTEST]...
# Aims at 15 minutes on two cores, the set-up of a bare machine included. --all, as in CI, goes on
# with what that leaves out, and aims at 40 minutes in all: variants of the same code take turns
# by the commit, and sanitizers run if C changed (ci/changed.sh). RDMATENSOR_CI_ALL=1 is --all
# without turns, whatever changed. RDMATENSOR_NO_RIG=1: this machine cannot run the rig.
# A failed step fails the run; the later steps run all the same, except after a failed set-up. The
# table at the end has the time of each step and what was left out. The last line is pytest's.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
FIRST=(setup 'C tests' pytest 'c10d suite' rig)
REST=('C tests, slow' ratios 'pytest, slow' lint tidy fuzz docs wheel 'c10d suite, more' 'rig, more'
    'torch, ASan+UBSan' 'torch, TSan' 'C tests, ASan+UBSan' 'C tests, TSan' aarch64 'torch, next')
NEXT_TORCH=2.14.1 # 2.15.0 could not be installed where this was written: try it first
ELSE='RDMATENSOR_CI_ALL=1 runs all'

no_rig="${RDMATENSOR_NO_RIG:-}"
every="${RDMATENSOR_CI_ALL:-}"
unset RDMATENSOR_NO_RIG RDMATENSOR_CI_ALL # the library refuses settings that it does not know
all="$every"
if [[ "${1:-}" == --all ]]; then
    all=1
    shift
fi
arguments=("$@")
turn=(--turn "$(turn_of_commit 2)/2") # of pytest's variants, see tests/conftest.py
[[ "$every" != 1 ]] || turn=()

# pip unpacks with one core: the compiler has the other meanwhile.
set_up() {
    bash ci/ahead.sh dev &>"$LOGS/ahead.log" & # ends with the step, where the set-up fails
    bash ci/setup.sh || return
    wait
}

# run_pytest PART ARGUMENT...: the closing line is held back, to stand under the table.
run_pytest() {
    "$VENV/bin/pytest" --continue-on-collection-errors --durations=10 "${@:2}" \
        "${turn[@]}" "${arguments[@]}" | sed -u -e "\$w $LOGS/closing-$1" -e '$d'
}

# Tests of integration wait for a third of their time: the others run at the same time, as do two
# programs of the C tests. None of them bounds a time closely.
quick_tests() {
    local others status=0
    run_pytest others -m 'not slow' --ignore tests/integration tests &>"$LOGS/others.log" &
    others=$!
    run_pytest integration -m 'not slow' tests/integration || status=$?
    wait "$others" || status=$?
    cat "$LOGS/others.log"
    return "$status"
}

# rig NAME ARGUMENT...
rig() {
    if [[ "$no_rig" == 1 ]]; then
        skip "$1" RDMATENSOR_NO_RIG=1
    else
        step "$1" bash ci/rig/verify.sh "${@:2}"
    fi
}

first() {
    left_out='slow tests'
    step 'C tests' bash ci/ctest.sh dev quick
    left_out="slow tests${turn:+, variants of another turn}"
    step pytest quick_tests
    left_out='four fifths'
    step 'c10d suite' bash ci/c10d_suite.sh fifth
    left_out='parts that take turns'
    rig rig --short itself one
}

# sanitizer TURN NAME COMMAND...
sanitizer() {
    if [[ "$c_changed" == no ]]; then
        skip "$2" "no C has changed since $(bash ci/changed.sh --base) ($ELSE)"
    elif [[ "$every" == 1 || "$1" == "$(turn_of_commit 2)" ]]; then
        step "${@:2}"
    else
        skip "$2" "another turn has it ($ELSE)"
    fi
}

# What measures nothing, and leaves no files where tests look for those that the library left: what
# makes temporary files has a folder of its own for them.
beside_slow_tests() {
    lane=hidden
    step lint bash ci/lint.sh
    step tidy bash ci/tidy.sh
    step fuzz bash ci/fuzz.sh
    step docs env TMPDIR="$scratch" bash ci/docs.sh
    step wheel env TMPDIR="$scratch" bash ci/wheel.sh
    if [[ "$every" == 1 ]]; then
        step 'c10d suite, more' env TMPDIR="$scratch" bash ci/c10d_suite.sh shm tcp
        rig 'rig, more' --rest one two links
    else
        left_out="four fifths ($ELSE)"
        step 'c10d suite, more' env TMPDIR="$scratch" bash ci/c10d_suite.sh other-fifth
        left_out="parts of other turns ($ELSE)"
        rig 'rig, more' --rest --turn one two links
    fi
    sanitizer 0 'torch, ASan+UBSan' env TMPDIR="$scratch" bash ci/sanitize_backend.sh asan
    sanitizer 1 'torch, TSan' env TMPDIR="$scratch" bash ci/sanitize_backend.sh tsan
}

slow_tests() {
    lane=shown
    left_out="${turn:+variants of another turn ($ELSE)}"
    step 'pytest, slow' run_pytest slow -m slow
}

rest() {
    c_changed=yes
    [[ "$every" == 1 ]] || bash ci/changed.sh || c_changed=no
    step 'C tests, slow' bash ci/ctest.sh dev slow
    step ratios bash ci/ratios.sh
    side_by_side slow_tests beside_slow_tests
    sanitizer 0 'C tests, ASan+UBSan' bash ci/ctest.sh asan
    sanitizer 1 'C tests, TSan' bash ci/ctest.sh tsan
    if [[ "$every" == 1 ]]; then
        step aarch64 bash ci/cross.sh
        step 'torch, next' bash ci/torch_next.sh "$NEXT_TORCH"
    else
        skip aarch64 "$ELSE"
        skip 'torch, next' "$ELSE"
    fi
}

status=0
names=(setup) # alone, where nothing can run after it
rm -f "$LOGS"/closing-*
begin_steps
step setup set_up
if [[ -x "$VENV/bin/pytest" ]] && succeeded setup; then
    names=("${FIRST[@]}")
    first
    if [[ "$all" == 1 ]]; then
        names+=("${REST[@]}")
        rest
    fi
fi
report "${names[@]}" || status=1
print_closing "$LOGS"/closing-*
exit "$status"
