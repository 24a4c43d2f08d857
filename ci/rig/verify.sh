#!/usr/bin/env bash
# The library over RDMA, in the rig: the C tests of verbs and of what stands on it, the contract
# suite, bad input, a training run and a peer that shares no code with the library, on one host;
# checked payloads between two, over a good cable, a bad one, a pulled one, and over two links of
# which one breaks; two containers on one device; and first that the rig itself keeps its promises.
# At the end a table of all parts.
# Usage: ci/rig/verify.sh [--short | --rest] [--turn] [itself|one|two|links|containers]...; all
# without a layout. Needs ci/setup.sh. --short: of layout one the parts that every run has. --rest:
# those that take turns, without the former. --turn: of layouts and parts that take turns those that
# have this commit's. The table names the others.
#        ci/rig/verify.sh sweep: ranks end at 200 points in C and at 20 with torch; no other run has
# as many.
# Fails if a layout's run does, if a part's row says so, whatever the run's status, or if a host has
# left no rows; and where no machine can be started, unless RDMATENSOR_NO_RIG=1 says that there is
# no rig.
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
RUN_LIMIT_S="${RIG_RUN_LIMIT_S:-2700}"   # about twice what the longest takes on two busy CPUs
SWEEP_LIMIT_S="${RIG_RUN_LIMIT_S:-7200}" # two parts, each with a deadline of an hour
WORDS_AGAIN=40                         # last lines of each failed layout, repeated at the end
BUDGET_S=900                           # of all layouts but containers, where two cores are idle
PANIC_STATUS=123                       # run.sh's, of a machine whose kernel died
# Of layout one, where it is emulated: without instructions that kernel and libraries take for fast
# ones and QEMU emulates byte by byte (ERMS) or bit by bit (PCLMULQDQ): copies, new pages, CRCs.
CPU=(--cpu max,erms=off,pclmulqdq=off,la57=off)
TURNS=3 # parts.sh has those of the parts of layout one
declare -A TURN_OF=([links]=0 [two]=1)

usage() {
    die "usage: ci/rig/verify.sh [--short | --rest] [--turn]" \
        "[itself|one|two|links|containers|sweep]..."
}

if [[ "${RDMATENSOR_NO_RIG:-}" == 1 ]]; then
    echo 'rig: not run (RDMATENSOR_NO_RIG=1)'
    exit 0
fi
declare -A HOSTS=([itself]=1 [one]=1 [two]=2 [links]=2 [sweep]=1 [containers]=1)
which=all # of the parts of layout one: or common, or rest
turn=""
while [[ "${1:-}" == --* ]]; do
    case "$1" in
        --short) which=common ;;
        --rest) which=rest ;;
        --turn) turn="$(turn_of_commit "$TURNS")" ;;
        *) usage ;;
    esac
    shift
done
# A turn has a third of what takes turns, and what is in all of them.
if [[ "$which$turn" != all ]]; then BUDGET_S=$((BUDGET_S / 2)); fi
layouts=("$@")
((${#layouts[@]} > 0)) || layouts=(itself one two links containers)
for layout in "${layouts[@]}"; do
    [[ -n "${HOSTS[$layout]:-}" ]] || usage
done

# has_turn LAYOUT
has_turn() { [[ -z "$turn" || "${TURN_OF[$1]:-$turn}" == "$turn" ]]; }

build_programs() {
    PATH="$VENV/bin:$PATH"
    logged rig-configure cmake --preset dev -DRDMATENSOR_WERROR=ON
    logged rig-build cmake --build --preset dev
}

# run_layout NAME: its words for run.sh, then what runs.
run_layout() {
    case "$1" in
        itself) bash tests/rig/boot.sh "$out/itself" ;;
        one) bash ci/rig/run.sh "${CPU[@]}" --timeout "$RUN_LIMIT_S" --out "$out/one" -- \
            bash ci/rig/parts.sh one "$which" ${turn:+"$turn"} ;;
        two) bash ci/rig/run.sh --hosts 2 --timeout "$RUN_LIMIT_S" --out "$out/two" -- \
            bash ci/rig/parts.sh two ;;
        links) bash ci/rig/run.sh --hosts 2 --links 2 --timeout "$RUN_LIMIT_S" \
            --out "$out/links" -- bash ci/rig/parts.sh links ;;
        sweep) bash ci/rig/run.sh --timeout "$SWEEP_LIMIT_S" --out "$out/sweep" -- \
            bash ci/rig/parts.sh sweep ;;
        containers) bash ci/rig/containers.sh build &&
            bash ci/rig/containers.sh test --out "$out/containers" ;;
    esac
}

# rows_of LAYOUT: parts by name, once each: the slower host's seconds, and any host's failure. Every
# host has every part.
rows_of() {
    find "$out/$1" -name rows -exec cat {} + 2>/dev/null | awk -F '\t' -v hosts="${HOSTS[$1]}" '
        !($1 in seconds) { order[++count] = $1; seconds[$1] = 0; result[$1] = "ok" }
        { seen[$1]++; if ($2 > seconds[$1]) seconds[$1] = $2 }
        $3 != "ok" { result[$1] = $3 }
        END { for (i = 1; i <= count; i++) {
                  name = order[i]
                  if (seen[name] != hosts && result[name] == "ok")
                      result[name] = "FAILED (" seen[name] " rows of " hosts ")"
                  printf "%s\t%d\t%s\n", name, seconds[name], result[name] } }'
}

# judge LAYOUT STATUS: ok, or why not. A run that ends well in spite of its rows proves nothing.
# Rows of parts that have another turn do not count, if not all were asked for.
judge() {
    local rows
    rows="$(rows_of "$1")"
    [[ "$which$turn" == all ]] ||
        rows="$(grep -v $'\tnot run: has turn [1-9]$' <<<"$rows" || true)"
    if (($2 != 0)); then
        echo "FAILED ($2)"
    elif [[ -z "$rows" ]]; then
        echo 'FAILED (status 0, and no rows)'
    elif grep -qv $'\tok$' <<<"$rows"; then
        echo 'FAILED (status 0, but not all rows are ok)'
    else
        echo ok
    fi
}

print_row() { printf '%-12s %-34s %8d  %s\n' "$@"; }

print_table() {
    local layout name took result
    printf '\n%-12s %-34s %8s  %s\n' rig part seconds result
    for layout in "${layouts[@]}"; do
        if ! has_turn "$layout"; then
            print_row "$layout" all 0 "not run: has turn $((TURN_OF[$layout] + 1))"
            continue
        fi
        while IFS=$'\t' read -r name took result; do
            print_row "$layout" "$name" "$took" "$result"
        done < <(rows_of "$layout")
        result="${verdicts[$layout]}"
        [[ "$result" != ok || "$(cat "$out/died" 2>/dev/null)" != "$layout" ]] ||
            result='ok at the second try: a kernel died'
        print_row "$layout" "all, ${cpus[$layout]} CPU seconds" "${times[$layout]}" "$result"
    done
    [[ -z "$turn" ]] || print_row turn "$((turn + 1)) of $TURNS" 0 'by the commit'
    result="of a budget of $BUDGET_S s"
    ((SECONDS <= BUDGET_S)) || result="$((SECONDS - BUDGET_S)) s over the budget of $BUDGET_S s"
    print_row total '' "$SECONDS" "$result"
}

# The words of a layout that failed lie far above those of the layouts that ran after it.
repeat_failures() {
    local layout
    for layout in "${layouts[@]}"; do
        [[ "${verdicts[$layout]:-ok}" != ok ]] || continue
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

declare -A verdicts times cpus
mkdir -p "$ROOT/build/rig"
out="$(mktemp -d "$ROOT/build/rig/verify.XXXXXX")"
trap 'rm -rf "$out"' EXIT
overall=1 # until a layout has run: one that only others have the turn of proves nothing
for layout in "${layouts[@]}"; do ! has_turn "$layout" || overall=0; done
build_programs
for layout in "${layouts[@]}"; do
    has_turn "$layout" || continue
    start="$SECONDS"
    read_cpu_s
    cpu_before_s="$cpu_s"
    status=0
    run_alive "$layout" 2>&1 | tee "$LOGS/rig-$layout.log" || status=$?
    read_cpu_s
    cpus[$layout]=$((cpu_s - cpu_before_s))
    times[$layout]=$((SECONDS - start))
    verdicts[$layout]="$(judge "$layout" "$status")"
    [[ "${verdicts[$layout]}" == ok ]] || overall=1
done
repeat_failures
print_table
exit "$overall"
