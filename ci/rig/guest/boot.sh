#!/usr/bin/env bash
# The guest's process 1 once the host's file system is in place: devices, then the command, whose
# output and exit status go to the host. Control words to the host are lines in the output that
# begin with a NUL byte and the run's nonce; vm.py takes them out again.
set -uo pipefail # no -e: process 1 must not end
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RELAY_WAIT_S=2  # for output that is on its way; longer only what outlives the command could take
PEER_WAIT_S=120 # the other machine boots at the same time, on the same CPUs
DUMP_BEFORE_S=5 # the list of processes is printed so long before the deadline

# shellcheck source=/dev/null # written by rig.py
source /run/rig/config.sh
# shellcheck source=ci/rig/guest/links.sh
source "$RIG_HOME/guest/links.sh"

control() { printf '\0rig:%s:%s\n' "$RIG_NONCE" "$*" >"$OUT_PORT"; }
fail() {
    printf 'rig: guest: %s\n' "$*" >/dev/console
    control "fail $*"
    sleep infinity # the host ends the machine
}

mount_rest() {
    mkdir -p /dev/pts /dev/shm
    mount -t devpts devpts /dev/pts
    mount -t tmpfs -o mode=1777 shm /dev/shm
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    [[ -e /dev/fd ]] || ln -s /proc/self/fd /dev/fd
    [[ -e /dev/stdin ]] || ln -s /proc/self/fd/0 /dev/stdin
    [[ -e /dev/stdout ]] || ln -s /proc/self/fd/1 /dev/stdout
    [[ -e /dev/stderr ]] || ln -s /proc/self/fd/2 /dev/stderr
    mkdir -p "$RIG_SHARED"
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=none results "$RIG_SHARED" ||
        fail "cannot mount the results folder on $RIG_SHARED"
}

# find_port NAME: the device of a virtio serial port.
find_port() {
    local port
    for port in /sys/class/virtio-ports/*; do
        if [[ "$(<"$port/name")" == "$1" ]]; then
            printf '/dev/%s' "${port##*/}"
            return
        fi
    done
    return 1
}

# The kernel was told to boot on one; by now it has patched what it patches.
wake_cpus() {
    local switch
    for switch in /sys/devices/system/cpu/cpu[1-9]*/online; do
        [[ ! -e "$switch" ]] || echo 1 >"$switch" || fail "cannot wake the CPU of $switch"
    done
}

name_hosts() {
    local host
    hostname "rig$RIG_HOST"
    {
        printf '127.0.0.1 localhost\n'
        for ((host = 0; host < RIG_HOSTS; host++)); do
            printf '%s rig%d\n' "$(link_address "$host" 0)" "$host"
        done
    } >/etc/hosts
}

wait_for_peer() {
    local end=$((SECONDS + PEER_WAIT_S)) address
    for address in $RIG_PEER_ADDRS; do
        until /bin/busybox ping -c 1 -W 1 "$address" >/dev/null 2>&1; do
            ((SECONDS < end)) || fail "no answer from $address in $PEER_WAIT_S s"
        done
    done
}

# Who waits where, for a run that the deadline is about to end. With the shell's own means: starting
# a program may take longer than there is.
dump_processes() {
    local folder key state wchan
    local -a words
    for folder in /proc/[0-9]*; do
        mapfile -d '' words <"$folder/cmdline" || continue
        ((${#words[@]} > 0)) || continue # a thread of the kernel
        while read -r key state _ && [[ "$key" != State: ]]; do :; done <"$folder/status"
        read -r wchan <"$folder/wchan" || true # has no line break
        printf 'rig: pid %s %s in %s: %.150s\n' "${folder##*/}" "$state" "$wchan" "${words[*]}"
    done 2>/dev/null >/dev/console
}

watch_deadline() {
    local left=$((RIG_DEADLINE - DUMP_BEFORE_S - EPOCHSECONDS))
    ((left > 0)) || return
    sleep "$left"
    dump_processes
}

run_command() {
    local -a words environment
    mapfile -d '' words </run/rig/command
    mapfile -d '' environment </run/rig/environment
    cd "$RIG_CWD" || fail "no folder $RIG_CWD"
    mkdir -p "$RIG_OUT"
    # Through pipes: a port can be opened once only, and /dev/stdout must be.
    mkfifo /run/out /run/err
    cat /run/out >"$OUT_PORT" &
    local out_relay=$!
    cat /run/err >"$ERR_PORT" &
    local err_relay=$!
    # shellcheck disable=SC2046 # one word for each variable, none with blanks but the quoted
    (
        ulimit -l unlimited
        for name in "${RIG_EXPORTS[@]}"; do environment+=("$name=${!name}"); done
        exec env -i "${environment[@]}" PATH="$RIG_HOME/bin:$RIG_PATH" "${words[@]}" \
            </dev/null >/run/out 2>/run/err
    ) &
    local command=$! status=0
    wait "$command" || status=$?
    local end=$((SECONDS + RELAY_WAIT_S))
    while kill -0 "$out_relay" "$err_relay" 2>/dev/null && ((SECONDS <= end)); do sleep 0.05; done
    kill -KILL "$out_relay" "$err_relay" 2>/dev/null
    wait "$out_relay" "$err_relay" 2>/dev/null
    printf '\0rig:%s:end\n' "$RIG_NONCE" >"$ERR_PORT"
    control "exit $status"
}

OUT_PORT="$(find_port rig.out)" || echo "rig: guest: no output port" >/dev/console
ERR_PORT="$(find_port rig.err)"
# shellcheck disable=SC2034 # exported with the others
RIG_CABLE_PORT="$(find_port rig.cable)"
mount_rest
name_hosts
ip link set lo up
make_links || fail "links: $(<"$LINKS_LOG")"
wake_cpus
((RIG_HOSTS == 1)) || wait_for_peer
((RIG_HOSTS == 1)) || shape_links "$RIG_RATE" "$RIG_NETEM" || fail "tc: $(<"$LINKS_LOG")"
read -r uptime_s _ </proc/uptime
control "up $uptime_s $(link_report)"
watch_deadline &
run_command
sleep infinity # the host ends the machine once both have finished
