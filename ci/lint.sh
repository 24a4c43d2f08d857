#!/usr/bin/env bash
# All static checks over the files that git knows or would add. Each runs; any failure fails.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
failed=()

# check NAME COMMAND...: run it, show its words only if it fails.
check() {
    local name="$1"
    shift
    logged "lint-$name" "$@" || failed+=("$name")
}

# Words that would tie the project to one place: hosts of package registries, absolute paths of a
# work place. The brackets keep this file out of its own net.
forbidden_words() {
    local words='pypi[.]org|python[h]osted|deb[.]debian[.]org|registry[.]npmjs'
    words+='|[/]work[/]|[/]opt/wheels|[/]root[/]'
    local hits
    hits="$(git grep -nIE --untracked "$words" -- . || true)"
    [[ -z "$hits" ]] || {
        printf '%s\n' "$hits"
        return 1
    }
}

tracked() { git ls-files -z --cached --others --exclude-standard -- "$@"; }
existing() {
    local file
    while IFS= read -r -d '' file; do
        if [[ -f "$file" ]]; then printf '%s\0' "$file"; fi
    done
}

mapfile -d '' c_files < <(tracked '*.c' '*.h' '*.cpp' '*.hpp' | existing)
mapfile -d '' code_files < <(tracked '*.c' '*.h' '*.cpp' '*.hpp' '*.py' | existing)
mapfile -d '' all_files < <(tracked . | existing)
mapfile -d '' prose_files < <(tracked '*.c' '*.h' '*.cpp' '*.hpp' '*.py' '*.md' |
    existing | grep -zvx -e CHANGELOG.md)
mapfile -d '' scripts < <(tracked '*.sh' .ci/run ci/hooks/commit-msg | existing)
typed=(rdmatensor graph_analysis ci tests/conftest.py)
[[ -z "$(tracked 'bench/*.py' | tr -d '\0')" ]] || typed+=(bench)

check ruff-format ruff format --check --quiet .
check ruff ruff check --quiet .
check mypy mypy "${typed[@]}"
check imports lint-imports
check clang-format clang-format --dry-run --Werror "${c_files[@]}"
check layers python ci/check_layers.py
check rooms python ci/check_rooms.py
check names python ci/check_names.py
check prose python ci/check_prose.py "${prose_files[@]}"
check budgets python ci/check_budgets.py "${code_files[@]}"
check text python ci/check_text.py "${all_files[@]}"
check codespell codespell "${all_files[@]}"
check words forbidden_words
for script in "${scripts[@]}"; do
    check shell bash -n "$script"
done

((${#failed[@]} == 0)) || die "lint: ${failed[*]}"
say "lint: all checks passed over ${#code_files[@]} source files"
