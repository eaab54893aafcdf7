"""The index: which slot holds the READY chunk of a key, by namespace and shard.

Owns: namespaces, groups (one shard of one namespace) and their dict from key to slot. Must not know: slots' states,
leases, parties. Runs on the loop's thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.core.types import NamespaceRecord


@dataclass(slots=True, eq=False)
class Group:
    """READY chunks of one shard of a namespace; all of one size."""

    namespace: "Namespace"
    shard: int
    number: int  # stands in the slots' ``groups`` column
    chunk_bytes: int = 0  # 0: no chunk has come yet
    slots: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Namespace:
    """What is known of a namespace, and its groups by shard."""

    record: NamespaceRecord
    last_hit_wall: float = 0.0
    groups: dict[int, Group] = field(default_factory=dict)

    @property
    def num_chunks(self) -> int:
        """READY chunks of all its shards."""
        return sum(len(group.slots) for group in self.groups.values())

    @property
    def num_bytes(self) -> int:
        """Their bytes."""
        return sum(len(group.slots) * group.chunk_bytes for group in self.groups.values())


class Index:
    """All namespaces and groups. A group's number is its alone, for as long as this boot lives."""

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}  # by number
        self._next_group = 0
        self._namespaces: dict[bytes, Namespace] = {}

    def __iter__(self) -> Iterator[Namespace]:
        return iter(self._namespaces.values())

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, namespace: object) -> bool:
        return namespace in self._namespaces

    def find(self, namespace: bytes) -> Namespace | None:
        """The namespace, if it is known."""
        return self._namespaces.get(namespace)

    def describe(self, record: NamespaceRecord) -> Namespace:
        """The namespace of the record, which is taken over."""
        known = self._namespaces.get(record.namespace)
        if known is None:
            known = self._namespaces[record.namespace] = Namespace(record)
        known.record = record
        return known

    def group(self, namespace: Namespace, shard: int) -> Group:
        """The group of a shard, made if need be."""
        group = namespace.groups.get(shard)
        if group is None:
            group = namespace.groups[shard] = Group(namespace, shard, self._next_group)
            self.groups[group.number] = group
            self._next_group += 1
        return group

    def forget(self, namespace: Namespace) -> None:
        """Forget a namespace in which there are no chunks, and in which nobody will publish any."""
        del self._namespaces[namespace.record.namespace]
        for group in namespace.groups.values():
            del self.groups[group.number]
