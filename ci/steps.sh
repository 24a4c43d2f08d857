# Steps with a log, a time and a result each, for ci/test.sh; sourced after lib.sh, not run.
# A step has a process group of its own. In one of two lanes that run side by side it belongs to the
# group of the lane.
# shellcheck shell=bash
ROWS="$LOGS/steps" # a file for each step: its seconds, CPU seconds and result
LINES_AGAIN=60     # of each failed step, repeated at the end
END_WAIT_S=10      # for processes to end after SIGTERM

lane=none   # or shown, or hidden: the output appears when the step is over
left_out="" # what the next step leaves out
groups=()   # process groups that this shell started

file_of() { printf '%s' "${1//[^[:alnum:]]/-}"; }
log_of() { printf '%s/step-%s.log' "$LOGS" "$(file_of "$1")"; }
row() { printf '%d %d %s\n' "${@:2}" >"$ROWS/$(file_of "$1")"; }
progress() { printf '\n[%02d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

begin_steps() {
    rm -rf "$ROWS" "$LOGS"/step-*.log
    mkdir "$ROWS"
    scratch="$(mktemp -d)"
    trap 'end_groups; rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    SECONDS=0 # the first step begins at 00:00, however long the shell took to start
}

# start COMMAND...: in the background, as a process group.
start() {
    set -m
    "$@" &
    set +m
    groups+=("$!")
}

# What is left of the groups, a step's own background processes too.
end_groups() {
    local group end=$((SECONDS + END_WAIT_S))
    for group in "${groups[@]}"; do kill -- "-$group" 2>/dev/null || true; done
    for group in "${groups[@]}"; do
        while kill -0 -- "-$group" 2>/dev/null && ((SECONDS < end)); do sleep 0.1; done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    groups=()
}

# logging LOG COMMAND...
logging() {
    set +m
    if [[ "$lane" == hidden ]]; then "${@:2}" >"$1" 2>&1; else "${@:2}" 2>&1 | tee "$1"; fi
}

# step NAME COMMAND...
step() {
    local name="$1" log status=0 began="$SECONDS" cpu_began_s result
    log="$(log_of "$name")"
    shift
    progress "$name"
    read_cpu_s
    cpu_began_s="$cpu_s"
    if [[ "$lane" == none ]]; then
        start logging "$log" "$@"
        wait "${groups[0]}" || status=$?
        end_groups
    else
        logging "$log" "$@" || status=$?
    fi
    read_cpu_s
    result="ok${left_out:+; not run: $left_out}"
    ((status == 0)) || result="FAILED ($status)"
    left_out=""
    row "$name" $((SECONDS - began)) $((cpu_s - cpu_began_s)) "$result"
    [[ "$lane" != hidden ]] || cat "$log"
    progress "$name: $result, after $((SECONDS - began)) s"
}

# succeeded NAME: a step that has run.
succeeded() { ! grep -q '^[0-9]* [0-9]* FAILED' "$ROWS/$(file_of "$1")"; }

# skip NAME REASON
skip() {
    progress "$1: not run, $2"
    row "$1" 0 0 "not run: $2"
}

# side_by_side LANE...: functions. A step that a lane does not reach has no row: report() fails.
side_by_side() {
    local function
    for function in "$@"; do start "$function"; done
    wait "${groups[@]}" || true
    end_groups
}

# report NAME...: the ends of failed steps, and the table; fails if a step failed or has no row.
# Steps of two lanes share the seconds: the last row has those of the whole.
report() {
    local name seconds cpu result total_cpu=0 status=0
    for name in "$@"; do
        [[ -e "$ROWS/$(file_of "$name")" ]] || row "$name" 0 0 'FAILED: not reached'
        ! succeeded "$name" || continue
        status=1
        printf '\n== the end of %s, which failed; all of it: %s\n' "$name" "$(log_of "$name")"
        tail -n "$LINES_AGAIN" "$(log_of "$name")" 2>/dev/null || true
    done
    printf '\n%-24s %8s %8s  %s\n' step seconds CPU result
    for name in "$@"; do
        read -r seconds cpu result <"$ROWS/$(file_of "$name")"
        printf '%-24s %8d %8d  %s\n' "$name" "$seconds" "$cpu" "$result"
        total_cpu=$((total_cpu + cpu))
    done
    printf '%-24s %8d %8d\n\n' total "$SECONDS" "$total_cpu"
    return "$status"
}

# print_closing FILE...: the closing line of a run of pytest, or one that adds up those of several.
print_closing() {
    cat "$@" 2>/dev/null | awk '
        { for (i = 1; i < NF; i++) {
              word = $(i + 1)
              sub(/,$/, "", word)
              if ($i ~ /^[0-9]+$/) count[word] += $i
          }
          if (match($0, /[0-9.]+s/)) seconds += substr($0, RSTART, RLENGTH - 1)
          last = $0 }
        END { if (NR < 2) { print last; exit }
              kinds = split("failed passed skipped xfailed xpassed warnings error errors", kind)
              for (i = 1; i <= kinds; i++)
                  if (kind[i] in count) text = text ", " count[kind[i]] " " kind[i]
              printf "===== %s in %.2fs =====\n", substr(text, 3), seconds }'
}
