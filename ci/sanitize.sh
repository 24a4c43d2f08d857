#!/usr/bin/env bash
# The C tests under sanitizers, then two ranks of torch on the backend under the same.
# Usage: ci/sanitize.sh [asan] [tsan]; both without arguments.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
presets=("$@")
((${#presets[@]} > 0)) || presets=(asan tsan)

status=0
for preset in "${presets[@]}"; do
    bash ci/ctest.sh "$preset" || status=1
    bash ci/sanitize_backend.sh "$preset" || status=1
done
exit "$status"
