"""An operator's drain of one adapter: every state and request, with the time passed in."""

from collections import Counter

import pytest

from adapter.drain import OperatorDrain, Progress, progress
from gateway.wire.codes import DrainOutcome, Lifecycle, OperationKind, OutcomeKind

IDLE = Progress(pending=0, done=7, cut=1)
BUSY = Progress(pending=3, done=7, cut=1)


def begun(deadline_seconds: float = 30.0, now: Progress = BUSY) -> OperatorDrain:
    drain = OperatorDrain("e1")
    drain.request("d1", deadline_seconds, reason="why", requested_by="me", now=now, wall=100.0)
    return drain


def test_before_the_first_there_is_none() -> None:
    drain = OperatorDrain("e1")
    drain.look(BUSY, 1.0)
    drain.resume(2.0)
    assert (drain.state, drain.record) == (Lifecycle.READY, None)


def test_it_begins() -> None:
    drain = begun()
    record = drain.record
    assert drain.state is record.state is Lifecycle.DRAINING
    assert (record.id, record.reason, record.requested_by, record.engines) == ("d1", "why", "me", ("e1",))
    assert (record.requested_at, record.deadline_at, record.finished_at, record.outcome) == (100.0, 130.0, 0.0, None)
    assert record.remaining.operations == 3


def test_it_is_over_when_nothing_is_pending() -> None:
    drain = begun()
    drain.look(Progress(pending=1, done=9, cut=1), 101.0)
    assert (drain.state, drain.record.done, drain.record.remaining.operations) == (Lifecycle.DRAINING, 2, 1)
    drain.look(Progress(pending=0, done=10, cut=1), 102.0)
    record = drain.record
    assert drain.state is record.state is Lifecycle.DRAINED
    assert (record.outcome, record.done, record.aborted, record.finished_at) == (DrainOutcome.COMPLETED, 3, 0, 102.0)
    drain.look(Progress(pending=5, done=50, cut=50), 200.0)
    assert drain.record == record, "over is over"


@pytest.mark.parametrize(
    ("deadline_seconds", "cut", "at", "outcome"),
    [
        (30.0, 0, 140.0, DrainOutcome.COMPLETED),
        (30.0, 2, 101.0, DrainOutcome.COMPLETED),  # what had no grant was given up when it began
        (30.0, 2, 130.0, DrainOutcome.DEADLINE_EXCEEDED),
        (0.0, 2, 100.0, DrainOutcome.FORCED),
        (0.0, 0, 100.0, DrainOutcome.COMPLETED),  # one that waits for nothing is not forced
    ],
)
def test_how_it_ends(deadline_seconds: float, cut: int, at: float, outcome: DrainOutcome) -> None:
    drain = begun(deadline_seconds)
    drain.look(Progress(pending=0, done=7, cut=1 + cut), at)
    assert (drain.record.outcome, drain.record.aborted) == (outcome, cut)


def test_a_second_request_joins_and_the_earlier_deadline_wins() -> None:
    drain = begun(30.0)
    drain.request("d2", 60.0, reason="other", requested_by="other", now=BUSY, wall=110.0)
    assert (drain.record.id, drain.record.reason, drain.record.deadline_at) == ("d1", "why", 130.0)
    drain.request("d3", 0.0, reason="", requested_by="", now=BUSY, wall=111.0)
    assert drain.record.deadline_at == 111.0
    drain.look(Progress(pending=0, done=7, cut=2), 111.0)
    assert drain.record.outcome is DrainOutcome.FORCED


def test_drained_stays_drained() -> None:
    drain = begun()
    drain.look(IDLE, 101.0)
    before = drain.record
    drain.request("d2", 0.0, reason="", requested_by="", now=IDLE, wall=102.0)
    assert (drain.state, drain.record) == (Lifecycle.DRAINED, before)


def test_resume_ends_it_and_cancels_what_was_under_way() -> None:
    drain = begun()
    drain.resume(105.0)
    assert drain.state is Lifecycle.READY
    assert (drain.record.outcome, drain.record.finished_at) == (DrainOutcome.CANCELLED, 105.0)
    drain.request("d2", 1.0, reason="", requested_by="", now=IDLE, wall=106.0)
    drain.look(IDLE, 107.0)
    drain.resume(108.0)
    assert drain.state is Lifecycle.READY
    assert (drain.record.id, drain.record.outcome) == ("d2", DrainOutcome.COMPLETED)


def test_progress_counts_what_was_work() -> None:
    operations = Counter(
        {
            (OperationKind.STORE, OutcomeKind.STORED): 3,
            (OperationKind.RETRIEVE, OutcomeKind.FAILED): 1,
            (OperationKind.STORE, OutcomeKind.REFUSED): 50,
            (OperationKind.STORE, OutcomeKind.DRAINED): 2,
            (OperationKind.RETRIEVE, OutcomeKind.DRAINED): 4,
        }
    )
    assert progress(8, operations) == Progress(pending=8, done=4, cut=6)
