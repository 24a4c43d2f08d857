#!/usr/bin/env bash
# What containers.sh runs inside the rig: compose.yaml with the rxe device, then without any. Leaves
# rows as parts.sh does.
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
# Nor does podman-compose know device_cgroup_rules, which rig.md tells its users of.
compose=(podman-compose "--podman-run-args=--device-cgroup-rule='c 231:* rwm'"
    --podman-path /run/pair/podman -p pair -f "$here/compose.yaml")
export CONTAINERS_STORAGE_CONF=/run/pair/storage.conf CONTAINERS_CONF=/run/pair/containers.conf

# pair NAME TRANSPORT: compose.yaml must say that the pair passed over TRANSPORT.
pair() {
    local log="$RIG_OUT/pair-over-$2.log" start="$SECONDS" status=0 result=ok
    printf '== two containers, %s\n' "$1"
    timeout --kill-after=10 "$PAIR_LIMIT_S" "${compose[@]}" up >"$log" 2>&1 || status=$?
    tail -n 25 "$log"
    "${compose[@]}" down --volumes >>"$log" 2>&1 || true
    if ! grep -qE "pair: passed, over $2" "$log"; then
        echo "the pair did not pass (compose's status $status)" >&2
        result="FAILED ($status)"
        overall=1
    fi
    printf '%s\t%d\t%s\n' "two containers, $1" "$((SECONDS - start))" "$result" >>"$RIG_OUT/rows"
}

overall=0
: >"$RIG_OUT/rows"
pair "$RIG_DEVICE" verbs
if [[ "$RIG_MEANS" == device ]]; then
    echo "two containers, no RDMA device: skipped: $RIG_DEVICE is the host's own"
else
    for device in $RIG_DEVICES; do rdma link delete "$device"; done
    [[ "$RIG_MEANS" == rxe ]] || rm -r /dev/infiniband # as on a host that never had one
    pair 'no RDMA device' tcp
fi
exit "$overall"
