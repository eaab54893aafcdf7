"""The core: every table of the daemon behind one small set of steps.

Owns: the order in which its rooms (lifecycle, parties, slots, index, leases, reservations, drain, health) are asked.
Must not know: messages, files, sockets, the time (it is passed in). Runs on the daemon's one loop thread.

Every method is one step: it either does all it says, or raises ``Refusal`` and changes nothing. What must reach the pool file
before the reply is sent is left in ``take_effects()``, in order.

``now`` is CLOCK_MONOTONIC, ``wall`` is Unix time, both in seconds.
"""

from collections.abc import Iterable, Sequence

from gateway.core.types import (
    ClearResult,
    CommitResult,
    CoreConfig,
    Counts,
    DrainRecord,
    Effect,
    Found,
    NamespaceRecord,
    PartySpec,
    PartyState,
    PartyView,
    PoolFacts,
    ReadGrant,
    ReserveGrant,
    SlotRecord,
)
from gateway.wire.codes import Lifecycle


class Core:
    """All state of one boot."""

    counts: Counts

    def __init__(self, config: CoreConfig, *, boot: bytes, now: float, wall: float) -> None:
        """A core in ``starting``; it has no pool until ``open_pool``."""

    # -- start and stop
    def open_pool(
        self, facts: PoolFacts, records: Iterable[SlotRecord], namespaces: Iterable[NamespaceRecord], now: float
    ) -> int:
        """Take the pool as the scan found it; returns READY chunks recovered. WRITING slots are quarantined under their owner."""
        raise NotImplementedError

    def init_done(self, now: float) -> None:
        """starting → ready."""

    def stop_signal(self, now: float, wall: float) -> None:
        """SIGTERM or SIGINT: draining(exit), then force, then stopping."""

    @property
    def state(self) -> Lifecycle:
        """The lifecycle state."""
        raise NotImplementedError

    # -- parties
    def register(self, spec: PartySpec, *, lock_held: bool, holds_nothing: bool, now: float, wall: float) -> None: ...
    def unregister(self, party: bytes, now: float) -> None: ...
    def heartbeat(
        self,
        party: bytes,
        *,
        next_operation: int,
        operations: Sequence[int],
        next_session: int,
        sessions: Sequence[int],
        now: float,
        wall: float,
    ) -> PartyView: ...  # an unknown party is answered known=False, never refused; an empty party is a probe
    def party_died(self, party: bytes, now: float) -> None: ...  # proven: frees its leases, reservations and quarantine
    def owners(
        self,
    ) -> frozenset[bytes]: ...  # ids whose death matters: registered parties, owners of quarantined slots

    # -- scheduler half
    def lookup(
        self, party: bytes, session: int, namespace: bytes, keys: Sequence[bytes], now: float, wall: float
    ) -> Found: ...
    def release(self, party: bytes, session: int, start: int, end: int, now: float) -> None: ...
    def end_session(self, party: bytes, session: int, now: float) -> None: ...

    # -- worker half
    def reserve(
        self, party: bytes, operation: int, keys: Sequence[bytes], depth: int, parent: bytes, now: float
    ) -> tuple[tuple[ReserveGrant, ...], float]: ...
    def commit(self, party: bytes, operation: int, reservations: Sequence[int], now: float) -> CommitResult: ...
    def abort(self, party: bytes, operation: int, reservations: Sequence[int], now: float) -> None: ...
    def read(
        self, party: bytes, operation: int, keys: Sequence[bytes], now: float, wall: float
    ) -> tuple[tuple[ReadGrant, ...], float]: ...
    def end_read(self, party: bytes, operation: int, now: float) -> None: ...

    # -- operators
    def drain(
        self,
        *,
        deadline_seconds: float | None,
        reason: str,
        requested_by: str,
        flush: bool,
        exit: bool,
        now: float,
        wall: float,
    ) -> bool: ...  # True: was drained already
    def resume(self, now: float, wall: float) -> None: ...
    def drain_engine(self, engine: str, deadline_seconds: float | None, now: float) -> bool: ...
    def resume_engine(self, engine: str, now: float) -> None: ...
    def clear(self, *, model: str, namespace: bytes, all: bool, dry_run: bool, now: float) -> ClearResult: ...
    def fence(self, engine: str, now: float) -> None: ...

    # -- time
    def tick(self, now: float, wall: float) -> None:
        """Expire leases and reservations, move drains on. Called often; cheap when nothing is due."""

    def take_effects(self) -> list[Effect]:
        """What the shell must write, in order; the list is emptied."""
        raise NotImplementedError

    # -- readings for snapshots
    def drain_record(self) -> DrainRecord | None: ...
    def remaining(self) -> tuple[int, int]: ...  # operations with live reservations, read leases
    def party_states(self) -> list[PartyState]: ...
    def engine_states(self) -> dict[str, tuple[Lifecycle, bool]]: ...  # name -> (ready | draining | drained, fenced)
    def namespace_usage(
        self,
    ) -> list[tuple[NamespaceRecord, int, int, float]]: ...  # record, chunks, bytes, last hit wall
    def slot_counts(self) -> dict[str, int]: ...  # ready, writing, quarantined, and *_bytes, free_bytes, pool_bytes
    def lease_counts(self) -> tuple[int, int, int]: ...  # lookup leases, read leases, live reservations
    def check(self) -> None:
        """Raise AssertionError if any invariant is broken. For tests and KVGATE_VERIFY=1."""
