"""What one adapter shows of itself: a frozen reading of its ledger, taken in one step."""

from dataclasses import dataclass

from gateway.wire.codes import OperationKind, Phase, State


@dataclass(frozen=True)
class PendingOperation:
    """One operation that is not settled."""

    number: int
    request_id: str
    kind: OperationKind
    phase: Phase
    age_seconds: float


@dataclass(frozen=True)
class Snapshot:
    """The adapter now. ``oldest_pending_at`` is Unix time, 0 for none; ``boot_id`` is hex, "" before HELLO."""

    state: State
    pending_stores: int
    pending_retrieves: int
    retained_events: int
    settling_operations: int
    oldest_pending_at: float
    boot_id: str
    operations: tuple[PendingOperation, ...]
