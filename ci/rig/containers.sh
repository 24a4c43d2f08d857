#!/usr/bin/env bash
# Build the image of the pair of containers without a registry and without root's privileges over
# limits, and run compose.yaml in the rig: once over its rxe device, once without one.
# Usage: ci/rig/containers.sh [build|test [OPTIONS for run.sh]]; both without arguments. As root.
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
[[ -x "$VENV/bin/python" ]] && PATH="$VENV/bin:$PATH"

IMAGE=rdmatensor-pair
BASE=rdmatensor-base
OS_RELEASE=/etc/os-release
STORE="$ROOT/build/rig/containers"
TEST_LIMIT_S=700 # two pairs, each within its own limit
STORAGE=(--root "$STORE/storage" --runroot "$STORE/run" --storage-driver overlay)

install_tools() {
    local missing=() tool
    for tool in buildah podman debootstrap podman-compose crun; do
        PATH="$PATH:/usr/sbin:/usr/bin" command -v "$tool" >/dev/null || missing+=("$tool")
    done
    ((${#missing[@]} == 0)) && return
    say "rig: installing Debian packages: ${missing[*]}"
    logged rig-containers-install env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        --no-install-recommends -o DPkg::Lock::Timeout=300 install "${missing[@]}"
}

# What debootstrap is to be told: the release that this host has, its components and apt's mirror of
# it. "stable-updates" is another suite of the same code name, and no release; who else offers
# packages under it is no mirror, which the origin tells.
find_release() {
    # shellcheck source=/dev/null
    release="$(. "$OS_RELEASE" && printf '%s' "${VERSION_CODENAME:-}")"
    [[ -n "$release" ]] || die "$OS_RELEASE names no release that debootstrap could know"
    local targets fields
    # shellcheck disable=SC2016 # apt's variables
    fields='$(RELEASE) $(CODENAME) $(COMPONENT) $(SITE) $(ORIGIN)'
    targets="$(apt-get indextargets --format "$fields" | awk -v name="$release" '
        $2 == name && $1 !~ /-/ && NF == 5 && $5 ~ /^(Debian|Ubuntu)$/ { print $3, $4 }' | sort -u)"
    [[ -n "$targets" ]] || die "apt names no mirror of $release"
    components="$(cut -d ' ' -f 1 <<<"$targets" | sort -u | paste -sd ,)"
    mirror="$(head -n 1 <<<"$targets" | cut -d ' ' -f 2)"
    [[ "$mirror" != mirror+file:* ]] || # a list, which only apt can read
        mirror="$(grep -m 1 -oE '^https?://[^[:space:]]+' "${mirror#mirror+file:}")" ||
        die "no mirror in ${mirror#mirror+file:}"
}

# The host's own release from apt's own mirror: no image registry is needed.
make_base() {
    podman "${STORAGE[@]}" image exists "$BASE" && return
    local work release components mirror
    find_release
    work="$(mktemp -d "$ROOT/build/rig/base.XXXXXX")"
    # shellcheck disable=SC2064 # the folder of now is meant
    trap "rm -rf '$work'" EXIT
    say "rig: making a base image by debootstrap"
    logged rig-debootstrap debootstrap --variant=minbase --include=ca-certificates \
        --components="$components" "$release" "$work/base" "$mirror"
    tar -C "$work/base" -c . | logged rig-import podman "${STORAGE[@]}" import - "$BASE"
    rm -rf "$work"
    trap - EXIT
}

# Where pip takes packages from folders of this host, the build sees them, and pip's settings too.
pip_volumes() {
    local file folder
    for file in /etc/pip.conf "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
        [[ -f "$file" ]] && printf '%s\n' "--volume=$file:$file:ro"
    done
    # An index links from its folder "simple" to its neighbours.
    python3 -m pip config list | tr "' \\\\" '\n' |
        sed -n 's#^n*file://##; s#/simple/*$##; /^\//p' |
        sort -u | while IFS= read -r folder; do
        [[ ! -d "$folder" ]] || printf '%s\n' "--volume=$folder:$folder:ro"
    done
}

build() {
    install_tools
    mkdir -p "$STORE"
    make_base
    mapfile -t volumes < <(pip_volumes)
    say "rig: building $IMAGE"
    logged rig-image buildah "${STORAGE[@]}" build --isolation chroot --layers \
        --build-arg "BASE=localhost/$BASE" "${volumes[@]}" \
        --ignorefile ci/rig/Containerfile.dockerignore -f ci/rig/Containerfile -t "$IMAGE" .
}

run_pairs() {
    local out="$STORE/results"
    rm -rf "$out"
    RIG_STORE="$STORE/storage" RIG_IMAGE="localhost/$IMAGE" bash ci/rig/run.sh --memory 3072 \
        --timeout "$TEST_LIMIT_S" --out "$out" "$@" -- bash ci/rig/containers_guest.sh
}

action="${1:-}"
(($# == 0)) || shift
case "$action" in
    build) build ;;
    test) run_pairs "$@" ;;
    '') build && run_pairs ;;
    *) die "usage: ci/rig/containers.sh [build|test [OPTIONS for run.sh]]" ;;
esac
