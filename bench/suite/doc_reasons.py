"""Why a rival is faster than ours, by rule: for every cell of the generated tables that is bold.

What no rule covers raises ValueError, and `bench/readme.py --check` fails: somebody has to look
there first. A reason that nobody knows is a rule as well, and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bench.benchlib.record import Record, number, text
from bench.suite import breakdown, reads, samples, streams
from bench.suite.collective_cells import Known, cell_of, round_trip_ns, row_of
from bench.suite.collectives import NOTHING, net_ns
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, PLAIN

UNKNOWN = "why is not known yet"
NOTIFIES = "ours has a notification that can wake a sleeper, and checks that the region still lives"
BOTH = (
    f"{NOTIFIES}; both ways each side's core takes as many as it sends, while a memcpy's reader"
    " looks at the last flag only"
)
UNREAD = (
    "what nobody reads stays in the writer's cache there; ours stores it past the caches, for who"
    " reads it: until the peer has read the last bytes, ours is faster than a memcpy"
)
PULLED = (
    "the receiver of a dynamic tensor reads it out of the sender's cache into its own, and finds it"
    " there; a slot's is stored past the caches"
)
BY_CHANCE = "each median lies in the other's band, and the best of eight is chosen afterwards"
ACKNOWLEDGES = (
    "ours has a header, a notification, and an acknowledgement once the bytes are in place"
)
EARLY = "it counts a message as done before that has arrived: in less than half its round trip"
CHECKS = "ours makes a transfer of each read, and checks that the region still lives"
ASKS = "ours has a header each way, and who answers looks at more than this socket"
TAKES_TURNS = (
    f"{ASKS}; besides, the thread that asks and the progress thread take turns at the one core that"
    " a rank has here and at the engine's lock, or one of them does all, by the sample"
)
RELEASES = (
    "a slot is released to its sender after each tensor; the ring gives one credit for half of it"
)
PACKS = "to pack so few bytes takes a hundredth of a trip over a socket, less than turns differ by"
CALLS = (
    "torch's share of a call, which Open MPI is measured without, is most of what is between them"
)
SHARED = (
    "ranks share the cores, and whoever waits gives its core away (who needs nothing of the others,"
    " and stores up to 64 KiB, when it is 15 calls ahead): a call of torch's with three such"
    " switches and no backend takes more than half of what is between them; Open MPI is measured"
    " without torch"
)
NEW_SMALL = (
    f"in new memory torch's share of a call is less than half of what is between them: {UNKNOWN}"
)
OFFERS = "torch's share of a call, and what it takes to offer a tensor that lies in private memory"
TWICE = (
    "its copy is one, from process to process; ours go through memory that both share, and the"
    " second is not free where all of it lies in the caches"
)
STAGED = (
    "its copy is one, from process to process; ours sums tensors in private memory through stages"
    " that both share, those in the arena in place, where it is no slower"
)
LARGE_TWICE = "its copy is one, from process to process; ours go through memory that both share"
PAGES = "nearly all of it is the system's making of pages"
RINGED = (
    "torch's share of a call, without which Open MPI is measured, and a copy more on either side,"
    " by way of a ring; to wait until the receive is told took longer still (docs/performance.md,"
    " what was tried)"
)
AWAITED = (
    "who sends waits until it hears that the receive is posted, so that nothing is copied between"
    " the socket and the tensor: two round trips of ours are more than what is between them"
)
PROFILED = (
    "Python, torch and what binds it, without which Open MPI is measured, and what a call of ours"
    " does besides sending: of 19 us of an all_reduce perf found 7 in those, 6 in sending, 4 in"
    " receiving, two calls a message, and 2 in the library (commit 0d290e8, no samples kept); each"
    " of these takes 1.3 to 1.7 times as long where ranks use their tensors in between"
)
FAULTS = "page faults that the other does not have: the last table"
IN_BANDS = "each median lies in the other's band"
OVERLAPS = "so few samples say little: what lies between the 10th and the 90th hundredth overlaps"
BY_STARTS = (
    "three starts of the processes differ by more than that: with twelve UCX takes 0.93 to 1.08"
    " of our time (p2p_1_mib.json)"
)
PROOFS = (
    "ours proves each path before it is used, opens all pairs at the first collective, and makes"
    " the arena"
)
_COPY_FROM_BYTES = 256 * KIB  # from here on the copy's time tells, below it what goes with it
_LARGE_BYTES = 16 * MIB  # a message whose head and acknowledgement take no share of its time
SMALL_BYTES = 64 * KIB
_FEW_SAMPLES = 10
_COMMON = ((max, "p10"), (min, "p90"))  # of two bands
_FEW_BYTES = 4 * KIB  # who writes and reads no more leaves the caches as they were
# Of a rival's time, from SMALL_BYTES on. A notification takes some 200 ns (p2p_xeon.json: 8 B,
# 426 ns and 232 by a flag), which of the 2 us that 64 KiB take at least is no more.
_NOTIFIES_LEAST = 0.85
_MEMCPY = "copy: memcpy"
_UNREAD_LEAST = 1.5  # of a memcpy's time over ours until the peer has read: more than noise
_SUMS = ("all_reduce", "reduce", "reduce_scatter")
_MOVES = ("broadcast", "all_gather", "gather", "scatter", "all_to_all", "send")  # no sums
_STARTS_LEAST = 0.6  # of UCX's time over ours: a start may differ by so much from the next
_FAULTS_MORE = 4096  # of a step; 10 ms
# Times as long as one way: on a Zen 4 132 and 334 ns, of which half is each core's other half of
# the work, and the rest lines of memory that both cores write.
_BOTH_MOST = 2.6
_TURNS_APART = 2.0  # of a sample's time: with the progress thread, reads took 20 to 60 us for 8
_ODD = 0.5  # of a rival's time in a row over TCP: more than what is known explains
_RINGED_LEAST = 0.45  # of Open MPI's time over TCP: copies and a round trip explain no more
_TCP_LEAST = 0.1  # below it somebody has to look before anything is said


def of_message(ours: Record, rival: Record, unread: Collection[float] = ()) -> str:
    """Return what ours does that a faster rival does not, in half a round trip.

    unread: see sizes_unread().
    """
    path, size, peer = text(ours, "transport"), number(ours, "size"), text(rival, "peer")
    if peer not in ("floor", "ucx"):
        raise ValueError(f"{peer} is faster in {path} {size:g}, and why?")
    if path == "shm" and size in unread and not _are_alike(ours, rival):
        return UNREAD
    if path == "shm" and size < _COPY_FROM_BYTES:
        return _notifies(ours, rival)
    if path == "shm":
        return _of_copies(ours, rival)
    is_known = peer == "floor" or size < _LARGE_BYTES
    return ACKNOWLEDGES if is_known else f"UCX: {UNKNOWN}"


def sizes_unread(known: Iterable[Record]) -> dict[float, float]:
    """Return the sizes over shm at which our stores pass the caches, and a memcpy's time over ours.

    known: records of what takes until the peer knows, which has read the last bytes: where a memcpy
    takes far longer, as the peer finds lines in another core's cache.
    """
    times: dict[float, dict[str, float]] = {}
    for one in known:
        if one["transport"] == "shm":
            name = OURS if one["peer"] == OURS else text(one, "contestant")
            times.setdefault(number(one, "size"), {})[name] = number(one, "median_ns")
    over = {
        size: of_size[_MEMCPY] / of_size[OURS]
        for size, of_size in times.items()
        if OURS in of_size and _MEMCPY in of_size
    }
    return {size: ratio for size, ratio in over.items() if ratio >= _UNREAD_LEAST}


def _of_copies(ours: Record, rival: Record) -> str:
    """Return why a rival moves more bytes over shared memory, one message after the other."""
    if _are_alike(ours, rival):
        return IN_BANDS
    ratio = number(rival, "median_ns") / number(ours, "median_ns")
    if rival["peer"] == "ucx" and number(ours, "size") == MIB and ratio >= _STARTS_LEAST:
        return BY_STARTS
    return f"shm, {rival['contestant']}: {UNKNOWN}"


def _notifies(ours: Record, rival: Record) -> str:
    ratio = number(rival, "median_ns") / number(ours, "median_ns")
    is_all = number(ours, "size") < SMALL_BYTES or ratio >= _NOTIFIES_LEAST
    return NOTIFIES if is_all else f"{NOTIFIES}; besides, {UNKNOWN}"


def of_copy(ours: Record, copy: Record) -> str:
    """Return why the best of eight copies is faster until the peer knows."""
    if number(ours, "size") < _COPY_FROM_BYTES:
        return _notifies(ours, copy)
    return BY_CHANCE if _are_alike(ours, copy) else f"best copy: {UNKNOWN}"


def _are_alike(one: Record, other: Record) -> bool:
    """Return whether each median lies between the 10th and 90th hundredth of the other."""
    return all(
        samples.figure(this, "p10") <= number(that, "median_ns") <= samples.figure(this, "p90")
        for this, that in ((one, other), (other, one))
    )


def of_step(planned: Record, rival: Record) -> str:
    """Return why a rival's training step is faster than the planned one."""
    if breakdown.faults_of(planned) > breakdown.faults_of(rival) + _FAULTS_MORE:
        return FAULTS
    return IN_BANDS if _are_alike(planned, rival) else f"{rival['contestant']}: {UNKNOWN}"


def of_set_up(rival: Record) -> str:
    """Return why a rival's ranks can work sooner."""
    if rival["contestant"] != "gloo":
        raise ValueError(f"the set-up of {rival['contestant']} is faster, and why?")
    if "neighbour" in text(rival, "timed"):  # it needs no more pairs than it uses
        return (
            "ours asks through the store whether all share a host, opens a context, has the"
            " arena's first 2 MiB made, and proves each path before it is used"
        )
    return PROOFS


def in_a_row(
    ours: Record,
    rival: Record,
    halves: Mapping[object, float] | None = None,
    rows: Mapping[object, float] | None = None,
    unread: Collection[float] = (),
) -> str:
    """Return why messages in a row are slower than a rival's.

    halves: half a round trip of each, by halves_key(); rows: messages in a row, by rows_key();
    unread: see sizes_unread().
    """
    peer, ratio = text(rival, "peer"), number(rival, "median_ns") / number(ours, "median_ns")
    reason = of_message(ours, rival, unread)  # raises where nothing may be faster
    if reason == UNREAD:
        return reason
    if ours["transport"] == "shm":
        is_small = number(ours, "size") < _COPY_FROM_BYTES
        if not is_small or not text(ours, "timed").endswith(streams.WAYS[True]):
            return reason
        one_way_ns = (rows or {}).get(rows_key(ours, is_both=False), 0.0)
        is_twice = number(ours, "median_ns") <= _BOTH_MOST * one_way_ns
        return BOTH if is_twice else f"shm, both ways: {UNKNOWN}"
    if _are_few(ours, rival):
        return OVERLAPS
    half_ns = (halves or {}).get(halves_key(rival), 0.0)
    is_alone = text(rival, "timed") == streams.timed_of(1, streams.WAYS[False])
    if peer == "ucx" and is_alone and number(rival, "median_ns") < half_ns:
        return EARLY
    whose = "" if peer == "floor" else f"{peer}, "
    return f"{whose}{ours['wait']}, {ours['timed']}: {UNKNOWN}" if ratio < _ODD else reason


def _are_few(one: Record, other: Record) -> bool:
    """Whether there are few samples of each, whose bands have a part in common."""
    few = all(number(this, "samples") < _FEW_SAMPLES for this in (one, other))
    low, high = (of(number(this, name) for this in (one, other)) for of, name in _COMMON)
    return few and low <= high


def halves_key(record: Record) -> object:
    """Return what a contestant's half round trips and its messages in a row have in common."""
    return tuple(record[name] for name in ("contestant", "transport", "size", "wait"))


def rows_key(record: Record, *, is_both: bool) -> object:
    """Return what names messages in a row of a contestant, as deep as this one's, by their way."""
    depth = text(record, "timed").removesuffix(streams.WAYS[True]).removesuffix(streams.WAYS[False])
    return halves_key(record), depth, is_both


def of_read(ours: Record, rival: Record) -> str:
    """Return why reads are slower than a rival's."""
    path, peer = text(ours, "transport"), text(rival, "peer")
    if peer not in ("floor", "ucx"):
        raise ValueError(f"{peer} is faster in reads over {path}, and why?")
    is_small = number(ours, "size") < _COPY_FROM_BYTES
    if is_small and path == "shm":
        return CHECKS  # UCX's get of 8 B takes what a memcpy takes (p2p_xeon.json: 48 ns and 41)
    if is_small and peer == "floor":
        is_odd = number(rival, "median_ns") / number(ours, "median_ns") < _ODD
        if not is_odd:
            return ASKS
    if _are_alike(ours, rival):
        return IN_BANDS
    if is_small and _takes_turns(ours):
        return TAKES_TURNS
    if path == "shm" and _of_copies(ours, rival) == BY_STARTS:
        return BY_STARTS
    return f"{path}, {ours['timed']}, {rival['contestant']}: {UNKNOWN}"


def _takes_turns(reads_of_ours: Record) -> bool:
    """Return whether samples of reads under way lie as far apart as two ways of driving do."""
    if text(reads_of_ours, "timed").endswith(reads.ALONE):
        return False
    low, high = (samples.figure(reads_of_ours, which) for which in ("p10", "p90"))
    return high >= _TURNS_APART * low


def of_gain(path: str, size: int, what: str, unread: Collection[float] = ()) -> str:
    """Return why a slot is slower than another way that is named by `what`.

    unread: see sizes_unread().
    """
    if what == "copy / slot" and size < SMALL_BYTES:
        return RELEASES
    if what == "packed / copy" and path == "tcp" and size < SMALL_BYTES:
        return PACKS
    is_large = size >= (_LARGE_BYTES if path == "tcp" else _COPY_FROM_BYTES)
    if what == "dynamic / slot" and path == "shm" and size in unread:
        return PULLED
    if what == "dynamic / slot" and is_large:
        return f"{what}, {path}: {UNKNOWN}"
    if what == "copy / slot" and path == "tcp" and is_large:
        return f"{what}: {UNKNOWN}"
    raise ValueError(f"{what} is below 1 in {path} {size}, and why?")


def of_collective(ours: Record, theirs: Record, known: Known) -> str:
    """Return why a rival's collective is faster."""
    if theirs["contestant"] == "OpenMPI" and number(ours, "ranks") > 2:
        return _of_more(ours, theirs, known)
    return _of_two(ours, theirs, known)


def _of_more(ours: Record, theirs: Record, known: Known) -> str:
    """Return why Open MPI is faster where ranks are more than cores."""
    size = number(ours, "size")
    is_moved = ours["transport"] == "shm" and text(ours, "op") in _MOVES
    if is_moved and size >= _LARGE_BYTES:
        return LARGE_TWICE
    share_ns = share_of_call(ours, known)
    if share_ns is not None and share_ns > (net_ns(ours) - net_ns(theirs)) / 2:
        return SHARED
    if is_moved and size >= _COPY_FROM_BYTES:
        return TWICE
    return f"more than two ranks on two cores: {UNKNOWN}"


def _of_two(ours: Record, theirs: Record, known: Known) -> str:
    path, size, row = text(ours, "transport"), number(ours, "size"), row_of(ours)
    rival, op = text(theirs, "contestant"), text(ours, "op")
    is_new = path == "shm" and row == "fresh" and size >= _LARGE_BYTES
    if is_new and rival == "OpenMPI" and op in _MOVES:
        return PAGES
    if is_new and rival == "gloo" and op == "scatter":
        return f"Gloo's scatter into new memory: {UNKNOWN}"
    if rival == "OpenMPI" and path == "tcp" and net_ns(theirs) >= _TCP_LEAST * net_ns(ours):
        return _of_tcp(ours, theirs, known)
    if rival == "OpenMPI" and path == "shm":
        sums = _SUMS if row == PLAIN else _SUMS[:1]
        if op in sums and _COPY_FROM_BYTES <= size < _LARGE_BYTES:
            return _of_sum(ours, theirs, known)
        if op in _MOVES and size >= _COPY_FROM_BYTES:
            return TWICE if size < _LARGE_BYTES else LARGE_TWICE
        if op == "send" and row != "arena" and size >= SMALL_BYTES:
            return OFFERS
        reason = _by_call(ours, theirs, known)
        if reason is not None:
            return reason
    raise ValueError(f"{rival} is faster in {path} {op} {size:g}, {row}, and why?")


def _of_tcp(ours: Record, theirs: Record, known: Known) -> str:
    """Return why Open MPI is faster over TCP with two ranks."""
    if number(ours, "size") <= _FEW_BYTES:
        return PROFILED
    if net_ns(theirs) < _RINGED_LEAST * net_ns(ours):
        return f"of {number(ours, 'size') / KIB:g} KiB over TCP, less than half: {UNKNOWN}"
    if number(ours, "size") <= SMALL_BYTES:
        return RINGED
    trip_ns = round_trip_ns(ours, known)
    is_more = trip_ns is not None and trip_ns < (net_ns(ours) - net_ns(theirs)) / 2
    return f"more than twice a round trip over TCP: {UNKNOWN}" if is_more else AWAITED


def _of_sum(ours: Record, theirs: Record, known: Known) -> str:
    """Return what tensors of the arena tell, used again: whether they take no longer than its."""
    arena = known.get(OURS, {}).get(cell_of(ours, "arena"))
    same = known.get(text(theirs, "contestant"), {}).get(cell_of(ours, "same"))
    if arena is not None and same is not None and net_ns(arena) <= net_ns(same):
        return STAGED
    used = "nobody touches" if row_of(ours) == PLAIN else "the ranks use"
    return f"a sum of a tensor that {used}: {UNKNOWN}"


def _by_call(ours: Record, theirs: Record, known: Known) -> str | None:
    """Return what the backend that does nothing shows; None: that it shows nothing."""
    share_ns = share_of_call(ours, known)
    if share_ns is None:
        return None
    if share_ns > (net_ns(ours) - net_ns(theirs)) / 2:
        return CALLS
    is_new = row_of(ours) == "fresh" and number(ours, "size") <= SMALL_BYTES
    return NEW_SMALL if is_new else None


def share_of_call(ours: Record, known: Known) -> float | None:
    """Return torch's share of a call in nanoseconds, by a backend that does nothing; None: unknown.

    It is what that takes beside ours, in the same turns. Where ranks use new tensors, or large
    ones, that has page faults in it and caches that they emptied: there it is no more than with
    tensors that nobody touches. Of tensors of the arena a file may have the row "same" for it.
    """
    of_it = known.get(NOTHING, {})
    beside, untouched = of_it.get(cell_of(ours)), of_it.get(cell_of(ours, PLAIN))
    if beside is None and row_of(ours) == "arena":
        beside = of_it.get(cell_of(ours, "same"))
    if beside is None:
        return None
    has_more = row_of(ours) == "fresh" or number(ours, "size") > _FEW_BYTES
    compared = (beside, untouched) if has_more else (beside,)
    return min(net_ns(one) for one in compared if one is not None)
