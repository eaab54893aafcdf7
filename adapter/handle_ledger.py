"""The ledger where the gateway copies (handle mode): the same operations, another way through COPYING.

Owns: what is handed to the gateway and when it is safe to say that nothing of it runs there. Must not know: messages,
threads, what the withdrawal board lies in. Pure.

An operation is handed over whole: its chunks count as running until the gateway says otherwise, because it may be
copying them. So an operation that was given up is *in doubt*, and settles by one of three proofs:

- the gateway **acknowledges**: it has answered, or CANCEL was; nothing of the operation runs there;
- the gateway is **dead**, and its copies with it;
- for a store, its **deadline** and a grace have passed: the gateway starts nothing then, and publishes only what it
  had finished before. A retrieve never settles by time: a gateway that was frozen may wake and write.

To revoke a store is not to wait: its cell of the board is set in the same step. The gateway looks at it after its last
byte was read; what it finds set it does not publish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Unpack

from adapter.actions import Action, AskCopy, TellCancel, Transfer
from adapter.ledger import RETRIEVE, STORE, Ledger, Limits
from adapter.operation import IpcEvent
from adapter.pending import DONE, RUNNING, TODO, Operation
from gateway.wire.codes import CopyStatus, OutcomeKind, Proof, Reason
from gateway.wire.messages import MAX_KEYS

#: After a store's deadline, for the gateway's answer to arrive.
GRACE_SECONDS = 0.25
#: Between two CANCELs of an operation in doubt.
CANCEL_SECONDS = 0.2
#: Cells of the board: more than operations can be pending.
NUM_CELLS = 8192

_IS_THERE = (CopyStatus.COPIED, CopyStatus.EXISTS)
_REASON_OF_STATUS = {
    CopyStatus.BUSY: Reason.BUSY,
    CopyStatus.FULL: Reason.FULL,
    CopyStatus.MISSING: Reason.MISSING,
    CopyStatus.CHANGED: Reason.CHANGED,
    CopyStatus.COPY_ERROR: Reason.COPY_ERROR,
    CopyStatus.EVENT_ERROR: Reason.EVENT_ERROR,
    CopyStatus.EXPIRED: Reason.NO_REPLY,
    CopyStatus.CANCELLED: Reason.REFUSED_BY_GATEWAY,
    CopyStatus.DRAINED: Reason.DRAINING,
    CopyStatus.CLEARED: Reason.CLEARED,
}


class Board(Protocol):
    """The withdrawal board: a number a cell."""

    def __getitem__(self, cell: int, /) -> int: ...
    def __setitem__(self, cell: int, number: int, /) -> None: ...


class HandleLedger(Ledger):
    """Every operation of one worker for which the gateway copies.

    Args:
        board: one cell an operation, 0 when it begins; at least ``NUM_CELLS``.
        limits: as ``Ledger``.
    """

    def __init__(self, *, board: Board, **limits: Unpack[Limits]) -> None:
        super().__init__(**limits)
        self._board = board
        self._free_cells = list(range(NUM_CELLS))
        self._cells: dict[int, int] = {}  #: by operation that was handed over
        self._cancel_at: dict[int, float] = {}  #: when to say CANCEL again, of each operation in doubt
        self._proofs: dict[int, Proof] = {}  #: of operations about to settle, where it is not an acknowledgement
        self._dead_at: float | None = None  #: when the death of the gateway counts

    def table_sizes(self) -> dict[str, int]:
        """Entries by table."""
        handed_over = {"board_cells": len(self._cells), "doubtful_operations": len(self._cancel_at)}
        return {**super().table_sizes(), **handed_over, "proofs": len(self._proofs)}

    # -- what the gateway says -----------------------------------------------------------------------------------------

    def answered(self, number: int, results: Sequence[CopyStatus], now: float) -> list[Action]:
        """STORE or RETRIEVE was answered, one status a chunk handed over: nothing of the operation runs there."""
        operation = self._operations.get(number)
        chunks = [] if operation is None else operation.chunks_in(RUNNING)
        if operation is None or len(results) != len(chunks):
            return self.unanswered(number, Reason.BAD_REPLY, now)
        if CopyStatus.EXPIRED in results and operation.ending is None:
            operation.ending = (OutcomeKind.EXPIRED, Reason.NONE)  # the gateway's clock was the first to say so
        for chunk, status in zip(chunks, results, strict=True):
            if status not in _IS_THERE:
                operation.lose(chunk, _REASON_OF_STATUS[status])
                continue
            operation.move(chunk, DONE)
            if operation.kind is RETRIEVE:
                self._count_loaded(operation.transfer, chunk)
            elif status is CopyStatus.COPIED:
                self.totals.bytes[STORE] += operation.transfer.chunk_bytes
        return self._over(operation, len(chunks), now)

    def refused(self, number: int, reason: Reason, now: float) -> list[Action]:
        """STORE or RETRIEVE was refused, or never sent: nothing of it ever ran."""
        self._proofs[number] = Proof.NEVER_STARTED
        return self._end_all(number, reason, now)

    def unanswered(self, number: int, reason: Reason, now: float) -> list[Action]:
        """STORE or RETRIEVE has no usable answer: whether it runs is not known, so it is cancelled."""
        return self._give_up_where(lambda op: op.number == number, OutcomeKind.FAILED, reason, now)

    def acknowledged(self, number: int, now: float) -> list[Action]:
        """CANCEL was answered: nothing of the operation runs there, and nothing will."""
        return self._end_all(number, Reason.NONE, now)

    def gateway_died(self, now: float, settle_seconds: float) -> list[Action]:
        """The gateway that operations were handed to is proven dead. ``settle_seconds``: its device may copy on."""
        if self._dead_at is None and self._running_units:
            self._dead_at = now + settle_seconds
        return self.tick(now)

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """What time brings: deadlines, graces, a death that counts, CANCELs to say again."""
        actions = super().tick(now)
        if self._dead_at is not None and now >= self._dead_at:
            self._dead_at = None
            actions += self._give_up_where(lambda _: True, OutcomeKind.FAILED, Reason.DEAD, now)
            actions += self._prove(Proof.DEATH, lambda _: True, now)
        actions += self._prove(Proof.DEADLINE, lambda op: op.kind is STORE and now >= _safe_at(op), now)
        for number, at in self._cancel_at.items():
            if now >= at:
                self._cancel_at[number] = now + CANCEL_SECONDS
                actions.append(TellCancel(number, self._operations[number].deadline))
        return actions

    def next_deadline(self) -> float:
        """When ``tick`` has something to do; infinity when nothing is due ever."""
        doubtful = [self._operations[number] for number in self._cancel_at]
        times = [super().next_deadline(), *self._cancel_at.values()]
        times += [_safe_at(operation) for operation in doubtful if operation.kind is STORE]
        if self._dead_at is not None:
            times.append(self._dead_at)
        return min(times)

    def drop_event(self, number: int) -> IpcEvent | None:
        """Give an operation's event up before it is settled, as no ledger should; for the test that shows why."""
        operation = self._operations.get(number)
        event = None if operation is None else operation.event
        if operation is not None and event is not None:
            operation.event = None
            if not self._retained.release(event):
                return None
        return event

    # -- events and copies are the gateway's ---------------------------------------------------------------------------

    def is_waiting_for_event(self, number: int) -> bool:  # noqa: ARG002 - the gateway waits
        """Whether the operation's event is to be polled here: never."""
        return False

    # -- within a step -------------------------------------------------------------------------------------------------

    def _over_bounds(self, transfer: Transfer) -> Reason:
        # One message carries the whole operation: an answered number starts nothing, so there is no second.
        return Reason.ENCODE_ERROR if len(transfer.keys) > MAX_KEYS else super()._over_bounds(transfer)

    def _ask(self, operation: Operation, actions: list[Action]) -> None:
        """Hand the operation over, whole."""
        chunks, transfer = operation.chunks_in(TODO), operation.transfer
        for chunk in chunks:
            operation.move(chunk, RUNNING)
        operation.ever_ran = True
        self._running_units += len(chunks)
        cell = self._cells[operation.number] = self._free_cells.pop()
        self._board[cell] = 0
        first = chunks[0]
        actions.append(
            AskCopy(
                operation.number,
                transfer.kind,
                tuple(transfer.keys[first:]),
                transfer.block_ids[first * transfer.blocks_per_chunk :],
                operation.event,
                cell,
                transfer.depth + first,
                transfer.keys[first - 1] if first else transfer.parent,
                max(0, transfer.skip_blocks - first * transfer.blocks_per_chunk),
                operation.deadline,
            )
        )

    def _give_up(
        self, operation: Operation, outcome: OutcomeKind, reason: Reason, now: float, actions: list[Action]
    ) -> None:
        if operation.ending is None and operation.tally[RUNNING]:
            self._board[self._cells[operation.number]] = 1
            self._cancel_at[operation.number] = now + CANCEL_SECONDS
            actions.append(TellCancel(operation.number, operation.deadline))
        super()._give_up(operation, outcome, reason, now, actions)

    def _end_all(self, number: int, reason: Reason, now: float) -> list[Action]:
        operation = self._operations.get(number)
        if operation is None:
            self._proofs.pop(number, None)
            return []
        chunks = operation.chunks_in(RUNNING)
        self._lose(operation, chunks, RUNNING, reason)
        return self._over(operation, len(chunks), now)

    def _over(self, operation: Operation, num_ended: int, now: float) -> list[Action]:
        actions: list[Action] = []
        self._running_units -= num_ended
        self._advance(operation, now, actions)
        return self._end_step(actions)

    def _prove(self, proof: Proof, chosen: Callable[[Operation], bool], now: float) -> list[Action]:
        """Settle operations in doubt by this proof."""
        actions: list[Action] = []
        for number in [number for number in self._cancel_at if chosen(self._operations[number])]:
            self._proofs[number] = proof
            actions += self._end_all(number, Reason.NONE, now)
        return actions

    def _settle(self, operation: Operation, now: float, actions: list[Action]) -> None:
        super()._settle(operation, now, actions)
        number = operation.number
        self._cancel_at.pop(number, None)
        self._proofs.pop(number, None)
        cell = self._cells.pop(number, None)
        if cell is not None:
            self._free_cells.append(cell)

    def _proof_of(self, operation: Operation) -> Proof:
        if not operation.ever_ran:
            return Proof.NEVER_STARTED
        return self._proofs.get(operation.number, Proof.ACKNOWLEDGED)

    def check(self) -> None:
        """Raise AssertionError where a promise of this module does not hold."""
        super().check()
        doubtful = {number for number, op in self._operations.items() if op.ending is not None}
        assert self._cancel_at.keys() == doubtful
        assert self._cells.keys() == {number for number, op in self._operations.items() if op.tally[RUNNING]}
        assert len(self._free_cells) + len(self._cells) == NUM_CELLS
        assert all(self._board[self._cells[number]] for number in doubtful), "given up, and not withdrawn"


def _safe_at(operation: Operation) -> float:
    """When a store in doubt settles by time."""
    return operation.deadline + GRACE_SECONDS
