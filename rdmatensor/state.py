"""What describe() returns, as types.

Context.describe() and World.describe() return a ContextState, rdmatensor.distributed.describe() a
ProcessState, and PlannedModel.describe() a rdmatensor.plan.Described; of a parameter server, a
worker returns a PsWorkerState and a server a PsServerState. Sizes are in bytes, times in the unit
that a key ends with.
"""

from __future__ import annotations

from typing import Literal, TypedDict


class TransportState(TypedDict):
    """Whether a transport works on this host.

    is_viable: whether it can be used; reason: why it cannot, else empty.
    """

    is_viable: bool
    reason: str


class PlacementState(TypedDict):
    """Where the arena's pages are; all None but reason if the kernel does not report it.

    node_bytes: by NUMA node; cpu_nodes: the nodes of the CPUs that the process may use; far_bytes:
    on nodes without such a CPU; reason: why the kernel reports nothing, else empty.
    """

    node_bytes: dict[str, int] | None
    cpu_nodes: list[int] | None
    far_bytes: int | None
    reason: str


class _ArenaState(TypedDict):
    segments: int
    mapped_bytes: int
    allocated_bytes: int
    peak_allocated_bytes: int
    huge_bytes: int
    populated_bytes: int
    populate_s: float


class ArenaState(_ArenaState, total=False):
    """Memory of the arena.

    segments: pieces of the arena; mapped_bytes: its size; allocated_bytes: in use now, and
    peak_allocated_bytes: at most so far; huge_bytes: in huge pages; populated_bytes: in memory;
    populate_s: time taken to get its pages; placement: where these are, of describe() only.
    """

    placement: PlacementState


class RegionsState(TypedDict):
    """Regions of this process.

    live, live_bytes: not freed; exported: of these, those that peers may access; quarantine,
    quarantine_bytes: freed, but peers may still write them; registrations: made so far.
    """

    live: int
    live_bytes: int
    exported: int
    quarantine: int
    quarantine_bytes: int
    registrations: int


class EndpointState(TypedDict):
    """The connection to one peer.

    rank: global, -1 if unknown; uuid: of the peer's process, hexadecimal; state: of the connection;
    path: the transport in use, "none" before there is one; lane: what it is made of; is_fallback:
    whether a better path was expected; why_not_better: why a better path is not used; error: why
    the connection ended, else empty; set_up_ms: time until it was ready; pid: of the peer, a hint.
    """

    rank: int
    uuid: str
    state: Literal["connecting", "ready", "closing", "left", "failed"]
    path: Literal["none", "shm", "tcp", "verbs"]
    lane: str
    is_fallback: bool
    why_not_better: str
    error: str
    set_up_ms: float
    pid: int


class GroupState(TypedDict):
    """A group of the context.

    name, rank, size: as this process sees it; opened: connections to members that are open;
    collectives: started so far; error: why the group ended, None while it lives.
    """

    name: str
    rank: int
    size: int
    opened: int
    collectives: int
    error: str | None


class TrafficState(TypedDict):
    """Bytes that one path moved.

    planned_bytes: to or from a place that was known before; dynamic_bytes: where place or size was
    sent for it alone; control_bytes: without payload.
    """

    planned_bytes: int
    dynamic_bytes: int
    control_bytes: int


class ClassState(TypedDict):
    """What traffic of one class (planned, dynamic, control) cost.

    moved_bytes: into their final place; copied_bytes: other passes over them; control_messages:
    messages with an address, a shape or a request.
    """

    moved_bytes: int
    copied_bytes: int
    control_messages: int


class JobState(TypedDict):
    """The job that join() made.

    id: its name with its incarnation; rank: this process's; size: number of ranks.
    """

    id: str
    rank: int
    size: int


class _ContextState(TypedDict):
    version: str
    uuid: str
    forced_path: Literal["none", "shm", "tcp", "verbs"]
    required_path: Literal["none", "shm", "tcp", "verbs"]
    timeout_s: float
    peer_timeout_s: float
    verify: Literal["off", "crc32c"]
    usable_cpus: int
    copies_tuned_for: str
    transports: dict[str, TransportState]
    listens: list[str]
    arena: ArenaState
    regions: RegionsState
    endpoints: list[EndpointState]
    groups: list[GroupState]
    counters: dict[str, float]
    traffic: dict[str, TrafficState]
    classes: dict[str, ClassState]


class ContextState(_ContextState, total=False):
    """The live state of a context.

    version, uuid: of this process; forced_path, required_path, timeout_s, peer_timeout_s, verify:
    settings in force; usable_cpus: of this process; copies_tuned_for: the processor whose copy
    thresholds are used; transports: by name; listens: addresses; arena, regions, endpoints, groups:
    see their types; counters: as Counters; traffic: by path; classes: by class of traffic; job: of
    join(); secret: where the job's secret came from.
    """

    job: JobState
    secret: str


class Peer(TypedDict):
    """How one member of a group is reached.

    rank: global; path: the transport, "none" before the first message; reason: what the path is
    made of, or why it is not a better one.
    """

    rank: int
    path: str
    reason: str


# The names are those of RDT_WAY_* in the C header.
Way = Literal["unbound", "in place", "stages", "messages", "alone"]


class BindingState(TypedDict):
    """How the starts of a persistent collective work; the same on all members but for "starts".

    operation: "all_reduce" and the like; bytes: of one member's block. way: "in place" if members
    use each other's tensors, with no copy in between; "stages": by copies in memory that the
    members of a host share; "messages": between hosts, or where members share no memory; "alone":
    the group has one member. algorithm: as in the "ran" of a group; None while it is "unbound".
    reason: why it is not "in place", as "its tensor is in no arena", else empty; rank: group rank
    of the member that the reason is about, None if it is about all. starts: so far, on this member.
    """

    operation: str
    bytes: int
    way: Way
    algorithm: str | None
    reason: str
    rank: int | None
    starts: int


class WireState(TypedDict):
    """What the lossy collectives of a group did on this rank.

    sent_bytes: what they sent, and exact_bytes: what exact ones would have; not_finite_blocks: with
    an infinity or a NaN, which became NaN; saturated_blocks: with values beyond the largest scale;
    coding_s: time of encoding, decoding and summing pieces of 4 KiB or more.
    """

    sent_bytes: int
    exact_bytes: int
    not_finite_blocks: int
    saturated_blocks: int
    coding_s: float


class _CollectivesState(TypedDict):
    calls: int
    packs: int
    packed_tensors: int
    writes: int
    rearranged_tensors: int
    rearranged_bytes: int
    way: Literal["undecided", "shared memory", "messages", "hosts"]
    ran: dict[str, int]
    summing_s: float
    copying_s: float
    persistent: list[BindingState]


class CollectivesState(_CollectivesState, total=False):
    """Collectives of a group on this rank.

    calls: collectives; packs: calls for many small tensors of a coalesced collective, and
    packed_tensors: these tensors; writes: messages to a member, or fills of memory that all read;
    rearranged_tensors, rearranged_bytes: not row-major, and copied; way: how they are carried out;
    ran: how many used which algorithm; summing_s, copying_s: time of passes over 4 KiB or more;
    persistent: the open persistent ones, as the buckets of a plan.

    After a lossy collective (rdmatensor.compress.all_reduce), wire: what these did.

    From the first collective on, algorithm: the value of RDMATENSOR_ALGO; is_deterministic: whether
    sums use rank order. With messages, costs: the cost model, with its source and the path between
    hosts; chosen: by operation, the algorithm from each size of a block on. With several hosts,
    hosts: the number of each rank's host.
    """

    wire: WireState
    algorithm: str
    is_deterministic: bool
    hosts: list[int]
    costs: dict[str, float | str]
    chosen: dict[str, dict[str, str]]


class AdoptionState(TypedDict):
    """What was allocated in the arena at one moment without a request.

    what: the kind of tensors; tensors, bytes: in the arena; missed, missed_bytes: without room
    there; reason: why some were missed, else empty.
    """

    what: str
    tensors: int
    bytes: int
    missed: int
    missed_bytes: int
    reason: str


class NotAdoptedState(TypedDict):
    """Tensors that are outside the arena for one reason.

    what: the kind of tensors; reason: why; tensors, bytes: how many; names: the first of them.
    """

    what: str
    reason: str
    tensors: int
    bytes: int
    names: list[str]


class GradientsState(TypedDict):
    """Gradients of one DistributedDataParallel module, or of one of Horovod's optimizers.

    what: the module; in_place: gradients that autograd wrote in their bucket; copied, copied_bytes:
    those that were copied there; why_off: why none are allocated there any more, or why some were
    not in the last backward pass, else empty.
    """

    what: str
    in_place: int
    copied: int
    copied_bytes: int
    why_off: str


class _RecordedState(TypedDict):
    state: Literal["watching", "locked", "off"]
    reason: str
    changes: int


class RecordedState(_RecordedState, total=False):
    """What the recorder knows of a group's step.

    state: locked when a step repeats; reason: why nothing is recorded or the step changed, or
    empty; changes: how often it changed. When locked, operations and bytes: of a step; steps: since
    then; moved: tensors that moved to another address; per_step: the average cost of a step, of
    counters(), of other groups too.
    """

    operations: int
    bytes: int
    steps: int
    moved: int
    per_step: dict[str, float]


class ProcessState(ContextState, total=False):
    """The live state of a process with groups of torch.distributed.

    All of the context's state, and: peers: how each other member is reached; adopted, not_adopted:
    allocations of torch inside and outside the arena; gradients: of DistributedDataParallel;
    collectives: of the group; plan: of the group's step.
    """

    peers: list[Peer]
    adopted: list[AdoptionState]
    not_adopted: list[NotAdoptedState]
    gradients: list[GradientsState]
    collectives: CollectivesState
    plan: RecordedState


class PsPart(TypedDict):
    """A worker of a parameter server, as one of its servers sees it.

    worker: its rank; state: "parked" if it waits for a batch, "absent" before its first request;
    is_waiting: for the end of a step, or for a batch; clock: its steps; requests: so far;
    staged_bytes: pushed since its last step; quiet_s: since its last request.
    """

    worker: int
    state: Literal["absent", "in", "parked", "left", "dead"]
    is_waiting: bool
    clock: int
    requests: int
    staged_bytes: int
    quiet_s: float


class _PsTableState(TypedDict):
    dim: int
    rows: int
    rule: dict[str, object]


class PsTableState(_PsTableState, total=False):
    """A table of a parameter server.

    dim: floats of a row; rows: on all servers; rule: its kind and numbers. Of a table with 64-bit
    keys or a file, on this server: rows: keys that have one; capacity, load: for how many there is
    room, and the part of it that is used; filtered: keys that were pushed and have no row yet;
    hits, misses: pulls of rows that were there, and that were not; admissions, evictions,
    expirations, forgotten: so far; epoch: of pushes; memory_bytes, index_bytes, file_bytes: of
    rows, keys and the file; file_reads, file_writes: so far; keys: their kind.
    """

    keys: str
    load: float
    epoch: int
    filtered: int
    capacity: int
    hits: int
    misses: int
    admissions: int
    evictions: int
    expirations: int
    forgotten: int
    memory_bytes: int
    index_bytes: int
    file_bytes: int
    file_reads: int
    file_writes: int


class _PsServerState(TypedDict):
    job: str
    server: int
    replica: Literal["none", "primary", "backup"]
    pid: int
    mode: str
    requests: int
    replays: int
    refused: int
    queued: int
    switches: int
    pushed_rows: int
    pulled_rows: int
    applied_rows: int
    ticks: int
    rounds: int
    rows_bytes: int
    state_bytes: int
    staged_bytes: int
    apply_s: float
    workers_in: int
    workers_dead: int
    staleness: list[int]
    workers: list[PsPart]
    held_by: list[int]
    tables: dict[str, PsTableState]
    kv: dict[str, int]
    checkpoint: dict[str, object] | None
    restored_bytes: int
    counters: dict[str, float]


class PsServerState(_PsServerState, total=False):
    """The live state of a server.

    job: its name; server: its number, of a backup that of its server; replica: "none" without
    replicas; pid: of its process; mode: of the clocks. switches: of a backup, workers that read
    from it; requests: that have come; replays: of these, carried out before; refused: answered
    with an error; queued: not begun; pushed_rows, pulled_rows: by requests; applied_rows: changed
    by a rule; ticks: ends of steps; rounds: steps of all workers in "sync"; rows_bytes,
    state_bytes: of values and of their rules' state; staged_bytes: pushed and not applied;
    apply_s: time spent in applying; workers_in, workers_dead: how many. staleness: at i, ends of
    steps between two of which i of other workers were applied; the last counts all larger ones.
    workers: each; held_by: those that others wait for. tables: by name. kv: how many named
    tensors, and their bytes.
    checkpoint: the last one, or None; restored_bytes: read from one. counters: as Counters. Of a
    cluster also role, rank, context, and backup: the backup of another server in this process.
    """

    backup: PsServerState
    role: str
    rank: int
    context: ContextState


class _PsWorkerState(TypedDict):
    clock: int
    mapped: list[bool]
    tables: list[str]
    lost: list[str]
    backup_wait_s: float
    servers: list[PsServerState]


class PsWorkerState(_PsWorkerState, total=False):
    """The live state of a worker.

    clock: its steps; mapped: for each server, whether its rows are read in mapped memory; tables:
    their names; lost: replicas that have died, such as "server 0" or "backup of server 1";
    backup_wait_s: in which ends of steps have waited for backups alone; servers: each, or its
    backup once it is lost. Of a cluster also role, rank, context.
    """

    role: str
    rank: int
    context: ContextState
