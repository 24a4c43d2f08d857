#!/usr/bin/env bash
# clang-tidy over the C library, as the preset dev compiles it. The c10d module is left out: torch's
# headers take minutes. Usage: ci/tidy.sh [FILE...]
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"

logged tidy-configure cmake --preset dev
files=("$@")
if ((${#files[@]} == 0)); then
    # What is built, and how: a file that stands in for another is in one build only.
    mapfile -t files < <("$VENV/bin/python" -c 'import json, os
with open("build/dev/compile_commands.json") as commands:
    built = {os.path.relpath(entry["file"]) for entry in json.load(commands)}
built = (file for file in built if file.startswith("csrc/") and file.endswith(".c"))
print(*sorted(built), sep="\n")')
    ((${#files[@]} > 0)) || die "no C file in build/dev/compile_commands.json"
fi
tidy_all() {
    printf '%s\0' "${files[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy --quiet -p build/dev
}
logged tidy tidy_all
say "tidy: nothing found in ${#files[@]} files"
