#!/usr/bin/env bash
# What a user gets: `pip install .` into a fresh environment without torch, and the wheel built
# beside torch installed into another; both imported from elsewhere than the source.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python="$VENV/bin/python"
export PATH="$VENV/bin:$PATH" # for ninja
pinned() { grep -E "^($1)==" ci/requirements.txt; }

mapfile -t tools < <(pinned 'scikit-build-core|cffi|numpy')
logged wheel-bare-venv "$python" -m venv "$work/bare"
logged wheel-bare-tools "$work/bare/bin/pip" install "${tools[@]}"
logged wheel-bare-install "$work/bare/bin/pip" install --no-build-isolation \
    --config-settings=build-dir=build/wheel-bare .

logged wheel-build "$python" -m pip wheel --no-build-isolation --no-deps --wheel-dir "$work" .
logged wheel-torch-venv "$python" -m venv "$work/beside-torch"
logged wheel-torch-install "$work/beside-torch/bin/pip" install --no-deps "$work"/rdmatensor-*.whl
# torch and numpy as they are installed here; a plain path line does not carry over the editable
# install that stands beside them.
site_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site_of "$python" >"$(site_of "$work/beside-torch/bin/python")/tools.pth"

mkdir "$work/elsewhere"
cp ci/wheel_check.py "$work/elsewhere/check.py"
cd "$work/elsewhere"
logged wheel-bare-check "$work/bare/bin/python" check.py bare
logged wheel-torch-check "$work/beside-torch/bin/python" check.py torch
say "wheel: installs and imports with and without torch"
