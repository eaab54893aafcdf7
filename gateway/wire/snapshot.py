"""Everything an operator or a scrape may see, as one reply.

Owns: SNAPSHOT's answer and its parts. Must not know: where they are read. Pure.
"""

import msgspec

from gateway.wire.codes import DrainOutcome, Health, Lifecycle, Role, State, SwitchMode, SwitchScope
from gateway.wire.envelope import Reply
from gateway.wire.heartbeat import HistogramSample, OperationInfo, Sample


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


class SwitchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One switch in force. ``since_at`` 0: it is the setting's default."""

    scope: SwitchScope
    name: str
    mode: SwitchMode
    since_at: float


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
    switches: tuple[SwitchInfo, ...] = ()
    silence_seconds: float = 3.0  # an engine that has not sent a heartbeat for longer is silent
