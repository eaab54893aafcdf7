"""The core against a reference made of dicts and sets, with every invariant checked after every step.

The reference knows nothing of sizes, eviction orders or heaps: it says which keys are READY, who reserved what, who
leased what, and which answers follow. What it cannot say is which chunk is evicted; it reads that from the freed
headers and checks that the chunk was one that may go.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.types import FreeHeader, Refusal
from gateway.wire.codes import CommitStatus, ErrorCode, Lifecycle, ReserveStatus, Role
from tests.support.scale import scaled
from tests.unit.core.tables import CHUNK_BYTES, Tables, key

NUM_SLABS, SLAB_CHUNKS = 2, 4
LEASE, MAX_LEASE, RESERVATION = 10.0, 25.0, 10.5
NARROW, WIDE = b"1" * 16, b"2" * 16
WIDTH = {NARROW: 1, WIDE: 2}  # in places of the pool
WORKERS = {"narrow": NARROW, "twin": NARROW, "wide": WIDE}
SCHEDULERS = {"front": NARROW, "back": WIDE}
ENGINE_OF = {"narrow": "a", "front": "a", "twin": "b", "wide": "c", "back": "c"}
DRAINED_STATES = (Lifecycle.DRAINING, Lifecycle.DRAINED)

numbers = st.integers(0, 2)
chains = st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)
workers = st.sampled_from(sorted(WORKERS))
schedulers = st.sampled_from(sorted(SCHEDULERS))
everyone = st.sampled_from(sorted(ENGINE_OF))
engines = st.sampled_from(sorted(set(ENGINE_OF.values())))
near = st.integers(-2, 2)  # sessions are named by how far they are ahead of the last that ended
STORING = 3  # the operation of the rule that stores in one go


@dataclass
class Held:
    """A reservation as the reference sees it."""

    owner: str
    operation: int | None  # None: an older boot's
    namespace: bytes
    number: int
    slot: int
    state: str = "live"  # live, quarantined or cut
    is_cleared: bool = False


@dataclass
class Leased:
    """A session's or a retrieve's lease: slots by position, None where it was released."""

    slots: list[int | None]
    deadline: float
    cap: float = float("inf")
    answer: tuple = ()
    wanted: tuple = ()


@dataclass
class Reference:
    """What must be true."""

    ready: dict[tuple[bytes, int], int] = field(default_factory=dict)  # (namespace, number) -> slot
    orphans: set[int] = field(default_factory=set)  # cleared slots that a lease still holds
    held: dict[int, Held] = field(default_factory=dict)  # by generation
    deadlines: dict[tuple[str, int], float] = field(default_factory=dict)  # of operations with live reservations
    sessions: dict[tuple[str, int], Leased] = field(default_factory=dict)
    reads: dict[tuple[str, int], Leased] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)  # registered schedulers: highest ended session
    registered: set[str] = field(default_factory=set)
    answered: dict[int, tuple[str, int, CommitStatus]] = field(default_factory=dict)
    state: Lifecycle = Lifecycle.READY
    drain_deadline: float = 0.0
    engines: dict[str, tuple[Lifecycle, float]] = field(default_factory=dict)

    def pinned(self) -> set[int]:
        leases = [*self.sessions.values(), *self.reads.values()]
        return {slot for lease in leases for slot in lease.slots if slot is not None}

    def live(self) -> dict[int, Held]:
        return {generation: one for generation, one in self.held.items() if one.state == "live"}


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables(
            NUM_SLABS,
            SLAB_CHUNKS,
            lease_seconds=LEASE,
            max_lease_seconds=MAX_LEASE,
            reservation_seconds=RESERVATION,
            drain_deadline_seconds=20.0,
            max_reserved_fraction=0.5,
        )
        self.ref = Reference()
        self.log_read = len(self.tables.file.log)
        self.ids = {name: self.spec(name).party for name in ENGINE_OF}

    @initialize()
    def begin_with_work_under_way(self) -> None:
        for name in ENGINE_OF:
            self.register(name)
        self.store("narrow", [0, 1, 2])
        self.store("wide", [0])
        self.lookup("front", 0, [0, 1, 2])
        self.read("twin", 0, [0, 1])
        self.reserve("twin", 1, [3])

    # -- the reference's own steps

    def spec(self, name: str):
        facts = {"engine": ENGINE_OF[name], "group": WORKERS.get(name, SCHEDULERS.get(name)).hex()}
        if name in SCHEDULERS:
            return self.tables.spec(name, role=Role.SCHEDULER, namespace=SCHEDULERS[name], **facts)
        namespace = WORKERS[name]
        return self.tables.spec(name, namespace=namespace, chunk_bytes=WIDTH[namespace] * CHUNK_BYTES, **facts)

    def view_state(self, name: str) -> Lifecycle:
        if self.ref.state is not Lifecycle.READY:
            return self.ref.state
        return self.ref.engines.get(ENGINE_OF[name], (Lifecycle.READY, 0.0))[0]

    def refused(self, code: ErrorCode, step) -> None:
        with pytest.raises(Refusal) as refused:
            step()
        assert refused.value.code is code
        assert self.tables.settle() == []

    def evicted(self, may_not_go: set[int]) -> None:
        """Take from the log which chunks left, and check that each of them could."""
        for effect in self.new_effects():
            if isinstance(effect, FreeHeader):
                names = [name for name, slot in self.ref.ready.items() if slot == effect.slot]
                assert len(names) == 1, "a header was freed that was not READY"
                assert effect.slot not in may_not_go, "a chunk was evicted that may not go"
                del self.ref.ready[names[0]]

    def new_effects(self) -> list:
        effects = self.tables.file.log[self.log_read :]
        self.log_read = len(self.tables.file.log)
        return effects

    def unpin(self) -> None:
        self.ref.orphans &= self.ref.pinned()

    def end_read(self, name: str, operation: int) -> None:
        self.ref.reads.pop((name, operation), None)
        self.unpin()

    def drop_held(self, condition) -> None:
        self.ref.held = {generation: one for generation, one in self.ref.held.items() if not condition(one)}
        self.forget_idle()

    def forget_idle(self) -> None:
        busy = {(one.owner, one.operation) for one in self.ref.live().values()}
        self.ref.deadlines = {name: deadline for name, deadline in self.ref.deadlines.items() if name in busy}

    def quarantine(self, condition, state: str) -> None:
        for one in self.ref.live().values():
            if condition(one):
                one.state = state
        self.forget_idle()

    def remaining(self, engine: str = "") -> tuple[int, int]:
        operations = {(one.owner, one.operation) for one in self.ref.live().values()}
        of_engine = lambda name: not engine or ENGINE_OF[name] == engine  # noqa: E731
        return sum(of_engine(name) for name, _ in operations), sum(of_engine(name) for name, _ in self.ref.reads)

    def cut(self, engine: str = "") -> None:
        of_engine = lambda name: not engine or ENGINE_OF[name] == engine  # noqa: E731
        self.quarantine(lambda one: of_engine(one.owner), "cut")
        for (name, _), lease in self.ref.sessions.items():
            if of_engine(name):
                lease.slots = []
        self.ref.reads = {name: lease for name, lease in self.ref.reads.items() if not of_engine(name[0])}
        self.unpin()

    def move_drains(self) -> None:
        ref, now = self.ref, self.tables.now
        self.move_gateway()
        for engine, (state, deadline) in ref.engines.items():
            if state is Lifecycle.DRAINING and (self.remaining(engine) == (0, 0) or now >= deadline):
                if self.remaining(engine) != (0, 0):
                    self.cut(engine)
                ref.engines[engine] = (Lifecycle.DRAINED, deadline)
        self.move_gateway()

    def move_gateway(self) -> None:
        ref = self.ref
        if ref.state is Lifecycle.DRAINING:
            if self.remaining() == (0, 0):
                ref.state = Lifecycle.DRAINED
            elif self.tables.now >= ref.drain_deadline:
                self.cut()
                ref.state = Lifecycle.DRAINED

    def expire(self) -> None:
        now = self.tables.now
        for lease in self.ref.sessions.values():
            if lease.deadline <= now:
                lease.slots = []
        self.ref.reads = {name: lease for name, lease in self.ref.reads.items() if lease.deadline > now}
        due = {name for name, deadline in self.ref.deadlines.items() if deadline <= now}
        self.quarantine(lambda one: (one.owner, one.operation) in due, "quarantined")
        self.unpin()
        self.move_drains()

    # -- parties

    @rule(name=everyone)
    def register(self, name: str) -> None:
        step = lambda: self.tables.register(self.spec(name))  # noqa: E731
        if name not in self.ref.registered and self.ref.state in DRAINED_STATES:
            self.refused(ErrorCode.DRAINING, step)
            return
        step()
        self.ref.registered.add(name)
        if name in SCHEDULERS:
            self.ref.ended.setdefault(name, -1)
        self.drop_held(lambda one: one.owner == name and one.operation is None)

    def leave(self, name: str, proven: bool) -> None:
        if proven:
            self.tables.die(self.ids[name])
            self.drop_held(lambda one: one.owner == name)
        else:
            self.tables.core.unregister(self.ids[name], self.tables.now)
            self.tables.settle()
            self.quarantine(lambda one: one.owner == name, "quarantined")
        self.ref.registered.discard(name)
        self.ref.ended.pop(name, None)
        for table in (self.ref.sessions, self.ref.reads):
            for entry in [entry for entry in table if entry[0] == name]:
                del table[entry]
        self.unpin()
        self.move_drains()

    @rule(name=everyone, next_number=st.integers(0, 4), listed=st.sets(numbers, max_size=2))
    def heartbeat(self, name: str, next_number: int, listed: set[int]) -> None:
        ref, now = self.ref, self.tables.now
        if name in SCHEDULERS:
            next_number = self.session_of(name, next_number - 3)
            listed = {self.session_of(name, number - 2) for number in listed}
        if name in WORKERS:
            view = self.tables.heartbeat(self.ids[name], next_operation=next_number, operations=sorted(listed))
        else:
            view = self.tables.heartbeat(self.ids[name], next_session=next_number, sessions=sorted(listed))
        assert view.known == (name in ref.registered)
        if not view.known:
            assert view.state is ref.state
            return
        if name in WORKERS:
            ended = lambda number: number is not None and number not in listed and number < next_number  # noqa: E731
            self.drop_held(lambda one: one.owner == name and ended(one.operation))
            for owner, operation in [one for one in ref.reads if one[0] == name and ended(one[1])]:
                self.end_read(owner, operation)
            for number in listed:
                if (name, number) in ref.deadlines:
                    ref.deadlines[name, number] = now + RESERVATION
                if (name, number) in ref.reads:
                    ref.reads[name, number].deadline = now + LEASE
        else:
            self.heal_sessions(name, next_number, listed, view)
        self.move_drains()
        assert view.state is self.view_state(name)

    def heal_sessions(self, name: str, next_session: int, listed: set[int], view) -> None:
        ref, now = self.ref, self.tables.now
        renews = self.view_state(name) is Lifecycle.READY
        for entry in [one for one in ref.sessions if one[0] == name]:
            lease = ref.sessions[entry]
            if entry[1] not in listed and entry[1] < next_session:
                del ref.sessions[entry]
            elif entry[1] in listed and renews and lease.slots and lease.deadline > now:
                lease.deadline = min(now + LEASE, lease.cap)
        for number in listed:
            if number < next_session:
                ref.sessions.setdefault((name, number), Leased([], now))
        ref.ended[name] = max(ref.ended[name], next_session - 1)
        self.unpin()
        live = {
            number: ref.sessions[name, number].deadline
            for number in sorted(listed)
            if (name, number) in ref.sessions and any(s is not None for s in ref.sessions[name, number].slots)
        }
        live = {number: deadline for number, deadline in live.items() if deadline > now}
        assert view.live_sessions == tuple(live)
        assert view.lease_deadline == min(live.values(), default=0.0)

    # -- scheduler half

    def session_of(self, name: str, ahead: int) -> int:
        return max(0, self.ref.ended.get(name, -1) + 1 + ahead)

    @rule(name=schedulers, ahead=near, wanted=chains)
    def lookup(self, name: str, ahead: int, wanted: list[int]) -> None:
        ref, now, namespace = self.ref, self.tables.now, SCHEDULERS[name]
        session = self.session_of(name, ahead)
        step = lambda: self.tables.lookup(self.ids[name], session, map(key, wanted), namespace)  # noqa: E731
        if name not in ref.registered:
            self.refused(ErrorCode.UNKNOWN_PARTY, step)
            return
        found = step()
        hits = []
        for number in wanted:
            if (namespace, number) not in ref.ready:
                break
            hits.append(ref.ready[namespace, number])
        is_live = (name, session) in ref.sessions
        if self.view_state(name) is not Lifecycle.READY or (not is_live and session <= ref.ended[name]):
            assert found == 0
            return
        assert found == len(hits)
        ref.sessions[name, session] = Leased(list(hits), now + LEASE, now + MAX_LEASE)
        self.unpin()

    @rule(name=schedulers, ahead=near, start=st.integers(0, 3), length=st.integers(0, 4))
    def release(self, name: str, ahead: int, start: int, length: int) -> None:
        session = self.session_of(name, ahead)
        self.tables.core.release(self.ids[name], session, start, start + length, self.tables.now)
        self.tables.settle()
        lease = self.ref.sessions.get((name, session))
        if lease is not None:
            lease.slots = [None if start <= i < start + length else slot for i, slot in enumerate(lease.slots)]
        self.unpin()

    @rule(name=schedulers, ahead=near)
    def end_session(self, name: str, ahead: int) -> None:
        session = self.session_of(name, ahead)
        self.tables.core.end_session(self.ids[name], session, self.tables.now)
        self.tables.settle()
        self.ref.sessions.pop((name, session), None)
        if name in self.ref.registered:
            self.ref.ended[name] = max(self.ref.ended[name], session)
        self.unpin()

    # -- worker half

    @rule(name=workers, operation=numbers, wanted=chains)
    def reserve(self, name: str, operation: int, wanted: list[int]) -> None:
        ref, namespace = self.ref, WORKERS[name]
        step = lambda: self.tables.reserve(self.ids[name], operation, list(map(key, wanted)))  # noqa: E731
        if name not in ref.registered:
            self.refused(ErrorCode.UNKNOWN_PARTY, step)
            return
        if self.view_state(name) is not Lifecycle.READY:
            self.refused(ErrorCode.DRAINING, step)
            return
        found_here = {ref.ready[namespace, number] for number in wanted if (namespace, number) in ref.ready}
        self.new_effects()
        grants = step()
        self.evicted(may_not_go=ref.pinned() | ref.orphans | found_here)
        end = None
        for number, grant in zip(wanted, grants, strict=True):
            if end is not None:
                assert grant.status is end
                continue
            known = [
                (generation, one)
                for generation, one in ref.live().items()
                if (one.namespace, one.number) == (namespace, number)
            ]
            mine = sum(WIDTH[one.namespace] for one in ref.held.values() if one.owner == name)
            if (namespace, number) in ref.ready and not known:
                assert grant.status is ReserveStatus.EXISTS
            elif known and (known[0][1].owner, known[0][1].operation) != (name, operation):
                assert grant.status is ReserveStatus.BUSY
            elif known:
                assert (grant.status, grant.generation) == (ReserveStatus.GRANTED, known[0][0])
                ref.deadlines[name, operation] = self.tables.now + RESERVATION
            elif mine + WIDTH[namespace] > NUM_SLABS * SLAB_CHUNKS // 2:
                assert grant.status is ReserveStatus.QUOTA
                end = grant.status
            elif grant.status is ReserveStatus.FULL:
                self.check_full(namespace, found_here)
                end = grant.status
            else:
                assert grant.status is ReserveStatus.GRANTED
                assert grant.generation not in ref.held
                ref.held[grant.generation] = Held(name, operation, namespace, number, grant.slot)
                ref.deadlines[name, operation] = self.tables.now + RESERVATION
        assert len({one.slot for one in ref.held.values()}) == len(ref.held)

    def check_full(self, namespace: bytes, found_here: set[int]) -> None:
        """FULL is right only when no slot and no slab could be had."""
        kept = self.ref.pinned() | self.ref.orphans | found_here | {one.slot for one in self.ref.held.values()}
        sizes = {one.slot: one.namespace for one in self.ref.held.values()}
        sizes |= {slot: name[0] for name, slot in self.ref.ready.items()}
        for slab in range(NUM_SLABS):
            here = {slot for slot in kept if slot // SLAB_CHUNKS == slab}
            assert here, "a slab could have been emptied"
            if all(sizes.get(slot) == namespace for slot in here):
                assert len(here) == SLAB_CHUNKS // WIDTH[namespace], "a slot of this size could have been had"

    @rule(data=st.data(), name=workers, operation=numbers)
    def commit(self, data: st.DataObject, name: str, operation: int) -> None:
        ref = self.ref
        choices = [*ref.held] * 2 + [*ref.answered][-2:] + [1]
        generation = data.draw(st.sampled_from(choices))
        held = ref.held.get(generation)
        if held is not None and held.operation is not None and data.draw(st.integers(0, 4)):
            name, operation = held.owner, held.operation  # most of the time it is the owner who commits
        self.commit_one(name, operation, generation)

    def commit_one(self, name: str, operation: int, generation: int) -> None:
        ref = self.ref
        step = lambda: self.tables.commit(self.ids[name], operation, generation)  # noqa: E731
        if name not in ref.registered:
            self.refused(ErrorCode.UNKNOWN_PARTY, step)
            return
        (status,) = step()
        one = ref.held.get(generation)
        if one is None or (one.owner, one.operation) != (name, operation):
            owner, known_operation, answer = ref.answered.get(generation, ("", -1, CommitStatus.UNKNOWN))
            assert status is (answer if (owner, known_operation) == (name, operation) else CommitStatus.UNKNOWN)
            return
        place = (one.namespace, one.number)
        if one.state == "cut":
            expected = CommitStatus.DRAINED
        elif one.is_cleared:
            expected = CommitStatus.CLEARED
        elif place in ref.ready:
            expected = CommitStatus.EXISTS
        else:
            expected = CommitStatus.COMMITTED
            ref.ready[place] = one.slot
        assert status is expected
        ref.answered[generation] = (name, operation, status)
        del ref.held[generation]
        self.forget_idle()
        self.move_drains()

    @rule(name=workers, operation=numbers)
    def abort(self, name: str, operation: int) -> None:
        self.tables.abort(self.ids[name], operation)
        self.drop_held(lambda one: (one.owner, one.operation) == (name, operation))
        self.move_drains()

    @rule(name=workers, operation=numbers, wanted=chains)
    def read(self, name: str, operation: int, wanted: list[int]) -> None:
        ref, namespace = self.ref, WORKERS[name]
        step = lambda: self.tables.read(self.ids[name], operation, map(key, wanted))  # noqa: E731
        if name not in ref.registered:
            self.refused(ErrorCode.UNKNOWN_PARTY, step)
            return
        known = ref.reads.get((name, operation))
        if known is not None:
            if known.wanted != tuple(wanted):
                self.refused(ErrorCode.INVALID, step)
                return
            assert step() == known.answer
            known.deadline = self.tables.now + LEASE
            return
        slots = [ref.ready.get((namespace, number), -1) for number in wanted]
        state = self.view_state(name)
        promised = {
            slot
            for (scheduler, _), lease in ref.sessions.items()
            for slot in lease.slots
            if SCHEDULERS[scheduler] == namespace
        }
        if state is not Lifecycle.READY and not (state is Lifecycle.DRAINING and promised.issuperset(slots)):
            self.refused(ErrorCode.DRAINING, step)
            return
        answer = step()
        assert [grant.slot for grant in answer] == slots
        if any(slot >= 0 for slot in slots):
            leased = [slot for slot in slots if slot >= 0]
            ref.reads[name, operation] = Leased(leased, self.tables.now + LEASE, answer=answer, wanted=tuple(wanted))

    @rule(name=workers, operation=numbers)
    def done(self, name: str, operation: int) -> None:
        self.tables.end_read(self.ids[name], operation)
        self.end_read(name, operation)
        self.move_drains()

    @rule(name=workers, wanted=chains)
    def store(self, name: str, wanted: list[int]) -> None:
        """Reserve and commit what can be: gives the other rules something to find."""
        before = set(self.ref.held)
        self.reserve(name, STORING, wanted)
        for generation in self.ref.held.keys() - before:
            self.commit_one(name, STORING, generation)

    @precondition(lambda self: self.ref.state is not Lifecycle.READY or self.ref.engines)
    @rule()
    def resume_all(self) -> None:
        self.resume()
        for engine in list(self.ref.engines):
            self.resume_engine(engine)

    @precondition(lambda self: len(self.ref.registered) < len(ENGINE_OF))
    @rule()
    def register_all(self) -> None:
        for name in ENGINE_OF:
            self.register(name)

    @rule(data=st.data(), what=st.sampled_from(["drain", "engine", "resume", "clear", "restart", "leave"]))
    def interrupt(self, data: st.DataObject, what: str) -> None:
        """One rule for all that interrupts, so that enough happens in between."""
        if what == "drain":
            self.drain(data.draw(st.sampled_from([None, 0.0, 5.0])))
        elif what == "engine":
            self.drain_engine(data.draw(engines), data.draw(st.sampled_from([0.0, 5.0])))
        elif what == "resume":
            self.resume()
            self.resume_engine(data.draw(engines))
        elif what == "clear":
            self.clear(data.draw(st.sampled_from([NARROW, WIDE, b""])))
        elif what == "restart":
            self.restart()
            for name in data.draw(st.sets(everyone)):
                self.register(name)
        else:
            self.leave(data.draw(everyone), data.draw(st.booleans()))

    # -- operators, time, restart

    def drain(self, deadline: float | None) -> None:
        ref, now = self.ref, self.tables.now
        seconds = 20.0 if deadline is None else deadline
        assert self.tables.drain(deadline) == (ref.state is Lifecycle.DRAINED)
        if ref.state is Lifecycle.READY:
            ref.state, ref.drain_deadline = Lifecycle.DRAINING, now + seconds
        elif ref.state is Lifecycle.DRAINING:
            ref.drain_deadline = min(ref.drain_deadline, now + seconds)
        self.move_drains()

    def resume(self) -> None:
        self.tables.resume()
        self.ref.state = Lifecycle.READY

    def drain_engine(self, engine: str, deadline: float) -> None:
        ref, now = self.ref, self.tables.now
        step = lambda: self.tables.core.drain_engine(engine, deadline, now)  # noqa: E731
        if engine not in ref.engines and not any(ENGINE_OF[name] == engine for name in ref.registered):
            self.refused(ErrorCode.NOT_FOUND, step)
            return
        already = step()
        self.tables.settle()
        state, old = ref.engines.get(engine, (Lifecycle.DRAINING, now + deadline))
        assert already == (state is Lifecycle.DRAINED)
        ref.engines[engine] = (state, min(old, now + deadline))
        self.move_drains()

    def resume_engine(self, engine: str) -> None:
        step = lambda: self.tables.core.resume_engine(engine, self.tables.now)  # noqa: E731
        if engine not in self.ref.engines and not any(ENGINE_OF[name] == engine for name in self.ref.registered):
            self.refused(ErrorCode.NOT_FOUND, step)
            return
        step()
        self.ref.engines.pop(engine, None)

    def clear(self, namespace: bytes) -> None:
        ref = self.ref
        if namespace and all(namespace != record.namespace for record, *_ in self.tables.core.namespace_usage()):
            assert not any(namespace == name[0] for name in ref.ready)
            self.refused(ErrorCode.NOT_FOUND, lambda: self.tables.clear(namespace=namespace))
            return
        result = self.tables.clear(namespace=namespace, everything=not namespace)
        taken = {name: slot for name, slot in ref.ready.items() if namespace in (b"", name[0])}
        pinned = ref.pinned()
        kept = {slot for slot in taken.values() if slot in pinned}
        assert (result.chunks, result.held_chunks) == (len(taken), len(kept))
        ref.orphans |= kept
        for name in taken:
            del ref.ready[name]
        for one in ref.held.values():
            one.is_cleared |= namespace in (b"", one.namespace)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.tables.wait(seconds)
        self.expire()

    def restart(self) -> None:
        ref = self.ref
        assert self.tables.restart() == len(ref.ready)
        assert {(one.namespace, int.from_bytes(one.key, "big")) for one in self.ready_headers()} == set(ref.ready)
        ref.held = {
            generation: Held(one.owner, None, one.namespace, one.number, one.slot, "quarantined")
            for generation, one in ref.held.items()
        }
        self.ref = Reference(ready=ref.ready, held=ref.held)

    def ready_headers(self):
        return [one for one in self.tables.file.headers.values() if one.is_ready]

    # -- what must always be true

    @invariant()
    def tables_agree_with_the_reference(self) -> None:
        ref, core = self.ref, self.tables.core
        assert core.state is ref.state
        live = len(ref.live())
        assert self.tables.counts() == (len(ref.ready) + len(ref.orphans), live, len(ref.held) - live)
        leased = sum(any(slot is not None for slot in lease.slots) for lease in ref.sessions.values())
        assert core.lease_counts() == (leased, len(ref.reads), live)
        assert core.remaining() == self.remaining()
        assert {party.spec.party for party in core.party_states()} == {self.ids[name] for name in ref.registered}
        assert core.owners() == {self.ids[name] for name in ref.registered | {one.owner for one in ref.held.values()}}
        headers = {(one.namespace, int.from_bytes(one.key, "big"), one.slot) for one in self.ready_headers()}
        assert headers >= {(*name, slot) for name, slot in ref.ready.items()}
        assert len(headers) == len(ref.ready) + len(ref.orphans)
        for engine, (state, _) in ref.engines.items():
            assert core.engine_states()[engine] == (state, False)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=scaled(100, 400), stateful_step_count=50, deadline=None)
