"""The drain that an operator asked of this adapter: the one in force, or the last.

Owns: its record and how it ended. Must not know: the ledger, who asked by which way, clocks (times are passed in).
Called with the adapter's lock held. Pure.

    READY ─ request ─▶ DRAINING ─ nothing pending ─▶ DRAINED ─ resume ─▶ READY
                          └─────────── resume (cancelled) ───────────────┘
"""

from collections import Counter
from typing import NamedTuple

import msgspec

from gateway.wire.codes import DrainOutcome, Lifecycle, OperationKind, OutcomeKind
from gateway.wire.messages import DrainInfo, Remaining


class Progress(NamedTuple):
    """How far an adapter's work is: ``pending`` now, ``done`` and ``cut`` since the adapter began."""

    pending: int
    done: int
    cut: int


def progress(pending: int, operations: Counter[tuple[OperationKind, OutcomeKind]]) -> Progress:
    """The ledger's counts as a drain reads them. What was refused never was work."""
    ended = Counter[OutcomeKind]()
    for (_, outcome), number in operations.items():
        ended[outcome] += number
    cut = ended.pop(OutcomeKind.DRAINED, 0)
    return Progress(pending, sum(ended.values()) - ended[OutcomeKind.REFUSED], cut)


class OperatorDrain:
    """One adapter's lifecycle as its operator sees it. Every method is one step."""

    def __init__(self, engine: str) -> None:
        self.state = Lifecycle.READY
        #: The drain in force, or the last; None before the first.
        self.record: DrainInfo | None = None
        self._engine = engine
        self._before = Progress(0, 0, 0)  # when the drain began
        self._is_forced = False

    def request(
        self, drain_id: str, deadline_seconds: float, *, reason: str, requested_by: str, now: Progress, wall: float
    ) -> None:
        """Begin a drain, or join the one in force: the earlier deadline wins."""
        if self.state is Lifecycle.DRAINED:
            return
        deadline_at = wall + deadline_seconds
        if self.state is Lifecycle.READY or self.record is None:
            self.state = Lifecycle.DRAINING
            self._before, self._is_forced = now, False
            self.record = DrainInfo(
                id=drain_id,
                state=self.state,
                reason=reason,
                requested_by=requested_by,
                requested_at=wall,
                deadline_at=deadline_at,
                finished_at=0.0,
                flush=False,
                exit=False,
                outcome=None,
                remaining=Remaining(operations=now.pending, leases=0),
                done=0,
                aborted=0,
                engines=(self._engine,),
            )
        self._is_forced = self._is_forced or deadline_seconds == 0
        self._change(deadline_at=min(deadline_at, self.record.deadline_at))

    def look(self, now: Progress, wall: float) -> None:
        """Time has passed, or something has ended: count, and complete the drain when nothing is pending."""
        if self.state is not Lifecycle.DRAINING or self.record is None:
            return
        self._change(
            remaining=Remaining(operations=now.pending, leases=0),
            done=now.done - self._before.done,
            aborted=now.cut - self._before.cut,
        )
        if now.pending == 0:
            self._end(Lifecycle.DRAINED, self._outcome(wall), wall)

    def resume(self, wall: float) -> None:
        """Work is welcome again; a drain under way is cancelled."""
        if self.state is Lifecycle.DRAINING:
            self._end(Lifecycle.READY, DrainOutcome.CANCELLED, wall)
        self.state = Lifecycle.READY

    def _outcome(self, wall: float) -> DrainOutcome:
        """What had no grant is given up when a drain begins; only what its end cut makes it incomplete."""
        if self.record is None or not self.record.aborted:
            return DrainOutcome.COMPLETED
        if self._is_forced:
            return DrainOutcome.FORCED
        return DrainOutcome.COMPLETED if wall < self.record.deadline_at else DrainOutcome.DEADLINE_EXCEEDED

    def _end(self, state: Lifecycle, outcome: DrainOutcome, wall: float) -> None:
        self.state = state
        self._change(state=state, outcome=outcome, finished_at=wall)

    def _change(self, **fields: object) -> None:
        if self.record is not None:
            self.record = msgspec.structs.replace(self.record, **fields)
