#!/usr/bin/env bash
# What containers.sh runs inside the rig: compose.yaml with the rxe device, then without any.
# RIG_STORE: storage of images, read only; RIG_IMAGE: the pair's. New storage is in memory.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PAIR_LIMIT_S=300 # a container takes 20 s to start where every instruction is emulated

mkdir -p /run/pair
cat >/run/pair/storage.conf <<CONF
[storage]
driver = "overlay"
runroot = "/run/pair/run"
graphroot = "/run/pair/graph"
[storage.options]
additionalimagestores = ["$RIG_STORE"]
CONF
cat >/run/pair/containers.conf <<CONF
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
[containers]
log_driver = "k8s-file"
CONF
# Debian 12's podman-compose gives a service in the host's network one of its own besides, which
# podman refuses: those words are taken out.
cat >/run/pair/podman <<'WRAPPER'
#!/usr/bin/env bash
[[ "$1" != network ]] || exit 0
words=()
while (($# > 0)); do
    case "$1" in
        --net | --network-alias) shift 2 ;;
        *) words+=("$1") && shift ;;
    esac
done
exec podman "${words[@]}"
WRAPPER
chmod +x /run/pair/podman
compose=(podman-compose --podman-path /run/pair/podman -p pair -f "$here/compose.yaml")
export CONTAINERS_STORAGE_CONF=/run/pair/storage.conf CONTAINERS_CONF=/run/pair/containers.conf

# pair NAME TRANSPORT: compose.yaml must say that the pair passed over TRANSPORT.
pair() {
    local log="$RIG_OUT/pair-over-$2.log" status=0
    printf '== two containers, %s\n' "$1"
    timeout --kill-after=10 "$PAIR_LIMIT_S" "${compose[@]}" up >"$log" 2>&1 || status=$?
    tail -n 25 "$log"
    "${compose[@]}" down --volumes >>"$log" 2>&1 || true
    if ! grep -qE "pair: passed, over $2" "$log"; then
        echo "the pair did not pass (compose's status $status)" >&2
        return 1
    fi
}

status=0
pair rxe verbs || status=1
for device in $RIG_DEVICES; do rdma link delete "$device"; done
RIG_INFINIBAND=/dev/null pair 'no RDMA device' tcp || status=1
exit "$status"
