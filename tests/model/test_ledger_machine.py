"""The ledger against a hostile gateway, copier and engine, with every promise checked from outside after every step."""

from __future__ import annotations

import gc
import weakref
from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from adapter.actions import (
    Action,
    AskCommit,
    AskRead,
    AskReserve,
    Begin,
    CopyChunk,
    DropEvent,
    Grant,
    Transfer,
    Unit,
    WatchEvent,
)
from adapter.ledger import Ledger
from gateway.wire.codes import (
    CommitStatus,
    OperationKind,
    OutcomeKind,
    Phase,
    Reason,
    ReserveStatus,
    Trigger,
)
from tests.support.scale import scaled

STORE, RETRIEVE = OperationKind.STORE, OperationKind.RETRIEVE
BLOCKS_PER_CHUNK = 2
REQUESTS = ("a", "b", "c")
CAUSES = (Trigger.GATEWAY_UNHEALTHY, Trigger.UNRESPONSIVE, Trigger.DEAD, Trigger.RESTARTED)


class Event:
    def query(self) -> bool:
        raise AssertionError("the ledger never asks an event")

    def ipc_handle(self) -> bytes:
        raise AssertionError("the ledger never asks an event")


class Known:
    """What an observer knows of one operation."""

    def __init__(self, transfer: Transfer, event: int | None) -> None:
        self.transfer = transfer
        self.event = event
        self.fired = event is None
        self.filled: set[int] = set()  # chunks a retrieve has copied and verified
        self.refused = False
        self.revoked = False
        self.may_commit: set[int] = set()  # chunks whose copy ended before a revoke
        self.committed: set[int] = set()


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(
            max_pending_ops=6, max_pending_bytes=900, operation_deadline_seconds=30.0, max_asks=3, verify=True
        )
        self.known: dict[int, Known] = {}
        self.settled: dict[int, OutcomeKind] = {}
        self.alive: dict[int, weakref.ref[Event]] = {}
        self.submitted: list[int] = []
        self.asks: list[AskReserve | AskRead] = []
        self.commits: list[AskCommit] = []
        self.queued: list[tuple[int, int]] = []
        self.units: list[Unit] = []
        self.generation = 0
        self.num_events = 0
        self.held: set[str] = set()
        self.received: list[str] = []
        self.expected_errors: set[int] = set()
        self.drains = 0

    # -- what every step must keep

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Begin):
                self.submitted.append(action.number)
            elif isinstance(action, AskReserve | AskRead):
                self.asks.append(action)
            elif isinstance(action, AskCommit):
                known = self.known[action.number]
                assert set(action.chunks) <= known.may_commit, "a COMMIT for bytes read after a revoke, or never read"
                self.commits.append(action)
            elif isinstance(action, CopyChunk):
                assert self.known[action.number].fired, "a copy before its event has fired"
                self.queued.append((action.number, action.chunk))
            elif isinstance(action, WatchEvent):
                assert self.known[action.number].event is not None
            elif isinstance(action, DropEvent):
                assert action.event is not None
        for info in self.ledger.take_settled():
            assert info.number not in self.settled, "settled twice"
            assert not any(unit.number == info.number for unit in self.units), "settled while a unit runs"
            self.settled[info.number] = info.outcome
            self.close(info.number, info.outcome)

    def close(self, number: int, outcome: OutcomeKind) -> None:
        known = self.known[number]
        transfer = known.transfer
        if transfer.kind is STORE:
            complete = not known.refused and (not transfer.writes or len(known.committed) == len(transfer.keys))
            assert (outcome is OutcomeKind.STORED) == complete, f"{outcome} with {known.committed}"
            return
        lost = {
            block
            for chunk in range(len(transfer.keys))
            if chunk not in known.filled
            for block in transfer.blocks_of(chunk)[transfer.skipped_in(chunk) :]
        }
        assert (outcome is OutcomeKind.LOADED) == (not lost)
        self.expected_errors |= lost

    @invariant()
    def gauges_are_what_is(self) -> None:
        open_numbers = self.known.keys() - self.settled.keys()
        counts = self.ledger.pending_counts()
        kinds = [self.known[number].transfer.kind for number in open_numbers]
        assert set(self.ledger.unsettled_numbers()) == open_numbers
        assert (counts.stores, counts.retrieves) == (kinds.count(STORE), kinds.count(RETRIEVE))
        assert counts.events == len({self.known[n].event for n in open_numbers} - {None})
        assert (counts.oldest_wall == 0.0) == (not open_numbers)

    @invariant()
    def events_live_exactly_as_long_as_their_operations(self) -> None:
        wanted = {self.known[n].event for n in self.known.keys() - self.settled.keys()} - {None}
        for event, reference in self.alive.items():
            assert (reference() is not None) == (event in wanted)

    @invariant()
    def errors_are_exactly_what_was_not_filled(self) -> None:
        assert self.ledger.take_load_errors() == self.expected_errors
        self.expected_errors.clear()

    def open(self, kind: OperationKind, request: str) -> bool:
        return any(
            known.transfer.kind is kind and known.transfer.request_id == request
            for number, known in self.known.items()
            if number not in self.settled
        )

    # -- the engine

    @rule(
        kind=st.sampled_from(OperationKind),
        request=st.sampled_from(REQUESTS),
        chunks=st.integers(0, 4),
        first=st.integers(0, 8),
        skip=st.sampled_from([0, 0, 0, 1, 2, 5]),
        with_event=st.sampled_from(["none", "none", "own", "shared"]),
        writes=st.integers(0, 9).map(bool),
        refuse=st.integers(0, 9).map(lambda i: Reason.NONE if i else Reason.NOT_HEALTHY),
    )
    def submit(self, kind, request, chunks, first, skip, with_event, writes, refuse) -> None:
        transfer = Transfer(
            kind,
            request,
            tuple(bytes([first + i]) * 32 for i in range(chunks)),
            array("q", range(2 * first, 2 * (first + chunks))),
            BLOCKS_PER_CHUNK,
            chunk_bytes=100,
            skip_blocks=min(skip, 2 * chunks) if kind is RETRIEVE else 0,
            writes=writes or kind is RETRIEVE,
        )
        event = None
        name = None
        living = [key for key, reference in self.alive.items() if reference() is not None]
        if with_event == "shared" and living:
            name = living[0]
            event = self.alive[name]()
        elif with_event != "none":
            event, name = Event(), self.num_events
            self.num_events += 1
            self.alive[name] = weakref.ref(event)
        number = self.ledger.next_number
        known = self.known[number] = Known(transfer, name)
        known.filled = set(range(transfer.skip_blocks // BLOCKS_PER_CHUNK))
        if refuse is not Reason.NONE or len(self.ledger.unsettled_numbers()) >= 6:
            known.refused = bool(chunks) and transfer.writes
        got, actions = self.ledger.submit(transfer, event, refuse=refuse, now=self.now, wall=1000.0 + self.now)
        assert got == number
        if kind is RETRIEVE and request in self.received:
            self.received.remove(request)
        self.take(actions)

    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        candidates = [block for unit in self.units for block in unit.block_ids] or list(range(25))
        blocks = data.draw(st.sets(st.sampled_from(candidates), max_size=4))
        running = {(unit.number, unit.chunk) for unit in self.units}
        before = {n: set(self.known[n].may_commit) for n in self.ledger.unsettled_numbers()}
        self.take(self.ledger.revoke(blocks, self.now))
        for number, may_commit in before.items():
            known = self.known[number]
            reads = any(
                chunk not in may_commit and blocks & set(known.transfer.blocks_of(chunk))
                for chunk in range(len(known.transfer.keys))
                if chunk not in known.committed
            )
            if known.transfer.kind is STORE and reads:
                known.revoked = True
                if number not in self.settled:
                    assert any(n == number for n, _ in running), "a revoked store lingers though nothing runs"

    @rule(requests=st.sets(st.sampled_from(REQUESTS)))
    def preempt(self, requests: set[str]) -> None:
        self.take(self.ledger.preempt(requests, self.now))

    @rule(hold=st.sets(st.sampled_from(REQUESTS)))
    def poll(self, hold: set[str]) -> None:
        self.held |= hold
        sending, receiving = self.ledger.take_finished(self.held)
        assert sending == {request for request in self.held if not self.open(STORE, request)}
        self.held -= sending
        self.ledger.take_finished(self.held)  # leaves out what was reported, so that it may be held anew
        for request in receiving:
            assert not self.open(RETRIEVE, request)

    @precondition(lambda self: self.submitted)
    @rule()
    def set_out(self) -> None:
        self.take(self.ledger.begin(self.submitted.pop(0), self.now))

    # -- the gateway

    @precondition(lambda self: self.asks)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        ask = self.asks.pop(data.draw(st.integers(0, len(self.asks) - 1)))
        if data.draw(st.integers(0, 9)) == 9:
            self.take(self.ledger.failed(ask.number, ask.chunks, Reason.NO_REPLY, self.now))
            return
        reads = isinstance(ask, AskRead)
        size = len(ask.chunks)
        statuses = [ReserveStatus.GRANTED] * size
        if data.draw(st.integers(0, 3)) == 0:
            statuses = data.draw(st.lists(st.sampled_from(ReserveStatus), min_size=size, max_size=size))
        grants = []
        for status in statuses:
            self.generation += 1
            granted = status is ReserveStatus.GRANTED
            grants.append(Grant(status, self.generation if granted else -1, 0, self.generation if granted else 0))
        if ask.number in self.ledger.unsettled_numbers() and not reads:
            exists = {chunk for chunk, s in zip(ask.chunks, statuses, strict=True) if s is ReserveStatus.EXISTS}
            draining = self.known[ask.number]
            draining.committed |= {chunk for chunk in exists if self.is_asked(ask.number)}
        self.take(self.ledger.granted(ask.number, ask.chunks, grants, self.now))

    def is_asked(self, number: int) -> bool:
        """Not given up, and not cut by a drain: an EXISTS still counts."""
        operation = self.ledger._operations[number]
        return bool(operation.tally[1])

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def answer_commit(self, data: st.DataObject) -> None:
        commit = self.commits.pop(data.draw(st.integers(0, len(self.commits) - 1)))
        if data.draw(st.integers(0, 9)) == 9:
            self.take(self.ledger.commit_failed(commit.number, commit.chunks, Reason.NO_REPLY, self.now))
            return
        results = [data.draw(st.sampled_from([CommitStatus.COMMITTED] * 3 + list(CommitStatus))) for _ in commit.chunks]
        for chunk, result in zip(commit.chunks, results, strict=True):
            if result in (CommitStatus.COMMITTED, CommitStatus.EXISTS) and commit.number not in self.settled:
                self.known[commit.number].committed.add(chunk)
        self.take(self.ledger.committed(commit.number, commit.chunks, results, self.now))

    # -- events and copies

    @rule(data=st.data())
    def fire(self, data: st.DataObject) -> None:
        waiting = [n for n in self.ledger.unsettled_numbers() if self.ledger.is_waiting_for_event(n)]
        if waiting:
            number = data.draw(st.sampled_from(waiting))
            if data.draw(st.integers(0, 9)):
                self.known[number].fired = True
                self.take(self.ledger.event_fired(number, self.now))
            else:
                self.take(self.ledger.event_failed(number, self.now))

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.begin_one(data)

    def begin_one(self, data: st.DataObject) -> None:
        number, chunk = self.queued.pop(data.draw(st.integers(0, len(self.queued) - 1)))
        unit = self.ledger.begin_copy(number, chunk, self.now)
        if unit is not None:
            known = self.known[number]
            assert number not in self.settled
            assert known.fired
            assert not known.revoked, "a copy began after its blocks were revoked"
            assert unit.key == known.transfer.keys[chunk]
            assert list(unit.block_ids) == list(known.transfer.blocks_of(chunk))
            self.units.append(unit)

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def begin_another(self, data: st.DataObject) -> None:
        self.begin_one(data)

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        unit = self.units.pop(data.draw(st.integers(0, len(self.units) - 1)))
        reason = data.draw(st.sampled_from([Reason.NONE] * 4 + [Reason.COPY_ERROR, Reason.CHANGED]))
        known = self.known[unit.number]
        if reason is Reason.NONE:
            if unit.kind is RETRIEVE:
                known.filled.add(unit.chunk)
            elif self.phase(unit.number) is not Phase.SETTLING:
                known.may_commit.add(unit.chunk)
        self.take(self.ledger.end_copy(unit.number, unit.chunk, reason, self.now))

    def phase(self, number: int) -> Phase:
        return next(info.phase for info in self.ledger.pending_operations(self.now) if info.number == number)

    # -- trouble and time

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.ledger.tick(self.now))
        assert self.ledger.next_deadline() > self.now

    @rule(seconds=st.sampled_from([0.0, 0.5, 5.0, None]), trigger=st.sampled_from(CAUSES))
    def trouble(self, seconds: float | None, trigger: Trigger) -> None:
        if seconds is None:
            self.take(self.ledger.settle_all(trigger, self.now))
            running = {unit.number for unit in self.units}
            assert set(self.ledger.unsettled_numbers()) <= running, "only what runs may outlive trouble"
        else:
            self.take(self.ledger.drain(Trigger.GATEWAY_DRAINING, self.now + seconds, self.now))

    @rule()
    def resume(self) -> None:
        self.ledger.end_drain()

    def teardown(self) -> None:
        """Whatever happened: once the gateway is given up and every copy has ended, nothing is left."""
        self.take(self.ledger.settle_all(Trigger.CLOSE, self.now))
        while self.units:
            unit = self.units.pop()
            self.take(self.ledger.end_copy(unit.number, unit.chunk, Reason.COPY_ERROR, self.now))
        counts = self.ledger.pending_counts()
        assert (counts.stores, counts.retrieves, counts.events, counts.settling) == (0, 0, 0, 0)
        assert self.settled.keys() == self.known.keys()
        gc.collect()
        assert all(reference() is None for reference in self.alive.values())
        assert sum(self.ledger.totals.operations.values()) == len(self.known)
        assert sum(self.ledger.totals.settled_by.values()) == len(self.known)


LedgerMachine.TestCase.settings = settings(
    max_examples=scaled(100, 400), stateful_step_count=50, deadline=None, report_multiple_bugs=False
)
TestLedgerMachine = LedgerMachine.TestCase
