"""Counters of one worker's ledger: what happened, counted where it happened. They only grow. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from gateway.metrics.table import DURATION_BUCKETS
from gateway.wire.codes import OperationKind, OutcomeKind, Proof


@dataclass(frozen=True, slots=True)
class PendingCounts:
    """The ledger's gauges, read in one step.

    ``oldest_wall`` is Unix time, 0 when nothing is pending; ``doubtful_blocks``: of operations given up, under copies
    that may run still.
    """

    stores: int
    retrieves: int
    events: int
    settling: int
    oldest_wall: float
    doubtful_blocks: int = 0


@dataclass(slots=True)
class Totals:
    """Counters of the ledger, keyed by the contract's words.

    Attributes:
        durations: by kind, counts of DURATION_BUCKETS in order, then of everything longer (not cumulative).
        loaded_blocks: blocks filled by retrieves.
        failed_verifications: chunks whose slot was another's when a retrieve had copied them.
        wasted_blocks: blocks not brought over, by reason: ``load_failed``, ``store_failed``, ``revoked``.
    """

    operations: Counter[tuple[OperationKind, OutcomeKind]] = field(default_factory=Counter)
    settled_by: Counter[Proof] = field(default_factory=Counter)
    drains: Counter[str] = field(default_factory=Counter)
    bytes: Counter[OperationKind] = field(default_factory=Counter)
    durations: dict[OperationKind, list[int]] = field(
        default_factory=lambda: {kind: [0] * (len(DURATION_BUCKETS) + 1) for kind in OperationKind}
    )
    duration_sums: Counter[OperationKind] = field(default_factory=Counter)
    loaded_blocks: int = 0
    failed_verifications: int = 0
    wasted_blocks: Counter[str] = field(default_factory=Counter)

    def count_settled(self, kind: OperationKind, outcome: OutcomeKind, proof: Proof, seconds: float) -> None:
        """One operation settled after ``seconds``."""
        self.operations[kind, outcome] += 1
        self.settled_by[proof] += 1
        self.durations[kind][bisect_left(DURATION_BUCKETS, seconds)] += 1
        self.duration_sums[kind] += seconds  # type: ignore[assignment]  # a Counter of floats: the stub knows int only
