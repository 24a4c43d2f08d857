#!/usr/bin/env bash
# What rig.md promises of a command in the rig, by one real boot: its words come while it runs,
# its status is passed on, and its files come back. Leaves rows as ci/rig/parts.sh does.
# Usage: tests/rig/boot.sh OUT
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out="$1"
LIMIT_S=300      # several times what a boot takes on two busy CPUs
export HEARD_S=60 # the command ends with another status if nobody has heard it by then
STATUS=7

# Goes on only when this side, having read its words, answers.
# shellcheck disable=SC2016 # for the shell in the rig
COMMAND='echo x >"$RIG_OUT/file"; echo words; echo an error >&2
    for _ in $(seq "$HEARD_S"); do
        [ ! -e "$RIG_OUT/heard" ] || exit '"$STATUS"'
        sleep 1
    done
    exit 1'

# row NAME CHECK...: says and records whether the check succeeds.
row() {
    local name="$1" result=ok
    shift
    "$@" || result=FAILED
    [[ "$result" == ok ]] || overall=1
    printf '%s: %s\n' "$name" "$result"
    printf '%s\t%d\t%s\n' "$name" "$SECONDS" "$result" >>"$out/rows"
}

mkdir -p "$out"
words=no status=0 overall=0
exec 3< <(exec bash ci/rig/run.sh --timeout "$LIMIT_S" --out "$out" -- sh -c "$COMMAND")
run="$!"
trap 'kill -TERM "$run" 2>/dev/null || true' EXIT
while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ "$line" == words ]]; then
        words=yes
        touch "$out/heard"
    fi
done <&3
wait "$run" || status=$?
trap - EXIT
((status != 123)) || exit 123 # a kernel died: ci/rig/verify.sh tries once more
row 'its words, while it runs' test "$words" = yes
row "status $STATUS" test "$status" -eq "$STATUS"
row 'a file comes back' test "$(cat "$out/file")" = x
exit "$overall"
