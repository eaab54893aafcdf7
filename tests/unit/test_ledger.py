"""The ledger's promises, one scene each. The clock is a number; the gateway is this file."""

import gc
import weakref
from array import array

import pytest

from adapter.actions import (
    Action,
    AskCommit,
    AskRead,
    AskReserve,
    Begin,
    CopyChunk,
    DropEvent,
    Grant,
    TellAbort,
    TellEndRead,
    Transfer,
    WatchEvent,
)
from adapter.ledger import Ledger
from gateway.wire.codes import (
    CommitStatus,
    OperationKind,
    OutcomeKind,
    Phase,
    Proof,
    Reason,
    ReserveStatus,
    Trigger,
)

STORE, RETRIEVE = OperationKind.STORE, OperationKind.RETRIEVE
MISSING = Grant(ReserveStatus.GRANTED, -1, 0, 0)


class Event:
    """Fits IpcEvent; the ledger never asks it anything."""

    def query(self) -> bool:
        return False

    def ipc_handle(self) -> bytes:
        return b""


def ledger(**bounds: float) -> Ledger:
    settings = {"max_pending_ops": 100, "max_pending_bytes": 1 << 30, "operation_deadline_seconds": 30.0} | bounds
    return Ledger(**settings, verify=True)


def transfer(
    kind: OperationKind = STORE, request: str = "r", chunks: int = 2, first_block: int = 0, **more: object
) -> Transfer:
    blocks = array("q", range(first_block, first_block + 2 * chunks))
    keys = tuple(bytes([first_block + i]) * 32 for i in range(chunks))
    return Transfer(kind, request, keys, blocks, blocks_per_chunk=2, chunk_bytes=64, **more)


def submit(book: Ledger, what: Transfer, event: Event | None = None, now: float = 0.0) -> tuple[int, list[Action]]:
    """Submit, and begin as the link does."""
    number, actions = book.submit(what, event, refuse=Reason.NONE, now=now, wall=1000.0 + now)
    return number, book.begin(number, now) if actions == [Begin(number)] else actions


def slot(i: int) -> Grant:
    return Grant(ReserveStatus.GRANTED, i, 64 * i, 500 + i)


def refusal(status: ReserveStatus) -> Grant:
    return Grant(status, -1, 0, 0)


def run_all(book: Ledger, actions: list[Action], now: float = 0.0) -> list[Action]:
    """Copy every queued unit; what that calls for."""
    more: list[Action] = []
    for action in actions:
        if isinstance(action, CopyChunk) and book.begin_copy(action.number, action.chunk, now) is not None:
            more += book.end_copy(action.number, action.chunk, Reason.NONE, now)
    return more


def ended(book: Ledger) -> list[tuple[int, OutcomeKind, Reason]]:
    return [(info.number, info.outcome, info.reason) for info in book.take_settled()]


def test_a_store_goes_from_submit_to_stored():
    book = ledger()
    number, actions = submit(book, transfer(depth=4, parent=b"p" * 32))
    assert actions == [AskReserve(number, (0, 1), transfer().keys, 4, b"p" * 32, 30.0)]
    actions = book.granted(number, (0, 1), (slot(0), slot(1)), 1.0)
    assert actions == [CopyChunk(number, 0), CopyChunk(number, 1)]
    unit = book.begin_copy(number, 1, 1.0)
    assert (unit.slot, unit.offset, unit.generation, list(unit.block_ids)) == (1, 64, 501, [2, 3])
    assert book.pending_operations(1.0)[0].phase is Phase.COPYING
    assert book.end_copy(number, 1, Reason.NONE, 1.0) == [AskCommit(number, (1,), (501,))]
    book.begin_copy(number, 0, 1.0)
    book.end_copy(number, 0, Reason.NONE, 1.0)
    assert book.pending_operations(1.0)[0].phase is Phase.CLOSING
    assert book.committed(number, (1,), (CommitStatus.COMMITTED,), 1.5) == []
    assert book.committed(number, (0,), (CommitStatus.EXISTS,), 2.0) == []
    assert ended(book) == [(number, OutcomeKind.STORED, Reason.NONE)]
    assert book.totals.bytes[STORE] == 64  # the chunk another stored first is not counted
    assert book.totals.settled_by == {Proof.COPY_DONE: 1}
    assert book.take_finished({"r"}) == ({"r"}, set())


def test_a_retrieve_goes_from_submit_to_loaded_and_never_commits():
    book = ledger()
    number, actions = submit(book, transfer(RETRIEVE))
    assert isinstance(actions[0], AskRead)
    actions = run_all(book, book.granted(number, (0, 1), (slot(0), slot(1)), 0.0))
    assert actions == [TellEndRead(number)]
    assert ended(book) == [(number, OutcomeKind.LOADED, Reason.NONE)]
    assert book.take_finished(()) == (set(), {"r"})
    assert book.take_load_errors() == set()
    assert book.totals.loaded_blocks == 4


def test_nothing_is_copied_before_the_event_has_fired():
    book, event = ledger(), Event()
    number, actions = submit(book, transfer(), event)
    assert actions[0] == WatchEvent(number, event)
    assert book.granted(number, (0, 1), (slot(0), slot(1)), 0.0) == []
    assert book.begin_copy(number, 0, 0.0) is None
    assert book.is_waiting_for_event(number)
    assert book.event_fired(number, 0.0) == [CopyChunk(number, 0), CopyChunk(number, 1)]
    assert book.event_fired(number, 0.0) == []
    assert not book.is_waiting_for_event(number)


def test_an_operation_given_up_before_it_began_asks_for_nothing():
    book, event = ledger(), Event()
    number, actions = book.submit(transfer(), event, refuse=Reason.NONE, now=0.0, wall=0.0)
    assert actions == [Begin(number)]
    assert book.pending_counts().events == 1
    assert book.revoke([0], 0.0) == [DropEvent(event)]
    assert book.begin(number, 0.0) == []
    assert ended(book) == [(number, OutcomeKind.REVOKED, Reason.NONE)]


def test_an_event_lives_from_submit_until_its_last_operation_is_settled():
    book, event = ledger(), Event()
    alive = weakref.ref(event)
    first = submit(book, transfer(), event)[0]
    second = submit(book, transfer(RETRIEVE, first_block=10), event)[0]
    third = submit(book, transfer(request="other", first_block=20), event)[0]
    del event
    gc.collect()
    assert alive() is not None
    assert book.pending_counts().events == 1
    for number in (second, first):
        assert not any(isinstance(action, DropEvent) for action in book.failed(number, (0, 1), Reason.NO_REPLY, 1.0))
        assert alive() is not None
    drops = [action for action in book.failed(third, (0, 1), Reason.NO_REPLY, 1.0) if isinstance(action, DropEvent)]
    assert [drop.event for drop in drops] == [alive()]
    del drops
    gc.collect()
    assert alive() is None
    assert book.pending_counts().events == 0


def test_three_stores_of_one_request_keep_three_events_until_each_ends():
    book, events = ledger(), [Event() for _ in range(3)]
    numbers = [submit(book, transfer(first_block=10 * i), events[i])[0] for i in range(3)]
    assert book.pending_counts().events == 3
    for left, number in ((2, numbers[1]), (1, numbers[2]), (0, numbers[0])):
        assert book.take_finished({"r"}) == (set(), set())
        book.failed(number, (0, 1), Reason.NO_REPLY, 1.0)
        assert book.pending_counts().events == left
    assert book.take_finished({"r"}) == ({"r"}, set())


@pytest.mark.parametrize(
    ("statuses", "outcome", "reason"),
    [
        ((ReserveStatus.EXISTS, ReserveStatus.EXISTS), OutcomeKind.STORED, Reason.NONE),
        ((ReserveStatus.EXISTS, ReserveStatus.BUSY), OutcomeKind.PARTIAL, Reason.BUSY),
        ((ReserveStatus.BUSY, ReserveStatus.BUSY), OutcomeKind.REFUSED, Reason.BUSY),
        ((ReserveStatus.FULL, ReserveStatus.FULL), OutcomeKind.REFUSED, Reason.FULL),
    ],
)
def test_a_store_is_never_reported_as_better_than_it_was(statuses, outcome, reason):
    book = ledger()
    number, _ = submit(book, transfer())
    book.granted(number, (0, 1), [refusal(status) for status in statuses], 0.0)
    assert ended(book) == [(number, outcome, reason)]


@pytest.mark.parametrize("status", [CommitStatus.DRAINED, CommitStatus.CLEARED, CommitStatus.UNKNOWN])
def test_a_chunk_whose_commit_was_not_accepted_does_not_count_as_stored(status):
    book = ledger()
    number, _ = submit(book, transfer(chunks=1))
    run_all(book, book.granted(number, (0,), (slot(0),), 0.0))
    book.committed(number, (0,), (status,), 0.0)
    assert ended(book)[0][1] is not OutcomeKind.STORED
    assert book.totals.bytes[STORE] == 0


def test_a_retrieve_lists_exactly_the_blocks_it_did_not_fill():
    book = ledger()
    number, actions = submit(book, transfer(RETRIEVE, chunks=4, skip_blocks=3))
    assert actions[0].chunks == (1, 2, 3)  # the first chunk is skipped wholly
    actions = book.granted(number, (1, 2, 3), (slot(1), MISSING, slot(3)), 0.0)
    assert book.begin_copy(number, 1, 0.0).skip_blocks == 1
    book.end_copy(number, 1, Reason.CHANGED, 0.0)
    book.begin_copy(number, 3, 0.0)
    book.end_copy(number, 3, Reason.NONE, 0.0)
    assert ended(book) == [(number, OutcomeKind.PARTIAL, Reason.MISSING)]
    assert book.totals.failed_verifications == 1
    assert book.take_load_errors() == {3, 4, 5}  # blocks 0 to 2 are skipped, 6 and 7 were filled
    assert book.take_load_errors() == set()
    assert book.take_failed_requests() == {"r"}


def test_a_refused_retrieve_settles_at_once_with_its_blocks_listed():
    book = ledger()
    number, actions = book.submit(transfer(RETRIEVE), None, refuse=Reason.NOT_HEALTHY, now=0.0, wall=0.0)
    assert actions == []
    assert ended(book) == [(number, OutcomeKind.REFUSED, Reason.NOT_HEALTHY)]
    assert book.take_load_errors() == {0, 1, 2, 3}
    assert book.take_finished(()) == (set(), {"r"})
    assert book.totals.settled_by == {Proof.NEVER_STARTED: 1}


def test_a_revoked_store_gives_up_what_is_not_copied_and_withholds_the_running_commit():
    book = ledger()
    number, _ = submit(book, transfer(chunks=3))
    book.granted(number, (0, 1, 2), (slot(0), slot(1), slot(2)), 0.0)
    book.begin_copy(number, 0, 0.0)
    assert book.end_copy(number, 0, Reason.NONE, 0.0) == [AskCommit(number, (0,), (500,))]
    book.begin_copy(number, 1, 0.0)
    assert book.revoke([4], 0.0) == []  # chunk 2's block; chunk 1's unit still runs
    assert book.pending_counts().settling == 1
    assert book.begin_copy(number, 2, 0.0) is None
    assert book.end_copy(number, 1, Reason.NONE, 0.0) == [TellAbort(number)]
    assert ended(book) == [(number, OutcomeKind.REVOKED, Reason.NONE)]


def test_revoking_blocks_that_are_copied_already_changes_nothing():
    book = ledger()
    number, _ = submit(book, transfer(chunks=2))
    run_all(book, book.granted(number, (0,), (slot(0),), 0.0))
    assert book.revoke([0, 1, 99], 0.0) == []
    assert book.unsettled_numbers() == (number,)


def test_revoke_leaves_retrieves_alone_and_preempt_does_not():
    book = ledger()
    number, _ = submit(book, transfer(RETRIEVE))
    book.revoke([0], 0.0)
    assert book.has_unsettled({"r"})
    book.preempt({"r"}, 0.0)
    assert not book.has_unsettled({"r"})
    assert ended(book) == [(number, OutcomeKind.REVOKED, Reason.NONE)]
    assert book.take_load_errors() == {0, 1, 2, 3}


def test_a_deadline_ends_waiting_but_never_a_running_copy():
    book = ledger()
    number, _ = submit(book, transfer())
    book.granted(number, (0, 1), (slot(0), slot(1)), 0.0)
    book.begin_copy(number, 0, 29.0)
    assert book.next_deadline() == 30.0
    book.tick(30.0)
    assert book.pending_counts().settling == 1
    assert book.pending_operations(30.0)[0].phase is Phase.SETTLING
    assert book.begin_copy(number, 1, 30.0) is None
    book.end_copy(number, 0, Reason.NONE, 31.0)
    assert ended(book) == [(number, OutcomeKind.EXPIRED, Reason.NONE)]


def test_a_copier_begins_nothing_past_the_deadline():
    book = ledger()
    number, _ = submit(book, transfer())
    book.granted(number, (0, 1), (slot(0), slot(1)), 0.0)
    assert book.begin_copy(number, 0, 30.0) is None


def test_a_drain_lets_granted_work_run_on_until_its_deadline():
    book, event = ledger(), Event()
    waiting, _ = submit(book, transfer(request="waiting"))
    granted, _ = submit(book, transfer(request="granted", first_block=10), event)
    book.granted(granted, (0, 1), (slot(0), refusal(ReserveStatus.QUOTA)), 0.0)
    book.drain(Trigger.GATEWAY_DRAINING, 5.0, 0.0)
    assert ended(book) == [(waiting, OutcomeKind.DRAINED, Reason.DRAINING)]
    book.drain(Trigger.GATEWAY_DRAINING, 4.0, 0.0)  # told again: the earlier deadline wins, it counts once
    assert book.totals.drains == {Trigger.GATEWAY_DRAINING: 1}
    assert book.next_deadline() == 4.0
    assert book.tick(3.9) == []
    actions = book.tick(4.0)
    assert actions == [TellAbort(granted), DropEvent(event)]
    assert ended(book) == [(granted, OutcomeKind.DRAINED, Reason.DRAINING)]


def test_work_that_ends_during_a_drain_ends_as_it_would_have():
    book = ledger()
    number, _ = submit(book, transfer())
    actions = book.granted(number, (0, 1), (slot(0), slot(1)), 0.0)
    book.drain(Trigger.OPERATOR, 5.0, 0.0)
    run_all(book, actions)
    book.committed(number, (0, 1), (CommitStatus.COMMITTED,) * 2, 1.0)
    assert ended(book) == [(number, OutcomeKind.STORED, Reason.NONE)]
    book.end_drain()
    book.drain(Trigger.OPERATOR, 9.0, 6.0)
    assert book.totals.drains == {Trigger.OPERATOR: 2}


@pytest.mark.parametrize(
    "trigger", [Trigger.GATEWAY_UNHEALTHY, Trigger.UNRESPONSIVE, Trigger.DEAD, Trigger.RESTARTED, Trigger.CLOSE]
)
def test_trouble_settles_everything_at_once_but_what_runs(trigger):
    book = ledger()
    running, _ = submit(book, transfer())
    book.granted(running, (0, 1), (slot(0), slot(1)), 0.0)
    book.begin_copy(running, 0, 0.0)
    waiting, _ = submit(book, transfer(RETRIEVE, first_block=10))
    book.settle_all(trigger, 1.0)
    assert [number for number, _, _ in ended(book)] == [waiting]
    assert book.running_units == 1
    assert book.end_copy(running, 0, Reason.NONE, 1.1) == [TellAbort(running)]
    assert [number for number, _, _ in ended(book)] == [running]
    assert book.totals.drains == {trigger: 1}


def test_a_grant_for_a_settled_operation_is_given_back():
    book = ledger()
    number, _ = submit(book, transfer())
    book.settle_all(Trigger.UNRESPONSIVE, 1.0)
    assert book.granted(number, (0, 1), (slot(0), slot(1)), 2.0) == [TellAbort(number)]
    assert book.granted(number, (0, 1), (slot(0), slot(1)), 2.0) == []
    number, _ = submit(book, transfer(RETRIEVE))
    book.settle_all(Trigger.UNRESPONSIVE, 1.0)
    assert book.granted(number, (0, 1), (slot(0), slot(1)), 2.0) == [TellEndRead(number)]


def test_a_store_over_the_quota_goes_through_in_windows():
    book = ledger()
    number, _ = submit(book, transfer(chunks=3))
    quota = refusal(ReserveStatus.QUOTA)
    actions = book.granted(number, (0, 1, 2), (slot(0), quota, quota), 0.0)
    actions = run_all(book, actions)
    assert isinstance(actions[0], AskCommit)
    assert isinstance(actions[1], AskReserve)
    assert (actions[1].chunks, actions[1].depth, actions[1].parent) == ((1, 2), 1, transfer().keys[0])
    assert book.granted(number, (1, 2), (quota, quota), 0.0) == []  # the first is not committed yet
    again = book.committed(number, (0,), (CommitStatus.COMMITTED,), 0.0)
    assert isinstance(again[0], AskReserve)
    actions = run_all(book, book.granted(number, (1, 2), (slot(1), slot(2)), 0.0))
    book.committed(number, (1, 2), (CommitStatus.COMMITTED,) * 2, 0.0)
    assert ended(book) == [(number, OutcomeKind.STORED, Reason.NONE)]


def test_a_store_the_quota_stops_asks_again_after_a_while():
    book = ledger()
    number, _ = submit(book, transfer())
    book.granted(number, (0, 1), [refusal(ReserveStatus.QUOTA)] * 2, 0.0)
    assert book.tick(0.1) == []
    assert book.next_deadline() == pytest.approx(0.2)
    assert isinstance(book.tick(0.21)[0], AskReserve)


@pytest.mark.parametrize("ends_by", ["drain", "trouble", "deadline"])
def test_a_store_that_waits_for_its_quota_can_be_given_up(ends_by):
    book = ledger()
    number, _ = submit(book, transfer())
    book.granted(number, (0, 1), [refusal(ReserveStatus.QUOTA)] * 2, 0.0)
    if ends_by == "drain":
        book.drain(Trigger.GATEWAY_DRAINING, 10.0, 0.1)
    elif ends_by == "trouble":
        book.settle_all(Trigger.DEAD, 0.1)
    else:
        book.tick(30.0)
    assert not book.has_unsettled()
    assert book.tick(31.0) == []


def test_only_so_many_requests_are_under_way_and_the_rest_wait_in_turn():
    book = ledger(max_asks=2)
    asked = [submit(book, transfer(first_block=10 * i)) for i in range(5)]
    assert [bool(actions) for _, actions in asked] == [True, True, False, False, False]
    numbers = [number for number, _ in asked]
    assert [type(a) for a in book.granted(numbers[1], (0, 1), [refusal(ReserveStatus.FULL)] * 2, 0.0)] == [
        TellAbort,
        AskReserve,
    ]
    book.preempt({"r"}, 0.0)  # all five are over; the requests of two are still under way
    number, actions = submit(book, transfer(first_block=60))
    assert actions == []
    actions = book.failed(numbers[0], (0, 1), Reason.NO_REPLY, 1.0)
    assert [(type(a), a.number) for a in actions] == [(AskReserve, number)]


def test_past_the_bounds_work_is_refused_and_counted():
    book = ledger(max_pending_ops=2)
    submit(book, transfer())
    submit(book, transfer(RETRIEVE, first_block=10))
    for kind in OperationKind:
        number, _ = submit(book, transfer(kind, first_block=20))
        assert ended(book) == [(number, OutcomeKind.REFUSED, Reason.PENDING_OPS)]
    book = ledger(max_pending_bytes=200)
    submit(book, transfer(chunks=5))  # alone it may be larger than the bound
    number, _ = submit(book, transfer(chunks=1, first_block=20))
    assert ended(book) == [(number, OutcomeKind.REFUSED, Reason.PENDING_BYTES)]
    assert book.totals.operations == {(STORE, OutcomeKind.REFUSED): 1}


def test_a_replica_settles_its_stores_as_stored_without_copying():
    book = ledger()
    number, actions = submit(book, transfer(writes=False), event := Event())
    assert actions == [DropEvent(event)]
    assert ended(book) == [(number, OutcomeKind.STORED, Reason.NONE)]
    assert book.totals.bytes[STORE] == 0


def test_an_event_that_raises_fails_its_operation():
    book, event = ledger(), Event()
    number, _ = submit(book, transfer(), event)
    assert book.event_failed(number, 0.0) == [TellAbort(number), DropEvent(event)]
    assert ended(book) == [(number, OutcomeKind.FAILED, Reason.EVENT_ERROR)]


def test_each_held_id_is_reported_once_and_an_id_never_held_never():
    book = ledger()
    submit(book, transfer(request="busy"))
    assert book.take_finished({"busy", "idle"}) == ({"idle"}, set())
    assert book.take_finished({"busy", "idle"}) == (set(), set())
    submit(book, transfer(request="unheld", first_block=10))
    book.settle_all(Trigger.DEAD, 0.0)
    assert book.take_finished({"busy", "idle"}) == ({"busy"}, set())
    assert book.take_finished(()) == (set(), set())
    assert book.take_finished({"busy"}) == ({"busy"}, set())  # held anew


def test_a_request_is_received_once_when_its_last_retrieve_is_settled():
    book = ledger()
    first, _ = submit(book, transfer(RETRIEVE))
    second, _ = submit(book, transfer(RETRIEVE, first_block=10))
    book.failed(first, (0, 1), Reason.NO_REPLY, 0.0)
    assert book.take_finished(()) == (set(), set())
    book.failed(second, (0, 1), Reason.NO_REPLY, 0.0)
    assert book.take_finished(()) == (set(), {"r"})
    assert book.take_finished(()) == (set(), set())


def test_ending_a_copy_that_does_not_run_is_an_error_that_changes_nothing():
    book = ledger()
    number, _ = submit(book, transfer())
    with pytest.raises(ValueError, match=f"chunk 0 of operation {number}"):
        book.end_copy(number, 0, Reason.NONE, 0.0)
    with pytest.raises(ValueError, match="operation 99"):
        book.end_copy(99, 0, Reason.NONE, 0.0)
    assert book.unsettled_numbers() == (number,)


def test_the_invariant_checker_can_fail():
    book = ledger()
    submit(book, transfer(), Event())
    book._retained._holders.clear()
    with pytest.raises(AssertionError):
        book.check()
