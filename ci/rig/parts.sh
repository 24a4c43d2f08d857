#!/usr/bin/env bash
# What verify.sh runs within the rig: parts, one after the other, each with a deadline of its own
# and a row (name, seconds, result) in $RIG_OUT/rows. Goes on after a failure.
# Usage, within ci/rig/run.sh: ci/rig/parts.sh two|links|sweep, or one [all|common|rest] [TURN]
# In the layouts of two hosts both run the same parts at the same time and meet in each. Of layout
# one, common are the parts that every run has. The rest take turns: with a TURN, from 0, only the
# parts that have it run.
set -uo pipefail
python=.venv/bin/python
LIMIT_S="${RIG_PART_LIMIT_S:-600}" # several times what the longest takes on two busy CPUs
SWEEP_LIMIT_S="${RIG_PART_LIMIT_S:-3540}" # of a part of layout sweep: the C test's own, scaled
# An emulated machine is slow, and two CPUs may serve others too: the tests' own limits grow.
export RDT_TEST_TIMEOUT_SCALE="${RDT_TEST_TIMEOUT_SCALE:-6}"

which="${2:-all}"
turn="${3:-}"
number=0
overall=0
: >"$RIG_OUT/rows"
shared="$RIG_SHARED"

# part NAME COMMAND...
part() {
    local name="$1" start="$SECONDS" result=ok status=0
    shift
    number=$((number + 1))
    printf '== %s\n' "$name"
    mkdir -p "$shared/part-$number" # a rendezvous of its own for each
    RIG_SHARED="$shared/part-$number" timeout --kill-after=5 "$LIMIT_S" "$@" || status=$?
    ((status == 0)) || result="FAILED ($status)"
    ((status == 0)) || overall=1
    printf '%s\t%d\t%s\n' "$name" "$((SECONDS - start))" "$result" >>"$RIG_OUT/rows"
}

# in_turn TURN NAME COMMAND...: a part, unless another turn or only the common parts were asked for.
in_turn() {
    local of="$1"
    shift
    if [[ "$which" != common && ("$turn" == "" || "$turn" == "$of") ]]; then
        part "$@"
    else
        printf '%s\t0\tnot run: has turn %s\n' "$1" "$((of + 1))" >>"$RIG_OUT/rows"
    fi
}

over_device() { RDT_TEST_VERBS=device "build/dev/tests/$1_test" "${@:2}"; }
export -f over_device

# rxe promises no order of bytes, and keeps none: most runs see none out of order, one on a machine
# under load had a flag before bytes of its tensor. Asked for here: all of them follow, and nothing
# hangs. What tests/sim does to flags is in tests/c/transport/verbs_flag_test.c.
flags_by_force() {
    if [[ "$RIG_MEANS" == device ]]; then
        echo "skipped: how $RIG_DEVICE orders bytes is its own affair"
        return
    fi
    RDMATENSOR_VERBS_FLAG_UNSAFE=1 over_device core_slot_flag
}
export -f flags_by_force

c_tests() { part "C: $1" bash -c 'over_device "$@"' over_device "$@"; }

# Of the contract suite all that concerns a transport. RIG_FULL=1 takes the rest too: processes that
# die or never come, each an interpreter that takes seconds to start here, with limits that an
# emulated machine misses (the C tests above have their deaths), 32 ranks on two cores, and a signal
# after 0.2 s, when an emulated machine has not begun to wait. Left out in any case: 512 MiB, more
# than the guest has, and collectives that are slower here than their own deadlines allow. Private
# memory of a KiB is copied once on its way to a device, which a steady slot counts.
CONTRACT='not outlasts_a_slice and not 300001 and not steady_slot_sends_no_control'
SPAWN='multiprocessing spawn' # two interpreters, within a minute
contract_suite() {
    local folder=tests/contract name
    local -a files
    if [[ "${RIG_FULL:-}" == 1 ]]; then
        files=("$folder")
    else
        for name in group write_read slots regions transfers verify misuse children \
            processes.py::test_a_forked_child_is_told_to_be_spawned_by_every_call \
            processes.py::test_multiprocessing_workers_under_fork_live \
            strangers.py::test_a_client_that_cannot_prove_itself_gets_no_region_and_no_answer \
            processes.py::test_memory_of_freed_arrays_and_regions_is_used_again; do
            [[ "$name" == *.py* ]] || name="$name.py"
            files+=("$folder/test_$name")
        done
        for name in test_transfers.py::test_a_signal_ends_a_wait_promptly \
            test_transfers.py::test_await_has_the_context_s_deadline \
            "test_children.py::test_children_during_transfers[verbs-$SPAWN]" \
            'test_children.py::test_children_during_transfers[verbs-subprocess]'; do
            files+=(--deselect "$folder/$name")
        done
    fi
    # Of pytest's plugins the one that is needed: each is an import, and slow here.
    RDT_CONTRACT_TRANSPORTS=verbs PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 .venv/bin/pytest \
        -p pytest_timeout -q -p no:cacheprovider --timeout "$LIMIT_S" \
        --tb=short --durations=5 -k "$CONTRACT" "${files[@]}"
}
export -f contract_suite
export LIMIT_S CONTRACT SPAWN

# The library itself, in every run.
common_parts() {
    c_tests transport_verbs_lane
    c_tests transport_verbs_trace
    c_tests core_verbs_path
    c_tests core_endpoint
    c_tests core_slot
    c_tests core_mailbox over_verbs
    c_tests core_mailbox_keyed verbs_a_message
    c_tests integration_coll_stand over_verbs
    c_tests core_slot_flag
    part 'C: core_slot_flag, flags by force' bash -c flags_by_force
    c_tests core_group
    c_tests core_death a_killed_peer_is_named
    c_tests core_verify
    c_tests core_verify_message
    # A few of the points that integration_sweep takes on the host: each takes seconds here.
    part 'C: integration_sweep' bash -c 'RDT_TEST_SWEEP=4 RDT_TEST_SWEEP_TRANSPORTS=verbs \
        over_device integration_sweep'
}

# Turns by the time that they take: the layout links (verify.sh) is in the first, the layout two in
# the second.
parts_in_turn() {
    in_turn 1 'contract suite, Python' bash -c contract_suite
    in_turn 2 'bad input' "$python" tests/rig/bad_input.py
    in_turn 2 'doctor' "$python" tests/rig/doctor.py faults
    in_turn 2 'nothing is left behind' "$python" tests/rig/leftovers.py
    in_turn 2 'ranks of torch that end' "$python" tests/rig/sweep.py
    in_turn 0 'training' env RDMATENSOR_TRANSPORT=verbs "$python" tests/rig/train.py
    if [[ "${RIG_FULL:-} $which" == '1 all' ]]; then # four jobs of torch, with a witness in each
        LIMIT_S=$((2 * LIMIT_S)) part 'what a step costs' "$python" tests/rig/counts.py
    fi
    in_turn 2 'witness (pyverbs)' "$python" tests/rig/witness_job.py
}

one() {
    [[ "$which" == rest ]] || common_parts
    parts_in_turn
}

# All the points, with what they hit; far too long for each run.
sweep() {
    LIMIT_S="$SWEEP_LIMIT_S"
    part 'C: integration_sweep, 200 points' bash -c 'RDT_TEST_SWEEP=200 \
        RDT_TEST_SWEEP_TRANSPORTS=verbs over_device integration_sweep'
    part 'ranks of torch that end, 20 points' env RDT_TEST_SWEEP=20 "$python" tests/rig/sweep.py
}

# Each end shapes what it sends.
BAD_CABLE=(delay 1ms loss 1% duplicate 1% reorder 1%)

two() {
    export RDMATENSOR_TRANSPORT=verbs
    part 'two doctors' "$python" tests/rig/doctor.py pair
    part 'good cable' "$python" tests/rig/two_hosts.py
    rig-shape "${BAD_CABLE[@]}" || overall=1
    part 'loss, duplicates, reordering' "$python" tests/rig/two_hosts.py --expect-repairs
    part 'parameter server, same cable' "$python" tests/rig/ps_hosts.py \
        --expect-repairs verbs tcp
    rig-shape || overall=1
    part 'cable pulled for 1 s' "$python" tests/rig/cable.py pulled
    part 'peer killed in mid-transfer' "$python" tests/rig/cable.py killed
    part 'cable pulled for good' "$python" tests/rig/cable.py gone
    part 'smaller packets at one end' "$python" tests/rig/cable.py unequal
    unset RDMATENSOR_TRANSPORT
    part 'peer without libibverbs' "$python" tests/rig/cable.py unloaded
    part 'peer without RDMA' "$python" tests/rig/cable.py bare # takes host 1's device: last
}

links() {
    export RDMATENSOR_TRANSPORT=verbs
    part 'one of two links cut, tcp allowed' env RDMATENSOR_TRANSPORT=auto \
        "$python" tests/rig/two_links.py --how cut
    ((RIG_HOST == 1)) || rig-cable mend 1 || overall=1
    part 'one of two links loses all' "$python" tests/rig/two_links.py --how lose
    ((RIG_HOST == 1)) || rig-shape --link 1 || overall=1
    part 'one of two links down' "$python" tests/rig/two_links.py --how down
    ((RIG_HOST == 1)) || rig-cable up 1 || overall=1
    part 'RDMA lost for good, tcp is not' env -u RDMATENSOR_TRANSPORT \
        "$python" tests/rig/cable.py moved
    if [[ "${RIG_FULL:-}" == 1 ]]; then # torch is imported on both hosts: minutes
        part 'training, RDMA lost for good' env -u RDMATENSOR_TRANSPORT \
            "$python" tests/rig/failover.py
    fi
    part 'two links against one' "$python" tests/rig/link_rates.py
}

case "${1:-}" in
    one | two | links | sweep) "$1" ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2 && exit 2 ;;
esac
exit "$overall"
