#!/usr/bin/env bash
# Installs the library as a package does, moves it, and builds examples/c against it, by CMake and
# by pkg-config; each example must run, and the man page must be one. Run by CTest.
# Usage: installed.sh BUILD_FOLDER
set -euo pipefail
build="$(realpath "$1")"
source="$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# trial NAME COMMAND...
trial() {
    if "${@:2}" >"$work/words" 2>&1; then
        passed=$((passed + 1))
        printf 'ok   %s (0.0 ms)\n' "$1"
    else
        failed=$((failed + 1))
        cat "$work/words"
        printf 'FAIL %s (0.0 ms)\n' "$1"
    fi
}

install() {
    cmake --install "$build" --component c --prefix "$work/first"
    mv "$work/first" "$prefix" # nothing that was installed may know where that was
}

by_cmake() {
    cmake -S "$source/examples/c" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" &&
        cmake --build "$work/cmake"
}

by_pkg_config() {
    cp -r "$source/examples/c" "$work/make"
    local -x PKG_CONFIG_PATH="$libdir/pkgconfig"
    [[ "$(pkg-config --modversion rdmatensor)" == "$version" ]] && make -C "$work/make"
}

# says WORDS COMMAND...: it succeeds, and says so.
says() {
    timeout 60 "${@:2}" >"$work/said" 2>&1 || {
        cat "$work/said"
        return 1
    }
    cat "$work/said"
    grep -qF -- "$1" "$work/said"
}

too_new() {
    mkdir "$work/new"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.22)' 'project(x C)' \
        'find_package(rdmatensor 99 REQUIRED)' >"$work/new/CMakeLists.txt"
    ! cmake -S "$work/new" -B "$work/new/build" -DCMAKE_PREFIX_PATH="$prefix"
}

has_versions() {
    says rdt_context_open@RDMATENSOR_1 nm --dynamic --with-symbol-versions "$work/cmake/hello"
}

man_page() {
    MANWIDTH=80 says rdt_coll_post man --local-file "$prefix/share/man/man3/rdmatensor.3"
}

prefix="$work/moved"
version="$(sed -n 's/^version = "\(.*\)"$/\1/p' "$source/pyproject.toml")"
trial installs install
pc="$(find "$prefix" -name rdmatensor.pc)"
libdir="$(dirname "$(dirname "$pc")")"
export LD_LIBRARY_PATH="$libdir"
trial builds_by_cmake by_cmake
trial builds_by_pkg_config by_pkg_config
for how in cmake make; do
    trial "hello_$how" says '"hello from rank 0", notification 7' "$work/$how/hello"
    trial "stream_$how" says '100 tensors of 64 x 256 float32, 0 bytes copied' "$work/$how/stream"
    trial "all_reduce_$how" says 'rank 2: the sum of 100000 elements is 6 in each' \
        "$work/$how/all_reduce"
done
trial another_version_is_refused too_new
trial symbols_have_versions has_versions
if command -v man >/dev/null; then
    trial man_page man_page
fi
printf 'tests: %d passed, %d failed, 0 skipped\n' "$passed" "$failed"
((failed == 0))
