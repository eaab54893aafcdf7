"""What one adapter shows of itself: a frozen reading of its ledger, taken in one step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.wire.codes import OperationKind, Phase, State, SwitchMode


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
    """The adapter now.

    Attributes:
        oldest_pending_at: Unix time, 0 for none.
        boot_id: hex, "" before HELLO.
        switch: what operators let it do, whatever its state.
        tables: entries of every table it keeps, by name. All but those with a bound of their own are empty at rest.
    """

    state: State
    pending_stores: int
    pending_retrieves: int
    retained_events: int
    settling_operations: int
    oldest_pending_at: float
    boot_id: str
    operations: tuple[PendingOperation, ...]
    switch: SwitchMode = SwitchMode.ON
    tables: Mapping[str, int] = field(default_factory=dict)
