# Shared by the scripts of this folder; sourced, not run. Changes into the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # nothing here asks questions

ROOT="$PWD"
VENV="$ROOT/.venv"
LOGS="$ROOT/build/logs"
TELL_S=10 # between two lines of progress
mkdir -p "$LOGS"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"

# Where ccache is installed, what was compiled before, in this clone or another, is not again.
# Without the folder's name in what is compared, which only debuggers would miss.
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CCACHE_BASEDIR="$ROOT" CCACHE_NOHASHDIR=1
fi

say() { printf '== %s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# logged NAME COMMAND...: quiet on success, the end of its log on failure.
logged() {
    local name="$1" status=0
    shift
    "$@" >"$LOGS/$name.log" 2>&1 || status=$?
    if ((status != 0)); then
        grep -v '^WARNING: Location' "$LOGS/$name.log" | tail -n 60 >&2
        printf 'error: %s failed with status %d; the whole log: %s\n' \
            "$name" "$status" "${LOGS#"$ROOT"/}/$name.log" >&2
    fi
    return "$status"
}

# turn_of_commit COUNT: which of so many turns, from 0, this commit has. Commits have them as by the
# dice, so that each comes up in the long run; the same commit has the same, so that what fails,
# fails again. What is not committed yet has its parent's.
turn_of_commit() {
    local commit
    commit="$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo 0)" # 0: not a repository
    printf '%d' "$((16#${commit:0:7} % $1))"
}

# CPU seconds of all that this script has started and waited for, in cpu_s; a subshell would tell
# its own. Beside the seconds they tell whether a step worked, waited, or stood behind others.
read_cpu_s() {
    local file="$LOGS/times.$BASHPID"
    times >"$file"
    cpu_s="$(awk -F '[ms ]+' 'NR == 2 { printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$file")"
    rm -f "$file"
}

# telling NAME COMMAND...: as logged, and every ten seconds the log's last line, with the seconds so
# far: what a download, an installation or a build is at.
telling() {
    local status=0 began="$SECONDS" teller
    tell_of "$LOGS/$1.log" &
    teller=$!
    logged "$@" || status=$?
    kill "$teller" 2>/dev/null || true
    wait "$teller" 2>/dev/null || true
    ((status != 0)) || printf '   %3d s  done\n' $((SECONDS - began))
    return "$status"
}

tell_of() {
    local began="$SECONDS"
    trap 'kill $! 2>/dev/null; exit' TERM
    while true; do
        sleep "$TELL_S" &>/dev/null &
        wait $!
        printf '   %3d s  %s\n' $((SECONDS - began)) "$(tr '\r' '\n' <"$1" | grep -v '^ *$' |
            tail -n 1 | sed -e 's/^ *//' | cut -c 1-86)"
    done
}

install_packages() {
    local sudo=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "as root, run: apt-get install $*"
        sudo=(sudo -n)
    fi
    say "installing Debian packages: $*"
    telling apt-update "${sudo[@]}" apt-get -q update
    telling apt-install "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y --no-install-recommends install "$@"
}
