#!/usr/bin/env bash
# PyTorch's own tests of torch.distributed, from the installed wheel, against rdmatensor.
# Usage: ci/c10d_suite.sh [shm|tcp|fifth|other-fifth]...
# shm, tcp: all tests over it. fifth: one test in five, over one of the two; other-fifth: over the
# other. The commit selects tests and path: another commit tries others. Default: fifth.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
SHARDS=5
PATHS=(shm tcp)
RUNS_AT_ONCE=2 # of up to four ranks each, which wait for each other half of the time
STUCK_S=3600   # each test has its own, far shorter limit; this ends a runner that is stuck
runs=(four three two lists) # the longest first, so that the cores end together
failures="$LOGS/c10d-suite-failures"
trap 'jobs -rp | xargs -r kill' EXIT # none are left where all is well
: >"$failures"

# run PATH SHARD RUN: with the path forced; its words are shown in one piece, when it is over.
run() {
    local log="$LOGS/c10d-suite-$3-$1"
    RDMATENSOR_TRANSPORT="$1" timeout --kill-after=10 "$STUCK_S" "$VENV/bin/python" \
        tests/c10d_suite/run.py rdmatensor --run "$3" --shard "$2" --log "$log.log" \
        >"$log.words" 2>&1 || echo "$3 over $1" >>"$failures"
    flock "$failures" cat - "$log.words" <<<"== c10d suite: $3 over $1, shard $2"
}

# suite PATH SHARD: every run, begun as soon as one before it is over.
suite() {
    local name
    for name in "${runs[@]}"; do
        while (($(jobs -rp | wc -l) >= RUNS_AT_ONCE)); do wait -n || true; done
        run "$1" "$2" "$name" &
    done
}

turn="$(turn_of_commit $((2 * SHARDS)))"
# fifth PATH_NUMBER
fifth() { suite "${PATHS[$1]}" "$((turn / 2))/$SHARDS"; }

(($# > 0)) || set -- fifth
for part in "$@"; do
    case "$part" in
        shm | tcp) suite "$part" 0/1 ;;
        fifth) fifth $((turn % 2)) ;;
        other-fifth) fifth $((1 - turn % 2)) ;;
        *) die "usage: ci/c10d_suite.sh [shm|tcp|fifth|other-fifth]..." ;;
    esac
done
wait
[[ ! -s "$failures" ]] || die "c10d suite: $(paste -sd, "$failures")"
