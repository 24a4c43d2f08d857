#!/usr/bin/env bash
# clang-tidy over the C library, as the preset dev compiles it. The c10d module is left out: torch's
# headers take minutes. Usage: ci/tidy.sh [FILE...]
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"

logged tidy-configure cmake --preset dev
files=("$@")
if ((${#files[@]} == 0)); then
    mapfile -t files < <(find csrc -name '*.c' | LC_ALL=C sort)
fi
tidy_all() {
    printf '%s\0' "${files[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet -p build/dev
}
logged tidy tidy_all
say "tidy: nothing found in ${#files[@]} files"
