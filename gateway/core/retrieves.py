"""Retrieves: LOOKUP and READ, from keys to leased chunks.

Owns: what a lookup finds and a read is granted, and their counts. Must not know: messages, the gateway's state (the
core asked before). Runs on the loop's thread.
"""

from collections.abc import Sequence

from gateway.core.chunks import Chunks
from gateway.core.index import Group
from gateway.core.leases import Leases, ReadLease, Session
from gateway.core.parties import Party
from gateway.core.policy.order import NO_SLOT
from gateway.core.types import CoreConfig, Counts, Found, PartySpec, ReadGrant, Refusal
from gateway.wire.codes import ErrorCode


class Retrieves:
    """The road of chunks out of the pool."""

    def __init__(self, config: CoreConfig, chunks: Chunks, leases: Leases, counts: Counts) -> None:
        self._config = config
        self._chunks = chunks
        self._leases = leases
        self._counts = counts

    def lookup(
        self, scheduler: Party, session: int, namespace: bytes, keys: Sequence[bytes], *, now: float, wall: float
    ) -> Found:
        """Lease the leading chunks of which every shard is there, in place of what the session had leased.

        A session that has ended finds nothing and stays ended.
        """
        before = self._leases.session(scheduler.id, session)
        if before is None and session <= scheduler.last_ended_session:
            return Found(0, 0.0)
        width = scheduler.spec.shard_count
        hits = self._chunks.leading(namespace, width, keys)
        self._chunks.learn_parents(hits, width, keys)
        num_chunks = len(hits) // width
        if num_chunks < len(keys) and self._chunks.was_evicted(namespace, keys[num_chunks]):
            self._counts.lookup_evicted_keys += 1
        if before is None or not before.is_leased:
            self._chunks.use(hits)
        known = self._chunks.index.find(namespace)
        if hits and known is not None:
            known.last_hit_wall = wall
        last_deadline = now + self._config.max_lease_seconds
        deadline = min(now + self._config.lease_seconds, last_deadline)
        self._leases.lease(scheduler.id, session, Session(hits, width, deadline, last_deadline), now)
        return Found(num_chunks, deadline if hits else 0.0)

    def count_lookup(self, spec: PartySpec, label: str, asked: int, found: int) -> None:
        """Count a lookup's tokens, whatever came of it."""
        asked_tokens, hit_tokens = self._counts.lookup_tokens, self._counts.hit_tokens
        asked_tokens[label] = asked_tokens.get(label, 0) + asked * spec.chunk_tokens
        hit_tokens[label] = hit_tokens.get(label, 0) + found * spec.chunk_tokens

    def repeat(self, party: bytes, operation: int, keys: Sequence[bytes], now: float) -> ReadLease | None:
        """The lease that a repeated READ has already, renewed.

        Raises:
            Refusal: INVALID; the operation reads other keys.
        """
        lease = self._leases.read(party, operation)
        if lease is not None:
            if lease.keys != tuple(keys):
                raise Refusal(ErrorCode.INVALID, f"operation {operation} reads other keys, expected the same again")
            lease.deadline = now + self._config.lease_seconds
        return lease

    def read(
        self, party: bytes, operation: int, group: Group, keys: Sequence[bytes], *, now: float
    ) -> tuple[tuple[ReadGrant, ...], float]:
        """Lease what is there of these keys; one grant a key, and the lease's deadline (0: nothing to lease)."""
        slots = self._chunks.slots
        found = [group.slots.get(key, NO_SLOT) for key in keys]
        grants = tuple(
            ReadGrant() if slot == NO_SLOT else ReadGrant(slot, slots.offset_of(slot), slots.generations[slot])
            for slot in found
        )
        leased = [slot for slot in found if slot != NO_SLOT]
        if not leased:
            return grants, 0.0
        deadline = now + self._config.lease_seconds
        self._leases.begin_read(party, operation, ReadLease(tuple(keys), grants, leased, deadline), now)
        self._counts.leased_bytes += len(leased) * group.chunk_bytes
        return grants, deadline
