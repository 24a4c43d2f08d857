#!/usr/bin/env bash
# PyTorch's own tests of torch.distributed, from the installed wheel, against rdmatensor: of each
# run one test in SHM_SHARDS over shared memory and one in TCP_SHARDS over tcp. Which ones hangs on
# the commit: another commit tries others, the same commit the same.
# Usage: ci/c10d_suite.sh [shm|tcp|sample]...   shm, tcp: all tests over it; default: sample
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
SHM_SHARDS=2
TCP_SHARDS=5
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

# sample PATH COUNT: the shard of this commit.
sample() { suite "$1" "$(turn_of_commit "$2")/$2"; }

(($# > 0)) || set -- sample
for part in "$@"; do
    case "$part" in
    shm | tcp) suite "$part" 0/1 ;;
    sample)
        sample shm "$SHM_SHARDS"
        sample tcp "$TCP_SHARDS"
        ;;
    *) die "usage: ci/c10d_suite.sh [shm|tcp|sample]..." ;;
    esac
done
wait
[[ ! -s "$failures" ]] || die "c10d suite: $(paste -sd, "$failures")"
