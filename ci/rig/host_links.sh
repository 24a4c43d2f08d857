#!/usr/bin/env bash
# rxe devices over veth pairs on a host that has rdma_rxe. Usage: host_links.sh up|down LINKS
# `up` prints the RIG_ settings, a line each. The names begin with "rig": nothing else is touched.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck disable=SC2034 # read by links.sh
RIG_HOST=0 RIG_HOSTS=1 RIG_IFPREFIX=rig RIG_DEVPREFIX=rigrxe RIG_LINKS="$2" LINKS_LOG=/dev/stderr
# shellcheck source=ci/rig/guest/links.sh
source "$here/guest/links.sh"

case "$1" in
    up)
        make_links
        for name in RIG_ADDR RIG_PEER_ADDR RIG_DEVICE RIG_GID_INDEX RIG_ADDRS RIG_PEER_ADDRS \
            RIG_DEVICES RIG_IFNAMES; do
            printf '%s=%s\n' "$name" "${!name}"
        done
        ;;
    down)
        for ((link = 0; link < RIG_LINKS; link++)); do
            [[ ! -e "/sys/class/infiniband/rigrxe$link" ]] || rdma link delete "rigrxe$link"
            [[ ! -e "/sys/class/net/rig$link" ]] || ip link delete "rig$link"
        done
        ;;
    *)
        echo "usage: host_links.sh up|down LINKS" >&2
        exit 2
        ;;
esac
