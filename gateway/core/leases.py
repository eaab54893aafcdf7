"""Leases: rights to read slots.

Owns: sessions with the chunks a LOOKUP leased for them, and the read lease of each retrieve; their deadlines. Must
not know: parties' roles, the gateway's state, reservations. Runs on the loop's thread.

The two kinds never release each other's pins: a retrieve ends its own lease, and the lookup's ends by RELEASE,
END_SESSION, its owner's death or its deadline.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from gateway.core.chunks import Chunks
from gateway.core.deadlines import GONE, Deadlines
from gateway.core.policy.order import NO_SLOT
from gateway.core.types import ReadGrant


@dataclass(slots=True, eq=False)
class Session:
    """One request's life. It lives on, without a lease, when its lease ran out or hit nothing."""

    slots: list[int]  # chunk i's shards at [i * width, (i + 1) * width); NO_SLOT: released
    width: int
    deadline: float
    last_deadline: float  # no renewal goes past it

    @property
    def is_leased(self) -> bool:
        """Whether it holds a chunk."""
        return any(slot != NO_SLOT for slot in self.slots)


@dataclass(slots=True, eq=False)
class ReadLease:
    """What one retrieve reads."""

    keys: tuple[bytes, ...]
    grants: tuple[ReadGrant, ...]
    slots: list[int]  # those granted
    deadline: float


class Leases:
    """All leases, of sessions and of retrieves."""

    def __init__(self, chunks: Chunks) -> None:
        self.num_reads_ended = 0
        self._chunks = chunks
        self._sessions: dict[bytes, dict[int, Session]] = {}  # by party and number
        self._reads: dict[bytes, dict[int, ReadLease]] = {}  # by party and operation
        self._session_deadlines: Deadlines[tuple[bytes, int]] = Deadlines()
        self._read_deadlines: Deadlines[tuple[bytes, int]] = Deadlines()

    # -- sessions

    def session(self, party: bytes, number: int) -> Session | None:
        """The session, if it has not ended."""
        return self._sessions.get(party, {}).get(number)

    def sessions_of(self, party: bytes) -> dict[int, Session]:
        """The party's sessions that have not ended; not to be changed."""
        return self._sessions.get(party, {})

    def lease(self, party: bytes, number: int, session: Session, now: float) -> None:
        """Lease these chunks for the session, in place of what it had."""
        of_party = self._sessions.setdefault(party, {})
        before = of_party.get(number)
        of_party[number] = session
        self._chunks.pin(session.slots, now)
        if before is not None:
            self._chunks.unpin(before.slots, now)
        self._session_deadlines.add((party, number), session.deadline)

    def release(self, party: bytes, number: int, start: int, end: int, now: float) -> None:
        """End the lease on chunks [start, end); what it does not hold is skipped."""
        session = self.session(party, number)
        if session is None:
            return
        part = slice(start * session.width, min(end * session.width, len(session.slots)))
        released = session.slots[part]
        session.slots[part] = [NO_SLOT] * len(released)
        self._chunks.unpin(released, now)

    def end_session(self, party: bytes, number: int, now: float) -> None:
        """End a session and its lease; an unknown one changes nothing."""
        of_party = self._sessions.get(party, {})
        session = of_party.pop(number, None)
        if session is None:
            return
        if not of_party:
            del self._sessions[party]
        self._chunks.unpin(session.slots, now)

    def leased_slots(self, parties: Iterable[bytes], wanted: Iterable[int]) -> set[int]:
        """Which of the wanted slots sessions of these parties lease."""
        missing = set(wanted)
        found: set[int] = set()
        for party in parties:
            for session in self.sessions_of(party).values():
                here = missing.intersection(session.slots)
                missing -= here
                found |= here
        return found

    # -- retrieves

    def read(self, party: bytes, operation: int) -> ReadLease | None:
        """The retrieve's lease, if it lives."""
        return self._reads.get(party, {}).get(operation)

    def reads_of(self, party: bytes) -> dict[int, ReadLease]:
        """The party's read leases; not to be changed."""
        return self._reads.get(party, {})

    def begin_read(self, party: bytes, operation: int, lease: ReadLease, now: float) -> None:
        """Lease chunks for a retrieve, which has no lease yet."""
        self._reads.setdefault(party, {})[operation] = lease
        self._chunks.pin(lease.slots, now)
        self._read_deadlines.add((party, operation), lease.deadline)

    def end_read(self, party: bytes, operation: int, now: float) -> None:
        """End a retrieve's lease; an unknown one changes nothing."""
        of_party = self._reads.get(party, {})
        lease = of_party.pop(operation, None)
        if lease is None:
            return
        if not of_party:
            del self._reads[party]
        self.num_reads_ended += 1
        self._chunks.unpin(lease.slots, now)

    # -- both

    def num_sessions_leased(self) -> int:
        """Sessions that hold a chunk."""
        return sum(session.is_leased for of_party in self._sessions.values() for session in of_party.values())

    def num_reads(self, parties: Container[bytes] | None = None) -> int:
        """Read leases, of all parties or of these."""
        return sum(len(reads) for party, reads in self._reads.items() if parties is None or party in parties)

    def sizes(self) -> dict[str, int]:
        """Entries of the tables, by the names of the metric ``table_entries``."""
        return {
            "sessions": sum(map(len, self._sessions.values())),
            "lease_deadlines": len(self._session_deadlines) + len(self._read_deadlines),
        }

    def end_party(self, party: bytes, now: float) -> None:
        """End all leases of a party."""
        for number in list(self.sessions_of(party)):
            self.end_session(party, number, now)
        for operation in list(self.reads_of(party)):
            self.end_read(party, operation, now)

    def cut(self, now: float, parties: Container[bytes] | None = None) -> None:
        """A drain ends: drop all leases, of all parties or of these. Sessions live on without one."""
        for party, sessions in self._sessions.items():
            if parties is None or party in parties:
                for session in sessions.values():
                    self._drop(session, now)
        for party in list(self._reads):
            if parties is None or party in parties:
                for operation in list(self._reads[party]):
                    self.end_read(party, operation, now)

    def expire(self, now: float) -> None:
        """End the leases whose deadline has come."""
        for party, number in self._session_deadlines.due(now, self._session_deadline):
            session = self.session(party, number)
            if session is not None:
                self._drop(session, now)
        for party, operation in self._read_deadlines.due(now, self._read_deadline):
            self.end_read(party, operation, now)

    def _drop(self, session: Session, now: float) -> None:
        slots, session.slots = session.slots, []
        self._chunks.unpin(slots, now)

    def _session_deadline(self, name: tuple[bytes, int]) -> float:
        session = self.session(*name)
        return session.deadline if session is not None and session.slots else GONE

    def _read_deadline(self, name: tuple[bytes, int]) -> float:
        lease = self.read(*name)
        return lease.deadline if lease is not None else GONE

    def check(self) -> None:
        """Raise AssertionError unless every pin is a lease's and every lease's chunk is pinned."""
        pins: dict[int, int] = {}
        for of_party in self._sessions.values():
            assert of_party, "a party without sessions is remembered"
            for session in of_party.values():
                for slot in session.slots:
                    pins[slot] = pins.get(slot, 0) + 1
        for of_reader in self._reads.values():
            assert of_reader, "a party without read leases is remembered"
            for lease in of_reader.values():
                for slot in lease.slots:
                    pins[slot] = pins.get(slot, 0) + 1
        pins.pop(NO_SLOT, None)
        assert pins == self._chunks.slots.pinned(), "pins and leases differ"
