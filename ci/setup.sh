#!/usr/bin/env bash
# Everything that building, testing and the demo need: Debian packages, .venv with torch and the
# pinned tools, and this package, installed for editing (a changed .py file needs no new build).
# Safe to call at any time and twice at once; does nothing, in about a second, when all is there.
# In a clone it also installs a hook that checks the subjects of commits (ci/hooks).
# PYTHON=python3.12 chooses the interpreter for a new .venv.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

TORCH_VERSION=2.13.0
LOCK_WAIT_S=1800 # another set-up at work may be compiling on a slow machine
WERROR="$([[ -n "${CI:-}" ]] && echo ON || echo OFF)" # a newer compiler's warning stops no user
PYTHON_CANDIDATES=(python3.11 python3.12 python3.13 python3.10 python3)

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} "${PYTHON_CANDIDATES[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# What is looked for is the thing itself, not the package: it may come from elsewhere.
missing_packages() {
    local python
    if python="$(find_python)"; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null || {
            "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
        }
        "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || {
            "$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])'
        }
    else
        echo python3 python3-venv python3-dev
    fi
    command -v gcc >/dev/null || echo gcc libc6-dev
    command -v g++ >/dev/null || echo g++
    command -v cmake >/dev/null || echo cmake
    command -v ninja >/dev/null || echo ninja-build
    command -v pkg-config >/dev/null || echo pkg-config
    PATH="$PATH:/usr/sbin:/sbin" command -v tc >/dev/null || echo iproute2 # of ci/throttle.sh
    gcc -E -include infiniband/verbs.h -x c /dev/null &>/dev/null || echo libibverbs-dev
}

# Stamps: a hash of what a step depends on, kept in .venv, which they vanish with.
stamp_matches() { [[ -f "$VENV/.stamp-$1" && "$(<"$VENV/.stamp-$1")" == "$2" ]]; }
write_stamp() { printf '%s\n' "$2" >"$VENV/.stamp-$1"; }

# installed PATTERN: the record that pip left, e.g. torch-2.13.0+cpu.dist-info; fails if none is.
installed() { compgen -G "$VENV/lib/python3*/site-packages/$1.dist-info"; }

environment_hash() {
    { echo "torch $TORCH_VERSION" && cat ci/requirements.txt; } | sha256sum
}

# All that the compiled part depends on. A new .py file is not among it: Python finds it itself.
# build_hash ON|OFF: whether warnings are errors.
build_hash() {
    {
        environment_hash
        installed 'torch-*'
        grep '^version' "$VENV/pyvenv.cfg"
        echo "werror=$1"
        find csrc cmake CMakeLists.txt pyproject.toml rdmatensor/_native/ffi_build.py \
            -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    } | sha256sum
}

# What was built with warnings as errors is the same without.
is_built() {
    installed "rdmatensor-*" >/dev/null || return 1
    stamp_matches build "$(build_hash ON)" || stamp_matches build "$(build_hash "$WERROR")"
}

make_environment() {
    local python
    if [[ ! -x "$VENV/bin/python" ]]; then
        python="$(find_python)" || die "no Python 3.10 or later; set PYTHON="
        say "making .venv with $python"
        telling venv "$python" -m venv "$VENV"
    fi
    say "installing torch $TORCH_VERSION (a download of some 200 MB)"
    telling pip-torch "$VENV/bin/python" -m pip install "torch==$TORCH_VERSION"
    say "installing the tools of ci/requirements.txt"
    telling pip-tools "$VENV/bin/python" -m pip install -r ci/requirements.txt
}

build_package() {
    say "building and installing rdmatensor: a minute or two (log: build/logs/build.log)"
    PATH="$VENV/bin:$PATH" telling build "$VENV/bin/python" -m pip install -v \
        --no-build-isolation --no-deps --config-settings=cmake.define.RDMATENSOR_WERROR="$WERROR" \
        --editable .
}

! command -v git >/dev/null || bash ci/hooks/install.sh
exec 9>"$ROOT/build/setup.lock"
flock -n 9 || {
    say "waiting for another set-up of this clone to end, at most $((LOCK_WAIT_S / 60)) minutes"
    flock -w "$LOCK_WAIT_S" 9
} || die "another set-up has held build/setup.lock for $LOCK_WAIT_S s"

mapfile -t packages < <(missing_packages | tr ' ' '\n')
((${#packages[@]} == 0)) || install_packages "${packages[@]}"

wanted="$(environment_hash)"
if ! stamp_matches environment "$wanted" || ! installed "torch-$TORCH_VERSION*" >/dev/null; then
    make_environment
    write_stamp environment "$wanted"
fi
if ! is_built; then
    build_package
    write_stamp build "$(build_hash "$WERROR")"
fi
