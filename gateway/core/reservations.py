"""Reservations: rights to fill slots, and the slots that nobody may reuse yet.

Owns: every reservation, live or quarantined, by generation, owner, operation and key; quotas' sums; deadlines. Must not
know: READY chunks, the gateway's state. Runs on the loop's thread.

A live reservation blocks its key and ends by COMMIT, ABORT or its owner's death. At its deadline, at a drain's cut or
when its owner unregisters it is quarantined: its key is free for others, its slot is not, because its owner may still
be writing there and only the owner's word or proven death says otherwise. A reservation's id is its slot's generation.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.deadlines import GONE, Deadlines
from gateway.core.index import Group
from gateway.core.slots import Slots, SlotState
from gateway.core.types import SlotRecord

OLDER_BOOT = -1  # the operation of a reservation found in the pool file


class Standing(StrEnum):
    """Where a reservation stands."""

    LIVE = "live"
    QUARANTINED = "quarantined"  # its deadline passed, its owner unregistered, or it is an older boot's
    CUT = "cut"  # quarantined by a drain: its COMMIT comes too late


@dataclass(slots=True, eq=False)
class Reservation:
    """The right of one operation to fill one slot."""

    header: SlotRecord  # as written, WRITING
    group: Group
    operation: int
    parent: bytes
    standing: Standing = Standing.LIVE

    @property
    def is_live(self) -> bool:
        """Whether it blocks its key and holds up a drain."""
        return self.standing is Standing.LIVE


@dataclass(slots=True, eq=False)
class Storing:
    """One operation with live reservations."""

    deadline: float
    live: int = 0
    committed: list[tuple[int, bytes]] = field(default_factory=list)  # depth and key, since it was last idle


@dataclass(slots=True, eq=False)
class _Owner:
    """All of one party's, live and quarantined."""

    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    operations: dict[int, dict[int, Reservation]] = field(default_factory=dict)  # operation -> generation -> it


_NOBODY = _Owner()


class Reservations:
    """All reservations."""

    def __init__(self, slots: Slots) -> None:
        self.num_ended = 0  # operations whose live reservations ended in any way
        self._slots = slots
        self._by_generation: dict[int, Reservation] = {}
        self._live_by_key: dict[tuple[int, bytes], Reservation] = {}
        self._owners: dict[bytes, _Owner] = {}
        self._storing: dict[tuple[bytes, int], Storing] = {}
        self._deadlines: Deadlines[tuple[bytes, int]] = Deadlines()

    # -- come

    def grant(self, header: SlotRecord, group: Group, operation: int, parent: bytes, deadline: float) -> None:
        """A new live reservation of the slot in ``header``; its operation's deadline is now ``deadline``."""
        reservation = Reservation(header, group, operation, parent)
        self._hold(reservation)
        self._live_by_key[group.number, header.key] = reservation
        name = (header.owner, operation)
        storing = self._storing.get(name)
        if storing is None:
            storing = self._storing[name] = Storing(deadline)
            self._deadlines.add(name, deadline)
        storing.deadline = deadline
        storing.live += 1

    def recover(self, header: SlotRecord, group: Group) -> None:
        """A WRITING slot of an older boot, adopted: quarantined under its owner."""
        self._hold(Reservation(header, group, OLDER_BOOT, b"", Standing.QUARANTINED))

    def _hold(self, reservation: Reservation) -> None:
        header = reservation.header
        self._by_generation[header.generation] = reservation
        owner = self._owners.setdefault(header.owner, _Owner())
        owner.operations.setdefault(reservation.operation, {})[header.generation] = reservation
        if reservation.is_live:
            owner.reserved_bytes += header.extent
        else:
            owner.quarantined_bytes += header.extent

    def renew(self, owner: bytes, operation: int, deadline: float) -> None:
        """Put the deadline of an operation's live reservations off."""
        storing = self._storing.get((owner, operation))
        if storing is not None:
            storing.deadline = deadline

    # -- find

    def namespaces(self) -> frozenset[bytes]:
        """Namespaces in which something may still be published."""
        return frozenset(one.group.namespace.record.namespace for one in self._by_generation.values())

    def find(self, owner: bytes, operation: int, generation: int) -> Reservation | None:
        """The reservation of this id, if it is this operation's."""
        reservation = self._by_generation.get(generation)
        if reservation is None or reservation.header.owner != owner or reservation.operation != operation:
            return None
        return reservation

    def live(self, group: Group, key: bytes) -> Reservation | None:
        """The live reservation that blocks a key."""
        return self._live_by_key.get((group.number, key))

    def of_operation(self, owner: bytes, operation: int) -> list[Reservation]:
        """All of one operation, live and quarantined."""
        return list(self._owners.get(owner, _NOBODY).operations.get(operation, {}).values())

    def of_owner(self, owner: bytes) -> list[Reservation]:
        """All of one party, live and quarantined."""
        return [one for held in self._owners.get(owner, _NOBODY).operations.values() for one in held.values()]

    def operations_of(self, owner: bytes) -> list[int]:
        """Numbers of the party's operations that hold slots; OLDER_BOOT is not one."""
        return [number for number in self._owners.get(owner, _NOBODY).operations if number != OLDER_BOOT]

    def storing(self, owner: bytes, operation: int) -> Storing | None:
        """The operation, if it has live reservations."""
        return self._storing.get((owner, operation))

    def held_bytes(self, owner: bytes) -> tuple[int, int]:
        """Bytes the party has reserved, and bytes quarantined under it."""
        held = self._owners.get(owner, _NOBODY)
        return held.reserved_bytes, held.quarantined_bytes

    def owners(self) -> Iterator[bytes]:
        """Every party that holds a slot."""
        return iter(self._owners)

    def all_live(self, owners: Container[bytes] | None = None) -> list[Reservation]:
        """Live reservations, of all parties or of these."""
        live = self._live_by_key.values()
        return [one for one in live if owners is None or one.header.owner in owners]

    @property
    def num_live(self) -> int:
        """Live reservations."""
        return len(self._live_by_key)

    def sizes(self) -> dict[str, int]:
        """Entries of the tables, by the names of the metric ``table_entries``."""
        return {
            "storing_operations": len(self._storing),
            "reservation_deadlines": len(self._deadlines),
        }

    def num_storing(self, owners: Container[bytes] | None = None) -> int:
        """Operations with live reservations, of all parties or of these."""
        if owners is None:
            return len(self._storing)
        return sum(owner in owners for owner, _ in self._storing)

    # -- go

    def take(self, reservation: Reservation) -> Storing | None:
        """Forget a reservation; its slot is the caller's now.

        Returns:
            Its operation, when this was the last live reservation of it.
        """
        header = reservation.header
        del self._by_generation[header.generation]
        owner = self._owners[header.owner]
        held = owner.operations[reservation.operation]
        del held[header.generation]
        if not held:
            del owner.operations[reservation.operation]
        idle = None
        if reservation.is_live:
            owner.reserved_bytes -= header.extent
            idle = self._unblock(reservation)
        else:
            owner.quarantined_bytes -= header.extent
        if not owner.operations:
            del self._owners[header.owner]
        return idle

    def quarantine(self, reservation: Reservation, standing: Standing) -> Storing | None:
        """End a live reservation while its owner may still be writing.

        Returns:
            Its operation, when this was the last live reservation of it.
        """
        header = reservation.header
        idle = self._unblock(reservation)
        reservation.standing = standing
        owner = self._owners[header.owner]
        owner.reserved_bytes -= header.extent
        owner.quarantined_bytes += header.extent
        self._slots.states[header.slot] = SlotState.QUARANTINED
        return idle

    def _unblock(self, reservation: Reservation) -> Storing | None:
        header = reservation.header
        del self._live_by_key[reservation.group.number, header.key]
        name = (header.owner, reservation.operation)
        storing = self._storing[name]
        storing.live -= 1
        if storing.live:
            return None
        del self._storing[name]
        self.num_ended += 1
        return storing

    def due(self, now: float) -> list[Reservation]:
        """Live reservations whose deadline has come, each told once: they must be ended."""
        names = list(self._deadlines.due(now, self._deadline_of))
        return [one for name in names for one in self.of_operation(*name) if one.is_live]

    def _deadline_of(self, name: tuple[bytes, int]) -> float:
        storing = self._storing.get(name)
        return storing.deadline if storing is not None else GONE

    def check(self) -> None:
        """Raise AssertionError unless all tables agree with each other and with the slots."""
        slots, seen, live = self._slots, set(), 0
        for name, owner in self._owners.items():
            assert owner.operations, "an owner without reservations is remembered"
            of_owner = self.of_owner(name)
            reserved = sum(one.header.extent for one in of_owner if one.is_live)
            quarantined = sum(one.header.extent for one in of_owner if not one.is_live)
            assert (reserved, quarantined) == (owner.reserved_bytes, owner.quarantined_bytes), (
                "an owner's sums are wrong"
            )
            for number, held in owner.operations.items():
                num_live = sum(one.is_live for one in held.values())
                storing = self._storing.get((name, number))
                assert num_live == (storing.live if storing is not None else 0), "an operation's live count is wrong"
            for one in of_owner:
                header = one.header
                seen.add(header.slot)
                live += one.is_live
                state = SlotState.WRITING if one.is_live else SlotState.QUARANTINED
                assert slots.states[header.slot] == state, f"slot {header.slot} is not {state.name}"
                assert slots.generations[header.slot] == header.generation, f"slot {header.slot} has another generation"
                assert self._by_generation[header.generation] is one, "a reservation is not known by its id"
                blocks = self._live_by_key.get((one.group.number, header.key)) is one
                assert blocks == one.is_live, "a reservation blocks its key wrongly or not"
        assert len(seen) == len(self._by_generation), "two reservations have one slot"
        assert live == len(self._live_by_key), "a key is blocked by no reservation"
        held_slots = slots.in_state(SlotState.WRITING) + slots.in_state(SlotState.QUARANTINED)
        assert seen == set(held_slots), "a slot is held by no reservation"
