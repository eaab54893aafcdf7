"""Wire protocol 1: every message, as frozen tagged structs.

Owns: names and types of what crosses the sockets. Must not know: how it is sent, or what it does to the tables. Pure.

One request is one ZeroMQ frame (DEALER to ROUTER over ``ipc://``) holding one msgpack map; its reply is one frame of
the same kind. Unknown fields are ignored and fields are only ever added, each with a default. ``docs/protocol.md`` is
the prose of this file; ``tests/wire/golden`` holds its bytes.

Times named ``*_deadline`` are CLOCK_MONOTONIC seconds of the node; ``*_at`` are Unix seconds.
"""

import msgspec

from gateway.wire.codes import (
    CommitStatus,
    DrainOutcome,
    ErrorCode,
    Health,
    Lifecycle,
    OperationKind,
    OutcomeKind,
    Phase,
    Reason,
    ReserveStatus,
    Role,
    State,
)

PROTOCOL_VERSION = 1
OLDEST_PROTOCOL_VERSION = 1
POOL_FORMAT = 1

MAX_MESSAGE_BYTES = 1 << 20  # refused before decoding, with a reply
MAX_FRAME_BYTES = 16 << 20  # ZeroMQ drops the connection before it buffers more
MAX_KEYS = 8192  # keys, reservations, operations or sessions in one message
MAX_SOCKET_PATH_BYTES = 107  # ``sun_path`` of a Unix socket address holds 108 bytes with its final zero


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every request.

    Attributes:
        number: chosen by the sender, increasing on its socket; stands in the reply.
        boot: boot id (16 bytes) the request is meant for; HELLO leaves it empty.
        deadline: past it a granting request has no effect (``expired``); 0 = none.
    """

    number: int
    boot: bytes = b""
    deadline: float = 0.0


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every reply: the request's number and the boot id of the daemon that answers."""

    number: int
    boot: bytes


class Error(Reply, frozen=True, kw_only=True, tag="Error"):
    """The request was not done and changed nothing. ``number`` is 0 when it could not be read."""

    code: ErrorCode
    message: str
    retry_after_ms: int = 0


class Done(Reply, frozen=True, kw_only=True, tag="Done"):
    """The request was done, and there is nothing more to say."""


# -- meeting ---------------------------------------------------------------------------------------


class Hello(Request, frozen=True, kw_only=True, tag="HELLO"):
    """First message on a socket: which versions the sender speaks, and its clock."""

    oldest_version: int
    newest_version: int
    pool_format: int
    monotonic: float
    software: str = ""


class Welcome(Reply, frozen=True, kw_only=True, tag="WELCOME"):
    """Answer to HELLO: the version chosen, the limits, and where the pool is."""

    version: int
    pool_format: int
    pool_id: bytes
    state: Lifecycle
    health: Health
    monotonic: float
    max_message_bytes: int
    max_keys: int
    heartbeat_seconds: float
    lease_seconds: float
    reservation_seconds: float


class Register(Request, frozen=True, kw_only=True, tag="REGISTER"):
    """A party comes, or comes back. It says so only while no unit granted by an older boot is running.

    Attributes:
        party: random 16 bytes.
        group: parties of one model replica share it.
        engine: the operator's stable name, ``[A-Za-z0-9._-]{1,63}``.
        model: served model name, for labels.
        namespace: 16 bytes; a scheduler half may leave it empty.
        chunk_bytes: bytes of one chunk of this worker's shard; 0 for a scheduler half.
        holds_nothing: nothing granted by an older boot is in use: WRITING slots of this owner may be freed.
        chunk_tokens: tokens of one chunk, for token counts.
    """

    party: bytes
    role: Role
    group: str
    engine: str
    model: str
    namespace: bytes = b""
    shard: int = 0
    shard_count: int = 1
    replica: int = 0
    replicas: int = 1
    chunk_bytes: int = 0
    holds_nothing: bool = True
    pid: int = 0
    software: str = ""
    chunk_tokens: int = 256


class Unregister(Request, frozen=True, kw_only=True, tag="UNREGISTER"):
    """A party leaves. Its leases end; its live reservations are quarantined until it is proven dead."""

    party: bytes


# -- heartbeat -------------------------------------------------------------------------------------


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One counter or gauge of the metrics table: its short name (no prefix), label values in table order, value."""

    name: str
    labels: tuple[str, ...]
    value: float


class HistogramSample(msgspec.Struct, frozen=True, array_like=True):
    """One histogram: totals since the adapter began; ``counts`` one a bucket of the table, then +Inf, not summed."""

    name: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    sum: float


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation as the adapter tells it: pending (``outcome`` None) or settled."""

    number: int
    request_id: str
    kind: OperationKind
    phase: Phase
    age_seconds: float
    chunks: int
    outcome: OutcomeKind | None = None
    reason: Reason = Reason.NONE
    chunks_done: int = 0
    settled_at: float = 0.0


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a party's heartbeat carries for the gateway's metrics and for ``/v1/transfers``.

    Gauges are levels now; counters and histograms are totals since the party began (the gateway adds the increments).
    """

    state: State
    gauges: tuple[Sample, ...] = ()
    counters: tuple[Sample, ...] = ()
    histograms: tuple[HistogramSample, ...] = ()
    pending: tuple[OperationInfo, ...] = ()  # the oldest, bounded
    settled: tuple[OperationInfo, ...] = ()  # since the last heartbeat, bounded


class Ping(Request, frozen=True, kw_only=True, tag="PING"):
    """Heartbeat. What is below ``next_*`` and not listed ends here: lost messages heal; only listed ones are renewed.

    ``party`` empty: a probe, which changes nothing.
    """

    party: bytes = b""
    next_operation: int = 0
    operations: tuple[int, ...] = ()
    next_session: int = 0
    sessions: tuple[int, ...] = ()
    stats: AdapterStats | None = None


class DrainNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A drain under way, of the whole gateway or of this party's engine."""

    id: str
    deadline: float


class Pong(Reply, frozen=True, kw_only=True, tag="PONG"):
    """State and health: the trigger of every clean-up. ``state`` is the party's view: its engine may be drained alone.

    Attributes:
        known: the daemon knows the party; False: register again.
        drain: set while ``state`` is draining.
        sessions: listed sessions whose lease lives, with its new deadline in ``lease_deadline``.
    """

    state: Lifecycle
    health: Health
    known: bool
    reason: str = ""
    drain: DrainNotice | None = None
    sessions: tuple[int, ...] = ()
    lease_deadline: float = 0.0


# -- scheduler half --------------------------------------------------------------------------------


class Lookup(Request, frozen=True, kw_only=True, tag="LOOKUP"):
    """How many leading chunks are there, all shards of each; leases them for the session."""

    party: bytes
    session: int
    namespace: bytes
    keys: tuple[bytes, ...]


class Found(Reply, frozen=True, kw_only=True, tag="FOUND"):
    """Answer to LOOKUP: leading chunks found and leased until ``lease_deadline`` (0 when none)."""

    chunks: int
    lease_deadline: float = 0.0


class Release(Request, frozen=True, kw_only=True, tag="RELEASE"):
    """End the session's lease on its chunks [start, end)."""

    party: bytes
    session: int
    start: int
    end: int


class EndSession(Request, frozen=True, kw_only=True, tag="END_SESSION"):
    """End a session and all its leases. A later LOOKUP at or below its number grants nothing."""

    party: bytes
    session: int


# -- worker half, pool mode ------------------------------------------------------------------------


class Reserve(Request, frozen=True, kw_only=True, tag="RESERVE"):
    """Right to fill one slot a key. Repeating it for the same operation gives the same grants.

    Attributes:
        depth: index of ``keys[0]`` in its prompt, in chunks.
        parent: key of the chunk before ``keys[0]`` where it is known, else empty: a prefix is touched after its suffix.
    """

    party: bytes
    operation: int
    keys: tuple[bytes, ...]
    depth: int = 0
    parent: bytes = b""


class SlotGrant(msgspec.Struct, frozen=True, array_like=True):
    """Answer for one key of a RESERVE. ``generation`` is also the reservation's id: never reused, in any boot."""

    status: ReserveStatus
    slot: int = -1
    offset: int = 0
    generation: int = 0


class Reserved(Reply, frozen=True, kw_only=True, tag="RESERVED"):
    """Answer to RESERVE, one grant a key, in order. ``deadline``: quarantine after it unless renewed by PING."""

    pool_id: bytes
    grants: tuple[SlotGrant, ...]
    reservation_deadline: float = 0.0


class Commit(Request, frozen=True, kw_only=True, tag="COMMIT"):
    """These reservations (by generation) are filled, completely. Executed whatever the state or the deadline."""

    party: bytes
    operation: int
    pool_id: bytes
    reservations: tuple[int, ...]


class Committed(Reply, frozen=True, kw_only=True, tag="COMMITTED"):
    """Answer to COMMIT, one status a reservation, in order."""

    results: tuple[CommitStatus, ...]


class Abort(Request, frozen=True, kw_only=True, tag="ABORT"):
    """No unit of the operation writes any more: free what it reserved and did not commit; no ``reservations``: all."""

    party: bytes
    operation: int
    reservations: tuple[int, ...] = ()


class Read(Request, frozen=True, kw_only=True, tag="READ"):
    """Right to read the slots of these keys, until the operation is done."""

    party: bytes
    operation: int
    keys: tuple[bytes, ...]


class ReadSlot(msgspec.Struct, frozen=True, array_like=True):
    """Where one key lies. ``slot`` -1: it is not there."""

    slot: int = -1
    offset: int = 0
    generation: int = 0


class Readable(Reply, frozen=True, kw_only=True, tag="READABLE"):
    """Answer to READ, one a key, in order."""

    pool_id: bytes
    slots: tuple[ReadSlot, ...]
    lease_deadline: float = 0.0


class EndRead(Request, frozen=True, kw_only=True, tag="DONE"):
    """End the operation's read lease."""

    party: bytes
    operation: int


# -- admin socket only -----------------------------------------------------------------------------


class SnapshotRequest(Request, frozen=True, kw_only=True, tag="SNAPSHOT"):
    """Everything an operator or a scrape may see; ``transfers`` adds the lists of operations.

    Attributes:
        max_transfers: so many pending operations, the oldest, and so many settled ones, the latest; 0: all.
    """

    transfers: bool = False
    max_transfers: int = 0


class Drain(Request, frozen=True, kw_only=True, tag="DRAIN"):
    """Begin or join a drain, of the gateway (``engine`` empty) or of one engine. ``deadline_seconds`` 0 forces."""

    requested_by: str
    peer: str = ""
    engine: str = ""
    deadline_seconds: float | None = None
    reason: str = ""
    flush: bool = False
    exit: bool = False


class Drained(Reply, frozen=True, kw_only=True, tag="DRAINED"):
    """Answer to DRAIN. ``already``: it had been drained before. ``drain`` is None for an engine's drain."""

    already: bool
    drain: "DrainInfo | None" = None


class Resume(Request, frozen=True, kw_only=True, tag="RESUME"):
    """Take new work again, from everyone or (``engine``) from one engine."""

    requested_by: str
    peer: str = ""
    engine: str = ""
    reason: str = ""


class Clear(Request, frozen=True, kw_only=True, tag="CLEAR"):
    """Forget chunks: of a model, of a namespace (hex), or all. Exactly one of the three is set."""

    requested_by: str
    peer: str = ""
    model: str = ""
    namespace: str = ""
    all: bool = False
    reason: str = ""
    dry_run: bool = False


class Cleared(Reply, frozen=True, kw_only=True, tag="CLEARED"):
    """Answer to CLEAR: what left the index; of it, what readers still hold (freed by their last release)."""

    chunks: int
    bytes: int
    held_chunks: int


class Fence(Request, frozen=True, kw_only=True, tag="FENCE"):
    """Take an engine's registrations away; its slots stay quarantined until each party is proven dead."""

    requested_by: str
    engine: str
    peer: str = ""
    reason: str = ""


# -- snapshot --------------------------------------------------------------------------------------


class CheckInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One health check. ``age_seconds``: since it last ran; past its bound it has failed."""

    name: str
    ok: bool
    critical: bool
    age_seconds: float
    reason: str


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain still waits for: live reservations' operations, retrieve leases, dirty chunks (always 0 for now)."""

    operations: int
    leases: int
    dirty: int = 0


class DrainInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A drain of the gateway. ``finished_at`` 0 and ``outcome`` None while it runs."""

    id: str
    state: Lifecycle
    reason: str
    requested_by: str
    requested_at: float
    deadline_at: float
    finished_at: float
    flush: bool
    exit: bool
    outcome: DrainOutcome | None
    remaining: Remaining
    done: int
    aborted: int
    engines: tuple[str, ...]


class PartyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One registered process half."""

    party: str
    role: Role
    group: str
    pid: int
    namespace: str
    shard: int
    replica: int
    state: State
    registered_at: float
    last_heartbeat_at: float
    reserved_bytes: int
    quarantined_bytes: int
    read_leases: int
    sessions: int
    software: str


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One engine name over all its parties. ``state`` is draining or drained when it is drained alone."""

    name: str
    model: str
    state: Lifecycle
    fenced: bool
    parties: tuple[PartyInfo, ...]
    pending_stores: int
    pending_retrieves: int
    retained_events: int
    last_heartbeat_at: float
    gauges: tuple[Sample, ...]
    counters: tuple[Sample, ...]
    histograms: tuple[HistogramSample, ...]


class NamespaceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool holds of one namespace. ``last_hit_at`` 0: never since this boot."""

    namespace: str
    model: str
    chunks: int
    bytes: int
    last_hit_at: float


class TransferInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One operation with the engine it belongs to."""

    engine: str
    party: str
    operation: OperationInfo


class SlotCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Slots and bytes of the pool by state; ``free_bytes`` includes slabs of no class."""

    ready: int
    writing: int
    quarantined: int
    ready_bytes: int
    writing_bytes: int
    quarantined_bytes: int
    free_bytes: int
    pool_bytes: int
    allocated_bytes: int


class SnapshotReply(Reply, frozen=True, kw_only=True, tag="SNAPSHOT_REPLY"):
    """What is, read from the owning tables in one step of the loop.

    ``gauges``, ``counters`` and ``histograms`` are the gateway's own metrics by their short table names.
    """

    version: str
    state: Lifecycle
    health: Health
    ready: bool
    checks: tuple[CheckInfo, ...]
    started_at: float
    progress: float  # share of the pool reserved while starting, 0 to 1
    drain: DrainInfo | None
    engines: tuple[EngineInfo, ...]
    namespaces: tuple[NamespaceInfo, ...]
    slots: SlotCounts
    gauges: tuple[Sample, ...]
    counters: tuple[Sample, ...]
    histograms: tuple[HistogramSample, ...]
    transfers: tuple[TransferInfo, ...] = ()
    run_dir: str = ""
    loop_age_seconds: float = 0.0


EngineRequest = (
    Hello | Register | Unregister | Ping | Lookup | Release | EndSession | Reserve | Commit | Abort | Read | EndRead
)
AdminRequest = SnapshotRequest | Drain | Resume | Clear | Fence
AnyRequest = EngineRequest | AdminRequest
AnyReply = Error | Done | Welcome | Pong | Found | Reserved | Committed | Readable | Drained | Cleared | SnapshotReply

#: Requests that end something: served in every state but starting, whatever their deadline.
ENDING = (Unregister, Release, EndSession, Commit, Abort, EndRead)
