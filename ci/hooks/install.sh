#!/usr/bin/env bash
# Link commit-msg of this folder into the hooks of this clone. Leaves alone: a hook that is there, a
# folder of hooks that the user chose, a linked worktree, whose hooks are those of another checkout,
# and a tree that is not a checkout.
# Usage: ci/hooks/install.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

[[ "$(git rev-parse --show-toplevel 2>/dev/null || true)" == "$(pwd -P)" ]] || exit 0
[[ "$(git rev-parse --git-dir)" == "$(git rev-parse --git-common-dir)" ]] || exit 0
[[ -z "$(git config --get core.hooksPath || true)" ]] || exit 0
hook="$(git rev-parse --git-path hooks)/commit-msg"
if [[ ! -e "$hook" && ! -L "$hook" ]]; then
    mkdir -p "$(dirname "$hook")"
    ln -s "$(pwd -P)/ci/hooks/commit-msg" "$hook"
fi
