"""The lookups of a scheduler half: what each request was promised, and for how long.

Owns: sessions and their numbers, the promise and the lease of each. Must not know: messages, threads, what a key means.
Pure; the time is passed in, the caller serializes calls.

Every new lookup takes a new session number and ends the session before it, because a number that has ended is granted
nothing again. A promise is good only while its lease lives, so nothing here needs to be told that a lease is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from gateway.wire.messages import MAX_KEYS

#: Requests with a lookup that are remembered; a heartbeat can list so many sessions.
MAX_LOOKUPS = MAX_KEYS


class Pending(Enum):
    """The answer of a lookup that is not there yet."""

    PENDING = auto()


@dataclass(slots=True)
class Lookup:
    """One session: its request's latest lookup.

    Attributes:
        keys: asked for.
        is_answered: the gateway answered, or it was given up: ``chunks`` is final.
        held: of the promised chunks, those not released.
    """

    session: int
    keys: tuple[bytes, ...]
    began: float
    deadline: float
    is_answered: bool = False
    lease_deadline: float = 0.0
    held: set[int] = field(default_factory=set)

    def promised_chunks(self) -> int:
        """Leading chunks promised and not released."""
        count = 0
        while count in self.held:
            count += 1
        return count

    def is_live(self, now: float) -> bool:
        """Whether the gateway holds, or may come to hold, a lease for it."""
        return not self.is_answered or (bool(self.held) and now < self.lease_deadline)


class Lookups:
    """Every request that was looked up and has not ended."""

    def __init__(self) -> None:
        self._by_request: dict[str, Lookup] = {}  # oldest lookup first
        self._next_session = 1
        self._unanswered = 0

    @property
    def next_session(self) -> int:
        """The number the next lookup gets."""
        return self._next_session

    @property
    def num_unanswered(self) -> int:
        """Lookups that wait for the gateway."""
        return self._unanswered

    def __len__(self) -> int:
        return len(self._by_request)

    def knows(self, request_id: str) -> bool:
        """Whether the request has been looked up since it began."""
        return request_id in self._by_request

    def is_needless(self, request_id: str, keys: tuple[bytes, ...], now: float) -> bool:
        """Whether the request's lookup of these very keys is under way, or its promise good."""
        lookup = self._by_request.get(request_id)
        return lookup is not None and lookup.keys == keys and lookup.is_live(now)

    def begin(self, request_id: str, keys: tuple[bytes, ...], deadline: float, now: float) -> tuple[Lookup, list[int]]:
        """A new lookup. Returns it, and the sessions that end for it: the request's last, the oldest over the bound."""
        ended = self.end(request_id)
        while len(self._by_request) >= MAX_LOOKUPS:
            ended += self.end(next(iter(self._by_request)))
        lookup = Lookup(self._next_session, keys, now, deadline)
        self._next_session += 1
        self._unanswered += 1
        self._by_request[request_id] = lookup
        return lookup, ended

    def answer(self, request_id: str, session: int, chunks: int, lease_deadline: float) -> Lookup | None:
        """The gateway answered. None: the request has ended or was looked up again meanwhile."""
        lookup = self._by_request.get(request_id)
        if lookup is None or lookup.session != session or lookup.is_answered:
            return None
        self._unanswered -= 1
        lookup.is_answered = True
        lookup.lease_deadline = lease_deadline
        lookup.held = set(range(min(chunks, len(lookup.keys))))
        return lookup

    def check(self, request_id: str, now: float) -> int | Pending:
        """Chunks promised now. An unknown request, or one that waited too long, has none."""
        lookup = self._by_request.get(request_id)
        if lookup is None:
            return 0
        if not lookup.is_answered:
            return Pending.PENDING if now < lookup.deadline else 0
        return lookup.promised_chunks() if now < lookup.lease_deadline else 0

    def release(self, request_id: str, start: int, end: int) -> tuple[int, int, bool] | None:
        """Give chunks [start, end) of a promise back.

        Returns:
            The session, how many were given back, and whether none is left; None: there was nothing to give back.
        """
        lookup = self._by_request.get(request_id)
        if lookup is None:
            return None
        released = lookup.held.intersection(range(start, end))
        if not released:
            return None
        lookup.held -= released
        return lookup.session, len(released), not lookup.held

    def end(self, request_id: str) -> list[int]:
        """The request is over. Returns the session to end, if it has one."""
        lookup = self._by_request.pop(request_id, None)
        if lookup is None:
            return []
        self._unanswered -= not lookup.is_answered
        return [lookup.session]

    def end_all(self) -> list[int]:
        """Every request's promise is void. Returns the sessions to end."""
        sessions = [lookup.session for lookup in self._by_request.values()]
        self._by_request.clear()
        self._unanswered = 0
        return sessions

    def void_all(self) -> None:
        """The gateway, and with it every lease, is gone or not to be relied on."""
        for lookup in self._by_request.values():
            lookup.is_answered = True
            lookup.held.clear()
        self._unanswered = 0

    def renew(self, listed: Iterable[int], live: Iterable[int], lease_deadline: float) -> None:
        """The gateway was told the ``listed`` sessions, and renewed the leases of the ``live`` ones among them.

        One that it does not know any more, after a drain that came and went between two heartbeats, is void at once.
        Replies come in order: a lookup that is answered by now was asked before that heartbeat.
        """
        told, renewed = frozenset(listed), frozenset(live)
        for lookup in self._by_request.values():
            if not lookup.is_answered:
                continue
            if lookup.session in renewed:
                lookup.lease_deadline = max(lookup.lease_deadline, lease_deadline)
            elif lookup.session in told:
                lookup.held.clear()

    def live_sessions(self, now: float) -> tuple[int, ...]:
        """Sessions whose lease is to be renewed."""
        return tuple(lookup.session for lookup in self._by_request.values() if lookup.is_live(now))
