#!/usr/bin/env bash
# Two ranks of torch on a backend that is built with ThreadSanitizer, over each path: tests/tsan.
# Usage: ci/tsan_backend.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
if ! setarch -R true 2>/dev/null; then # gcc 12's TSan wants the small address randomisation
    die "tsan: this machine does not let a program choose its address randomisation"
fi

logged tsan-backend-configure cmake --preset tsan -DRDMATENSOR_WERROR=ON \
    -DRDMATENSOR_BUILD_PYTHON=ON -DPython_EXECUTABLE="$VENV/bin/python" \
    -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1' # lines for reports; all of torch's types would take minutes
logged tsan-backend-build cmake --build --preset tsan \
    --target rdmatensor _rdmatensor_cffi _c10d

packages="$ROOT/build/tsan/packages"
rm -rf "$packages"
logged tsan-backend-install cmake --install build/tsan --component python --prefix "$packages"
ln -s "$ROOT"/rdmatensor/{*.py,doctor} "$packages/rdmatensor/"
ln -s "$ROOT/graph_analysis" "$packages/"
logged tsan-backend-canary gcc -O0 -g -fPIC -shared -fsanitize=thread tests/tsan/canary.c \
    -o "$packages/canary.so"
"$VENV/bin/python" -u tests/tsan/run.py "$packages" "$packages/canary.so"
