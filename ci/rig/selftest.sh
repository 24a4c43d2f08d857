#!/usr/bin/env bash
# Does the rig work? perftest and a checked ping-pong in one and in two machines, in a table.
# Usage: ci/rig/selftest.sh [one|two] [OPTIONS for run.sh, such as --kernel 6.1]
# one: on one host only; two: between two only; both without either word.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
ONE_LIMIT_S=240 # several times what they take on two busy CPUs
TWO_LIMIT_S=480

layouts=(one two)
if [[ "${1:-}" == one || "${1:-}" == two ]]; then
    layouts=("$1")
    shift
fi

status=0
for hosts in "${layouts[@]}"; do
    if [[ "$hosts" == one ]]; then
        layout=(--hosts 1 --timeout "$ONE_LIMIT_S")
    else
        layout=(--hosts 2 --links 2 --timeout "$TWO_LIMIT_S")
    fi
    # In the background, so that a signal to this script is not held back until the run has ended.
    bash "$here/run.sh" "$@" "${layout[@]}" --out "$out/$hosts" -- \
        bash "$here/selftest_cases.sh" "$hosts" &
    run="$!"
    trap 'kill -TERM "$run"; wait "$run" || true; exit 143' INT TERM
    wait "$run" || status=$?
done

printf '\n%-6s %-42s %-32s %-16s %s\n' hosts case measured wanted result
while IFS=$'\t' read -r hosts name measured wanted result; do
    printf '%-6s %-42s %-32s %-16s %s\n' "$hosts" "$name" "$measured" "$wanted" "$result"
done < <(
    for hosts in "${layouts[@]}"; do
        find "$out/$hosts" -name rows -exec sed "s/^/$hosts\t/" {} +
    done
)
exit "$status"
