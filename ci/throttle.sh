#!/usr/bin/env bash
# Run COMMAND behind a link of a known rate, in network and process namespaces of its own.
# Usage: ci/throttle.sh RATE [--duplex] [--hosts N] [--quota PERMILLE] [--memory MIB] -- COMMAND...
# RATE, as 500mbit (kbit, mbit, gbit): of the loopback interface, which both directions share.
# COMMAND finds it in THROTTLE_RATE.
# --duplex: COMMAND runs once on each of two hosts, with RANK, WORLD_SIZE, MASTER_ADDR and
# MASTER_PORT. Each host has an address and a link to a bridge that has RATE in each direction.
# --hosts N: that many hosts (2 to 64); implies --duplex.
# --quota: CPU time of all processes together, in thousandths of one core. --memory: their limit;
# beyond it the kernel kills them. Both need root's right to write cgroups of version 1.
# Exit status: COMMAND's, with several hosts that of the first that fails; 2: misuse; 125: the
# namespaces or limits cannot be set up. SIGINT, SIGTERM and SIGHUP send SIGTERM to COMMAND, and
# SIGKILL 10 s later. No process that COMMAND starts outlives it.
set -euo pipefail

CGROUPS=/sys/fs/cgroup
PERIOD_US=100000
LEAST_BURST=70000 # bytes: a packet has up to 64 KiB, and cutting it costs processor time
BURSTS_PER_MS=2 # of RATE, where that is more
QUEUE=200ms     # before packets are dropped
END_WAIT_S=10   # between SIGTERM and SIGKILL
FAILED=125

say() { printf 'throttle.sh: %s\n' "$*" >&2; }
misuse() {
    say "$*"
    sed -n 's/^# Usage: /usage: /p' "$0" >&2
    exit 2
}
die() {
    say "$*"
    exit "$FAILED"
}

# ---- Inside the namespaces, as process 1 -------------------------------------------------------

# shape DEVICE OPTION...: options of tc, as -n NAMESPACE.
shape() {
    tc "${@:2}" qdisc add dev "$1" root tbf rate "$rate" burst "$burst" latency "$QUEUE"
}

make_hosts() {
    local host
    mkdir -p /run/netns
    mount -t tmpfs none /run/netns # seen by these processes only
    ip link add hub type bridge
    ip link set hub up
    for ((host = 0; host < hosts; host++)); do
        ip netns add "host$host"
        ip link add "port$host" type veth peer name eth0 netns "host$host"
        ip link set "port$host" master hub up
        ip -n "host$host" link set lo up
        ip -n "host$host" address add "10.77.0.$((host + 1))/24" dev eth0
        ip -n "host$host" link set eth0 up
        shape "port$host"
        shape eth0 -n "host$host"
    done
}

# A pipe has the statuses: `wait -n` may miss who ends at the same time as another one.
run_on_hosts() {
    local host code status=0 ends=/run/netns/.ends
    is_ended=""
    trap 'is_ended=1' TERM # the process group has it: COMMAND, too
    mkfifo "$ends"
    exec 9<>"$ends"
    for ((host = 0; host < hosts; host++)); do
        (
            trap : TERM # goes on until COMMAND has ended by it
            code=0
            ip netns exec "host$host" env RANK="$host" WORLD_SIZE="$hosts" MASTER_ADDR=10.77.0.1 \
                MASTER_PORT="${MASTER_PORT:-29500}" "$@" 9>&- || code=$?
            printf '%s\n' "$code" >&9
        ) &
    done
    for ((host = 0; host < hosts; host++)); do
        read -r code <&9
        if ((code != 0 && status == 0)); then
            status="$code"
            [[ -n "$is_ended" ]] || kill -TERM 0 # the process group: all other hosts
        fi
    done
    return "$status"
}

# The end of process 1 ends all others.
inside() {
    local rate="$1" burst="$2" hosts="$3"
    shift 3
    set -E
    trap 'exit "$FAILED"' ERR
    ip link set lo up
    if ((hosts > 0)); then make_hosts; else shape lo; fi
    trap - ERR
    export THROTTLE_RATE="$rate"
    trap : TERM # the process group has it: COMMAND, too, whose status counts
    if ((hosts > 0)); then run_on_hosts "$@"; else "$@"; fi
}

if [[ "${1:-}" == --inside ]]; then
    inside "${@:2}"
    exit
fi

# ---- Outside -----------------------------------------------------------------------------------

# number NAME VALUE LEAST MOST
number() {
    [[ "$2" =~ ^[1-9][0-9]{0,8}$ ]] && (($2 >= $3 && $2 <= $4)) ||
        misuse "$1 ${2:-(nothing)} is not a number from $3 to $4"
}

# limit CONTROLLER FILE VALUE: a cgroup for COMMAND; it ends with this script.
limit() {
    local group="$CGROUPS/$1/rdmatensor-throttle-$$"
    mkdir "$group" || die "$group: it cannot be made. Limits need cgroups of version 1 and root;" \
        "elsewhere: systemd-run --scope -p CPUQuota=50% -p MemoryMax=512M"
    cgroups+=("$group")
    printf '%s' "$3" >"$group/$2" || die "$group/$2 does not take $3"
}

remove_cgroups() {
    local group
    for group in "${cgroups[@]}"; do rmdir "$group"; done
}

end_command() {
    local tenth
    trap '' INT TERM HUP
    is_ended=1
    kill -TERM -- "-$command" 2>/dev/null || return 0
    for ((tenth = 0; tenth < 10 * END_WAIT_S; tenth++)); do
        kill -0 -- "-$command" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$command" 2>/dev/null || true
}

[[ $# -gt 0 && "$1" =~ ^([1-9][0-9]{0,5})(kbit|mbit|gbit)$ ]] ||
    misuse "RATE ${1:-(nothing)} is not a number with kbit, mbit or gbit, as 500mbit"
rate="$1"
case "${BASH_REMATCH[2]}" in
    kbit) bytes_per_ms=$((BASH_REMATCH[1] / 8)) ;;
    mbit) bytes_per_ms=$((BASH_REMATCH[1] * 125)) ;;
    gbit) bytes_per_ms=$((BASH_REMATCH[1] * 125000)) ;;
esac
shift
hosts=0 quota="" memory="" cgroups=() is_ended=""
while [[ $# -gt 0 && "$1" != -- ]]; do
    case "$1" in
        --duplex) ((hosts > 0)) || hosts=2 ;;
        --hosts) number "$1" "${2:-}" 2 64 && hosts="$2" && shift ;;
        --quota) number "$1" "${2:-}" 10 1000000 && quota="$2" && shift ;;
        --memory) number "$1" "${2:-}" 4 1000000 && memory="$2" && shift ;;
        *) misuse "unknown option $1" ;;
    esac
    shift
done
[[ $# -gt 1 ]] || misuse "no COMMAND after --"
shift
burst=$((bytes_per_ms / BURSTS_PER_MS))
((burst > LEAST_BURST)) || burst="$LEAST_BURST"
command -v ip >/dev/null && command -v tc >/dev/null ||
    die "no ip or tc on the PATH: apt-get install iproute2"
unshare --net --pid --fork --mount-proc true ||
    die "unshare is refused: run it as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN"

trap remove_cgroups EXIT
[[ -z "$quota" ]] || {
    limit cpu cpu.cfs_period_us "$PERIOD_US"
    printf '%s' $((quota * PERIOD_US / 1000)) >"${cgroups[-1]}/cpu.cfs_quota_us"
}
[[ -z "$memory" ]] || limit memory memory.limit_in_bytes $((memory << 20))

set -m # a process group of its own, in which SIGINT is not ignored
(
    for group in "${cgroups[@]}"; do printf '%s' "$BASHPID" >"$group/cgroup.procs"; done
    exec setpriv --pdeathsig KILL unshare --net --pid --fork --kill-child --mount-proc \
        bash "$0" --inside "$rate" "$burst" "$hosts" "$@"
) &
command=$!
set +m
trap end_command INT TERM HUP
status=0
wait "$command" || status=$?
[[ -z "$is_ended" ]] || { # the signal's number until now
    status=0
    wait "$command" || status=$?
}
exit "$status"
