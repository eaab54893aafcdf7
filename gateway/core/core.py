"""The core: every table of the daemon behind one small set of steps.

Owns: the order in which its rooms (admission, parties, drain, stores, retrieves, leases, chunks) are asked. Must not
know: messages, files, sockets, the time (it is passed in). Runs on the daemon's one loop thread.

Every method is one step: it either does all it says, or raises ``Refusal`` and changes nothing. What must reach the
pool file before the reply is sent is left in ``take_effects()``, in order.

``now`` is CLOCK_MONOTONIC, ``wall`` is Unix time, both in seconds.
"""

import random
from collections.abc import Iterable, Sequence

from gateway.core.admission import STOPPED, Admission, SwitchOf, check_clear, check_keys, check_numbers, check_reserve
from gateway.core.chunks import Chunks
from gateway.core.drain import Drains
from gateway.core.healing import Healing
from gateway.core.index import Group, Index
from gateway.core.leases import Leases
from gateway.core.lifecycle import Event, IllegalStep
from gateway.core.namespaces import Namespaces
from gateway.core.parties import Parties, Party, check_spec
from gateway.core.policy.order import NO_SLOT
from gateway.core.recovery import recover
from gateway.core.reservations import Reservations
from gateway.core.retrieves import Retrieves
from gateway.core.slots import Slots
from gateway.core.stores import Stores
from gateway.core.types import (
    ClearResult,
    CommitResult,
    CoreConfig,
    Counts,
    DrainRecord,
    Effect,
    Found,
    FoundSlots,
    NamespaceRecord,
    PartySpec,
    PartyState,
    PartyView,
    PoolFacts,
    ReadGrant,
    Refusal,
    ReserveGrant,
)
from gateway.wire.codes import ErrorCode, Lifecycle, Role

_NO_POOL = PoolFacts(b"", boot_epoch=0, clear_epoch=0, num_slabs=0, slab_bytes=1, slots_per_slab=1, min_slot_bytes=1)


class Core:
    """All state of one boot."""

    counts: Counts

    def __init__(self, config: CoreConfig, *, boot: bytes, now: float, wall: float) -> None:
        """A core in ``starting``; it has no pool until ``open_pool``."""
        self.counts = Counts(eviction_idle_seconds=[0] * (len(config.idle_buckets) + 1))
        self._config = config
        self._random = random.Random(boot)
        self._wall_offset = wall - now
        self._effects: list[Effect] = []
        self._parties = Parties(config.max_parties, config.max_models)
        self._drains = Drains(self, self.counts, lambda: f"{self._random.getrandbits(64):016x}")
        self._admission = Admission(config, self._drains, self._parties, self._random)
        self._build(_NO_POOL)

    def _build(self, facts: PoolFacts) -> None:
        config, counts = self._config, self.counts
        self._slots = Slots(facts, self._effects, config.eviction_policy)
        self._index = Index()
        self._chunks = Chunks(self._slots, self._index, counts, config.idle_buckets)
        self._namespaces = Namespaces(self._chunks, facts.clear_epoch)
        self._leases = Leases(self._chunks)
        self._retrieves = Retrieves(config, self._chunks, self._leases, counts)
        self._reservations = Reservations(self._slots)
        self._stores = Stores(
            self._chunks, self._reservations, counts, max_reserved_fraction=config.max_reserved_fraction
        )
        self._healing = Healing(config, self._reservations, self._stores, self._leases)

    # -- start and stop

    def open_pool(self, facts: PoolFacts, found: FoundSlots, namespaces: Iterable[NamespaceRecord], now: float) -> int:
        """Take the pool as the scan found it; returns READY chunks recovered.

        WRITING slots are quarantined under their owner. A record that contradicts the pool or an earlier one is freed.

        Raises:
            Refusal: CONFLICT; the gateway is not starting.
        """
        if self.state is not Lifecycle.STARTING:
            raise IllegalStep(self.state, Event.INIT_DONE)
        self._build(facts)
        return recover(self._chunks, self._reservations, found, namespaces, now)

    def init_done(self, now: float) -> None:  # noqa: ARG002 - every step has the time
        """The pool is there: starting becomes ready.

        Raises:
            Refusal: CONFLICT; the gateway is not starting.
        """
        self._drains.init_done()

    def stop_signal(self, now: float, wall: float) -> None:
        """SIGTERM or SIGINT: draining(exit), then force, then stopping."""
        self._wall_offset = wall - now
        self._drains.signal(self._config.stop_deadline_seconds, now, wall)

    def ended(self) -> None:
        """The shell has closed everything: stopping becomes stopped."""
        self._drains.ended()

    @property
    def state(self) -> Lifecycle:
        """The lifecycle state."""
        return self._drains.state

    # -- parties

    def register(self, spec: PartySpec, *, lock_held: bool, holds_nothing: bool, now: float, wall: float) -> None:
        """A party comes, or comes back. It frees nothing of this boot.

        Raises:
            Refusal: STARTING, STOPPING, DRAINING (only a known party may come back), INVALID, LOCK_NOT_HELD, FENCED,
                COLLISION, LIMIT or GEOMETRY.
        """
        self._wall_offset = wall - now
        if self._parties.find(spec.party) is None:
            self._admission.newcomer()
        self._admission.serving()
        check_spec(spec, self._slots.facts.slab_bytes)
        if not lock_held:
            raise Refusal(
                ErrorCode.LOCK_NOT_HELD,
                f"the lock of party {spec.party.hex()} is not seen held: locks do not work across these rooms",
            )
        self._parties.admit(spec)
        if spec.namespace:
            self._namespaces.make_room(
                spec.namespace, lambda: self._parties.namespaces() | self._reservations.namespaces()
            )
        self._parties.add(spec, wall)
        if spec.namespace:
            self._namespaces.describe(spec)
        if holds_nothing:
            self._stores.free_older(spec.party, self._slots.facts.boot_epoch, now)

    def unregister(self, party: bytes, now: float) -> None:
        """A party leaves: its leases end, its live reservations are quarantined. An unknown one changes nothing.

        Raises:
            Refusal: STARTING.
        """
        self._admission.ending()
        self._parties.remove(party)
        self._leases.end_party(party, now)
        self._stores.leave(party, now)
        self._move_drains(now)

    def heartbeat(
        self,
        party: bytes,
        *,
        next_operation: int,
        operations: Sequence[int],
        next_session: int,
        sessions: Sequence[int],
        now: float,
        wall: float,
    ) -> PartyView:
        """A party lives. What is below ``next_*`` and not listed is ended; only what is listed is renewed.

        An unknown party is answered ``known=False``, never refused; an empty party is a probe.

        Raises:
            Refusal: INVALID; a number is negative.
        """
        self._wall_offset = wall - now
        check_numbers(next_operation=next_operation, next_session=next_session)
        found = self._parties.find(party)
        if found is None:
            drain_id, drain_deadline = self._drains.notice()
            return PartyView(known=False, state=self.state, drain_id=drain_id, drain_deadline=drain_deadline)
        found.last_heartbeat_at = wall
        self._move_drains(now)
        self._healing.operations(party, next_operation, operations, now)
        renews = self._admission.party_state(found) is Lifecycle.READY
        self._healing.sessions(found, next_session, sessions, now, renews=renews)
        self._move_drains(now)
        return self._view(found, sessions, now)

    def party_died(self, party: bytes, now: float) -> None:
        """The party is proven dead: free its leases, reservations and quarantine."""
        if self._parties.bury(party):
            self.counts.deaths += 1
        self._leases.end_party(party, now)
        self._stores.bury(party, now)
        self._move_drains(now)

    def engine_of(self, party: bytes) -> str:
        """The engine's name of a registered party; empty for every other."""
        found = self._parties.find(party)
        return "" if found is None else found.spec.engine

    def owners(self) -> frozenset[bytes]:
        """Ids whose death matters: registered and fenced parties, owners of slots."""
        registered = (party.id for party in self._parties)
        return self._parties.fenced().union(registered, self._reservations.owners())

    # -- scheduler half

    def lookup(  # noqa: PLR0917 - the message's fields, in order
        self, party: bytes, session: int, namespace: bytes, keys: Sequence[bytes], now: float, wall: float
    ) -> Found:
        """How many leading chunks are there, all shards of each; leases them for the session, in place of its lease.

        Raises:
            Refusal: STARTING, STOPPING, UNKNOWN_PARTY, FENCED, INVALID, or LIMIT (too many sessions).
        """
        self._wall_offset = wall - now
        self._admission.serving()
        scheduler = self._parties.require(party, Role.SCHEDULER)
        spec = scheduler.spec
        check_numbers(session=session)
        check_keys(keys)
        if spec.namespace and namespace != spec.namespace:
            raise Refusal(
                ErrorCode.INVALID, f"namespace is {namespace.hex()}, expected {spec.namespace.hex()} as registered"
            )
        self._admission.session(party, session, self._leases)
        found = Found(0, 0.0)
        if self._admission.party_state(scheduler) is Lifecycle.READY and self._admission.switch(scheduler).loads:
            found = self._retrieves.lookup(scheduler, session, namespace, keys, now=now, wall=wall)
        self._retrieves.count_lookup(spec, self._parties.model_label(spec.model), len(keys), found.chunks)
        return found

    def release(self, party: bytes, session: int, start: int, end: int, now: float) -> None:
        """End the session's lease on its chunks [start, end). What it does not hold changes nothing.

        Raises:
            Refusal: STARTING, or INVALID when the range makes no sense.
        """
        self._admission.ending()
        if not 0 <= start <= end:
            raise Refusal(ErrorCode.INVALID, f"range is [{start}, {end}), expected 0 <= start <= end")
        self._leases.release(party, session, start, end, now)

    def end_session(self, party: bytes, session: int, now: float) -> None:
        """End a session and its lease. A later LOOKUP at or below its number finds nothing.

        Raises:
            Refusal: STARTING, or INVALID when the number is negative.
        """
        self._admission.ending()
        check_numbers(session=session)
        found = self._parties.find(party)
        if found is not None:
            found.last_ended_session = max(found.last_ended_session, session)
        self._leases.end_session(party, session, now)

    # -- worker half

    def reserve(  # noqa: PLR0917 - the message's fields, in order
        self, party: bytes, operation: int, keys: Sequence[bytes], depth: int, parent: bytes, now: float
    ) -> tuple[tuple[ReserveGrant, ...], float]:
        """Right to fill one slot a key: one grant a key, and the deadline of those granted (0 when none is).

        Repeating it for the same operation gives the same grants.

        Raises:
            Refusal: STARTING, STOPPING, DRAINING, OFF, UNKNOWN_PARTY, FENCED, INVALID, or LIMIT (too many operations).
        """
        self._admission.serving()
        worker = self._parties.require(party, Role.WORKER)
        check_numbers(operation=operation)
        check_reserve(keys, depth, parent)
        if not self._admission.switch(worker).stores:
            raise self._admission.switched_off(worker, "no store is taken")
        if self._admission.party_state(worker) is not Lifecycle.READY:
            raise self._admission.draining(worker)
        self._admission.operation(party, operation, self._reservations, self._leases)
        deadline = now + self._config.reservation_seconds
        grants = self._stores.reserve(
            worker.spec,
            self._namespaces.group_of(worker.spec),
            operation,
            keys,
            depth=depth,
            parent=parent,
            clear_epoch=self._namespaces.clear_epoch,
            deadline=deadline,
            now=now,
        )
        if all(grant.slot == NO_SLOT for grant in grants):
            return grants, 0.0
        self._reservations.renew(party, operation, deadline)
        return grants, deadline

    def commit(self, party: bytes, operation: int, reservations: Sequence[int], now: float) -> CommitResult:
        """Publish filled reservations, whatever the state; one status each, in order. The first COMMIT of a key wins.

        Raises:
            Refusal: STARTING, UNKNOWN_PARTY or FENCED.
        """
        self._move_drains(now)  # a drain's deadline that has passed comes first, whatever the adapters do at it
        self._admission.ending()
        self._parties.require(party, Role.WORKER)
        result = self._stores.commit(party, operation, reservations, now)
        self._move_drains(now)
        return result

    def abort(self, party: bytes, operation: int, reservations: Sequence[int], now: float) -> None:
        """No unit of the operation writes any more: free what it reserved and did not commit (none named: all).

        What it does not hold changes nothing. An owner that has unregistered may still say it.

        Raises:
            Refusal: STARTING or FENCED.
        """
        self._move_drains(now)
        self._admission.ending()
        if self._parties.find(party) is not None or party in self._parties.fenced():
            self._parties.require(party, Role.WORKER)
        self._stores.abort(party, operation, reservations, now)
        self._move_drains(now)

    def read(
        self, party: bytes, operation: int, keys: Sequence[bytes], now: float, wall: float
    ) -> tuple[tuple[ReadGrant, ...], float]:
        """Right to read the slots of these keys until ``end_read``: one grant a key, and the lease's deadline, or 0.

        Repeating it for the same operation gives the same answer. While draining, only keys under a live lookup lease
        of the same group are granted.

        Raises:
            Refusal: STARTING, STOPPING, DRAINING, OFF, UNKNOWN_PARTY, FENCED, INVALID, or LIMIT (too many operations).
        """
        self._wall_offset = wall - now
        self._admission.serving()
        worker = self._parties.require(party, Role.WORKER)
        check_numbers(operation=operation)
        check_keys(keys)
        known = self._retrieves.repeat(party, operation, keys, now)
        if known is not None:
            return known.grants, known.deadline
        if not self._admission.switch(worker).loads:
            raise self._admission.switched_off(worker, "nothing is loaded")
        self._admission.operation(party, operation, self._reservations, self._leases)
        group = self._namespaces.group_of(worker.spec)
        state = self._admission.party_state(worker)
        if state is not Lifecycle.READY and not (
            state is Lifecycle.DRAINING and self._is_promised(worker, group, keys, now)
        ):
            raise self._admission.draining(worker)
        return self._retrieves.read(party, operation, group, keys, now=now)

    def _is_promised(self, worker: Party, group: Group, keys: Sequence[bytes], now: float) -> bool:
        """Whether all these keys are under live lookup leases of the worker's group: a drain lets them be read."""
        self._leases.expire(now)
        slots = {group.slots.get(key, NO_SLOT) for key in keys}
        return self._leases.leased_slots(self._parties.of_group(worker.spec.group), slots) == slots

    def end_read(self, party: bytes, operation: int, now: float) -> None:
        """End the operation's read lease; an unknown one changes nothing.

        Raises:
            Refusal: STARTING.
        """
        self._move_drains(now)
        self._admission.ending()
        self._leases.end_read(party, operation, now)
        self._move_drains(now)

    # -- operators

    def drain(
        self,
        *,
        deadline_seconds: float | None,
        reason: str,
        requested_by: str,
        flush: bool,
        exit: bool,  # noqa: A002 - the contract's word
        now: float,
        wall: float,
    ) -> bool:
        """Begin or join a drain; 0 seconds cut at once. Returns whether the gateway was drained already.

        Raises:
            Refusal: CONFLICT or INVALID.
        """
        self._wall_offset = wall - now
        if deadline_seconds is None:
            deadline_seconds = self._config.drain_deadline_seconds
        return self._drains.request(
            deadline_seconds,
            reason=reason,
            requested_by=requested_by,
            flush=flush,
            exits=exit,
            now=now,
            wall=wall,
        )

    def resume(self, now: float, wall: float) -> None:
        """Take new work again, from every engine that is not drained alone.

        Raises:
            Refusal: CONFLICT; starting, stopping, or the drain under way ends the process.
        """
        self._wall_offset = wall - now
        self._drains.resume(wall)

    def drain_engine(self, engine: str, deadline_seconds: float | None, now: float) -> bool:
        """Begin or join a drain of one engine; 0 seconds cut at once. Returns whether it was drained already.

        Raises:
            Refusal: CONFLICT, or NOT_FOUND when there is no such engine.
        """
        self._admission.engine(engine)
        if deadline_seconds is None:
            deadline_seconds = self._config.drain_deadline_seconds
        was_drained = self._drains.request_engine(engine, deadline_seconds, now)
        self._move_drains(now)
        return was_drained

    def resume_engine(self, engine: str, now: float) -> None:  # noqa: ARG002 - every step has the time
        """End the engine's own drain and its fence. Resuming one that is neither changes nothing.

        Raises:
            Refusal: CONFLICT, or NOT_FOUND when there is no such engine.
        """
        self._admission.engine(engine)
        self._drains.resume_engine(engine)
        self._parties.unfence(engine)

    def clear(self, *, model: str, namespace: bytes, all: bool, dry_run: bool, now: float) -> ClearResult:  # noqa: A002, ARG002
        """Forget chunks: of a model, of a namespace, or all. Exactly one of the three is set.

        What a reader holds leaves the index at once and is freed by its last release.

        Raises:
            Refusal: STARTING, STOPPING, INVALID, or NOT_FOUND when nothing is known of that model or namespace.
        """
        self._admission.serving()
        check_clear(model, namespace, all)
        return self._namespaces.clear(model, namespace, everything=all, dry_run=dry_run)

    def fence(self, engine: str, now: float) -> None:
        """Take an engine's registrations away. Its slots stay quarantined until each party is proven dead.

        Raises:
            Refusal: STARTING, STOPPING, or NOT_FOUND when there is no such engine.
        """
        self._admission.serving()
        self._admission.engine(engine)
        for party in self._parties.of_engine(engine):
            self._parties.fence(party)
            self._leases.end_party(party, now)
            self._stores.leave(party, now)
        self._move_drains(now)

    def obey(self, switch_of: SwitchOf) -> None:
        """Obey these switches from now on: by a model's and an engine's name, whatever drains and resumes say.

        What is granted runs on; the adapters settle it.
        """
        self._admission.switch_of = switch_of

    # -- time

    def tick(self, now: float, wall: float) -> None:
        """Expire leases and reservations, move drains on. Called often; cheap when nothing is due."""
        self._wall_offset = wall - now
        self._leases.expire(now)
        self._stores.expire(now)
        self._move_drains(now)
        if self._drains.engines:
            self._drains.forget_left(self._parties.engines(), now)

    def take_effects(self) -> list[Effect]:
        """What the shell must write, in order; the list is emptied."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    # -- what a drain waits for

    def remaining(self, engine: str = "") -> tuple[int, int]:
        """Operations with live reservations, and read leases; of all, or of one engine."""
        parties = self._parties.of_engine(engine) if engine else None
        return self._reservations.num_storing(parties), self._leases.num_reads(parties)

    def num_ended(self) -> int:
        """How many of either have ended so far."""
        return self._reservations.num_ended + self._leases.num_reads_ended

    def cut(self, now: float, engine: str = "") -> None:
        """A drain is over: quarantine live reservations, drop leases; of all, or of one engine."""
        parties = self._parties.of_engine(engine) if engine else None
        self._stores.cut(now, parties)
        self._leases.cut(now, parties)

    def _move_drains(self, now: float) -> None:
        self._drains.move(now, now + self._wall_offset)

    # -- readings for snapshots

    def drain_record(self) -> DrainRecord | None:
        """The gateway's last drain, under way or over."""
        return self._drains.record()

    def party_states(self) -> list[PartyState]:
        """Every registered party."""
        states = []
        for party in self._parties:
            reserved_bytes, quarantined_bytes = self._reservations.held_bytes(party.id)
            states.append(
                PartyState(
                    spec=party.spec,
                    registered_at=party.registered_at,
                    last_heartbeat_at=party.last_heartbeat_at,
                    fenced=self._parties.is_fenced(party.spec.engine),
                    reserved_bytes=reserved_bytes,
                    quarantined_bytes=quarantined_bytes,
                    read_leases=len(self._leases.reads_of(party.id)),
                    sessions=len(self._leases.sessions_of(party.id)),
                )
            )
        return states

    def engine_states(self) -> dict[str, tuple[Lifecycle, bool]]:
        """By engine name: ready, draining or drained of its own, and whether it is fenced."""
        return {
            engine: (self._admission.engine_state(engine), self._parties.is_fenced(engine))
            for engine in sorted(self._parties.engines() | self._drains.engines.keys())
        }

    def namespace_usage(self) -> list[tuple[NamespaceRecord, int, int, float]]:
        """Each namespace with its READY chunks, their bytes, and the Unix time of the last hit, or 0."""
        return [(one.record, one.num_chunks, one.num_bytes, one.last_hit_wall) for one in self._index]

    def model_label(self, model: str) -> str:
        """A model's name as a label value; past the bound, ``other``."""
        return self._parties.model_label(model)

    def slot_counts(self) -> dict[str, int]:
        """Slots ready, writing, quarantined; bytes of each (``…_bytes``), ``free_bytes`` and ``pool_bytes``."""
        return self._slots.counts()

    def lease_counts(self) -> tuple[int, int, int]:
        """Lookup leases, read leases, live reservations."""
        return self._leases.num_sessions_leased(), self._leases.num_reads(), self._reservations.num_live

    def table_sizes(self) -> dict[str, int]:
        """Entries of the tables that no other gauge tells, by the names of the metric ``table_entries``."""
        return {
            "fenced_parties": len(self._parties.fenced()),
            **self._leases.sizes(),
            **self._reservations.sizes(),
            "namespaces": len(self._index),
            "groups": len(self._index.groups),
            "evicted_keys": self._chunks.num_evicted(),
            "answered_commits": self._stores.num_answered(),
            "engine_drains": len(self._drains.engines),
        }

    def check(self) -> None:
        """Raise AssertionError if any invariant is broken. For tests and KVGATE_VERIFY=1."""
        self._slots.check()
        self._chunks.check()
        self._leases.check()
        self._reservations.check()
        counts = self.slot_counts()
        parts = ("ready_bytes", "writing_bytes", "quarantined_bytes", "free_bytes")
        assert sum(counts[part] for part in parts) == counts["pool_bytes"], "the states do not add up to the pool"
        assert counts["free_bytes"] >= 0, "more than the pool is in use"
        if self.state in (Lifecycle.DRAINED, *STOPPED):
            assert self.remaining() == (0, 0), "drained, and something remains"

    # -- what a party is told

    def _view(self, party: Party, sessions: Sequence[int], now: float) -> PartyView:
        deadlines: dict[int, float] = {}
        for number in sessions:
            session = self._leases.session(party.id, number)
            if session is not None and session.deadline > now and session.is_leased:
                deadlines[number] = session.deadline
        drain_id, drain_deadline = self._drains.notice(party.spec.engine)
        return PartyView(
            known=True,
            state=self._admission.party_state(party),
            switch=self._admission.switch(party),
            drain_id=drain_id,
            drain_deadline=drain_deadline,
            live_sessions=tuple(deadlines),
            lease_deadline=min(deadlines.values(), default=0.0),
        )
