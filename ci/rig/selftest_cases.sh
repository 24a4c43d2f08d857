#!/usr/bin/env bash
# What selftest.sh runs inside the rig. Usage: selftest_cases.sh one|two
# Appends a row to $RIG_OUT/rows for each case: name, measured, wanted, result, by tabs.
set -euo pipefail
CASE_LIMIT_S=90
LISTEN_LIMIT_S=30
BULK_BYTES=$((1 << 20))
SHAPE_MBIT=16 # 2 MB/s: far below what two emulated machines can send: the cable is the bound
port=18600    # the next case's; both hosts count alike
LIMITED=(timeout --kill-after=5 "$CASE_LIMIT_S")

row() { printf '%s\t%s\t%s\t%s\n' "$@" >>"$RIG_OUT/rows"; }

# verdict NAME MEASURED WANTED CONDITION: a row; CONDITION is awk's.
verdict() {
    local result=FAILED
    [[ -n "$2" ]] && awk "BEGIN { exit !($4) }" && result=ok
    row "$1" "${2:-nothing}" "$3" "$result"
}

await() { # FILE
    local end=$((SECONDS + CASE_LIMIT_S))
    until [[ -e "$1" ]]; do
        ((SECONDS < end)) || {
            echo "selftest: no $1 after $CASE_LIMIT_S s" >&2
            return 1
        }
        sleep 0.1
    done
}

# meet: both hosts arrive before either goes on.
met=0
meet() {
    met=$((met + 1))
    touch "$RIG_SHARED/met-$met-$RIG_HOST"
    await "$RIG_SHARED/met-$met-$((RIG_HOSTS - 1 - RIG_HOST))"
}

listen() { # LOG COMMAND...: in the background; returns once it listens on $port
    local log="$1" end=$((SECONDS + LISTEN_LIMIT_S))
    shift
    "${LIMITED[@]}" "$@" >"$log" 2>&1 &
    until ss -Hltn "sport = :$port" | grep -q .; do
        ((SECONDS < end)) && kill -0 "$!" 2>/dev/null || return 1
        sleep 0.1
    done
}

# talk LINK TOOL OPTIONS...: TOOL as server on host 0 (or here, if there is one host) and as client
# on the last host, whose output goes to $LOG. Status: that of this host's part. PORT_OPTION and
# GID_OPTION are the tool's words.
LOG="$RIG_OUT/log"
talk() {
    local link="$1" tool="$2" status=0 server=""
    shift 2
    local -a devices addresses
    read -ra devices <<<"$RIG_DEVICES"
    read -ra addresses <<<"$RIG_PEER_ADDRS"
    port=$((port + 1))
    local words=("$tool" -d "${devices[link]}" "$GID_OPTION" "$RIG_GID_INDEX")
    words+=("$PORT_OPTION" "$port" "$@")
    if ((RIG_HOST == 0)); then
        listen "$RIG_OUT/server-$port.log" "${words[@]}" || status=1
        server="$!"
        touch "$RIG_SHARED/listens-$port"
    fi
    if ((RIG_HOST == RIG_HOSTS - 1)); then
        await "$RIG_SHARED/listens-$port"
        "${LIMITED[@]}" "${words[@]}" "${addresses[link]}" >"$LOG" 2>&1 || status=1
    fi
    [[ -z "$server" ]] || wait "$server" || status=1
    return "$status"
}

perftest() { GID_OPTION=-x PORT_OPTION=-p talk "$1" "$2" -F "${@:3}"; }
pingpong() { GID_OPTION=-g PORT_OPTION=-p talk "$1" ibv_rc_pingpong -c -m 4096 "${@:2}"; }

is_client() { ((RIG_HOST == RIG_HOSTS - 1)); }

# from_table BYTES COLUMN [LOG]: of the client's perftest; nothing on the server, or if it failed.
from_table() {
    ! is_client || awk -v bytes="$1" -v column="$2" '$1 == bytes { print $column }' "${3:-$LOG}"
}

counter() { cat "/sys/class/infiniband/$RIG_DEVICE/ports/1/hw_counters/$1"; }

write_bw() { # NAME ITERATIONS WANTED_MB_S
    local measured=""
    perftest 0 ib_write_bw -s "$BULK_BYTES" -n "$2" -t 16 &&
        measured="$(from_table "$BULK_BYTES" 4)"
    ! is_client || verdict "$1" "$measured MiB/s" "> $3" "${measured:-0} > $3"
}

write_lat() { # NAME
    local measured=""
    perftest 0 ib_write_lat -s 8 -n 1000 && measured="$(from_table 8 5)"
    ! is_client || verdict "$1" "$measured us" "> 0" "${measured:-0} > 0"
}

# checked NAME COUNTERS...: bytes compared on arrival, and signs that the link was as bad as told.
checked() {
    local name="$1" before=0 after=0 status=0
    shift
    for name_of in "$@"; do before=$((before + $(counter "$name_of"))); done
    pingpong 0 -s 262144 -n 30 || status=1
    for name_of in "$@"; do after=$((after + $(counter "$name_of"))); done
    is_client || return 0
    if ((status != 0)); then
        row "$name" "$(tail -n 1 "$LOG")" "bytes as sent" FAILED
    elif (($# > 0)); then
        verdict "$name" "bytes as sent, $((after - before)) repairs" "> 0" "$((after - before)) > 0"
    else
        row "$name" "bytes as sent" "bytes as sent" ok
    fi
}

repairs=(completer_retry_err out_of_seq_request rcvd_seq_err duplicate_request)

# -u 18: at this rate the 256 KiB that rxe has on its way take longer than perftest's usual time-out
# for acknowledgements, and would be sent twice.
# shellcheck disable=SC2030,SC2031 # each shell's LOG is its own
both_links() {
    local one="" two first second options=(-s "$BULK_BYTES" -n 10 -t 4 -u 18)
    rig-shape --link 0 --rate "${SHAPE_MBIT}mbit"
    rig-shape --link 1 --rate "${SHAPE_MBIT}mbit"
    meet
    perftest 0 ib_write_bw "${options[@]}" && one="$(from_table "$BULK_BYTES" 4)"
    ! is_client || verdict "write 1 MiB, $SHAPE_MBIT Mbit/s" "$one MiB/s" "1.3 to 2.0" \
        "${one:-0} > 1.3 && ${one:-0} < 2.0"
    meet
    (LOG="$LOG-0" && perftest 0 ib_write_bw "${options[@]}") &
    local job="$!" status=0
    port=$((port + 1)) # the one that the other shell took
    (LOG="$LOG-1" && perftest 1 ib_write_bw "${options[@]}") || status=1
    port=$((port + 1))
    wait "$job" || status=1
    is_client || return "$status"
    first="$(from_table "$BULK_BYTES" 4 "$LOG-0")"
    second="$(from_table "$BULK_BYTES" 4 "$LOG-1")"
    two="$(awk "BEGIN { printf \"%.2f\", (${first:-0} + ${second:-0}) / ${one:-1} }")"
    verdict "two links against one" "$two x" ">= 1.8" "$status == 0 && $two >= 1.8"
}

# A MiB is on its way, of the 15 that take 8 s: the middle of a transfer.
await_traffic() {
    local end=$((SECONDS + CASE_LIMIT_S)) before
    before="$(counter sent_pkts)"
    until (($(counter sent_pkts) > before + 256)); do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

# perftest's time-out is set to 1 s, with 7 retries: it must outlast the pull, as an application's.
pulled_cable() {
    local start status=0 took result=FAILED puller=""
    rig-shape --rate "${SHAPE_MBIT}mbit"
    meet
    start="$EPOCHREALTIME"
    if is_client; then
        (await_traffic && rig-cable pull 1s && touch "$RIG_OUT/pulled") >&2 &
        puller="$!"
    fi
    perftest 0 ib_write_bw -s "$BULK_BYTES" -n 15 -t 4 -u 18 || status=1
    took="$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $start }")"
    is_client || return "$status"
    [[ -e "$RIG_OUT/pulled" ]] && ((status == 0)) && result=ok
    wait "$puller" || result=FAILED
    # shellcheck disable=SC2031 # nobody changed it in this shell
    [[ "$result" == ok ]] || cat "$LOG" >&2
    row "cable pulled for 1 s" "$(from_table "$BULK_BYTES" 4) MiB/s, $took s" "recovers" "$result"
}

# Each case on both hosts, even if one fails; a failure has a row.
one() {
    write_bw "write 1 MiB" 100 10 || true
    write_lat "write 8 B, one way" || true
    checked "ping-pong 256 KiB" || true
}

pull() {
    pulled_cable
}

two() {
    write_bw "write 1 MiB" 50 2 || true
    write_lat "write 8 B, one way" || true
    checked "ping-pong 256 KiB" || true
    for shape in "loss 1%" "duplicate 5%" "delay 1ms reorder 5%"; do
        meet
        # shellcheck disable=SC2086 # words
        rig-shape $shape
        meet
        checked "ping-pong 256 KiB, $shape" "${repairs[@]}" || true
    done
    meet
    both_links || true
    meet
    rig-shape --link 1
    pulled_cable || true
}

"$1"
! is_client || ! grep -q $'\tFAILED$' "$RIG_OUT/rows"
