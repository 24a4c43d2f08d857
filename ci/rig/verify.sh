#!/usr/bin/env bash
# The library over RDMA, in the rig: the C tests of verbs and of what stands on it, the contract
# suite, bad input, a training run and a peer that shares no code with the library, on one host;
# checked payloads between two, over a good cable, a bad one, a pulled one, and over two links of
# which one breaks; two containers on one device. At the end a table of all parts.
# Usage: ci/rig/verify.sh [one|two|links|containers]...; all without a word. Needs ci/setup.sh.
#        ci/rig/verify.sh sweep: ranks end at 200 points in C and at 20 with torch; no other run has
# as many.
# Fails where no machine can be started, unless RDMATENSOR_NO_RIG=1 says that there is no rig.
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
RUN_LIMIT_S="${RIG_RUN_LIMIT_S:-1800}"   # several times what a layout takes on two busy CPUs
SWEEP_LIMIT_S="${RIG_RUN_LIMIT_S:-7200}" # two parts, each with a deadline of an hour
WORDS_AGAIN=40                         # last lines of each failed layout, repeated at the end
BUDGET_S=900                           # of all layouts of ci/test.sh, where two cores are idle
PANIC_STATUS=123                       # run.sh's, of a machine whose kernel died

if [[ "${RDMATENSOR_NO_RIG:-}" == 1 ]]; then
    echo 'rig: not run (RDMATENSOR_NO_RIG=1)'
    exit 0
fi
layouts=("$@")
((${#layouts[@]} > 0)) || layouts=(one two links containers)

build_programs() {
    PATH="$VENV/bin:$PATH"
    logged rig-configure cmake --preset dev -DRDMATENSOR_WERROR=ON
    logged rig-build cmake --build --preset dev
}

# run_layout NAME: its words for run.sh, then what runs.
run_layout() {
    case "$1" in
        one) bash ci/rig/run.sh --timeout "$RUN_LIMIT_S" --out "$out/one" -- \
            bash ci/rig/parts.sh one ;;
        two) bash ci/rig/run.sh --hosts 2 --timeout "$RUN_LIMIT_S" --out "$out/two" -- \
            bash ci/rig/parts.sh two ;;
        links) bash ci/rig/run.sh --hosts 2 --links 2 --timeout "$RUN_LIMIT_S" \
            --out "$out/links" -- bash ci/rig/parts.sh links ;;
        sweep) bash ci/rig/run.sh --timeout "$SWEEP_LIMIT_S" --out "$out/sweep" -- \
            bash ci/rig/parts.sh sweep ;;
        containers) bash ci/rig/containers.sh ;;
        *) die "usage: ci/rig/verify.sh [one|two|links|containers|sweep]..." ;;
    esac
}

# Parts by name, once each: the slower host's seconds, and any host's failure.
merge_rows() {
    awk -F '\t' '
        !($1 in seconds) { order[++count] = $1; seconds[$1] = 0; result[$1] = "ok" }
        { if ($2 > seconds[$1]) seconds[$1] = $2 }
        $3 != "ok" { result[$1] = $3 }
        END { for (i = 1; i <= count; i++)
                  printf "%s\t%d\t%s\n", order[i], seconds[order[i]], result[order[i]] }'
}

print_row() { printf '%-12s %-34s %8d  %s\n' "$@"; }

print_table() {
    local layout name took result
    printf '\n%-12s %-34s %8s  %s\n' rig part seconds result
    for layout in "${layouts[@]}"; do
        while IFS=$'\t' read -r name took result; do
            print_row "$layout" "$name" "$took" "$result"
        done < <(find "$out/$layout" -name rows -exec cat {} + 2>/dev/null | merge_rows)
        result=ok
        [[ "$(cat "$out/died" 2>/dev/null)" != "$layout" ]] ||
            result='ok at the second try: a kernel died'
        ((statuses[$layout] == 0)) || result="FAILED (${statuses[$layout]})"
        print_row "$layout" "all, ${cpus[$layout]} CPU seconds" "${times[$layout]}" "$result"
    done
    result="of a budget of $BUDGET_S s"
    ((SECONDS <= BUDGET_S)) || result="$((SECONDS - BUDGET_S)) s over the budget of $BUDGET_S s"
    print_row total '' "$SECONDS" "$result"
}

# The words of a layout that failed lie far above those of the layouts that ran after it.
repeat_failures() {
    local layout
    for layout in "${layouts[@]}"; do
        ((statuses[$layout] != 0)) || continue
        printf '\n== what failed in layout %s\n' "$layout"
        tail -n "$WORDS_AGAIN" "$LOGS/rig-$layout.log"
    done
}

# run_layout, and once more from the start where a kernel died under it: no program is to blame for
# that. A second death in one run of this script, of whichever layout, counts.
run_alive() {
    local status=0
    run_layout "$1" || status=$?
    if ((status == PANIC_STATUS)) && [[ ! -e "$out/died" ]]; then
        echo "rig: a kernel died in layout $1, which runs once more"
        echo "$1" >"$out/died"
        rm -rf "${out:?}/$1"
        status=0
        run_layout "$1" || status=$?
    fi
    return "$status"
}

declare -A statuses times cpus
mkdir -p "$ROOT/build/rig"
out="$(mktemp -d "$ROOT/build/rig/verify.XXXXXX")"
trap 'rm -rf "$out"' EXIT
overall=0
build_programs
for layout in "${layouts[@]}"; do
    start="$SECONDS"
    read_cpu_s
    cpu_before_s="$cpu_s"
    status=0
    run_alive "$layout" 2>&1 | tee "$LOGS/rig-$layout.log" || status=$?
    read_cpu_s
    cpus[$layout]=$((cpu_s - cpu_before_s))
    times[$layout]=$((SECONDS - start))
    statuses[$layout]=$status
    ((status == 0)) || overall=1
done
repeat_failures
print_table
exit "$overall"
