"""The transfer ledger: every store and retrieve of one worker, from submit to settled.

Owns: the operations, the events they retain, what is reported to the engine, and the counts of all of these. Must not
know: sockets, threads, memory, the time (it is passed in). Pure: a step goes in, actions come out; the caller
serializes.

    submit ─▶ WAITING ─▶ COPYING ─▶ CLOSING ─▶ SETTLED(outcome)
                 └──────────┴── revoke / drain / deadline / death ──▶ SETTLING ─▶ SETTLED(outcome)

What it promises:

- An event given with an operation is retained until the operation is settled, and given up in that same step.
- An operation settles once, and only when no unit of it runs: from then on nothing touches its blocks.
- Giving up (a deadline, a revoked block, a drain, a dead gateway) never cuts a running copy: it stops what has not
  begun, withholds the COMMIT of what runs, and waits for its end.
- A retrieve that is not wholly loaded lists exactly the blocks it did not fill, in the step in which it settles.

A phase is not stored: it is read from the states of the operation's chunks. ``now`` is CLOCK_MONOTONIC, ``wall`` is
Unix time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Required, TypedDict

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
    Unit,
    WatchEvent,
)
from adapter.operation import IpcEvent
from adapter.pending import (
    ASKED,
    COPIED,
    DONE,
    GRANTED,
    LOST,
    NOT_BEGUN,
    NOT_COPIED,
    RUNNING,
    TODO,
    ChunkState,
    Operation,
)
from adapter.reports import Reports
from adapter.retained import RetainedEvents
from adapter.totals import PendingCounts, Totals
from adapter.window import MAX_ASKS, Window
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
from gateway.wire.messages import MAX_KEYS, OperationInfo

STORE, RETRIEVE = OperationKind.STORE, OperationKind.RETRIEVE

#: Settled operations kept for the next heartbeat.
MAX_SETTLED_KEPT = 256

_REASON_OF_TRIGGER = {
    Trigger.GATEWAY_DRAINING: Reason.DRAINING,
    Trigger.GATEWAY_UNHEALTHY: Reason.GATEWAY_UNHEALTHY,
    Trigger.UNRESPONSIVE: Reason.UNRESPONSIVE,
    Trigger.DEAD: Reason.DEAD,
    Trigger.RESTARTED: Reason.RESTARTED,
    Trigger.OPERATOR: Reason.DRAINING,
    Trigger.SWITCH: Reason.OFF,
    Trigger.CLOSE: Reason.CLOSED,
}
_REASON_OF_RESERVE = {ReserveStatus.BUSY: Reason.BUSY, ReserveStatus.FULL: Reason.FULL}
_REASON_OF_COMMIT = {
    CommitStatus.DRAINED: Reason.DRAINING,
    CommitStatus.CLEARED: Reason.CLEARED,
    CommitStatus.UNKNOWN: Reason.MISSING,
}


class Limits(TypedDict, total=False):
    """What bounds a ledger, by the names of its arguments."""

    max_pending_ops: Required[int]
    max_pending_bytes: Required[int]
    operation_deadline_seconds: Required[float]
    max_asks: int
    verify: bool


class Ledger:
    """Every operation of one worker. Each step returns the actions it calls for, in order."""

    def __init__(
        self,
        *,
        max_pending_ops: int,
        max_pending_bytes: int,
        operation_deadline_seconds: float,
        max_asks: int = MAX_ASKS,
        verify: bool = False,
    ) -> None:
        """An empty ledger. ``verify``: check every invariant after every step (for tests; slow)."""
        self.totals = Totals()
        self._max_pending_ops = max_pending_ops
        self._max_pending_bytes = max_pending_bytes
        self._operation_deadline_seconds = operation_deadline_seconds
        self._verify = verify
        self._next_number = 1
        self._operations: dict[int, Operation] = {}  #: unsettled, oldest first, so in order of their deadlines
        self._num_pending = {STORE: 0, RETRIEVE: 0}
        self._pending_bytes = 0
        self._running_units = 0
        self._settling: set[int] = set()  #: numbers whose operation was given up while a unit runs
        self._retained = RetainedEvents()
        self._abandoned: dict[int, OperationKind] = {}  #: settled with a RESERVE or READ still under way
        self._window = Window(max_asks)
        self._drain: tuple[float, Reason] | None = None  #: deadline of a drain under way, and its reason
        self._reports = Reports()
        self._settled: deque[OperationInfo] = deque(maxlen=MAX_SETTLED_KEPT)

    # -- the engine's side ---------------------------------------------------------------------------------------------

    def submit(
        self, transfer: Transfer, event: IpcEvent | None, *, refuse: Reason, now: float, wall: float
    ) -> tuple[int, list[Action]]:
        """Take an operation in and retain its event; ``begin`` sends it on its way.

        ``refuse`` other than NONE: it settles at once, for that reason. So does one with nothing to copy.
        """
        number = self._next_number
        self._next_number += 1
        operation = Operation(number, transfer, event, now, wall, now + self._operation_deadline_seconds)
        if refuse is Reason.NONE:
            refuse = self._over_bounds(transfer)
        self._admit(operation)
        for chunk in self._needless_chunks(transfer):
            operation.move(chunk, DONE)
        actions: list[Action] = []
        if refuse is not Reason.NONE:
            self._give_up(operation, OutcomeKind.REFUSED, refuse, now, actions)
            return number, self._end_step(actions)
        if operation.tally[TODO]:
            actions.append(Begin(number))
        else:
            self._advance(operation, now, actions)
        return number, self._end_step(actions)

    def begin(self, number: int, now: float) -> list[Action]:
        """Send a submitted operation on its way: its event is watched, its first slots are asked for."""
        actions: list[Action] = []
        operation = self._operations.get(number)
        if operation is not None:
            if operation.event is not None and self.is_waiting_for_event(number):
                actions.append(WatchEvent(number, operation.event))
            self._advance(operation, now, actions)
        return self._end_step(actions)

    def revoke(self, block_ids: Iterable[int], now: float) -> list[Action]:
        """The engine is about to reuse these blocks: stores give up what of them is not copied yet."""
        blocks = frozenset(block_ids)
        return self._give_up_where(
            lambda op: op.kind is STORE and op.reads_any(blocks), OutcomeKind.REVOKED, Reason.NONE, now
        )

    def preempt(self, request_ids: Iterable[str], now: float) -> list[Action]:
        """Give up every operation of these requests that is not copied yet."""
        requests = frozenset(request_ids)
        return self._give_up_where(
            lambda op: op.transfer.request_id in requests and bool(op.chunks_in(*NOT_COPIED)),
            OutcomeKind.REVOKED,
            Reason.NONE,
            now,
        )

    def take_finished(self, held_ids: Iterable[str]) -> tuple[set[str], set[str]]:
        """(finished_sending, finished_receiving) since the last call; see ``Reports.take_finished``."""
        return self._reports.take_finished(held_ids)

    @property
    def has_received(self) -> bool:
        """Whether ``take_finished`` has a request to tell whose retrieves are settled."""
        return self._reports.has_received

    def take_load_errors(self) -> set[int]:
        """Blocks that retrieves did not fill, since the last call."""
        return self._reports.take_load_errors()

    def take_failed_requests(self) -> set[str]:
        """Requests with a retrieve that was not wholly loaded, since the last call."""
        return self._reports.take_failed_requests()

    def table_sizes(self) -> dict[str, int]:
        """Entries by table: what is remembered of operations and of the requests they belong to."""
        return {
            "operations": len(self._operations),
            "retained_events": len(self._retained),
            "abandoned_operations": len(self._abandoned),
            "waiting_operations": self._window.num_waiting,
            "asks_under_way": self._window.under_way,
            "settled_operations": len(self._settled),
            **self._reports.sizes(),
        }

    def has_unsettled(self, request_ids: Iterable[str] | None = None) -> bool:
        """Whether any operation (of these requests) is not settled."""
        if request_ids is None:
            return bool(self._operations)
        return any(self._reports.is_open(request) for request in request_ids)

    # -- answers of the gateway ----------------------------------------------------------------------------------------

    def granted(self, number: int, chunks: Sequence[int], grants: Sequence[Grant], now: float) -> list[Action]:
        """RESERVE or READ was answered, one grant a chunk."""
        actions: list[Action] = []
        operation = self._answered_ask(number, actions)
        if operation is not None:
            self._take_grants(operation, chunks, grants, now, actions)
        self._ask_waiting(actions)
        return self._end_step(actions)

    def committed(
        self, number: int, chunks: Sequence[int], results: Sequence[CommitStatus], now: float
    ) -> list[Action]:
        """COMMIT was answered, one result a chunk."""
        actions: list[Action] = []
        operation = self._operations.get(number)
        if operation is not None:
            for chunk, result in zip(chunks, results, strict=True):
                if operation.states[chunk] is not COPIED:
                    continue
                if result in (CommitStatus.COMMITTED, CommitStatus.EXISTS):
                    operation.move(chunk, DONE)
                    if result is CommitStatus.COMMITTED:
                        self.totals.bytes[STORE] += operation.transfer.chunk_bytes
                else:
                    operation.lose(chunk, _REASON_OF_COMMIT[result])
            self._advance(operation, now, actions)
        self._feed_starved(now, actions)
        return self._end_step(actions)

    def failed(self, number: int, chunks: Sequence[int], reason: Reason, now: float) -> list[Action]:
        """A RESERVE or READ for these chunks was refused, or has no usable answer."""
        actions: list[Action] = []
        operation = self._operations.get(number)
        if operation is not None:
            self._window.end_ask()
            operation.asks -= 1
            self._lose(operation, chunks, ASKED, reason)
            self._advance(operation, now, actions)
        elif self._abandoned.pop(number, None) is not None:
            self._window.end_ask()
        self._ask_waiting(actions)
        return self._end_step(actions)

    def commit_failed(self, number: int, chunks: Sequence[int], reason: Reason, now: float) -> list[Action]:
        """A COMMIT for these chunks was refused, or has no usable answer: they do not count as stored."""
        actions: list[Action] = []
        operation = self._operations.get(number)
        if operation is not None:
            self._lose(operation, chunks, COPIED, reason)
            self._advance(operation, now, actions)
        return self._end_step(actions)

    # -- events and copies ---------------------------------------------------------------------------------------------

    def is_waiting_for_event(self, number: int) -> bool:
        """Whether the operation's event is still to be polled."""
        operation = self._operations.get(number)
        return operation is not None and operation.ending is None and not operation.fired

    def event_fired(self, number: int, now: float) -> list[Action]:
        """The engine's compute is done: what is granted may be copied."""
        actions: list[Action] = []
        operation = self._operations.get(number)
        if operation is not None and operation.ending is None and not operation.fired:
            operation.fired = True
            actions.extend(CopyChunk(number, chunk) for chunk in operation.chunks_in(GRANTED))
            self._advance(operation, now, actions)
        return self._end_step(actions)

    def event_failed(self, number: int, now: float) -> list[Action]:
        """The event raised when it was polled: the operation cannot be ordered after the engine's compute."""
        return self._give_up_where(
            lambda op: op.number == number and not op.fired, OutcomeKind.FAILED, Reason.EVENT_ERROR, now
        )

    def begin_copy(self, number: int, chunk: int, now: float) -> Unit | None:
        """A copier takes a unit. None: it was given up meanwhile, or its deadline has passed."""
        operation = self._operations.get(number)
        if operation is None or operation.ending is not None or now >= operation.deadline:
            return None
        grant = operation.grants[chunk]
        if operation.states[chunk] is not GRANTED or not operation.fired or grant is None:
            return None
        operation.move(chunk, RUNNING)
        operation.ever_ran = True
        self._running_units += 1
        transfer = operation.transfer
        return Unit(
            number,
            transfer.request_id,
            chunk,
            transfer.kind,
            grant.slot,
            grant.offset,
            grant.generation,
            transfer.keys[chunk],
            transfer.blocks_of(chunk),
            transfer.skipped_in(chunk),
        )

    def end_copy(self, number: int, chunk: int, reason: Reason, now: float) -> list[Action]:
        """A unit has ended; ``reason`` NONE: copied (a retrieve's: and verified).

        Raises:
            ValueError: no such unit is running.
        """
        operation = self._operations.get(number)
        if operation is None or operation.states[chunk] is not RUNNING:
            raise ValueError(f"no copy of chunk {chunk} of operation {number} is running")
        actions: list[Action] = []
        self._running_units -= 1
        grant = operation.grants[chunk]
        if reason is not Reason.NONE:
            self.totals.failed_verifications += reason is Reason.CHANGED
            operation.lose(chunk, reason)
        elif operation.kind is RETRIEVE:
            operation.move(chunk, DONE)
            self._count_loaded(operation.transfer, chunk)
        elif operation.ending is not None or grant is None:
            operation.lose(chunk, Reason.NONE)  # its blocks may have been overwritten: the COMMIT is withheld
        else:
            operation.move(chunk, COPIED)
            actions.append(AskCommit(number, (chunk,), (grant.generation,)))
        self._advance(operation, now, actions)
        return self._end_step(actions)

    # -- clean-up and time ---------------------------------------------------------------------------------------------

    def drain(self, trigger: Trigger, deadline: float, now: float) -> list[Action]:
        """Wind down: what has no grant settles now, what has one may run on until ``deadline``.

        Repeating it keeps the earlier deadline and is not counted again.
        """
        reason = _REASON_OF_TRIGGER[trigger]
        if self._drain is None:
            self.totals.drains[trigger] += 1
            self._drain = (deadline, reason)
        else:
            self._drain = (min(deadline, self._drain[0]), self._drain[1])
        actions: list[Action] = []
        for operation in list(self._operations.values()):
            if operation.ending is None:
                if any(operation.tally[state] for state in (GRANTED, RUNNING, COPIED)):
                    self._lose_ungranted(operation, reason)
                else:
                    self._give_up(operation, OutcomeKind.DRAINED, reason, now, actions)
        return self._end_step(actions) + self.tick(now)

    def settle_all(self, trigger: Trigger, now: float) -> list[Action]:
        """Give up everything now: the gateway is unhealthy, silent, dead or another one, or we close."""
        self.totals.drains[trigger] += 1
        return self._give_up_where(lambda _: True, OutcomeKind.DRAINED, _REASON_OF_TRIGGER[trigger], now)

    def end_drain(self) -> None:
        """New work is welcome again."""
        self._drain = None

    def tick(self, now: float) -> list[Action]:
        """What time brings: deadlines of operations and of a drain, stores that wait for their quota."""
        actions: list[Action] = []
        if self._drain is not None and now >= self._drain[0]:
            actions += self._give_up_where(lambda _: True, OutcomeKind.DRAINED, self._drain[1], now)
        due: list[Operation] = []
        for operation in self._operations.values():
            if operation.deadline > now:
                break
            due.append(operation)
        for operation in due:
            self._give_up(operation, OutcomeKind.EXPIRED, Reason.NONE, now, actions)
        if self._window.next_retry() <= now:
            self._feed_starved(now, actions)
        return self._end_step(actions)

    def next_deadline(self) -> float:
        """When ``tick`` has something to do; infinity when nothing is due ever."""
        times = [self._window.next_retry()]
        if len(self._settling) < len(self._operations):
            times.append(next(op.deadline for op in self._operations.values() if op.ending is None))
            if self._drain is not None:
                times.append(self._drain[0])
        return min(times)

    # -- readings ------------------------------------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        """The number the next operation gets."""
        return self._next_number

    @property
    def running_units(self) -> int:
        """Copies that run now."""
        return self._running_units

    def unsettled_numbers(self) -> tuple[int, ...]:
        """Numbers of all operations that are not settled, oldest first."""
        return tuple(self._operations)

    def pending_counts(self) -> PendingCounts:
        """The gauges."""
        oldest = next(iter(self._operations.values()), None)
        return PendingCounts(
            stores=self._num_pending[STORE],
            retrieves=self._num_pending[RETRIEVE],
            events=len(self._retained),
            settling=len(self._settling),
            doubtful_blocks=sum(map(self._doubtful_blocks, self._settling)),
            oldest_wall=0.0 if oldest is None else oldest.wall,
        )

    def pending_operations(self, now: float, limit: int = 64) -> tuple[OperationInfo, ...]:
        """The oldest operations that are not settled, ``limit`` of them at most."""
        infos: list[OperationInfo] = []
        for operation in self._operations.values():
            if len(infos) == limit:
                break
            infos.append(self._info(operation, operation.phase, now))
        return tuple(infos)

    def take_settled(self) -> tuple[OperationInfo, ...]:
        """Operations settled since the last call, the newest ``MAX_SETTLED_KEPT`` of them."""
        settled = tuple(self._settled)
        self._settled.clear()
        return settled

    # -- within a step -------------------------------------------------------------------------------------------------

    def _doubtful_blocks(self, number: int) -> int:
        operation = self._operations[number]
        return operation.tally[RUNNING] * operation.transfer.blocks_per_chunk

    def _over_bounds(self, transfer: Transfer) -> Reason:
        if len(self._operations) >= self._max_pending_ops:
            return Reason.PENDING_OPS
        size = len(transfer.keys) * transfer.chunk_bytes
        # One operation alone may be larger than the bound: it goes through in windows of the gateway's quota.
        if transfer.kind is STORE and self._pending_bytes and self._pending_bytes + size > self._max_pending_bytes:
            return Reason.PENDING_BYTES
        return Reason.NONE

    def _needless_chunks(self, transfer: Transfer) -> range:
        """Chunks nobody need copy: all of a replica's store, those a retrieve skips wholly."""
        if transfer.kind is STORE:
            return range(0 if transfer.writes else len(transfer.keys))
        return range(transfer.skip_blocks // transfer.blocks_per_chunk)

    def _admit(self, operation: Operation) -> None:
        transfer = operation.transfer
        self._operations[operation.number] = operation
        self._num_pending[operation.kind] += 1
        self._pending_bytes += len(transfer.keys) * transfer.chunk_bytes
        self._reports.opened(operation.kind, transfer.request_id)
        if operation.event is not None:
            self._retained.retain(operation.event)

    def _answered_ask(self, number: int, actions: list[Action]) -> Operation | None:
        """The operation whose RESERVE or READ was answered; for one settled meanwhile, the grant is given back."""
        operation = self._operations.get(number)
        if operation is not None:
            self._window.end_ask()
            operation.asks -= 1
            return operation
        kind = self._abandoned.pop(number, None)
        if kind is not None:
            self._window.end_ask()
            actions.append(TellAbort(number) if kind is STORE else TellEndRead(number))
        return None

    def _take_grants(
        self, operation: Operation, chunks: Sequence[int], grants: Sequence[Grant], now: float, actions: list[Action]
    ) -> None:
        number = operation.number
        starved = False
        for chunk, grant in zip(chunks, grants, strict=True):
            if operation.states[chunk] is not ASKED:
                continue  # given up meanwhile; the ABORT at its end frees the slot
            if grant.slot >= 0:
                operation.grants[chunk] = grant
                operation.move(chunk, GRANTED)
            elif operation.kind is RETRIEVE:
                operation.lose(chunk, Reason.MISSING)
            elif grant.status is ReserveStatus.EXISTS:
                operation.move(chunk, DONE)
            elif grant.status is ReserveStatus.QUOTA:
                operation.move(chunk, TODO)
                starved = True
            else:
                operation.lose(chunk, _REASON_OF_RESERVE[grant.status])
        if starved and self._drain is not None:
            self._lose_ungranted(operation, self._drain[1])
        elif starved and not operation.tally[GRANTED]:
            self._window.starve(number, now)
        if operation.fired:
            actions.extend(CopyChunk(number, chunk) for chunk in chunks if operation.states[chunk] is GRANTED)
        self._advance(operation, now, actions)

    def _ask_waiting(self, actions: list[Action]) -> None:
        """A request has ended: those that waited longest may ask."""
        while (number := self._window.next_waiting()) is not None:
            self._ask(self._operations[number], actions)

    def _ask(self, operation: Operation, actions: list[Action]) -> None:
        """Ask for all chunks that want a slot, as soon as there is room for one more request."""
        if not self._window.begin_ask(operation.number):
            return
        chunks = tuple(operation.chunks_in(TODO)[:MAX_KEYS])
        transfer = operation.transfer
        keys = tuple(transfer.keys[chunk] for chunk in chunks)
        for chunk in chunks:
            operation.move(chunk, ASKED)
        operation.asks += 1
        operation.ever_asked = True
        if operation.kind is RETRIEVE:
            actions.append(AskRead(operation.number, chunks, keys, operation.deadline))
            return
        first = chunks[0]
        parent = transfer.keys[first - 1] if first else transfer.parent
        actions.append(AskReserve(operation.number, chunks, keys, transfer.depth + first, parent, operation.deadline))

    def _advance(self, operation: Operation, now: float, actions: list[Action]) -> None:
        """Take the operation as far as it goes by itself: settle it, or ask for the next window of slots."""
        tally = operation.tally
        if tally[RUNNING]:
            return
        if operation.ending is not None or tally[DONE] + tally[LOST] == len(operation.states):
            self._settle(operation, now, actions)
        elif tally[TODO] and not (tally[ASKED] or tally[GRANTED] or self._window.has(operation.number)):
            self._ask(operation, actions)

    def _feed_starved(self, now: float, actions: list[Action]) -> None:
        """Room was made, or time has passed: the store that waits longest asks again."""
        number = self._window.next_starved()
        if number is not None:
            self._advance(self._operations[number], now, actions)

    def _lose(self, operation: Operation, chunks: Sequence[int], state: ChunkState, reason: Reason) -> None:
        for chunk in chunks:
            if operation.states[chunk] is state:
                operation.lose(chunk, reason)

    def _lose_ungranted(self, operation: Operation, reason: Reason) -> None:
        self._window.leave(operation.number)
        for chunk in operation.chunks_in(TODO, ASKED):
            operation.lose(chunk, reason)

    def _give_up_where(
        self, chosen: Callable[[Operation], bool], outcome: OutcomeKind, reason: Reason, now: float
    ) -> list[Action]:
        actions: list[Action] = []
        for operation in list(self._operations.values()):
            if operation.ending is None and chosen(operation):
                self._give_up(operation, outcome, reason, now, actions)
        return self._end_step(actions)

    def _give_up(
        self, operation: Operation, outcome: OutcomeKind, reason: Reason, now: float, actions: list[Action]
    ) -> None:
        """Nothing more begins; it settles when its running units have ended. The first cause wins."""
        if operation.ending is not None:
            return
        operation.ending = (outcome, reason)
        self._window.leave(operation.number)
        for chunk in operation.chunks_in(*NOT_BEGUN):
            operation.lose(chunk, reason)
        self._settling.add(operation.number)
        self._advance(operation, now, actions)

    def _settle(self, operation: Operation, now: float, actions: list[Action]) -> None:
        """The operation is over: its event is given up, its blocks are free, its end is counted and told."""
        number, transfer, kind = operation.number, operation.transfer, operation.kind
        outcome, reason = operation.outcome()
        del self._operations[number]
        self._settling.discard(number)
        self._num_pending[kind] -= 1
        self._pending_bytes -= len(transfer.keys) * transfer.chunk_bytes
        if operation.asks:
            self._abandoned[number] = kind
        if operation.ever_asked and (kind is RETRIEVE or operation.tally[DONE] < len(operation.states)):
            actions.append(TellEndRead(number) if kind is RETRIEVE else TellAbort(number))
        self._release_event(operation, actions)
        self._report(operation, outcome)
        self.totals.count_settled(kind, outcome, self._proof_of(operation), now - operation.submitted)
        self._settled.append(
            OperationInfo(
                number=number,
                request_id=transfer.request_id,
                kind=kind,
                phase=Phase.SETTLED,
                age_seconds=now - operation.submitted,
                chunks=len(operation.states),
                outcome=outcome,
                reason=reason,
                chunks_done=operation.tally[DONE],
                settled_at=operation.wall + (now - operation.submitted),
            )
        )

    def _proof_of(self, operation: Operation) -> Proof:
        """Why nothing touches its blocks any more."""
        return Proof.COPY_DONE if operation.ever_ran else Proof.NEVER_STARTED

    def _release_event(self, operation: Operation, actions: list[Action]) -> None:
        event, operation.event = operation.event, None
        if event is not None and self._retained.release(event):
            actions.append(DropEvent(event))

    def _report(self, operation: Operation, outcome: OutcomeKind) -> None:
        """Tell the engine: what is no longer pending, and which blocks were not filled."""
        transfer = operation.transfer
        lost_blocks = transfer.blocks_per_chunk * (len(operation.states) - operation.tally[DONE])
        if operation.kind is STORE:
            self.totals.wasted_blocks["revoked" if outcome is OutcomeKind.REVOKED else "store_failed"] += lost_blocks
        else:
            self.totals.wasted_blocks["load_failed"] += lost_blocks
            if outcome is not OutcomeKind.LOADED:
                self._reports.load_failed(transfer.request_id, operation.unfilled_blocks())
        self._reports.settled(operation.kind, transfer.request_id)

    def _count_loaded(self, transfer: Transfer, chunk: int) -> None:
        loaded = transfer.blocks_per_chunk - transfer.skipped_in(chunk)
        self.totals.loaded_blocks += loaded
        self.totals.bytes[RETRIEVE] += transfer.chunk_bytes * loaded // transfer.blocks_per_chunk

    def _info(self, operation: Operation, phase: Phase, now: float) -> OperationInfo:
        return OperationInfo(
            number=operation.number,
            request_id=operation.transfer.request_id,
            kind=operation.kind,
            phase=phase,
            age_seconds=now - operation.submitted,
            chunks=len(operation.states),
            chunks_done=operation.tally[DONE],
        )

    def _end_step(self, actions: list[Action]) -> list[Action]:
        if self._verify:
            self.check()
        return actions

    def check(self) -> None:
        """Raise AssertionError where a promise of this module does not hold."""
        operations = self._operations.values()
        assert self._num_pending[STORE] + self._num_pending[RETRIEVE] == len(operations)
        assert self._pending_bytes == sum(len(op.states) * op.transfer.chunk_bytes for op in operations)
        assert self._running_units == sum(op.tally[RUNNING] for op in operations)
        assert self._settling == {op.number for op in operations if op.ending is not None}
        self._window.check(frozenset(self._operations))
        assert self._window.under_way == sum(op.asks for op in operations) + len(self._abandoned)
        assert not self._abandoned.keys() & self._operations.keys()
        holders = Counter(id(op.event) for op in operations if op.event is not None)
        assert self._retained.holders() == holders
        for kind in OperationKind:
            assert self._reports.open[kind] == Counter(op.transfer.request_id for op in operations if op.kind is kind)
        self._reports.check()
        for op in operations:
            assert op.tally == [op.states.count(state) for state in ChunkState]
            assert op.ending is None or op.tally[RUNNING], "given up, nothing runs, and yet not settled"
            assert op.tally[DONE] + op.tally[LOST] < len(op.states), "all chunks are final, and yet not settled"
            assert op.kind is STORE or not op.tally[COPIED]
