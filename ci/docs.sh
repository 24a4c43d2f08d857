#!/usr/bin/env bash
# Build the site into build/docs, with warnings as errors, in the .venv of ci/setup.sh, which it
# runs first, and check that the fragments of the changelog fit together.
# Usage: ci/docs.sh [OPTION OF sphinx-build]...
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
SITE="$ROOT/build/docs"

bash ci/setup.sh
wanted="$(sha256sum ci/docs-requirements.txt)"
if [[ ! -f "$VENV/.stamp-docs" || "$(<"$VENV/.stamp-docs")" != "$wanted" ]]; then
    say "installing the tools of ci/docs-requirements.txt"
    logged pip-docs "$VENV/bin/python" -m pip install -r ci/docs-requirements.txt
    printf '%s\n' "$wanted" >"$VENV/.stamp-docs"
fi
logged towncrier "$VENV/bin/towncrier" build --draft --version next --date 2000-01-01
"$VENV/bin/sphinx-build" -b html -W --keep-going -q -d "$ROOT/build/doctrees" "$@" docs "$SITE"
say "the site: ${SITE#"$ROOT"/}/index.html"
