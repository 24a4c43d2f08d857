#!/usr/bin/env bash
# Two ranks of torch on a backend that is built with a sanitizer, over each path: tests/sanitizers.
# Usage: ci/sanitize_backend.sh asan|tsan [--build], or asan --full; asan has UBSan, a look for
# leaks, and the contract suite over shm and tcp, but for tests that start processes. --build: only
# what takes minutes without waiting for anything. --full, by hand: the backend's tests of
# tests/integration, too, which takes most of an hour.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
preset="${1:-}"
case "$preset" in
    # -g1: lines for reports; all of torch's types would take minutes. So would gcc's optimiser,
    # which has the checks of two sanitizers to work on: they are the same without it.
    asan) sanitize=address,undefined flags='-O0 -g1' ;;
    tsan) sanitize=thread flags='-O1 -g1' ;;
    *) die "usage: ci/sanitize_backend.sh asan|tsan [--build] or asan --full" ;;
esac
full=()
if [[ "$preset ${2:-}" == "asan --full" ]]; then full=(--full); fi
# gcc 12's TSan wants the small address randomisation.
if [[ "$preset" == tsan ]] && ! setarch -R true 2>/dev/null; then
    die "tsan: this machine does not let a program choose its address randomisation"
fi

exec 9>"$LOGS/$preset-backend.lock" # ci/test.sh may still be building beside other steps
flock 9
logged "$preset-backend-configure" cmake --preset "$preset" -DRDMATENSOR_WERROR=ON \
    -DRDMATENSOR_BUILD_PYTHON=ON -DPython_EXECUTABLE="$VENV/bin/python" \
    -DCMAKE_CXX_FLAGS_DEBUG="$flags"
logged "$preset-backend-build" cmake --build --preset "$preset" \
    --target rdmatensor _rdmatensor_cffi _c10d
exec 9>&-
if [[ "${2:-}" == --build ]]; then exit; fi

packages="$ROOT/build/$preset/packages"
rm -rf "$packages"
logged "$preset-backend-install" cmake --install "build/$preset" --component python \
    --prefix "$packages"
for part in "$ROOT"/rdmatensor/*; do # what is not built
    [[ -e "$packages/rdmatensor/${part##*/}" || "$part" == */__pycache__ ]] ||
        ln -s "$part" "$packages/rdmatensor/"
done
ln -s "$ROOT/graph_analysis" "$packages/"
logged "$preset-backend-canary" gcc -O0 -g -fPIC -shared "-fsanitize=$sanitize" \
    -fno-sanitize-recover=all tests/sanitizers/canary.c -o "$packages/canary.so"
"$VENV/bin/python" -u tests/sanitizers/run.py "$preset" "$packages" "${full[@]}"
