#!/usr/bin/env bash
# Whether what the sanitizers test may have changed since they last passed: status 0, else 1.
# Compares the working tree with the last commit of this branch that is known to have passed them:
# where it left the main branch, whose commits have passed. HEAD~1 would not do: CI runs once for
# several commits. On the main branch itself and in a clone without it nothing is known, so 0.
# Usage: ci/changed.sh [--base]   --base: print that commit; nothing if none is known
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# What they are built from, and how; tests in Python that run under ASan are run without it, too.
TESTED=(csrc cmake CMakeLists.txt CMakePresets.json tests/c tests/sim tests/sanitizers
    rdmatensor/_native/ffi_build.py ci/ctest.sh ci/sanitize_backend.sh ci/setup.sh
    ci/requirements.txt)

base=""
for main in origin/HEAD origin/main; do
    [[ -n "$base" ]] || base="$(git merge-base HEAD "$main" 2>/dev/null || true)"
done
[[ "$base" != "$(git rev-parse --verify --quiet HEAD || true)" ]] || base=""
if [[ "${1:-}" == --base ]]; then
    [[ -z "$base" ]] || git rev-parse --short "$base"
    exit
fi
[[ -n "$base" ]] || exit 0
! git diff --quiet "$base" -- "${TESTED[@]}" ||
    [[ -n "$(git ls-files --others --exclude-standard -- "${TESTED[@]}")" ]]
