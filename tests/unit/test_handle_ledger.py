"""The handle ledger: what is handed over, what is in doubt, and the three proofs that end a doubt."""

from array import array

import pytest

from adapter.actions import Action, AskCopy, Begin, DropEvent, TellCancel, Transfer
from adapter.handle_ledger import CANCEL_SECONDS, GRACE_SECONDS, NUM_CELLS, HandleLedger
from gateway.wire.codes import CopyStatus, OperationKind, OutcomeKind, Proof, Reason, Trigger
from gateway.wire.messages import MAX_KEYS

STORE, RETRIEVE = OperationKind.STORE, OperationKind.RETRIEVE
COPIED = CopyStatus.COPIED
START, DEADLINE = 100.0, 130.0


class Event:
    def query(self) -> bool:
        raise AssertionError("the gateway waits, not the adapter")

    def ipc_handle(self) -> bytes:
        return b"handle"


class Bench:
    """A ledger with a board, and what it asked for."""

    def __init__(self) -> None:
        self.board = bytearray(NUM_CELLS)
        self.ledger = HandleLedger(
            board=self.board,
            max_pending_ops=NUM_CELLS,
            max_pending_bytes=1 << 40,
            operation_deadline_seconds=DEADLINE - START,
            verify=True,
        )

    def submit(self, kind: OperationKind, chunks: int = 2, event: Event | None = None, **fields) -> AskCopy:
        keys = tuple(bytes([i]) * 32 for i in range(chunks))
        transfer = Transfer(kind, "r", keys, array("q", range(2 * chunks)), 2, 64, **fields)
        number, actions = self.ledger.submit(transfer, event, refuse=Reason.NONE, now=START, wall=0.0)
        assert actions == [Begin(number)]
        [ask] = self.ledger.begin(number, START)
        assert isinstance(ask, AskCopy)
        return ask

    def settled(self) -> list[tuple[OutcomeKind, Reason]]:
        return [(info.outcome, info.reason) for info in self.ledger.take_settled()]

    def proofs(self) -> dict[Proof, int]:
        return dict(self.ledger.totals.settled_by)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def cancels(actions: list[Action]) -> list[int]:
    return [action.number for action in actions if isinstance(action, TellCancel)]


@pytest.mark.parametrize(("kind", "outcome"), [(STORE, OutcomeKind.STORED), (RETRIEVE, OutcomeKind.LOADED)])
def test_an_answer_settles_and_gives_the_event_up_in_the_same_step(
    bench: Bench, kind: OperationKind, outcome: OutcomeKind
) -> None:
    event = Event()
    ask = bench.submit(kind, event=event)
    assert (ask.event, bench.ledger.running_units) == (event, 2)

    actions = bench.ledger.answered(ask.number, (COPIED, COPIED), START + 1)

    assert actions == [DropEvent(event)]
    assert bench.settled() == [(outcome, Reason.NONE)]
    assert bench.proofs() == {Proof.ACKNOWLEDGED: 1}


def test_a_partly_loaded_retrieve_lists_what_was_not_filled(bench: Bench) -> None:
    ask = bench.submit(RETRIEVE, chunks=3)

    bench.ledger.answered(ask.number, (COPIED, CopyStatus.MISSING, COPIED), START)

    assert bench.settled() == [(OutcomeKind.PARTIAL, Reason.MISSING)]
    assert bench.ledger.take_load_errors() == {2, 3}


def test_what_is_skipped_is_not_handed_over(bench: Bench) -> None:
    ask = bench.submit(RETRIEVE, chunks=3, skip_blocks=3)

    assert len(ask.keys) == 2
    assert list(ask.block_ids) == [2, 3, 4, 5]
    assert ask.skip_blocks == 1


def test_a_revoked_store_is_withdrawn_in_the_same_step_and_settles_when_acknowledged(bench: Bench) -> None:
    ask = bench.submit(STORE)

    actions = bench.ledger.revoke({3}, START + 1)

    assert bench.board[ask.cell] == 1
    assert cancels(actions) == [ask.number]
    assert bench.ledger.pending_counts().doubtful_blocks == 4
    assert bench.settled() == []
    bench.ledger.acknowledged(ask.number, START + 2)
    assert bench.settled() == [(OutcomeKind.REVOKED, Reason.NONE)]


def test_a_cell_begins_clear_and_belongs_to_one_operation(bench: Bench) -> None:
    first = bench.submit(STORE)
    bench.ledger.revoke({0}, START)
    second = bench.submit(STORE)
    assert second.cell != first.cell
    bench.ledger.acknowledged(first.number, START)
    third = bench.submit(STORE)

    assert (third.cell, bench.board[third.cell]) == (first.cell, 0)


def test_a_store_in_doubt_settles_after_its_deadline_and_a_grace_and_not_before(bench: Bench) -> None:
    bench.submit(STORE)
    bench.ledger.tick(DEADLINE)

    bench.ledger.tick(DEADLINE + GRACE_SECONDS - 0.01)
    assert bench.settled() == []
    assert bench.ledger.next_deadline() <= DEADLINE + GRACE_SECONDS

    bench.ledger.tick(DEADLINE + GRACE_SECONDS)
    assert bench.settled() == [(OutcomeKind.EXPIRED, Reason.NONE)]
    assert bench.proofs() == {Proof.DEADLINE: 1}


def test_a_retrieve_in_doubt_never_settles_by_time(bench: Bench) -> None:
    ask = bench.submit(RETRIEVE)
    bench.ledger.tick(DEADLINE)

    bench.ledger.tick(DEADLINE + 86400)

    assert bench.settled() == []
    bench.ledger.acknowledged(ask.number, DEADLINE + 86401)
    assert bench.settled() == [(OutcomeKind.EXPIRED, Reason.NONE)]
    assert bench.ledger.take_load_errors() == {0, 1, 2, 3}


def test_cancel_is_said_again_until_something_ends_the_doubt(bench: Bench) -> None:
    ask = bench.submit(RETRIEVE)
    said = cancels(bench.ledger.settle_all(Trigger.UNRESPONSIVE, START))
    said += cancels(bench.ledger.tick(START + CANCEL_SECONDS / 2))
    said += cancels(bench.ledger.tick(START + CANCEL_SECONDS))

    assert said == [ask.number] * 2
    bench.ledger.acknowledged(ask.number, START + 1)
    assert cancels(bench.ledger.tick(START + 10)) == []


@pytest.mark.parametrize("settle_seconds", [0.0, 1.0])
def test_death_settles_everything_once_it_counts(bench: Bench, settle_seconds: float) -> None:
    bench.submit(RETRIEVE)
    bench.submit(STORE)
    bench.ledger.settle_all(Trigger.DEAD, START)

    bench.ledger.gateway_died(START + 1, settle_seconds)
    bench.ledger.gateway_died(START + 1.5, settle_seconds)  # seen again: it counts from the first time

    assert len(bench.settled()) == (0 if settle_seconds else 2)
    bench.ledger.tick(START + 1 + settle_seconds)
    assert bench.ledger.running_units == 0
    assert bench.proofs() == {Proof.DEATH: 2}


def test_a_refused_request_ran_nowhere(bench: Bench) -> None:
    ask = bench.submit(RETRIEVE)

    bench.ledger.refused(ask.number, Reason.DRAINING, START)

    assert bench.settled() == [(OutcomeKind.REFUSED, Reason.DRAINING)]
    assert bench.proofs() == {Proof.NEVER_STARTED: 1}


@pytest.mark.parametrize("reply", [(COPIED,), (COPIED,) * 3])
def test_an_answer_of_another_length_is_no_proof(bench: Bench, reply: tuple[CopyStatus, ...]) -> None:
    ask = bench.submit(STORE)

    actions = bench.ledger.answered(ask.number, reply, START)

    assert cancels(actions) == [ask.number]
    assert bench.settled() == []


def test_a_late_answer_changes_nothing(bench: Bench) -> None:
    ask = bench.submit(STORE)
    bench.ledger.answered(ask.number, (COPIED, COPIED), START)

    assert bench.ledger.answered(ask.number, (COPIED, COPIED), START) == []
    assert bench.ledger.acknowledged(ask.number, START) == []
    assert len(bench.settled()) == 1


def test_what_the_gateway_did_before_cancel_counts(bench: Bench) -> None:
    ask = bench.submit(STORE)
    bench.ledger.preempt({"r"}, START)

    bench.ledger.answered(ask.number, (COPIED, CopyStatus.CANCELLED), START)

    assert bench.settled() == [(OutcomeKind.REVOKED, Reason.NONE)]
    assert bench.ledger.totals.bytes[STORE] == 64


def test_more_chunks_than_a_message_holds_are_refused(bench: Bench) -> None:
    keys = (b"k" * 32,) * (MAX_KEYS + 1)
    transfer = Transfer(STORE, "r", keys, array("q", range(MAX_KEYS + 1)), 1, 64)

    bench.ledger.submit(transfer, None, refuse=Reason.NONE, now=START, wall=0.0)

    assert bench.settled() == [(OutcomeKind.REFUSED, Reason.ENCODE_ERROR)]
