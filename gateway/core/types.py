"""The core's own words: what goes in, what comes out, what a shell must do.

Owns: plain frozen values shared by the core's rooms and its shell (``gateway.service``). Must not know: messages,
files, sockets, clocks. Pure.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.wire.codes import (
    CommitStatus,
    DrainOutcome,
    ErrorCode,
    Lifecycle,
    ReserveStatus,
    Role,
    State,
    SwitchMode,
)


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """A request is refused; nothing has changed.

    Attributes:
        code: why, in the contract's words.
        message: a sentence that names what was wrong and what was expected.
        retry_after_seconds: when asking again may help; 0 = it will not.
    """

    def __init__(self, code: ErrorCode, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True)
class CoreConfig:
    """Settings of the tables; times in seconds."""

    lease_seconds: float = 10.0
    max_lease_seconds: float = 600.0  # a lookup's lease is not renewed past this age
    reservation_seconds: float = 30.0
    heartbeat_seconds: float = 1.0
    max_reserved_fraction: float = 0.25  # of the pool, a party; never less than one chunk
    drain_deadline_seconds: float = 30.0
    stop_deadline_seconds: float = 10.0
    eviction_policy: str = "lfu"  # or "lru"
    max_parties: int = 1024
    max_sessions_per_party: int = 16384
    max_operations_per_party: int = 8192
    max_models: int = 32  # label values, then "other"
    max_engines: int = 128  # label values, then "other"
    #: Upper bounds of ``Counts.eviction_idle_seconds``; the metrics table's.
    idle_buckets: tuple[float, ...] = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


@dataclass(frozen=True)
class PoolFacts:
    """What the core must know of the pool file."""

    pool_id: bytes
    boot_epoch: int  # of the header page, raised at this start: generations begin with it
    clear_epoch: int
    num_slabs: int
    slab_bytes: int
    slots_per_slab: int  # header places a slab has
    min_slot_bytes: int  # slot sizes are multiples of it


class SlotRecord(NamedTuple):
    """One slot header: READY, or WRITING (``is_ready`` False)."""

    slot: int
    is_ready: bool
    owner: bytes
    namespace: bytes
    key: bytes
    shard: int
    depth: int
    extent: int  # bytes of the slot's place; all slots of a slab agree
    payload_bytes: int
    generation: int
    clear_epoch: int


#: The fields of ``SlotRecord``, in its order: a warm start has one row for every chunk of the pool.
FOUND_SLOT = np.dtype(
    [
        ("slot", np.int64),
        ("is_ready", np.bool_),
        ("owner", "V16"),
        ("namespace", "V16"),
        ("key", "V32"),
        ("shard", np.int64),
        ("depth", np.int64),
        ("extent", np.int64),
        ("payload_bytes", np.int64),
        ("generation", np.int64),
        ("clear_epoch", np.int64),
    ]
)
Numbers = npt.NDArray[np.int64]
#: ``[num_slots]`` of ``FOUND_SLOT``.
FoundSlots = npt.NDArray[Any]


@dataclass(frozen=True)
class NamespaceRecord:
    """What a namespace belongs to; kept in the pool file so that a warm start can name it."""

    namespace: bytes
    model: str
    shard_count: int
    chunk_tokens: int = 0
    clear_epoch: int = 0  # READY chunks of an older epoch were cleared: a warm start does not take them back


# -- effects: what the shell must do, in order, before the reply is sent -----------------------------------------------


@dataclass(frozen=True)
class WriteHeader:
    """Write the slot's header: WRITING before a grant, READY before a COMMIT's answer."""

    record: SlotRecord


@dataclass(frozen=True)
class FreeHeader:
    """Write the slot's header as FREE."""

    slot: int


@dataclass(frozen=True)
class WriteClearEpoch:
    """Raise the clear epoch in the header page."""

    clear_epoch: int


@dataclass(frozen=True)
class WriteNamespace:
    """Remember a namespace in the pool file."""

    record: NamespaceRecord


Effect = WriteHeader | FreeHeader | WriteClearEpoch | WriteNamespace


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartySpec:
    """A party as it registers. See ``gateway.wire.messages.Register`` for the fields."""

    party: bytes
    role: Role
    group: str
    engine: str
    model: str
    namespace: bytes
    shard: int
    shard_count: int
    replica: int
    replicas: int
    chunk_bytes: int
    pid: int = 0
    software: str = ""
    chunk_tokens: int = 256


@dataclass(frozen=True)
class ReserveGrant:
    """Answer for one key: where to write, when ``status`` is GRANTED. ``offset`` counts from the start of the data."""

    status: ReserveStatus
    slot: int = -1
    offset: int = 0
    generation: int = 0


@dataclass(frozen=True)
class ReadGrant:
    """Where one key may be read; ``slot`` -1: it is not there."""

    slot: int = -1
    offset: int = 0
    generation: int = 0


@dataclass(frozen=True)
class Found:
    """Leading chunks found and leased until ``lease_deadline`` (monotonic)."""

    chunks: int
    lease_deadline: float


@dataclass(frozen=True)
class PartyView:
    """What a party is told at each heartbeat."""

    known: bool
    state: Lifecycle  # draining or drained also when its engine alone is
    drain_id: str = ""
    drain_deadline: float = 0.0
    live_sessions: tuple[int, ...] = ()
    lease_deadline: float = 0.0
    switch: SwitchMode = SwitchMode.ON


@dataclass(frozen=True)
class DrainRecord:
    """A drain of the gateway, under way or over."""

    id: str
    state: Lifecycle
    reason: str
    requested_by: str
    requested_at: float
    deadline: float  # monotonic
    deadline_at: float
    finished_at: float
    flush: bool
    exit: bool
    outcome: DrainOutcome | None
    done: int
    aborted: int


@dataclass(frozen=True)
class ClearResult:
    """What a clear took out of the index; of it, what readers still hold."""

    chunks: int
    bytes: int
    held_chunks: int


@dataclass(frozen=True)
class CommitResult:
    """One status a reservation, in order."""

    statuses: tuple[CommitStatus, ...]
    bytes: int = 0


@dataclass(frozen=True)
class PartyState:
    """One registered party, for snapshots."""

    spec: PartySpec
    registered_at: float
    last_heartbeat_at: float
    fenced: bool
    reserved_bytes: int
    quarantined_bytes: int
    read_leases: int
    sessions: int
    adapter_state: State = State.CONNECTING


@dataclass
class Counts:
    """What happened, counted at the point of truth. Only ever grows."""

    commits: int = 0
    aborts: int = 0
    deaths: int = 0
    lookup_evicted_keys: int = 0
    stored_bytes: int = 0
    leased_bytes: int = 0
    evictions: dict[str, int] = field(default_factory=dict)
    drains: dict[str, int] = field(default_factory=dict)
    lookup_tokens: dict[str, int] = field(default_factory=dict)  # by model
    hit_tokens: dict[str, int] = field(default_factory=dict)  # by model
    eviction_idle_seconds: list[int] = field(default_factory=list)  # counts by IDLE_BUCKETS, then +Inf
    eviction_idle_sum: float = 0.0
