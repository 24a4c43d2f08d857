#!/usr/bin/env bash
# What the rig's virtual machines need: Debian packages, and a kernel with rdma_rxe that is unpacked
# into build/rig/kernel-SERIES and never installed. Does nothing, in a moment, when all is there.
# Usage: ci/rig/setup.sh [SERIES], 6.12 or 6.1.
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

series="${1:-6.12}"
cache="$ROOT/build/rig/kernel-$series"
LOCK_WAIT_S=900 # another set-up may be downloading a kernel over a slow line
APT_LOCK_S=300

# crc32: without a driver for it rxe adds no device and says "No such file or directory".
MODULES=(virtio_pci virtio_console virtio_net 9p 9pnet_virtio overlay crc32_generic crc32-pclmul
    rdma_rxe ib_uverbs rdma_ucm rdma_cm veth sch_netem sch_tbf
    sch_ingress cls_matchall act_gact)

# Read to its end: a grep that leaves early lets busybox fail for want of a reader.
busybox_switches_root() {
    [[ -x /bin/busybox ]] && /bin/busybox --list | grep -x switch_root >/dev/null
}

# What is looked for is the thing itself; it may come from elsewhere than the package.
missing_packages() {
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    busybox_switches_root || echo busybox-static
    command -v cpio >/dev/null || echo cpio
    PATH="$PATH:/sbin:/usr/sbin" command -v modprobe >/dev/null || echo kmod
    command -v ip >/dev/null || echo iproute2
    command -v rdma >/dev/null || echo iproute2
    compgen -G '/usr/lib/*/libibverbs/librxe-*.so' >/dev/null || echo ibverbs-providers
    command -v ibv_devinfo >/dev/null || echo ibverbs-utils
    command -v ib_write_bw >/dev/null || echo perftest
    /usr/bin/python3 -c 'import pyverbs' 2>/dev/null || echo python3-pyverbs
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        command -v sudo >/dev/null || die "as root, run: $*"
        sudo -n "$@"
    fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o "DPkg::Lock::Timeout=$APT_LOCK_S" "$@"
}

install_packages() {
    say "rig: installing Debian packages: $*"
    logged rig-apt-install apt_get -y --no-install-recommends install "$@" && return
    logged rig-apt-update apt_get update
    logged rig-apt-install apt_get -y --no-install-recommends install "$@"
}

# The newest signed kernel of the series for ordinary machines: the cloud ones have no rxe.
kernel_package() {
    local name="^linux-image-${series//./\\.}\\.[0-9]+(-[0-9]+|\\+deb[0-9]+)-amd64\$"
    apt-cache search --names-only "$name" |
        cut -d ' ' -f 1 | sort -V | tail -n 1
}

download_kernel() {
    local package
    package="$(kernel_package)"
    if [[ -z "$package" ]]; then
        logged rig-apt-update apt_get update
        package="$(kernel_package)"
    fi
    [[ -n "$package" ]] || die "apt knows no kernel package linux-image-$series.*-amd64"
    say "rig: fetching $package"
    # A package list of yesterday names files that are gone.
    (cd "$1" && logged rig-apt-download apt-get -q download "$package") || {
        logged rig-apt-update apt_get update
        package="$(kernel_package)"
        (cd "$1" && logged rig-apt-download apt-get -q download "$package")
    }
}

# Modules in the order in which insmod takes them, as names without folders, then the files.
collect_modules() {
    local unpacked="$1" version="$2" root="$3" path name
    logged rig-depmod depmod -b "$unpacked" "$version"
    for name in "${MODULES[@]}"; do
        modprobe -d "$unpacked" -S "$version" --show-depends "$name"
    done >"$unpacked/needed"
    mkdir -p "$root/modules"
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' "$unpacked/needed" >"$unpacked/paths"
    [[ -s "$unpacked/paths" ]] || die "no modules found in the kernel package"
    while IFS= read -r path; do
        name="$(basename "$path")"
        case "$name" in
            *.xz) xz -dc "$path" >"$root/modules/${name%.xz}" && name="${name%.xz}" ;;
            *) cp "$path" "$root/modules/" ;;
        esac
        printf '%s\n' "$name"
    done <"$unpacked/paths" >"$root/modules.order"
}

fetch_kernel() {
    local work version
    work="$(mktemp -d "$ROOT/build/rig/fetch.XXXXXX")"
    # shellcheck disable=SC2064 # the folder of now is meant
    trap "rm -rf '$work'" EXIT
    download_kernel "$work"
    logged rig-unpack dpkg-deb -x "$work"/linux-image-*.deb "$work/unpacked"
    version="$(basename "$work"/unpacked/lib/modules/*)"
    mkdir -p "$work/kernel/root"
    collect_modules "$work/unpacked" "$version" "$work/kernel/root"
    cp "$work/unpacked/boot/vmlinuz-$version" "$work/kernel/vmlinuz"
    printf '%s\n' "$version" >"$work/kernel/version"
    rm -rf "$cache"
    mv "$work/kernel" "$cache"
    rm -rf "$work"
    trap - EXIT
}

# Static busybox, the modules and guest/init: all there is before the host's file system.
pack_initramfs() {
    local root="$cache/root"
    mkdir -p "$root"/{bin,dev,proc,sys,lower,rw,new}
    cp /bin/busybox "$root/bin/busybox"
    install -m 755 ci/rig/guest/init "$root/init"
    (cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc --quiet | gzip -1) \
        >"$cache/initramfs.part"
    mv "$cache/initramfs.part" "$cache/initramfs"
}

[[ "$series" =~ ^[0-9]+\.[0-9]+$ ]] || die "usage: ci/rig/setup.sh [SERIES], such as 6.12"
mkdir -p "$ROOT/build/rig"
exec 9>"$ROOT/build/rig/setup.lock"
flock -w "$LOCK_WAIT_S" 9 || die "another set-up has held build/rig/setup.lock for $LOCK_WAIT_S s"

mapfile -t packages < <(missing_packages | sort -u)
((${#packages[@]} == 0)) || install_packages "${packages[@]}"
PATH="$PATH:/sbin:/usr/sbin"
kernel_hash="$(printf '%s\n' "$series" "${MODULES[@]}" | sha256sum)"
if [[ ! -f "$cache/stamp" || "$(<"$cache/stamp")" != "$kernel_hash" ]]; then
    fetch_kernel
    pack_initramfs
    printf '%s\n' "$kernel_hash" >"$cache/stamp"
elif [[ ! -f "$cache/initramfs" || ci/rig/guest/init -nt "$cache/initramfs" ]]; then
    pack_initramfs
fi
