"""Namespaces as they change: described by their parties, cleared by operators.

Owns: the clear epoch, and what a registration or a clear does to chunks. Must not know: who may do it. Runs on the
loop's thread.

A clear raises the epoch in the pool file first, then in the namespaces it is of, then frees headers: however far it
comes before a crash, a namespace whose epoch was raised gives none of its older chunks back.
"""

from collections.abc import Callable
from dataclasses import replace

from gateway.core.chunks import Chunks
from gateway.core.index import Group
from gateway.core.types import ClearResult, NamespaceRecord, PartySpec, Refusal, WriteClearEpoch, WriteNamespace
from gateway.wire.codes import ErrorCode, EvictionReason, Role

#: As many as the pool file's table has room for; what it does not name a warm start can no longer describe.
MAX_NAMESPACES = 1024
_MAX_SHOWN = 10


class Namespaces:
    """What is known of every namespace, kept in the pool file too."""

    def __init__(self, chunks: Chunks, clear_epoch: int) -> None:
        self.clear_epoch = clear_epoch
        self._index = chunks.index
        self._chunks = chunks

    def make_room(self, namespace: bytes, in_use: Callable[[], frozenset[bytes]]) -> None:
        """See that a namespace can be described: forget empty ones, else the one that was hit longest ago.

        Args:
            namespace: the one that comes.
            in_use: tells those of live parties and of reservations, which stay.

        Raises:
            Refusal: LIMIT; all are in use.
        """
        if namespace in self._index or len(self._index) < MAX_NAMESPACES:
            return
        used = in_use()
        idle = [one for one in self._index if one.record.namespace not in used]
        if not idle:
            raise Refusal(ErrorCode.LIMIT, f"{len(self._index)} namespaces are in use, no more can be")
        empty = [one for one in idle if not one.num_chunks]
        for one in empty or [min(idle, key=lambda one: one.last_hit_wall)]:
            for group in one.groups.values():
                self._chunks.drop_group(group, EvictionReason.CAPACITY)
            self._index.forget(one)

    def describe(self, spec: PartySpec) -> None:
        """Take over what a party says of its namespace; chunks of a size that no live party has are evicted."""
        known = self._index.find(spec.namespace)
        # One that was forgotten may have been cleared: of what it had before, nothing may come back.
        epoch = known.record.clear_epoch if known is not None else self.clear_epoch
        record = NamespaceRecord(spec.namespace, spec.model, spec.shard_count, spec.chunk_tokens, epoch)
        if known is None or known.record != record:
            known = self._index.describe(record)
            self._chunks.slots.effects.append(WriteNamespace(record))
        if spec.role is Role.WORKER:
            group = self._index.group(known, spec.shard)
            if group.chunk_bytes != spec.chunk_bytes:
                self._chunks.drop_group(group, EvictionReason.GEOMETRY)
                group.chunk_bytes = spec.chunk_bytes

    def group_of(self, spec: PartySpec) -> Group:
        """The chunks that a registered worker stores and reads."""
        known = self._index.find(spec.namespace)
        assert known is not None, "a worker is registered and its namespace is not known"
        return self._index.group(known, spec.shard)

    def clear(self, model: str, namespace: bytes, *, everything: bool, dry_run: bool) -> ClearResult:
        """Take chunks out of the index; those that a lease holds are freed by its end.

        Raises:
            Refusal: NOT_FOUND; nothing is known of that model or namespace.
        """
        chosen = [
            one for one in self._index if everything or one.record.model == model or one.record.namespace == namespace
        ]
        if not chosen and not everything:
            raise self._unknown(model, namespace)
        groups = [group for one in chosen for group in one.groups.values()]
        result = ClearResult(
            chunks=sum(one.num_chunks for one in chosen),
            bytes=sum(one.num_bytes for one in chosen),
            held_chunks=sum(self._chunks.num_held(group) for group in groups),
        )
        if chosen and not dry_run:
            self.clear_epoch += 1
            self._chunks.slots.effects.append(WriteClearEpoch(self.clear_epoch))
            for one in chosen:
                one.record = replace(one.record, clear_epoch=self.clear_epoch)
                self._chunks.slots.effects.append(WriteNamespace(one.record))
            for group in groups:
                self._chunks.drop_group(group, EvictionReason.CLEARED)
        return result

    def _unknown(self, model: str, namespace: bytes) -> Refusal:
        kind, asked = ("model", repr(model)) if model else ("namespace", namespace.hex())
        names = {one.record.model if model else one.record.namespace.hex() for one in self._index}
        known = sorted(names - {""})
        shown = ", ".join(known[:_MAX_SHOWN]) + (", …" if len(known) > _MAX_SHOWN else "")
        return Refusal(ErrorCode.NOT_FOUND, f"there is no {kind} {asked}; known are: {shown or 'none'}")
