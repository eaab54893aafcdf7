"""Healing: what a heartbeat says about lost messages.

Owns: what a PING ends and what it renews. Must not know: how a store or a lease ends. Runs on the loop's thread.

A party lists its unsettled operations and live sessions and the next number of each. Whatever is below that number
and not listed has ended there, so the message that said so was lost: it ends here now. Only what is listed is
renewed.
"""

from collections.abc import Iterable

from gateway.core.leases import Leases, Session
from gateway.core.parties import Party
from gateway.core.reservations import Reservations
from gateway.core.stores import Stores
from gateway.core.types import CoreConfig


class Healing:
    """What a heartbeat does to one party's operations and sessions."""

    def __init__(self, config: CoreConfig, reservations: Reservations, stores: Stores, leases: Leases) -> None:
        self._config = config
        self._reservations = reservations
        self._stores = stores
        self._leases = leases

    def operations(self, party: bytes, next_operation: int, listed: Iterable[int], now: float) -> None:
        """End or renew its reservations (quarantined ones end too: no unit of theirs runs) and its read leases."""
        unsettled = frozenset(listed)
        for operation in self._reservations.operations_of(party):
            if operation in unsettled:
                self._reservations.renew(party, operation, now + self._config.reservation_seconds)
            elif operation < next_operation:
                self._stores.abort(party, operation, (), now)
        for operation, lease in list(self._leases.reads_of(party).items()):
            if operation in unsettled:
                lease.deadline = now + self._config.lease_seconds
            elif operation < next_operation:
                self._leases.end_read(party, operation, now)

    def sessions(self, party: Party, next_session: int, listed: Iterable[int], now: float, *, renews: bool) -> None:
        """End or renew its sessions. While a drain is on, none is renewed."""
        leases, config = self._leases, self._config
        live = frozenset(listed)
        for number, session in list(leases.sessions_of(party.id).items()):
            if number in live:
                if renews and session.deadline > now:
                    session.deadline = min(now + config.lease_seconds, session.last_deadline)
            elif number < next_session:
                leases.end_session(party.id, number, now)
        for number in live:  # its LOOKUP may be on the way still: it must not count as ended
            has_room = len(leases.sessions_of(party.id)) < config.max_sessions_per_party
            if number < next_session and has_room and leases.session(party.id, number) is None:
                leases.lease(party.id, number, Session([], width=1, deadline=now, last_deadline=now), now)
        party.last_ended_session = max(party.last_ended_session, next_session - 1)
