#!/usr/bin/env bash
# What a user has whose torch this package was not built for: the wheel in an environment with that
# torch compiles its backend at the first use, and passes a fifth of PyTorch's own tests of
# torch.distributed, which Gloo shows to be sound in the same torch. Then one wheel for both.
# Usage: ci/torch_next.sh VERSION   for example 2.14.1; large: torch comes with its CUDA libraries
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
version="${1:?usage: ci/torch_next.sh VERSION}"
SHARDS=5
RUNS=(four three two lists)
STUCK_S=3600 # each test has its own, far shorter limit; this ends a runner that is stuck
next="$ROOT/build/torch-$version"
python="$next/venv/bin/python"
baselines="$next/baselines"
failures=()
export XDG_CACHE_HOME="$next/cache"
mkdir -p "$baselines"

# What the suite imports, beside torch.
TOOLS='cffi|expecttest|hypothesis|numpy|psutil|pytest'
is_there="import torch; assert torch.__version__.split('+')[0] == '$version'"
if ! "$python" -c "$is_there" 2>/dev/null; then
    logged "torch-$version-venv" "$VENV/bin/python" -m venv --clear "$next/venv"
    mapfile -t tools < <(grep -E "^($TOOLS)==" ci/requirements.txt)
    say "installing torch $version into build/torch-$version"
    logged "torch-$version-install" "$python" -m pip install "torch==$version" "${tools[@]}"
fi

rm -f "$next"/rdmatensor-*.whl
PATH="$VENV/bin:$PATH" logged "torch-$version-wheel" "$VENV/bin/python" -m build --no-isolation \
    --wheel --outdir "$next" .
logged "torch-$version-package" "$python" -m pip install --no-deps --force-reinstall \
    "$next"/rdmatensor-*.whl
say "torch $version: compiling the backend as a user's first group does"
rm -rf "$XDG_CACHE_HOME"
mkdir -p "$next/elsewhere"
cp ci/wheel_check.py "$next/elsewhere/check.py"
(cd "$next/elsewhere" && logged "torch-$version-check" "$python" check.py other)

say "torch $version: what it opens to every backend"
cp ci/torch_doors.py "$next/elsewhere/doors.py"
(cd "$next/elsewhere" && timeout 120 "$python" doors.py) || failures+=(doors)

shard="$(turn_of_commit "$SHARDS")/$SHARDS"
# suite NAME BACKEND OPTION...
suite() {
    timeout --kill-after=10 "$STUCK_S" "$python" tests/c10d_suite/run.py "$2" --run "$1" \
        --shard "$shard" --baselines "$baselines" --log "$LOGS/torch-$version-$1-$2.log" "${@:3}"
}
for name in "${RUNS[@]}"; do
    say "torch $version, c10d suite: $name, shard $shard"
    suite "$name" gloo --record || failures+=("$name with gloo")
    RDMATENSOR_TRANSPORT=shm suite "$name" rdmatensor || failures+=("$name")
done
say "torch $version: one wheel for it and for the torch of .venv"
rm -f "$next"/rdmatensor-*.whl
PATH="$VENV/bin:$PATH" logged "torch-$version-both" "$VENV/bin/python" -m build --no-isolation \
    --wheel --outdir "$next" --config-setting=build-dir="build/both-$version" \
    --config-setting=cmake.define.RDMATENSOR_TORCH_PYTHONS="$python" .
logged "torch-$version-both-install" "$python" -m pip install --no-deps --force-reinstall \
    "$next"/rdmatensor-*.whl
(cd "$next/elsewhere" && logged "torch-$version-both-check" "$python" check.py torch)
((${#failures[@]} == 0)) || die "torch $version: ${failures[*]}"
say "torch $version: builds, imports and passes"
