"""Stores: RESERVE, COMMIT and ABORT, from request to READY chunk.

Owns: the rules of granting and publishing, and the memory of COMMITs answered lately. Must not know: messages,
whether the gateway takes new work (the core asked before). Runs on the loop's thread.
"""

from collections import OrderedDict
from collections.abc import Container, Sequence

from gateway.core.chunks import Chunks
from gateway.core.index import Group
from gateway.core.policy.order import NO_SLOT
from gateway.core.reservations import Reservation, Reservations, Standing, Storing
from gateway.core.slots import GENERATION_COUNTER_BITS, SizeClass
from gateway.core.types import CommitResult, Counts, PartySpec, ReserveGrant, SlotRecord, WriteHeader
from gateway.wire.codes import CommitStatus, ReserveStatus

MAX_ANSWERED_COMMITS = 8192


class Stores:
    """The road of a chunk into the pool."""

    def __init__(
        self,
        chunks: Chunks,
        reservations: Reservations,
        counts: Counts,
        *,
        max_reserved_fraction: float,
    ) -> None:
        self._chunks = chunks
        self._slots = chunks.slots
        self._reservations = reservations
        self._counts = counts
        self._max_held_bytes = int(max_reserved_fraction * chunks.slots.pool_bytes)
        self._answered: OrderedDict[int, tuple[bytes, int, CommitStatus]] = OrderedDict()  # by generation, oldest first

    def num_answered(self) -> int:
        """Commits whose answer is remembered, at most ``MAX_ANSWERED_COMMITS``."""
        return len(self._answered)

    # -- reserve

    def reserve(
        self,
        spec: PartySpec,
        group: Group,
        operation: int,
        keys: Sequence[bytes],
        *,
        depth: int,
        parent: bytes,
        clear_epoch: int,
        deadline: float,
        now: float,
    ) -> tuple[ReserveGrant, ...]:
        """One grant a key, in order. Past the first QUOTA or FULL, the rest have the same answer.

        FULL, rather than room at the cost of this very prompt: what stands before a chunk, in any shard, does not go to
        store it, and nothing goes to store a chunk whose parent is gone. Neither could ever be hit.
        """
        size = self._slots.size_for(spec.chunk_bytes)
        here = [group.slots[key] for key in keys if key in group.slots]
        self._chunks.pin(here, now)  # what this request found must not go to make room for the rest of it
        grants: list[ReserveGrant] = []
        end: ReserveStatus | None = None
        prompt: set[bytes] | None = None  # None: nothing had to go yet
        for i, key in enumerate(keys):
            known = self._known(group, spec.party, operation, key) if end is None else ReserveGrant(end)
            if known is not None:
                grants.append(known)
                continue
            slot = NO_SLOT
            if self._is_over_quota(spec.party, size):
                end = ReserveStatus.QUOTA
            else:
                slot = self._slots.take(size)
                if slot == NO_SLOT:
                    prompt = self._prompt(group, parent, keys) if prompt is None else prompt
                    slot = self._take_from_others(size, group, prompt, here, now)
                if slot == NO_SLOT:
                    end = ReserveStatus.FULL
            if end is not None:
                grants.append(ReserveGrant(end))
                continue
            header = self._header(spec, slot, key, depth + i, clear_epoch)
            self._slots.effects.append(WriteHeader(header))
            self._reservations.grant(header, group, operation, keys[i - 1] if i else parent, deadline)
            grants.append(self._grant(header))
        self._chunks.unpin(here, now)
        return tuple(grants)

    def _prompt(self, group: Group, parent: bytes, keys: Sequence[bytes]) -> set[bytes]:
        """The keys, and those before them as far back as they are stored or being stored; none if the parent is not."""
        prompt: set[bytes] = set()
        key = parent
        while key and key not in prompt:  # parents come from clients: a ring must not hold the loop
            slot = group.slots.get(key, NO_SLOT)
            live = self._reservations.live(group, key) if slot == NO_SLOT else None
            if slot == NO_SLOT and live is None:
                break
            prompt.add(key)
            key = self._slots.parents[slot] if live is None else live.parent
        return prompt.union(keys) if prompt or not parent else prompt

    def _take_from_others(self, size: SizeClass, group: Group, prompt: set[bytes], held: list[int], now: float) -> int:
        """A slot for a chunk of this prompt, or NO_SLOT. What of it would go first is pinned, and put into ``held``."""
        slots, chunks = self._slots, self._chunks
        slot = NO_SLOT
        while slot == NO_SLOT and prompt:
            while (coldest := size.evictable.coldest()) != NO_SLOT and slots.keys[coldest] in prompt:
                if chunks.index.groups[slots.groups[coldest]].namespace is not group.namespace:
                    break
                chunks.pin((coldest,), now)
                held.insert(0, coldest)  # the coldest is the last of the prompt, and stays so
            if not chunks.make_room(size, now):
                break
            slot = slots.take(size)
        return slot

    def _known(self, group: Group, owner: bytes, operation: int, key: bytes) -> ReserveGrant | None:
        """The answer for a key that is READY or reserved already."""
        if key in group.slots:
            return ReserveGrant(ReserveStatus.EXISTS)
        live = self._reservations.live(group, key)
        if live is None:
            return None
        if live.header.owner == owner and live.operation == operation:
            return self._grant(live.header)
        return ReserveGrant(ReserveStatus.BUSY)

    def _is_over_quota(self, owner: bytes, size: SizeClass) -> bool:
        """Whether one more slot is more than the party's share; one is always allowed."""
        held_bytes = sum(self._reservations.held_bytes(owner))
        return held_bytes + size.extent > max(self._max_held_bytes, size.extent)

    def _header(self, spec: PartySpec, slot: int, key: bytes, depth: int, clear_epoch: int) -> SlotRecord:
        return SlotRecord(
            slot=slot,
            is_ready=False,
            owner=spec.party,
            namespace=spec.namespace,
            key=key,
            shard=spec.shard,
            depth=depth,
            extent=self._slots.size_of(slot).extent,
            payload_bytes=spec.chunk_bytes,
            generation=self._slots.generations[slot],
            clear_epoch=clear_epoch,
        )

    def _grant(self, header: SlotRecord) -> ReserveGrant:
        offset = self._slots.offset_of(header.slot)
        return ReserveGrant(ReserveStatus.GRANTED, header.slot, offset, header.generation)

    # -- commit and abort

    def commit(self, owner: bytes, operation: int, reservations: Sequence[int], now: float) -> CommitResult:
        """Publish what is filled; one status a reservation, in order."""
        statuses: list[CommitStatus] = []
        published_bytes = 0
        for generation in reservations:
            reservation = self._reservations.find(owner, operation, generation)
            if reservation is None:
                status = self._answer_again(owner, operation, generation)
            else:
                status = self._end(reservation, now)
                if status is CommitStatus.COMMITTED:
                    published_bytes += reservation.header.payload_bytes
                self._remember(owner, operation, generation, status)
            statuses.append(status)
        self._counts.stored_bytes += published_bytes
        return CommitResult(tuple(statuses), published_bytes)

    def abort(self, owner: bytes, operation: int, reservations: Sequence[int], now: float) -> None:
        """Free what the operation reserved and did not commit; all of it when none is named."""
        named = frozenset(reservations)
        for reservation in self._reservations.of_operation(owner, operation):
            if not named or reservation.header.generation in named:
                self._free(reservation, now)

    def _end(self, reservation: Reservation, now: float) -> CommitStatus:
        """Publish one reservation, or free its slot and say why."""
        header, group = reservation.header, reservation.group
        cleared = header.clear_epoch < group.namespace.record.clear_epoch or header.payload_bytes != group.chunk_bytes
        if reservation.standing is Standing.CUT:
            status = CommitStatus.DRAINED
        elif cleared:
            status = CommitStatus.CLEARED
        elif header.key in group.slots:
            status = CommitStatus.EXISTS
        else:
            self._publish(reservation, now)
            return CommitStatus.COMMITTED
        self._free(reservation, now)
        return status

    def _publish(self, reservation: Reservation, now: float) -> None:
        header, group = reservation.header, reservation.group
        storing = self._reservations.storing(header.owner, reservation.operation)
        idle = self._reservations.take(reservation)
        self._chunks.publish(header, group, reservation.parent, now)
        self._counts.commits += 1
        if storing is None:  # it was quarantined, and the operation has nothing else under way
            self._chunks.touch(group, (header.key,), now)
            return
        storing.committed.append((header.depth, header.key))
        self._settle(group, idle, now)

    def _free(self, reservation: Reservation, now: float) -> None:
        """Nobody writes there any more, and nothing readable came of it."""
        idle = self._reservations.take(reservation)
        self._slots.free(reservation.header.slot)
        self._counts.aborts += 1
        self._settle(reservation.group, idle, now)

    def _settle(self, group: Group, idle: Storing | None, now: float) -> None:
        """When nothing of an operation is under way any more, put its chunks in order: prefix hotter than suffix."""
        if idle is not None and idle.committed:
            self._chunks.touch(group, [key for _, key in sorted(idle.committed)], now)

    def _remember(self, owner: bytes, operation: int, generation: int, status: CommitStatus) -> None:
        self._answered[generation] = (owner, operation, status)
        if len(self._answered) > MAX_ANSWERED_COMMITS:
            self._answered.popitem(last=False)

    def _answer_again(self, owner: bytes, operation: int, generation: int) -> CommitStatus:
        """The same answer to a COMMIT that is repeated because its reply was lost."""
        known_owner, known_operation, status = self._answered.get(generation, (b"", -1, CommitStatus.UNKNOWN))
        return status if (known_owner, known_operation) == (owner, operation) else CommitStatus.UNKNOWN

    # -- other ends

    def expire(self, now: float) -> None:
        """Quarantine the reservations whose deadline has come."""
        for reservation in self._reservations.due(now):
            self._quarantine(reservation, Standing.QUARANTINED, now)

    def leave(self, owner: bytes, now: float) -> None:
        """The owner's registration is gone, the owner is not: quarantine what it reserved."""
        for reservation in self._reservations.all_live({owner}):
            self._quarantine(reservation, Standing.QUARANTINED, now)

    def cut(self, now: float, owners: Container[bytes] | None = None) -> None:
        """A drain ends: quarantine what is live, of all parties or of these. A COMMIT of it comes too late."""
        for reservation in self._reservations.all_live(owners):
            self._quarantine(reservation, Standing.CUT, now)

    def free_older(self, owner: bytes, boot_epoch: int, now: float) -> None:
        """The owner holds nothing from an older boot: free those slots."""
        for reservation in self._reservations.of_owner(owner):
            if reservation.header.generation >> GENERATION_COUNTER_BITS < boot_epoch:
                self._free(reservation, now)

    def bury(self, owner: bytes, now: float) -> None:
        """The owner is proven dead: free all it held."""
        for reservation in self._reservations.of_owner(owner):
            self._free(reservation, now)

    def _quarantine(self, reservation: Reservation, standing: Standing, now: float) -> None:
        idle = self._reservations.quarantine(reservation, standing)
        self._settle(reservation.group, idle, now)
