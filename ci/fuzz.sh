#!/usr/bin/env bash
# libFuzzer over every decoder of bytes from a peer and over the tcp connection as a whole.
# Usage: ci/fuzz.sh [SECONDS_PER_TARGET [TARGET...]]; 1 where nothing is said, and five times as
# long, up to ten minutes, for the state machines, whose inputs take longer. With 600 each target
# has ten minutes: as many run at a time as there are CPUs. A finding fails, and stays in
# build/fuzz/findings with the command that replays it. Inputs are the encoders' own values, those
# of tests/fuzz/corpus and what earlier runs left in build/fuzz/corpus.
#        ci/fuzz.sh --keep [TARGET...] writes tests/fuzz/corpus anew from these, the least that
# reaches the same code.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
PATH="$VENV/bin:$PATH"
CORPUS=tests/fuzz/corpus
BUILD=build/fuzz
STATE_MACHINES=" tcp_lane connection ps_server ps_worker "
STATE_MACHINE_FACTOR=5
LONG_S=600 # what a long run gives to each: no factor goes beyond it
LONGEST_INPUT=8192  # a frame and its head fit twice, so does any value of the wire
INPUT_TIMEOUT_S=30  # each waits for microseconds; the machine may be loaded
STUCK_S=120         # for reading in the corpus, and the end
MEMORY_MIB=2048     # of which the sanitizer takes most

keep=no
seconds=1
if [[ "${1:-}" == --keep ]]; then
    keep=yes
    shift
elif (($# > 0)); then
    seconds="$1"
    shift
fi
wanted=("$@")

missing=()
command -v clang-14 >/dev/null || missing+=(clang-14)
compgen -G '/usr/lib/llvm-14/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null ||
    missing+=(libclang-rt-14-dev)
((${#missing[@]} == 0)) || install_packages "${missing[@]}"
logged fuzz-configure cmake --preset fuzz
logged fuzz-build cmake --build --preset fuzz

# command_of TARGET: the program, and the argument that chooses among its targets.
command_of() {
    if [[ "$STATE_MACHINES" == *" $1 "* ]]; then echo "$BUILD/fuzz/$1"; else
        echo "$BUILD/fuzz/decoder --target=$1"
    fi
}

# gather TARGET: all inputs that there are, in its folder.
gather() {
    local folder="$BUILD/corpus/$1" program
    read -ra program < <(command_of "$1")
    mkdir -p "$folder"
    "${program[@]}" "--seeds=$folder"
    if [[ -f "$CORPUS/$1.hex" ]]; then
        python ci/fuzz_corpus.py unpack "$CORPUS/$1.hex" "$folder"
    fi
}

# fuzz TARGET: its words go to a log, and nothing else.
fuzz() {
    local target="$1" limit="$seconds" leaks=1 program status=0
    read -ra program < <(command_of "$target")
    if [[ "$STATE_MACHINES" == *" $target "* ]]; then
        limit=$((seconds * STATE_MACHINE_FACTOR))
        if ((limit > LONG_S)); then limit=$((seconds > LONG_S ? seconds : LONG_S)); fi
    fi
    if [[ "$target" == connection ]]; then leaks=0; fi # it looks itself, see there
    gather "$target"
    timeout --kill-after=10 $((limit + STUCK_S)) "${program[@]}" \
        "-max_total_time=$limit" "-max_len=$LONGEST_INPUT" "-timeout=$INPUT_TIMEOUT_S" \
        "-rss_limit_mb=$MEMORY_MIB" "-detect_leaks=$leaks" -print_final_stats=1 \
        "-artifact_prefix=$BUILD/findings/$target-" "$BUILD/corpus/$target" \
        >"$LOGS/fuzz-$target.log" 2>&1 || status=$?
    echo "$status" >"$LOGS/fuzz-$target.status"
}

keep_corpus() {
    local target="$1" program least="$BUILD/least/$1" leaks=1
    read -ra program < <(command_of "$target")
    if [[ "$target" == connection ]]; then leaks=0; fi
    gather "$target"
    rm -rf "$least"
    mkdir -p "$least"
    logged "fuzz-keep-$target" "${program[@]}" -merge=1 "-detect_leaks=$leaks" \
        "-max_len=$LONGEST_INPUT" "$least" "$BUILD/corpus/$target"
    python ci/fuzz_corpus.py pack "$CORPUS/$target.hex" "$least"
}

# last NUMBER_OF_FIELD... of the log's last line of counters: "#8 DONE cov: 1 ft: 2 corp: 3/4b".
counter() { sed -nE "s/^#[0-9]+.* $2: ([0-9]+).*/\1/p" "$LOGS/fuzz-$1.log" | tail -n 1; }
statistic() { sed -nE "s/^stat::$2: +([0-9]+)$/\1/p" "$LOGS/fuzz-$1.log" | tail -n 1; }

report() {
    local target="$1" status program finding findings=()
    # None where it was ended before its end, or had no inputs.
    status="$(cat "$LOGS/fuzz-$target.status" 2>/dev/null || echo 1)"
    mapfile -t findings < <(compgen -G "$BUILD/findings/$target-*" || true)
    printf '%-16s %10s %8s %6s %9s  %s\n' "$target" \
        "$(statistic "$target" number_of_executed_units)" \
        "$(statistic "$target" average_exec_per_sec)" "$(counter "$target" cov)" \
        "$(counter "$target" ft)" "$( ((status == 0)) && echo none || echo "${#findings[@]}")"
    ((status != 0)) || return 0
    tail -n 60 "$LOGS/fuzz-$target.log" >&2
    read -ra program < <(command_of "$target")
    for finding in "${findings[@]}"; do
        printf 'replay: %s %s\n' "${program[*]}" "$finding" >&2
    done
    return 1
}

if ((${#wanted[@]} == 0)); then
    mapfile -t wanted < <("$BUILD/fuzz/decoder" --list && printf '%s\n' $STATE_MACHINES)
fi
if [[ "$keep" == yes ]]; then
    mkdir -p "$CORPUS"
    for target in "${wanted[@]}"; do keep_corpus "$target"; done
    exit
fi
rm -rf "$BUILD/findings" "$LOGS"/fuzz-*.status
mkdir -p "$BUILD/findings"
# The longest first, so that the cores end together.
jobs="$(nproc)"
for ((i = ${#wanted[@]} - 1; i >= 0; i--)); do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    fuzz "${wanted[i]}" &
done
wait
failed=()
printf '%-16s %10s %8s %6s %9s  %s\n' target runs runs/s edges features findings
for target in "${wanted[@]}"; do report "$target" || failed+=("$target"); done
((${#failed[@]} == 0)) || die "fuzz: ${failed[*]}"
