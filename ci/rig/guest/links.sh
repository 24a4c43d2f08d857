# shellcheck shell=bash disable=SC2034,SC2154 # the RIG_ settings are the caller's
# Links of one host of the rig: interface, address, rxe device. Sourced: by boot.sh in a guest, by
# host_links.sh on a host with rdma_rxe. Reads RIG_HOST, RIG_HOSTS, RIG_LINKS, RIG_IFPREFIX and
# RIG_DEVPREFIX.
LINK_MTU=9000 # from this on rxe's own MTU is 4096, its largest
DEVICE_WAIT_S=20
LINKS_LOG="${LINKS_LOG:-/run/links.log}"
# Of netem and tbf: rxe has up to 64 packets of 4 KiB of a QP on their way, so that 16 QPs fit.
QUEUE_PACKETS=10000
QUEUE_BYTES=4mb
BURST_BYTES=64kb # one packet of TCP segmentation offload

# link_address HOST LINK
link_address() { printf '10.77.%d.%d' "$2" "$(($1 + 1))"; }

# One host has no cable: both ends of a veth pair are its own. Two hosts: a virtio-net for each.
make_links() {
    local link interface peer
    RIG_IFNAMES="" RIG_DEVICES="" RIG_ADDRS="" RIG_PEER_ADDRS=""
    for ((link = 0; link < RIG_LINKS; link++)); do
        interface="$RIG_IFPREFIX$link"
        if ((RIG_HOSTS == 1)); then
            ip link add "$interface" type veth peer name "${interface}peer"
            ip link set "${interface}peer" mtu "$LINK_MTU" up
        fi
        RIG_IFNAMES+="${RIG_IFNAMES:+ }$interface"
        RIG_DEVICES+="${RIG_DEVICES:+ }$RIG_DEVPREFIX$link"
        RIG_ADDRS+="${RIG_ADDRS:+ }$(link_address "$RIG_HOST" "$link")"
        peer="$(link_address "$((RIG_HOSTS - 1 - RIG_HOST))" "$link")"
        RIG_PEER_ADDRS+="${RIG_PEER_ADDRS:+ }$peer"
        ip link set "$interface" mtu "$LINK_MTU" up &&
            ip address add "$(link_address "$RIG_HOST" "$link")/24" dev "$interface" &&
            rdma link add "$RIG_DEVPREFIX$link" type rxe netdev "$interface" || return
        wait_for_device "$RIG_DEVPREFIX$link" || return
    done 2>"$LINKS_LOG"
    RIG_ADDR="${RIG_ADDRS%% *}"
    RIG_PEER_ADDR="${RIG_PEER_ADDRS%% *}"
    RIG_DEVICE="${RIG_DEVICES%% *}"
    RIG_GID_INDEX="$(gid_index "$RIG_DEVICE")" || {
        echo "$RIG_DEVICE has no RoCE v2 GID for $RIG_ADDR" >"$LINKS_LOG"
        return 1
    }
}

wait_for_device() {
    local end=$((SECONDS + DEVICE_WAIT_S)) state="/sys/class/infiniband/$1/ports/1/state"
    until [[ -r "$state" && "$(<"$state")" == *ACTIVE ]] && gid_index "$1" >/dev/null; do
        if ((SECONDS >= end)); then
            echo "$1 is not active after $DEVICE_WAIT_S s" >&2
            return 1
        fi
        sleep 0.05
    done
}

# The index of the RoCE v2 GID that stands for an IPv4 address.
gid_index() {
    local gid index
    for gid in /sys/class/infiniband/"$1"/ports/1/gids/*; do
        index="${gid##*/}"
        if [[ "$(<"$gid")" == 0000:0000:0000:0000:0000:ffff:* &&
            "$(cat "/sys/class/infiniband/$1/ports/1/gid_attrs/types/$index")" == "RoCE v2" ]]; then
            printf '%s' "$index"
            return
        fi
    done 2>/dev/null
    return 1
}

# shape_links RATE NETEM: RATE as tbf takes it, NETEM the words of netem; either may be empty.
shape_links() {
    local interface
    for interface in $RIG_IFNAMES; do
        shape_link "$interface" "$1" "$2" || return
    done 2>"$LINKS_LOG"
}

shape_link() {
    local interface="$1" rate="$2" netem="$3" place=root
    tc qdisc del dev "$interface" root 2>/dev/null || true # there may be none
    if [[ -n "$netem" ]]; then
        # shellcheck disable=SC2086 # words
        tc qdisc add dev "$interface" root handle 1: netem limit "$QUEUE_PACKETS" $netem || return
        place='parent 1:'
    fi
    if [[ -n "$rate" ]]; then
        # shellcheck disable=SC2086 # words
        tc qdisc add dev "$interface" $place handle 10: \
            tbf rate "$rate" burst "$BURST_BYTES" limit "$QUEUE_BYTES"
    fi
}

link_report() {
    local device
    for device in $RIG_DEVICES; do
        printf '%s active on %s, ' "$device" \
            "$(cat "/sys/class/infiniband/$device/ports/1/gid_attrs/ndevs/$RIG_GID_INDEX")"
    done
    printf 'kernel %s' "$(uname -r)"
}
