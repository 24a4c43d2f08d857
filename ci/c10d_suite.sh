#!/usr/bin/env bash
# PyTorch's own tests of torch.distributed, from the installed wheel, against rdmatensor: all of
# them over shared memory, and of each run one test in TCP_SHARDS over tcp. Which ones hangs on the
# commit: another commit tries others, the same commit the same.
# Usage: ci/c10d_suite.sh [shm|tcp|sample]...   tcp: all tests over tcp; default: shm sample
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
TCP_SHARDS=5 # all of shm takes about 4.5 minutes on two quiet cores, a fifth over tcp 1 more
STUCK_S=3600 # each test has its own, far shorter limit; this ends a runner that is stuck
runs=(lists two three four)
status=0

# suite PATH SHARD: every run, with the path forced.
suite() {
    local run
    for run in "${runs[@]}"; do
        say "c10d suite: $run over $1, shard $2"
        RDMATENSOR_TRANSPORT="$1" timeout --kill-after=10 "$STUCK_S" "$VENV/bin/python" \
            tests/c10d_suite/run.py rdmatensor --run "$run" --shard "$2" \
            --log "$LOGS/c10d-suite-$run-$1.log" || status=1
    done
}

shard_of_commit() {
    local commit
    commit="$(git rev-parse --verify --quiet HEAD || echo 0)" # 0: not a repository
    printf '%d/%d' "$((16#${commit:0:7} % TCP_SHARDS))" "$TCP_SHARDS"
}

(($# > 0)) || set -- shm sample
for part in "$@"; do
    case "$part" in
    shm | tcp) suite "$part" 0/1 ;;
    sample) suite tcp "$(shard_of_commit)" ;;
    *) die "usage: ci/c10d_suite.sh [shm|tcp|sample]..." ;;
    esac
done
exit "$status"
